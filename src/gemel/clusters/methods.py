"""The ways to cluster, by name, and what goes in and out of each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.clusters.points import Labels, Points
from gemel.registry import Table
from gemel.types import Vectors


@dataclass(frozen=True)
class Request:
    """What was asked for, checked at the door."""

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
    """Clusters of points, in any order. Names, numbers and figures follow from it."""

    labels: Labels
    """(u,) from 0 without gaps; -1: in no cluster."""
    centres: Labels
    """(c,) the point in the middle of each."""
    heart: Vectors
    """(c, dim): a later text belongs to the cluster whose heart has the highest product with its unit vector ..."""
    reach: NDArray[np.float64]
    """(c,) ... if that is at least this."""


def no_clusters(points: Points) -> Grouping:
    """Every point is in none."""
    nobody = np.empty(0, dtype=np.int64)
    return Grouping(np.full(len(points), -1, dtype=np.int64), nobody, points.rows[:0], np.empty(0))


Method: TypeAlias = Callable[[Points, Request], Grouping]

METHODS: Table[Method] = Table("method of clustering")


def middles(points: Points, labels: Labels, clusters: int) -> tuple[Labels, Vectors]:
    """For each cluster the point nearest to the mean, and the mean of its unit rows, repeats counted."""
    sums, sizes = sums_of(points, labels, clusters)
    means = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
    inside = np.flatnonzero(labels >= 0)
    score = np.einsum("nd,nd->n", points.rows[inside], means[labels[inside]])
    # By cluster, then nearest first, then the order of the points: the first of each cluster is its centre.
    order = inside[np.lexsort((inside, -score, labels[inside]))]
    first = np.searchsorted(labels[order], np.arange(clusters))
    return order[first], means


def sums_of(points: Points, labels: Labels, clusters: int) -> tuple[NDArray[np.float64], Labels]:
    """(c, dim) sums of the unit rows of each cluster, and (c,) how many texts they are; repeats counted."""
    sums = np.zeros((clusters, points.rows.shape[1]))
    inside = np.flatnonzero(labels >= 0)
    order = inside[np.argsort(labels[inside], kind="stable")]
    starts = np.searchsorted(labels[order], np.arange(clusters + 1))
    for cluster in range(clusters):
        part = order[starts[cluster] : starts[cluster + 1]]
        sums[cluster] = points.counts[part].astype(np.float64) @ points.rows[part].astype(np.float64)
    sizes = np.bincount(labels[inside], points.counts[inside], clusters).astype(np.int64)
    return sums, sizes
