"""What clustering methods take and return, the table of methods, and figures and keywords of the clusters.

A method, which is a file of `methods/`, gets `Points`: the distinct directions among the rows, sorted by content, so
that its result cannot depend on the order of the rows. It returns a `Grouping`.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.registry import Registry
from gemel.types import Vectors
from gemel.vectors.similarity import normalize

Labels = NDArray[np.int64]

_BLOCK = 1024


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


# Figures and keywords. Mean similarities of all pairs follow from sums of unit vectors, so no pair is compared.

SAMPLE = 2000  # texts whose silhouette is taken


@dataclass(frozen=True, eq=False)
class Closeness:
    """(c,) of each cluster."""

    inside: NDArray[np.float64]
    """The mean similarity of two of its texts; 1 for a text alone."""
    nearest: Labels
    """The cluster with the highest mean similarity to it; -1 where there is no other."""
    outside: NDArray[np.float64]
    """That similarity; nan where there is no other."""


def closeness(sums: NDArray[np.float64], sizes: Labels) -> Closeness:
    """The mean similarities of clusters. `sums`: (c, dim) of the unit vectors of each cluster."""
    pairs = sizes * (sizes - 1.0)
    squares = np.einsum("cd,cd->c", sums, sums)
    inside = np.where(sizes > 1, (squares - sizes) / np.maximum(pairs, 1), 1.0)
    nearest = np.full(len(sums), -1, dtype=np.int64)
    outside = np.full(len(sums), np.nan)
    means = (sums / sizes[:, None]).astype(np.float32)
    for begin in range(0, len(sums) if len(sums) > 1 else 0, _BLOCK):
        scores = means[begin : begin + _BLOCK] @ means.T
        rows = np.arange(len(scores))
        scores[rows, begin + rows] = -np.inf
        nearest[begin : begin + _BLOCK] = scores.argmax(axis=1)
        outside[begin : begin + _BLOCK] = scores.max(axis=1)
    return Closeness(np.clip(inside, -1, 1), nearest, outside)


def silhouette(points: Points, labels: Labels, sums: NDArray[np.float64], sizes: Labels) -> float | None:
    """The mean silhouette by cosine distance, over at most `SAMPLE` different texts; None for fewer than two clusters.

    The value of each sampled text is exact: it is computed from all texts of all clusters.
    """
    if len(sums) < 2:
        return None
    inside = np.flatnonzero(labels >= 0)
    if len(inside) > SAMPLE:
        inside = np.sort(np.random.default_rng(0).choice(inside, SAMPLE, replace=False))
    total, weight = 0.0, 0
    for begin in range(0, len(inside), _BLOCK):
        part = inside[begin : begin + _BLOCK]
        values = _values(points.rows[part], labels[part], sums, sizes)
        total += float(values @ points.counts[part])
        weight += int(points.counts[part].sum())
    return total / weight


def _values(rows: Vectors, own: Labels, sums: NDArray[np.float64], sizes: Labels) -> NDArray[np.float64]:
    """(n,) silhouettes; 0 for a text alone in its cluster."""
    products = rows @ sums.T.astype(np.float32)
    each = np.arange(len(rows))
    others = np.maximum(sizes[own] - 1, 1)
    within = 1 - (products[each, own] - 1) / others  # without the text itself
    distances = 1 - products / sizes
    distances[each, own] = np.inf
    between = distances.min(axis=1)
    larger = np.maximum(np.maximum(within, between), 1e-12)
    return np.where(sizes[own] > 1, (between - within) / larger, 0.0)


COUNT = 6

_WORD = re.compile(r"[^\W_]+(?:['’][^\W_]+)*")

_UNSPACED = re.compile(r"[\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff]+")  # kana and Chinese characters


def keywords(texts: Sequence[str], labels: Labels, clusters: int) -> list[tuple[str, ...]]:
    """For each cluster its best words, at most `COUNT`. There is no list of stop words, so any language will do.

    A word's weight is the share of the cluster's texts that have it, times the logarithm of that share divided by the
    share of all texts.
    """
    inside: list[Counter[str]] = [Counter() for _ in range(clusters)]
    everywhere: Counter[str] = Counter()
    sizes = [0] * clusters
    for text, label in zip(texts, labels.tolist(), strict=True):
        words = set(words_of(text))
        everywhere.update(words)
        if label >= 0:
            inside[label].update(words)
            sizes[label] += 1
    return [_best(counts, size, everywhere, len(texts)) for counts, size in zip(inside, sizes, strict=True)]


def _best(counts: Counter[str], size: int, everywhere: Counter[str], texts: int) -> tuple[str, ...]:
    least = 2 if size > 2 else 1  # a word of one text does not describe a larger cluster
    weights = {
        word: (count / size) * math.log((count / size) / (everywhere[word] / texts))
        for word, count in counts.items()
        if count >= least
    }
    ranked = sorted((-weight, word) for word, weight in weights.items() if weight > 0)
    return tuple(word for _, word in ranked[:COUNT])


def words_of(text: str) -> list[str]:
    """Lowercase words, without numbers and single letters; where a script has no spaces, pairs of characters."""
    words = []
    for word in _WORD.findall(text.casefold()):
        if _UNSPACED.fullmatch(word):
            words += [word[i : i + 2] for i in range(len(word) - 1)] or [word]
        elif len(word) > 1 and not word.isdigit():
            words.append(word)
    return words
