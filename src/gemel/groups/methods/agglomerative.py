"""Agglomerative clustering: merges the two clusters with the highest mean similarity, again and again.

It compares all pairs in memory, so it is for thousands of texts, not for millions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra
from gemel.groups.grouping import METHODS, ClusterRequest, Grouping, Labels, Points, centers_and_means
from gemel.options import parse_bytes
from gemel.types import Vectors

_BLOCK = 1024


@METHODS.add("agglomerative")
def agglomerative(points: Points, request: ClusterRequest) -> Grouping:
    """Average linkage of cosines, down to `k` clusters, or as long as the mean similarity is at least `min_score`."""
    if (request.k is None) == (request.min_score is None):
        raise InputError(
            "agglomerative needs either k (how many clusters) or min_score (how similar inside them)"
        )
    copies = np.repeat(np.arange(len(points)), points.counts)  # linkage takes no weights
    _check_size(len(copies), request)
    links = _linkage(points.rows[copies])
    if request.k is not None:
        if request.k > len(points):
            raise InputError(
                f"k={request.k} clusters of {len(points):,} different vectors: k must be at most that"
            )
        merges = len(copies) - request.k
    else:
        merges = int((links[:, 2] <= 1 - float(request.min_score or 0.0)).sum())
    labels = _merged(links[:merges, :2].astype(np.int64), len(copies))
    first = np.append(0, np.cumsum(points.counts)[:-1])
    return _grouping(points, labels[first], request)


def _grouping(points: Points, labels: Labels, request: ClusterRequest) -> Grouping:
    """The centroid is the mean of the members: its product with a text is the mean similarity to them.

    Clusters by a threshold must have `min_size` texts.
    """
    sizes = np.bincount(labels, points.counts)
    small = request.k is None and request.min_size > 1
    kept = np.flatnonzero(sizes >= (request.min_size if small else 1))
    renamed = np.full(len(sizes) + 1, -1, dtype=np.int64)
    renamed[kept] = np.arange(len(kept))
    labels = renamed[labels]
    centers, means = centers_and_means(points, labels, len(kept))
    threshold = -np.inf if request.min_score is None else request.min_score
    return Grouping(labels, centers, means, np.full(len(kept), threshold))


def _check_size(texts: int, request: ClusterRequest) -> None:
    need, have = 8 * texts * texts, parse_bytes(request.memory)
    if need > have:
        raise InputError(
            f"agglomerative clustering of {texts:,} texts needs about {need / 1e9:.1f} GB, memory is "
            f"{have / 1e9:.1f} GB. Give more memory, or take the method communities or k-means",
            code="GEM-307",
        )


def _linkage(rows: Vectors) -> NDArray[np.float64]:
    """scipy's table of merges: the two clusters, their distance, the size."""
    try:
        from scipy.cluster.hierarchy import linkage
    except ImportError as error:
        raise MissingExtra("agglomerative clustering", "scipy", "evaluate") from error
    n = len(rows)
    if n < 2:
        return np.empty((0, 4))
    distances = np.empty(n * (n - 1) // 2)  # of all i < j, row after row
    end = 0
    for begin in range(0, n, _BLOCK):
        block = rows[begin : begin + _BLOCK] @ rows[begin:].T
        for row, scores in enumerate(block):
            rest = scores[row + 1 :]
            np.subtract(1, rest, out=distances[end : end + len(rest)])
            end += len(rest)
    np.maximum(distances, 0, out=distances)
    return np.asarray(linkage(distances, method="average"))


def _merged(merges: Labels, texts: int) -> Labels:
    """(texts,) labels from 0 without gaps, after these merges."""
    parent = np.arange(texts + len(merges))
    for number, (left, right) in enumerate(merges):
        parent[left] = parent[right] = texts + number
    for node in range(len(parent) - 1, -1, -1):  # a parent has a higher number than its children
        parent[node] = parent[parent[node]]
    _, labels = np.unique(parent[:texts], return_inverse=True)
    return np.asarray(labels, dtype=np.int64)
