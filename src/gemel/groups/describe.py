"""Figures and keywords of clusters: similarity inside and to the nearest other cluster, silhouette, class-based tf-idf.

Mean similarities of all pairs are computed from sums of unit vectors, so no pair is compared.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.groups.grouping import Labels, Points
from gemel.types import Vectors

SAMPLE = 2000  # texts whose silhouette is taken

_BLOCK = 1024


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
