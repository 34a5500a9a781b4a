"""POST /pairs: the most similar pairs among texts, with the percentile of each score."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import Any

from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError
from gemel.serve.options import TooLarge
from gemel.serve.protocols.explain import no_labels
from gemel.serve.protocols.texts import embed_many
from gemel.serve.routes import OwnRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors
from gemel.vectors.calibration import Calibration
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs

MOST = 10_000  # pairs in an answer
DEFAULT_K = 20


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


ROUTES = Routes("Search", error=PlainError)


@ROUTES.add("POST", "/pairs", PairsAnswer)
async def pairs(call: Call, body: PairsRequest) -> Response:
    """The most similar pairs: every pair is compared."""
    started = perf_counter()
    if body.relation and call.model.labels is None:
        raise no_labels(call)
    _check(call, body)
    texts = [*body.texts, *(body.other or [])]
    with call.reserve():
        vectors = (await embed_many(call, texts, EmbedOptions())).vectors
        left = vectors[: len(body.texts)]
        right = None if body.other is None else vectors[len(body.texts) :]
        result = await call.work(lambda: _find_pairs(call, body, left, right), long=True)
    return json_response({**result, "seconds": perf_counter() - started})


def _check(call: Call, body: PairsRequest) -> None:
    most = call.limits.pair_texts
    call.limits.check_texts(body.texts, "texts", most)
    if body.other is not None:
        call.limits.check_texts(body.other, "other", most)
        total = len(body.texts) + len(body.other)
        if total > most:
            raise TooLarge(
                f"texts and other have {total:,} texts together; one request takes at most {most:,}"
            )
    elif len(body.texts) < 2:
        raise InputError("texts has one text: pairs need at least two, or other to compare with")


def _find_pairs(call: Call, body: PairsRequest, left: Vectors, right: Vectors | None) -> dict[str, Any]:
    """The answer without its seconds. Runs on a worker thread."""
    calibration = call.services.calibrations.between(call.client, left, right)
    floor = _floor(body, calibration, left, right)
    k = DEFAULT_K if body.k is None and floor is None else (body.k or MOST + 1)
    pairs = similar_pairs(left, other=right, k=k, min_score=floor)
    first = replace(pairs, score=pairs.score[:MOST], left=pairs.left[:MOST], right=pairs.right[:MOST])
    rows = _rows(body, first, calibration)
    if body.relation:
        probabilities = call.model.relation_of(
            left[first.left], (left if right is None else right)[first.right]
        )
        labels = call.model.labels or ()
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
