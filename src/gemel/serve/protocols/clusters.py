"""POST /clusters: groups of similar texts with names, and a point for each text on a map."""

from __future__ import annotations

from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.errors import MissingExtra
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError
from gemel.serve.options import TooLarge
from gemel.serve.protocols.texts import embed_many
from gemel.serve.routes import OwnRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.groups.cluster import Clusters
    from gemel.groups.map import Coordinates

TSNE_TEXTS = 1000  # texts that t-SNE lays out within a few seconds; more are laid out by PCA
SLOW_TEXTS = 2000  # for methods that take far longer with more texts: a running thread cannot be stopped
SLOW_METHODS = ("agglomerative", "hdbscan")
MOST_MEANS = 2_000_000  # texts times clusters of k-means


class ClustersRequest(OwnRequest):
    """Texts to group."""

    model_config = example(
        texts=["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell today."],
        min_score=0.5,
    )

    texts: Texts
    min_score: float | None = Field(None, ge=-1, le=1, description="How similar; 0.75 if nothing is said")
    k: int | None = Field(None, ge=1, description="How many clusters")
    method: Literal["communities", "k-means", "spherical-k-means", "agglomerative", "hdbscan"] | None = Field(
        None, description="Default: communities; k-means with k"
    )
    min_size: int = Field(2, ge=1, description="A smaller group is no cluster")
    layout: Literal["tsne", "pca", "none"] | None = Field(
        None, description=f"Of the map. Default: tsne up to {TSNE_TEXTS:,} texts, pca for more"
    )


class ClusterRow(BaseModel):
    """One cluster, the largest first."""

    label: int
    size: int
    title: str = Field(description="Words that tell it from the others")
    text: str = Field(description="The most central text")
    inside: float = Field(description="The mean cosine of two of its texts")
    members: list[int] = Field(description="Positions of its texts")


class Point(BaseModel):
    """A text on the map; both coordinates from 0 to 1."""

    x: float
    y: float
    cluster: int = Field(description="-1: in none")
    index: int


class ClustersAnswer(BaseModel):
    clusters: list[ClusterRow]
    points: list[Point]
    method: str
    unassigned: int
    seconds: float


ROUTES = Routes("Search", error=PlainError)


@ROUTES.add("POST", "/clusters", ClustersAnswer)
async def clusters(call: Call, body: ClustersRequest) -> Response:
    """Groups of similar texts, and a map of them."""
    started = perf_counter()
    call.limits.check_texts(body.texts, "texts", call.limits.pair_texts)
    _check_work(body)
    with call.reserve():
        vectors = (await embed_many(call, body.texts, EmbedOptions())).vectors
        result = await call.work(lambda: _cluster(body, vectors), long=True)
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


def _cluster(body: ClustersRequest, vectors: Vectors) -> dict[str, Any]:
    """The answer without its seconds. Runs on a worker thread."""
    from gemel.groups.cluster import cluster  # imported late: a server starts sooner without it

    clusters = cluster(
        vectors,
        method=body.method,
        min_score=body.min_score,
        k=body.k,
        min_size=body.min_size,
        texts=body.texts,
    )
    return {
        "clusters": _rows(clusters),
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


def _rows(clusters: Clusters) -> list[dict[str, Any]]:
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
