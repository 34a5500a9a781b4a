"""POST /pairs: the most similar pairs among texts, with what each score is worth.

What a score is worth among these texts: calibrations that are made once and kept for the next question.
"""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import replace
from time import perf_counter
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from gemel.errors import InputError
from gemel.serve.errors import PlainError
from gemel.serve.limits import TooLarge
from gemel.serve.port import Ask, Services
from gemel.serve.protocols.explain import check_head
from gemel.serve.protocols.requests import Own, Texts, answer, client_of, example
from gemel.serve.protocols.texts import check_sizes, embed_many
from gemel.serve.routes import Routes
from gemel.types import Vectors
from gemel.vectors.calibration import Calibration, calibrate
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs

MOST = 10_000  # pairs in an answer

_USUAL = 20


class PairsRequest(Own):
    """Texts to compare with one another, or with others."""

    model_config = example(
        texts=["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell today."],
        k=1,
    )

    texts: Texts
    other: Texts | None = Field(None, description="Compare texts with these, not with one another")
    k: int | None = Field(None, ge=1, le=MOST, description=f"How many pairs; {_USUAL} if nothing is said")
    min_score: float | None = Field(None, ge=-1, le=1, description="How near")
    expected_false: float | None = Field(
        None, gt=0, description="How near, as the number of random pairs that may get in (46 texts or more)"
    )
    relation: bool = Field(False, description="Add the probabilities of the model's relation head")


class PairRow(BaseModel):
    """Two texts by their positions."""

    left: int
    right: int
    score: float = Field(description="Cosine")
    percentile: float | None = Field(
        description="Per cent of random pairs with a lower score; null: too few texts"
    )
    expected_false: float | None = Field(description="Random pairs expected to reach this score")
    left_text: str
    right_text: str
    relation: dict[str, float] | None = None


class PairsAnswer(BaseModel):
    """Best first."""

    pairs: list[PairRow]
    complete: bool = Field(description=f"No pair that was asked for is missing; at most {MOST:,} come back")
    compared: int
    seconds: float


def routes(services: Services, calibrations: Calibrations) -> Routes:
    """The route of this chapter."""
    route = Routes("Search", error=PlainError)

    @route.post("/pairs", PairsAnswer)
    async def pairs(request: Request, body: PairsRequest) -> Response:
        """The most similar pairs: every pair is compared."""
        started = perf_counter()
        if body.relation:
            check_head(services)
        _check(services, body)
        texts = [*body.texts, *(body.other or [])]
        client = client_of(request)
        with services.reserve(client):
            vectors = (await embed_many(services, texts, Ask(client=client))).vectors
            left = vectors[: len(body.texts)]
            right = None if body.other is None else vectors[len(body.texts) :]
            found = await services.work(
                lambda: _found(services, calibrations, body, client, left, right), client=client, long=True
            )
        return answer({**found, "seconds": perf_counter() - started})

    return route


def _check(services: Services, body: PairsRequest) -> None:
    most = services.limits.pair_texts
    check_sizes(services, body.texts, "texts", most)
    if body.other is not None:
        check_sizes(services, body.other, "other", most)
        total = len(body.texts) + len(body.other)
        if total > most:
            raise TooLarge(
                f"texts and other have {total:,} texts together; one request takes at most {most:,}"
            )
    elif len(body.texts) < 2:
        raise InputError("texts has one text: pairs need at least two, or other to compare with")


def _found(
    services: Services,
    calibrations: Calibrations,
    body: PairsRequest,
    client: str,
    left: Vectors,
    right: Vectors | None,
) -> dict[str, Any]:
    """The answer but for its seconds. Runs on a worker thread."""
    calibration = calibrations.between(client, left, right)
    floor = _floor(body, calibration, left, right)
    unasked = body.k is None and floor is None
    k = _USUAL if unasked else (body.k or MOST + 1)
    found = similar_pairs(left, other=right, k=k, min_score=floor)
    whole = len(found) <= MOST
    kept = replace(found, score=found.score[:MOST], left=found.left[:MOST], right=found.right[:MOST])
    rows = _rows(body, kept, calibration)
    if body.relation:
        chances = services.model.relation_of(left[kept.left], (left if right is None else right)[kept.right])
        labels = services.model.labels or ()
        for row, values in zip(rows, chances.tolist(), strict=True):
            row["relation"] = dict(zip(labels, values, strict=True))
    return {"pairs": rows, "complete": found.complete and whole, "compared": found.compared}


def _floor(
    body: PairsRequest, calibration: Calibration | None, left: Vectors, right: Vectors | None
) -> float | None:
    if body.expected_false is None:
        return body.min_score
    if calibration is None:
        pairs = len(left) * (len(left) - 1) // 2 if right is None else len(left) * len(right)
        raise InputError(
            f"expected_false needs at least 1,000 pairs (46 texts) that are not all alike, got {pairs:,}. "
            "Give more texts, or k or min_score"
        )
    found = calibration.threshold(body.expected_false)
    return found if body.min_score is None else max(found, body.min_score)


def _rows(body: PairsRequest, found: Pairs, calibration: Calibration | None) -> list[dict[str, Any]]:
    second = body.texts if body.other is None else body.other
    rows = []
    for score, one, other in zip(
        found.score.tolist(), found.left.tolist(), found.right.tolist(), strict=True
    ):
        rows.append(
            {
                "left": one,
                "right": other,
                "score": score,
                "percentile": None if calibration is None else calibration.percentile(score),
                "expected_false": None if calibration is None else calibration.expected_false(score),
                "left_text": body.texts[one],
                "right_text": second[other],
                "relation": None,
            }
        )
    return rows


_KEPT = 32

_SAMPLE = 200_000  # random pairs: enough for a percentile, a few milliseconds


class Calibrations:
    """The last few, by what they were made of. Safe to use from several threads."""

    def __init__(self) -> None:
        self._known: OrderedDict[object, Calibration | None] = OrderedDict()
        self._lock = threading.Lock()

    def between(self, client: str, left: Vectors, right: Vectors | None = None) -> Calibration | None:
        """Of pairs within `left`, or of left and right; None where they are too few, or too much alike, to show how
        high chance gets. Kept for this client only: another would learn by the time which texts it sent."""
        sides = [np.ascontiguousarray(side) for side in (left, right) if side is not None]
        key = [(side.shape, hashlib.blake2b(side.data, digest_size=16).digest()) for side in sides]
        return self.kept((client, *key), lambda: (left, right))

    def kept(self, key: object, sample: Callable[[], tuple[Vectors, Vectors | None]]) -> Calibration | None:
        """As `between`, for vectors that are fetched only when the key is new."""
        with self._lock:
            if key in self._known:
                self._known.move_to_end(key)
                return self._known[key]
        found = _calibrated(*sample())
        with self._lock:
            self._known[key] = found
            while len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return found


def _calibrated(left: Vectors, right: Vectors | None) -> Calibration | None:
    try:
        return calibrate(left, other=right, sample=_SAMPLE)
    except InputError:
        return None
