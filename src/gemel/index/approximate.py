"""What every approximate search of an index shares: candidates are rescored exactly, recall is measured, pages agree.

Recall is measured on queries made from stored vectors, some like them and some unlike, as recall@10 against exact
search. Lists (folder) and graph (PostgreSQL) are then searched as widely as the requested recall needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors

NEIGHBORS = 10
"""Recall is the part of so many exact neighbors that is found."""

USUAL_RECALL = 0.985
"""Of queries like the stored vectors, unless a search requests another."""

FINEST_RECALL = 0.995
"""The highest recall that is measured; for more, everything is compared."""

LIKE_STORED = "like the stored texts (between two of them)"

UNLIKE_STORED = "unlike them (as words and code are; wider search)"

_MIXED = (0.3, 0.6)
"""How much of another stored vector is added to one to make a query like the stored vectors."""

_REMOVED = 0.95
"""Part of what a stored vector shares with its centroid that is removed, for a query unlike the stored vectors."""

_SUMMED = 3  # vectors that are summed after this removal

_ROUNDS = 10  # of k-means

_FIRST_DEPTH = 10

_DEPTH_FACTOR = 5

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, eq=False)
class RecallQueries:
    """Queries of which recall is measured."""

    near: Vectors
    """(kinds * count, dim) like the stored vectors, one kind after the other."""
    far: Vectors
    """(count, dim) unlike them."""

    @property
    def both(self) -> Vectors:
        return np.concatenate([self.near, self.far])


def recall_queries(
    vectors: Vectors, centroids: Vectors, count: int, rng: np.random.Generator
) -> RecallQueries:
    """Queries made of stored vectors. None is a stored vector itself: that would be found too easily.

    Those like the stored vectors lie between two of them. Those unlike are sums of vectors without most of what these
    share with their centroids, so that the nearest centroids say little about where the neighbors are. Single words
    and lines of Python code among sentences needed about as wide a search or less (benchmarks/index_recall.py);
    random noise on stored vectors needs far less.
    """
    near = []
    for weight in _MIXED:
        first = np.sort(rng.integers(len(vectors), size=count))
        near.append(_unit(vectors[first] + weight * vectors[rng.integers(len(vectors), size=count)]))
    total = np.zeros((count, vectors.shape[1]), dtype=np.float32)
    for _ in range(_SUMMED):
        some = vectors[rng.integers(len(vectors), size=count)]
        scores = some @ centroids.T
        best = scores.argmax(axis=1)
        total += _unit(some - _REMOVED * scores.max(axis=1, keepdims=True) * centroids[best])
    return RecallQueries(np.concatenate(near), _unit(total))


def near_recall(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """Recall of `RecallQueries.near`: that of the kind of which least is found."""
    return float(_hits(found, truth).reshape(len(_MIXED), -1).mean(axis=1).min())


def recall_of(found: NDArray[np.int64], truth: NDArray[np.int64]) -> float:
    """The part of the true neighbors that is found."""
    return float(_hits(found, truth).mean())


def _hits(found: NDArray[np.int64], truth: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(queries, neighbors) which of the true neighbors are among those found."""
    return np.asarray((truth[:, :, None] == found[:, None, :]).any(axis=2))


def centroids_of(vectors: Vectors, count: int, rng: np.random.Generator) -> Vectors:
    """(count, dim) by spherical k-means, for a store whose search has no centroids of its own."""
    centroids = vectors[np.sort(rng.choice(len(vectors), min(count, len(vectors)), replace=False))]
    for _ in range(_ROUNDS):
        nearest = (vectors @ centroids.T).argmax(axis=1)
        sums = np.zeros_like(centroids)
        np.add.at(sums, nearest, vectors)
        used = np.flatnonzero(np.bincount(nearest, minlength=len(centroids)))
        centroids[used] = _unit(sums[used])
    return centroids


def _unit(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-6), dtype=np.float32)


def depths(last: int, first: int = _FIRST_DEPTH) -> list[int]:
    """The depths to search at for the best `last`: 10, 50, 250 ... until it is reached.

    A wider search may find what a narrower one missed, and would push documents of the first page to the second. So a
    ranking is made of fixed depths (`joined`), and any first part of it is the same however many were requested.
    """
    sizes = [first]
    while sizes[-1] < last:
        sizes.append(sizes[-1] * _DEPTH_FACTOR)
    return sizes


def joined(rankings: Sequence[Sequence[Key]], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(ranking, position in it) of each entry of the joined ranking; ranking n fills it up to `sizes[n]` entries.

    The first 10 are those of the narrowest search, the next 40 come from the next wider one without these, and so on.
    """
    seen: set[Key] = set()
    order: list[tuple[int, int]] = []
    for number, (ranking, size) in enumerate(zip(rankings, sizes, strict=True)):
        for position, key in enumerate(ranking):
            if len(order) >= size:
                break
            if key not in seen:
                seen.add(key)
                order.append((number, position))
    return order
