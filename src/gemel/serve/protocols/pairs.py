"""POST /pairs, the most similar pairs among texts, and POST /clusters, groups of similar texts and a map of them."""

from __future__ import annotations

from dataclasses import replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.errors import InputError, MissingExtra
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

if TYPE_CHECKING:
    from gemel.groups.cluster import Clusters
    from gemel.groups.map import Coordinates

ROUTES = Routes("Search", error=PlainError)

EXAMPLE = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell today."]

MOST = 10_000  # pairs in an answer
DEFAULT_K = 20


class PairsRequest(OwnRequest):
    """Texts to compare with one another, or with others."""

    model_config = example(texts=EXAMPLE, k=1)

    texts: Texts
    other: Texts | None = Field(None, description="Compare texts with these, not with one another")
    k: int | None = Field(None, ge=1, le=MOST, description=f"How many pairs; default {DEFAULT_K}")
    min_score: float | None = Field(None, ge=-1, le=1, description="Minimum cosine")
    expected_false: float | None = Field(
        None,
        gt=0,
        description="Minimum cosine, as the number of random pairs that may reach it (46 texts or more)",
    )
    relation: bool = Field(False, description="Add the probabilities of the model's classification head")


class PairRow(BaseModel):
    """Two texts by their positions."""

    left: int
    right: int
    score: float = Field(description="Cosine")
    percentile: float | None = Field(
        description="Percentage of random pairs with a lower score; null: too few texts"
    )
    expected_false: float | None = Field(description="Random pairs expected to reach this score")
    left_text: str
    right_text: str
    relation: dict[str, float] | None = None


class PairsAnswer(BaseModel):
    """Best first."""

    pairs: list[PairRow]
    complete: bool = Field(description=f"No requested pair is missing; at most {MOST:,} are returned")
    compared: int
    seconds: float


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
    rows = _pair_rows(body, first, calibration)
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


def _pair_rows(body: PairsRequest, pairs: Pairs, calibration: Calibration | None) -> list[dict[str, Any]]:
    second = body.texts if body.other is None else body.other
    columns = zip(pairs.score.tolist(), pairs.left.tolist(), pairs.right.tolist(), strict=True)
    return [
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
        for score, one, other in columns
    ]


# Clusters.

TSNE_TEXTS = 1000  # texts that t-SNE lays out within a few seconds; more are laid out by PCA
SLOW_TEXTS = 2000  # for methods that take far longer with more texts: a running thread cannot be stopped
SLOW_METHODS = ("agglomerative", "hdbscan")
MOST_MEANS = 2_000_000  # texts times clusters of k-means


class ClustersRequest(OwnRequest):
    """Texts to group."""

    model_config = example(texts=EXAMPLE, min_score=0.5)

    texts: Texts
    min_score: float | None = Field(None, ge=-1, le=1, description="Minimum cosine; default 0.75")
    k: int | None = Field(None, ge=1, description="How many clusters")
    method: Literal["communities", "k-means", "spherical-k-means", "agglomerative", "hdbscan"] | None = Field(
        None, description="Default: communities; k-means with k"
    )
    min_size: int = Field(2, ge=1, description="Smaller groups are not clusters")
    layout: Literal["tsne", "pca", "none"] | None = Field(
        None, description=f"Of the map. Default: tsne up to {TSNE_TEXTS:,} texts, pca for more"
    )


class ClusterRow(BaseModel):
    """One cluster, the largest first."""

    label: int
    size: int
    title: str = Field(description="Words that distinguish it from the others")
    text: str = Field(description="The most central text")
    inside: float = Field(description="The mean cosine of two of its texts")
    members: list[int] = Field(description="Positions of its texts")


class Point(BaseModel):
    """A text on the map; both coordinates from 0 to 1."""

    x: float
    y: float
    cluster: int = Field(description="-1: not in a cluster")
    index: int


class ClustersAnswer(BaseModel):
    clusters: list[ClusterRow]
    points: list[Point]
    method: str
    unassigned: int
    seconds: float


@ROUTES.add("POST", "/clusters", ClustersAnswer)
async def clusters(call: Call, body: ClustersRequest) -> Response:
    """Groups of similar texts, and a map of them."""
    started = perf_counter()
    call.limits.check_texts(body.texts, "texts", call.limits.pair_texts)
    _check_work(body)
    with call.reserve():
        vectors = (await embed_many(call, body.texts, EmbedOptions())).vectors
        result = await call.work(lambda: _cluster(call, body, vectors), long=True)
    return json_response({**result, "seconds": perf_counter() - started})


def _check_work(body: ClustersRequest) -> None:
    """Refuse a request that would occupy a thread for minutes."""
    count = len(body.texts)
    for name, given in (("method", body.method in SLOW_METHODS), ("layout", body.layout == "tsne")):
        if given and count > SLOW_TEXTS:
            value = getattr(body, name)
            raise TooLarge(
                f"{name} {value!r} takes at most {SLOW_TEXTS:,} texts over the server, got {count:,}"
            )
    if body.k is not None and body.k * count > MOST_MEANS:
        raise TooLarge(f"k may be at most {MOST_MEANS // count:,} for {count:,} texts, got {body.k:,}")


def _cluster(call: Call, body: ClustersRequest, vectors: Vectors) -> dict[str, Any]:
    """The answer without its seconds. Runs on a worker thread."""
    from gemel.groups.cluster import cluster  # imported late: a server starts sooner without it
    from gemel.groups.grouping import frequent_words

    clusters = cluster(
        vectors,
        method=body.method,
        min_score=body.min_score,
        k=body.k,
        min_size=body.min_size,
        texts=body.texts,
        vocabulary=frequent_words(call.model.tokenizer),
    )
    return {
        "clusters": _cluster_rows(clusters),
        "points": [] if body.layout == "none" else _points(_layout(body, vectors), clusters),
        "method": clusters.method,
        "unassigned": clusters.unassigned,
    }


def _layout(body: ClustersRequest, vectors: Vectors) -> Coordinates:
    from gemel.groups.map import layout

    if body.layout == "tsne":
        return layout(vectors, "tsne")
    if body.layout == "pca" or len(vectors) > TSNE_TEXTS:
        return layout(vectors, "pca")
    try:
        return layout(vectors, "tsne")
    except MissingExtra:  # t-SNE was only the default
        return layout(vectors, "pca")


def _cluster_rows(clusters: Clusters) -> list[dict[str, Any]]:
    return [
        {
            "label": item.id,
            "size": item.size,
            "title": item.name,
            "text": item.text or "",
            "inside": item.inside,
            "members": clusters.members(item.id),
        }
        for item in clusters.items
    ]


def _points(coordinates: Coordinates, clusters: Clusters) -> list[dict[str, Any]]:
    columns = zip(coordinates.tolist(), clusters.labels.tolist(), strict=True)
    return [
        {"x": x, "y": y, "cluster": label, "index": index} for index, ((x, y), label) in enumerate(columns)
    ]
