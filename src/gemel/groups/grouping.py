"""What clustering methods take and return, and the table of methods: each file of `methods/` adds its own.

A method gets `Points`: the distinct directions among the rows, sorted by content, so that its result cannot depend on
the order of the rows. It returns a `Grouping`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.registry import Registry
from gemel.types import Vectors
from gemel.vectors.similarity import normalize

Labels = NDArray[np.int64]


@dataclass(frozen=True)
class ClusterRequest:
    """The arguments of `cluster`, validated."""

    method: str
    min_score: float | None
    k: int | None
    min_size: int
    seed: int
    memory: int | str
    threads: int | None
    progress: bool


@dataclass(frozen=True, eq=False)
class Grouping:
    """Clusters of points, in any order."""

    labels: Labels
    """(u,) from 0 without gaps; -1: in no cluster."""
    centers: Labels
    """(c,) the most central point of each."""
    centroids: Vectors
    """(c, dim): a later text belongs to the cluster whose centroid has the highest dot product with its unit vector,"""
    thresholds: NDArray[np.float64]
    """(c,) if that product is at least the threshold of the cluster."""


def no_clusters(points: Points) -> Grouping:
    """A grouping in which no point is in a cluster."""
    none = np.empty(0, dtype=np.int64)
    return Grouping(np.full(len(points), -1, dtype=np.int64), none, points.rows[:0], np.empty(0))


@dataclass(frozen=True, eq=False)
class Points:
    """The distinct directions among n rows."""

    rows: Vectors
    """(u, dim) of length 1, sorted by value, dimension by dimension. Rows of zeros are left out."""
    counts: NDArray[np.int64]
    """(u,) how often each occurs."""
    first: NDArray[np.int64]
    """(u,) the lowest position at which each occurs."""
    of_row: NDArray[np.int64]
    """(n,) the point of each given row; -1 for a row of zeros."""

    def __len__(self) -> int:
        return len(self.rows)

    def spread(self, labels: Labels) -> Labels:
        """(u,) labels to (n,): each given row gets that of its direction, a row of zeros gets -1."""
        return np.append(labels, -1)[self.of_row]


Method: TypeAlias = Callable[[Points, ClusterRequest], Grouping]

METHODS: Registry[Method] = Registry(
    "method of clustering", package="gemel.groups.methods", aliases={"spherical-k-means": "k_means"}
)


def centers_and_means(points: Points, labels: Labels, clusters: int) -> tuple[Labels, Vectors]:
    """The point of each cluster that is nearest to its mean, and the means of the unit rows, repeats counted."""
    sums, sizes = cluster_sums(points, labels, clusters)
    means = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    inside = np.flatnonzero(labels >= 0)
    score = np.einsum("nd,nd->n", points.rows[inside], means[labels[inside]])
    # By cluster, then nearest first, then the order of the points: the first of each cluster is its center.
    order = inside[np.lexsort((inside, -score, labels[inside]))]
    first = np.searchsorted(labels[order], np.arange(clusters))
    return order[first], means


def cluster_sums(points: Points, labels: Labels, clusters: int) -> tuple[NDArray[np.float64], Labels]:
    """(c, dim) sums of the unit rows of each cluster, and (c,) their number of texts; repeats counted."""
    sums = np.zeros((clusters, points.rows.shape[1]))
    inside = np.flatnonzero(labels >= 0)
    order = inside[np.argsort(labels[inside], kind="stable")]
    starts = np.searchsorted(labels[order], np.arange(clusters + 1))
    for cluster in range(clusters):
        part = order[starts[cluster] : starts[cluster + 1]]
        sums[cluster] = points.counts[part].astype(np.float64) @ points.rows[part].astype(np.float64)
    sizes = np.bincount(labels[inside], points.counts[inside], clusters).astype(np.int64)
    return sums, sizes


def points_of(vectors: Vectors) -> Points:
    """The points of (n, dim) vectors, which must be finite."""
    unit = normalize(vectors) + np.float32(0)  # -0 becomes 0: the same number, and now the same bytes
    present = np.flatnonzero(unit.any(axis=1))
    rows = np.ascontiguousarray(unit[present])
    of_row = np.full(len(unit), -1, dtype=np.int64)
    if not len(rows):
        nothing = np.empty(0, dtype=np.int64)
        return Points(rows, nothing, nothing, of_row)
    order = np.argsort(_sort_keys(rows), kind="stable")
    ordered = rows[order]
    new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    starts = np.flatnonzero(new)
    of_row[present[order]] = np.cumsum(new) - 1
    # The sort is stable, so the first of equal rows is the one that was given first.
    return Points(ordered[starts], np.diff(np.append(starts, len(order))), present[order[starts]], of_row)


def _sort_keys(rows: Vectors) -> NDArray[np.void]:
    """(n,) keys that compare as the rows do, dimension by dimension.

    By value rather than by raw bytes: processors differ in the last bits of a vector, which come first in memory, and
    those bits must not decide ties.
    """
    bits = rows.view(np.uint32)
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(">u4")
    return ascending.view(np.dtype((np.void, ascending.shape[1] * ascending.itemsize))).ravel()
