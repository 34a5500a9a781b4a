"""HDBSCAN by scikit-learn: clusters are dense regions of any shape; texts between them are in no cluster."""

from __future__ import annotations

import numpy as np

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.probe import one_thread
from gemel.groups.grouping import (
    METHODS,
    ClusterRequest,
    Grouping,
    Labels,
    Points,
    centers_and_means,
    no_clusters,
)
from gemel.options import parse_bytes
from gemel.types import Vectors
from gemel.vectors.similarity import normalize

_ROUNDING = 1e-5  # so that the farthest member itself is inside in whatever order its product is added up


@METHODS.add("hdbscan")
def hdbscan(points: Points, request: ClusterRequest) -> Grouping:
    """Euclidean distances of unit vectors, which order pairs as the cosine does.

    A later text joins the cluster with the nearest mean if it is as near to it as the farthest member.
    """
    if request.k is not None or request.min_score is not None:
        raise InputError("hdbscan takes neither k nor min_score: min_size sets how many texts make a cluster")
    size = max(2, request.min_size)
    copies = np.repeat(np.arange(len(points)), points.counts)  # HDBSCAN takes no weights
    if len(copies) < size:
        return no_clusters(points)
    fitted = _fit(points.rows[copies], size, parse_bytes(request.memory))
    first = np.append(0, np.cumsum(points.counts)[:-1])
    _, labels = np.unique(np.append(-1, fitted[first]), return_inverse=True)
    labels = labels[1:] - 1  # -1 stays -1, the others have no gaps
    clusters = int(labels.max()) + 1
    centers, means = centers_and_means(points, labels, clusters)
    centroids = normalize(means)
    inside = np.flatnonzero(labels >= 0)
    scores = np.einsum("nd,nd->n", points.rows[inside], centroids[labels[inside]])
    thresholds = np.full(clusters, np.inf)
    np.minimum.at(thresholds, labels[inside], scores)
    return Grouping(labels, centers, centroids, thresholds - _ROUNDING)


def _fit(rows: Vectors, size: int, memory: int) -> Labels:
    try:
        from sklearn.cluster import HDBSCAN
    except ImportError as error:
        raise MissingExtra("hdbscan", "scikit-learn", "evaluate") from error
    with one_thread("hdbscan"):
        # A table of all distances is many times faster than trees, which do not help in hundreds of dimensions.
        if 16 * len(rows) ** 2 <= memory:
            squares = 2 - 2 * (rows @ rows.T).astype(np.float64)
            np.fill_diagonal(squares, 0)
            distances = np.sqrt(np.maximum(squares, 0, out=squares), out=squares)
            fitted = HDBSCAN(min_cluster_size=size, metric="precomputed", copy=False).fit(distances)
        else:
            fitted = HDBSCAN(min_cluster_size=size, copy=False).fit(rows)
    return np.asarray(fitted.labels_, dtype=np.int64)
