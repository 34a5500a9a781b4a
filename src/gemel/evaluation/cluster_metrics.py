"""How well clusters agree with classes, out of two rows of labels. Names of labels do not matter, only who shares one.

With H the entropy of one side and MI what the two sides tell about each other: homogeneity is MI / H(classes),
completeness MI / H(clusters), V-measure their harmonic mean, which is MI over the arithmetic mean of the entropies. So
that NMI says something else, it is MI over their geometric mean here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra

Counts = NDArray[np.int64]
Labels = Sequence[Any] | NDArray[Any]  # texts or numbers: anything that can be sorted


@dataclass(frozen=True)
class Agreement:
    """Clusters against classes. All are 1 for a perfect match; `ari` is 0 by chance and may be negative."""

    v_measure: float
    homogeneity: float
    """A cluster holds one class only."""
    completeness: float
    """A class lies in one cluster only."""
    nmi: float
    ari: float
    accuracy: float
    """Texts in the right place when each cluster is given to at most one class, in the best way."""


def agreement(classes: Labels, clusters: Labels) -> Agreement:
    """Every measure at once. One class or one cluster alone counts as homogeneous or complete, as is usual."""
    counts = contingency(classes, clusters)
    told = _mutual_information(counts)
    of_classes, of_clusters = _entropy(counts.sum(axis=1)), _entropy(counts.sum(axis=0))
    homogeneity = told / of_classes if of_classes else 1.0
    completeness = told / of_clusters if of_clusters else 1.0
    both = homogeneity + completeness
    if of_classes and of_clusters:
        nmi = told / float(np.sqrt(of_classes * of_clusters))
    else:
        nmi = float(of_classes == of_clusters)  # nothing to tell on one side: a match only if on both
    return Agreement(
        v_measure=2 * homogeneity * completeness / both if both else 0.0,
        homogeneity=homogeneity,
        completeness=completeness,
        nmi=nmi,
        ari=_adjusted_rand(counts),
        accuracy=_best_accuracy(counts),
    )


def contingency(classes: Labels, clusters: Labels) -> Counts:
    """(classes, clusters): how many items have both labels."""
    if len(classes) != len(clusters):
        raise InputError(f"{len(classes)} classes but {len(clusters)} clusters: both label the same items")
    if len(classes) == 0:
        raise InputError("clusters of no items cannot be measured: give at least one")
    _, row = np.unique(np.asarray(classes), return_inverse=True)
    _, column = np.unique(np.asarray(clusters), return_inverse=True)
    shape = int(row.max()) + 1, int(column.max()) + 1
    counts = np.bincount(row * shape[1] + column, minlength=shape[0] * shape[1])
    return counts.reshape(shape).astype(np.int64)


def _entropy(sizes: Counts) -> float:
    share = sizes / sizes.sum()
    # abs: one group alone has the entropy -0.0
    return abs(float(-(share * np.log(share)).sum()))


def _mutual_information(counts: Counts) -> float:
    rows, columns = np.nonzero(counts)
    filled, total = counts[rows, columns], counts.sum()
    expected = counts.sum(axis=1)[rows] / total * counts.sum(axis=0)[columns]
    # max: independent labels give a rounding error, which may be below zero
    return max(0.0, float((filled / total * np.log(filled / expected)).sum()))


def _adjusted_rand(counts: Counts) -> float:
    """Pairs of items that both sides put together, corrected for chance."""
    together = float(_pairs(counts).sum())
    in_class, in_cluster = float(_pairs(counts.sum(axis=1)).sum()), float(_pairs(counts.sum(axis=0)).sum())
    pairs = float(_pairs(counts.sum()))
    by_chance = in_class * in_cluster / pairs if pairs else 0.0
    most = (in_class + in_cluster) / 2
    # Both put all together, or all apart: the same answer, and chance could not give another.
    return (together - by_chance) / (most - by_chance) if most != by_chance else 1.0


def _pairs(sizes: Counts) -> NDArray[np.float64]:
    return np.asarray(sizes * (sizes - 1.0) / 2)


def _best_accuracy(counts: Counts) -> float:
    try:
        from scipy.optimize import linear_sum_assignment
    except ImportError as error:
        raise MissingExtra("accuracy of clusters", "scipy", "evaluate") from error
    rows, columns = linear_sum_assignment(counts, maximize=True)
    return float(counts[rows, columns].sum() / counts.sum())
