"""POST /pairs: the most similar pairs among texts, with the percentile of each score.

Percentiles come from calibrations (`Calibrations`), which are computed once and cached for later requests.
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
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError
from gemel.serve.limits import TooLarge
from gemel.serve.protocols.explain import check_head
from gemel.serve.protocols.requests import OwnRequest, Texts, client_of, example, json_response
from gemel.serve.protocols.texts import embed_many
from gemel.serve.routes import Routes
from gemel.serve.services import Services
from gemel.types import Vectors
from gemel.vectors.calibration import Calibration, calibrate
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs

MOST = 10_000  # pairs in an answer
DEFAULT_K = 20
CACHED = 32  # calibrations
SAMPLE = 200_000  # random pairs: enough for a percentile, a few milliseconds


class PairsRequest(OwnRequest):
    """Texts to compare with one another, or with others."""

    model_config = example(
        texts=["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell today."],
        k=1,
    )

    texts: Texts
    other: Texts | None = Field(None, description="Compare texts with these, not with one another")
    k: int | None = Field(None, ge=1, le=MOST, description=f"How many pairs; {DEFAULT_K} if nothing is said")
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
    """POST /pairs."""
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
            vectors = (await embed_many(services, texts, EmbedOptions(client=client))).vectors
            left = vectors[: len(body.texts)]
            right = None if body.other is None else vectors[len(body.texts) :]
            result = await services.work(
                lambda: _find_pairs(services, calibrations, body, client, left, right),
                client=client,
                long=True,
            )
        return json_response({**result, "seconds": perf_counter() - started})

    return route


def _check(services: Services, body: PairsRequest) -> None:
    most = services.limits.pair_texts
    services.limits.check_texts(body.texts, "texts", most)
    if body.other is not None:
        services.limits.check_texts(body.other, "other", most)
        total = len(body.texts) + len(body.other)
        if total > most:
            raise TooLarge(
                f"texts and other have {total:,} texts together; one request takes at most {most:,}"
            )
    elif len(body.texts) < 2:
        raise InputError("texts has one text: pairs need at least two, or other to compare with")


def _find_pairs(
    services: Services,
    calibrations: Calibrations,
    body: PairsRequest,
    client: str,
    left: Vectors,
    right: Vectors | None,
) -> dict[str, Any]:
    """The answer without its seconds. Runs on a worker thread."""
    calibration = calibrations.between(client, left, right)
    floor = _floor(body, calibration, left, right)
    k = DEFAULT_K if body.k is None and floor is None else (body.k or MOST + 1)
    pairs = similar_pairs(left, other=right, k=k, min_score=floor)
    first = replace(pairs, score=pairs.score[:MOST], left=pairs.left[:MOST], right=pairs.right[:MOST])
    rows = _rows(body, first, calibration)
    if body.relation:
        probabilities = services.model.relation_of(
            left[first.left], (left if right is None else right)[first.right]
        )
        labels = services.model.labels or ()
        for row, values in zip(rows, probabilities.tolist(), strict=True):
            row["relation"] = dict(zip(labels, values, strict=True))
    return {"pairs": rows, "complete": pairs.complete and len(pairs) <= MOST, "compared": pairs.compared}


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
    threshold = calibration.threshold(body.expected_false)
    return threshold if body.min_score is None else max(threshold, body.min_score)


def _rows(body: PairsRequest, pairs: Pairs, calibration: Calibration | None) -> list[dict[str, Any]]:
    second = body.texts if body.other is None else body.other
    rows = []
    for score, one, other in zip(
        pairs.score.tolist(), pairs.left.tolist(), pairs.right.tolist(), strict=True
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


class Calibrations:
    """The most recent calibrations, by the vectors they were computed from. Safe to use from several threads."""

    def __init__(self) -> None:
        self._cached: OrderedDict[object, Calibration | None] = OrderedDict()
        self._lock = threading.Lock()

    def between(self, client: str, left: Vectors, right: Vectors | None = None) -> Calibration | None:
        """Of pairs within `left`, or of left and right; None where these are too few or too similar to calibrate.

        Cached for this client only: another client could tell by the time of its answer which texts were sent.
        """
        sides = [np.ascontiguousarray(side) for side in (left, right) if side is not None]
        key = [(side.shape, hashlib.blake2b(side.data, digest_size=16).digest()) for side in sides]
        return self.cached((client, *key), lambda: (left, right))

    def cached(self, key: object, sample: Callable[[], tuple[Vectors, Vectors | None]]) -> Calibration | None:
        """As `between`, for vectors that are fetched only when the key is new."""
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key]
        calibration = _calibrate(*sample())
        with self._lock:
            self._cached[key] = calibration
            while len(self._cached) > CACHED:
                self._cached.popitem(last=False)
        return calibration


def _calibrate(left: Vectors, right: Vectors | None) -> Calibration | None:
    try:
        return calibrate(left, other=right, sample=SAMPLE)
    except InputError:
        return None
