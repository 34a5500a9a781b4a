"""Groups of similar texts, out of their vectors: `cluster` and its answer, `Clusters`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gemel.clusters import agglomerative, communities, density, k_means  # noqa: F401 - each adds its methods
from gemel.clusters.build import built, ordered
from gemel.clusters.growth import grown
from gemel.clusters.methods import METHODS, Request, no_clusters
from gemel.clusters.points import points_of
from gemel.clusters.result import Cluster as Cluster
from gemel.clusters.result import Clusters as Clusters
from gemel.errors import InputError
from gemel.similarity import check_same_dim, checked

__all__ = ["METHODS", "Cluster", "Clusters", "cluster"]


def cluster(  # noqa: PLR0913 - one question, and how to work on it
    vectors: ArrayLike,
    *,
    method: str | None = None,
    min_score: float | None = None,
    k: int | None = None,
    min_size: int = 2,
    seed: int = 0,
    texts: Sequence[str] | None = None,
    earlier: Clusters | None = None,
    memory: int | str = "1GB",
    threads: int | None = None,
    progress: bool = False,
) -> Clusters:
    """Clusters of (n, dim) vectors by cosine. The order of the rows changes no cluster, no id and no figure.

    method: communities (default; around centres, all members at least `min_score` from theirs, 0.75 if not given),
    k-means (default with `k`), spherical-k-means, agglomerative (`k` or `min_score`), or hdbscan.
    min_size: a smaller group is no cluster, its texts get -1; not for clusters by `k`.
    texts: of the rows; then each cluster has a central text, keywords and so a name.
    earlier: clusters to add these rows to, by the method and settings of those. Their labels come first and stay;
    rows that fit nowhere make new clusters with new ids.
    memory: refuses what would need more.

    A row of zeros has no direction and is in no cluster.
    """
    rows = checked(vectors, "vectors")
    said = _checked_texts(texts, len(rows))
    if earlier is not None:
        given = [name for name, value in (("method", method), ("min_score", min_score), ("k", k)) if value]
        if given:
            raise InputError(f"{given[0]} comes from the earlier clusters: leave it away")
        request = _request(
            earlier.method, **_asked(earlier), memory=memory, threads=threads, progress=progress
        )
        if earlier.items or len(earlier.anchors.loose):
            check_same_dim(rows, earlier.anchors.heart, "vectors", "the earlier clusters")
        return grown(earlier, rows, said, request)
    request = _request(
        method, min_score, k, min_size, seed, memory=memory, threads=threads, progress=progress
    )
    points = points_of(rows)
    if not len(points) and request.k is None:
        grouping = no_clusters(points)
    else:
        grouping = ordered(METHODS[request.method](points, request), points)
    settings = {"min_score": request.min_score, "k": request.k, "min_size": min_size, "seed": seed}
    kept = {name: value for name, value in settings.items() if value is not None}
    return built(rows, points, grouping, said, request.method, kept)


def _request(
    method: str | None,
    min_score: float | None = None,
    k: int | None = None,
    min_size: int = 2,
    seed: int = 0,
    **work: Any,
) -> Request:
    for name, value, least in (("k", k, 1), ("min_size", min_size, 1), ("seed", seed, 0)):
        wrong = isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least
        if wrong and not (name == "k" and value is None):
            raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
    if min_score is not None and not np.isfinite(min_score):
        raise InputError(f"min_score must be a finite number, got {min_score!r}")
    name = method or ("k-means" if k is not None else "communities")
    METHODS[name]
    if name == "communities" and k is not None:
        raise InputError("communities takes min_score, not k. For k clusters take the method k-means")
    if name.endswith("k-means") and min_score is not None:
        raise InputError(f"{name} takes k, not min_score. For a threshold take the method communities")
    if name == "communities" and min_score is None:
        min_score = communities.DEFAULT_MIN_SCORE
    score = None if min_score is None else float(min_score)
    return Request(name, score, None if k is None else int(k), int(min_size), int(seed), **work)


def _asked(earlier: Clusters) -> dict[str, Any]:
    return {
        name: earlier.settings[name]
        for name in ("min_score", "k", "min_size", "seed")
        if name in earlier.settings
    }


def _checked_texts(texts: Sequence[str] | None, rows: int) -> list[str] | None:
    if texts is None:
        return None
    if isinstance(texts, str):
        raise InputError("texts must be a list of texts, got one string")
    if len(texts) != rows:
        raise InputError(f"{len(texts):,} texts but {rows:,} vectors: give one text a vector")
    return list(texts)
