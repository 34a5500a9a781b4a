"""k-means by scikit-learn, and spherical k-means, whose means have length 1."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.probe import one_thread
from gemel.evaluation.tasks import clustering
from gemel.groups.grouping import METHODS, ClusterRequest, Grouping, Labels, Points, centers_and_means
from gemel.types import Vectors
from gemel.vectors.similarity import normalize

_STARTS = 4  # initializations; the best result is used

_ROUNDS = 300

_BLOCK = 8192  # rows compared with all centers at once


@METHODS.add("k-means")
def k_means(points: Points, request: ClusterRequest) -> Grouping:
    """k-means++ and Lloyd on vectors of length 1."""
    k, weights = _checked(points, request), points.counts.astype(np.float32)
    return _grouping(
        points, clustering.k_means(points.rows, k, seed=request.seed, starts=_STARTS, weights=weights)
    )


@METHODS.add("spherical-k-means")
def spherical_k_means(points: Points, request: ClusterRequest) -> Grouping:
    """Each text joins the center with the highest cosine; a center is the direction of the sum of its texts."""
    k = _checked(points, request)
    try:
        from sklearn.cluster import kmeans_plusplus
    except ImportError as error:
        raise MissingExtra("spherical k-means", "scikit-learn", "evaluate") from error
    weights = points.counts.astype(np.float64)
    best: tuple[float, Labels] | None = None
    with one_thread("spherical k-means"):
        for start in range(_STARTS):
            first, _ = kmeans_plusplus(
                points.rows, k, sample_weight=weights, random_state=request.seed + start
            )
            result = _lloyd(points.rows, weights, np.asarray(first))
            if best is None or result[0] > best[0]:
                best = result
    assert best is not None
    return _grouping(points, best[1])


def _lloyd(rows: Vectors, weights: NDArray[np.float64], centers: Vectors) -> tuple[float, Labels]:
    """The sum of cosines of all texts to their center, and the labels, after convergence."""
    labels = np.full(len(rows), -1, dtype=np.int64)
    total = 0.0
    for _ in range(_ROUNDS):
        now, score = _nearest(rows, centers)
        empty = np.setdiff1d(np.arange(len(centers)), now)
        # An empty cluster takes the text that is farthest from its center.
        far = np.argsort(score, kind="stable")[: len(empty)]
        now[far] = empty
        total = float(weights @ score)
        if (now == labels).all():
            break
        labels = now
        centers = normalize(np.stack([weights[labels == c] @ rows[labels == c] for c in range(len(centers))]))
    return total, labels


def _nearest(rows: Vectors, centers: Vectors) -> tuple[Labels, NDArray[np.float64]]:
    labels = np.empty(len(rows), dtype=np.int64)
    score = np.empty(len(rows))
    for begin in range(0, len(rows), _BLOCK):
        scores = rows[begin : begin + _BLOCK] @ centers.T
        labels[begin : begin + _BLOCK] = scores.argmax(axis=1)
        score[begin : begin + _BLOCK] = scores.max(axis=1)
    return labels, score


def _checked(points: Points, request: ClusterRequest) -> int:
    if request.min_score is not None:
        raise InputError(
            f"{request.method} takes k, not min_score. For a threshold take the method communities"
        )
    if request.k is None:
        raise InputError(f"{request.method} needs k, the number of clusters")
    if request.k > len(points):
        raise InputError(
            f"k={request.k} clusters of {len(points):,} different vectors: k must be at most that"
        )
    return request.k


def _grouping(points: Points, labels: Labels) -> Grouping:
    """Without empty clusters. Every later text joins the nearest mean, however far."""
    _, labels = np.unique(labels, return_inverse=True)
    clusters = int(labels.max()) + 1
    centers, means = centers_and_means(points, labels, clusters)
    return Grouping(labels, centers, normalize(means), np.full(clusters, -np.inf))
