"""Metrics as pure functions of arrays: correlations, labels, thresholds, clusters, ranked lists.

What is not defined is None, never NaN. Ranked lists follow trec_eval: gains are used as published (not 2^gain - 1), a
rank has the discount 1 / log2(rank + 1), and average precision is divided by the number of all relevant documents.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, MissingExtra

Floats = NDArray[np.float64]

Codes = NDArray[np.int64]


def pearson(left: ArrayLike, right: ArrayLike) -> float | None:
    """The linear correlation of two arrays; None for fewer than two numbers, or where one side is constant."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (left, right))
    if len(x) < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    length = np.sqrt((x @ x) * (y @ y))
    # A constant array minus its mean has rounding errors, not always exact zeros.
    if length <= 1e-30 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.clip(x @ y / length, -1.0, 1.0))


def spearman(left: ArrayLike, right: ArrayLike) -> float | None:
    """The correlation of ranks; equal numbers share the mean of their ranks."""
    return pearson(ranks(left), ranks(right))


def ranks(values: ArrayLike) -> Floats:
    """1 for the smallest; equal values get the mean of their ranks."""
    return ranks_of_codes(value_codes(values))


def value_codes(values: ArrayLike) -> Codes:
    """0 for the smallest value, 1 for the next; equal values share a code. Codes can be ranked without sorting."""
    _, codes = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
    return np.asarray(codes, dtype=np.int64)


def ranks_of_codes(codes: Codes) -> Floats:
    """`ranks` for codes: counts instead of sorting, since a bootstrap calls it thousands of times."""
    if len(codes) == 0:
        return np.empty(0)
    sizes = np.bincount(codes)
    means = np.cumsum(sizes) - (sizes - 1) / 2  # the mean of the ranks of each code
    return np.asarray(means[codes], dtype=np.float64)


# Labels: predicted against true ones.

Labels = NDArray[np.int64]


def f1(gold: Labels, predicted: Labels, positive: int = 1) -> float | None:
    """The harmonic mean of precision and recall of one label; None where it is neither in gold nor predicted."""
    in_gold, in_predicted = gold == positive, predicted == positive
    total = int(in_gold.sum()) + int(in_predicted.sum())
    return 2 * int((in_gold & in_predicted).sum()) / total if total else None


def macro_f1(gold: Labels, predicted: Labels) -> float | None:
    """The mean of the F1 of each label; None for no rows."""
    each = [f1(gold, predicted, int(label)) for label in np.union1d(gold, predicted)]
    return float(np.mean([number for number in each if number is not None])) if each else None


def accuracy(gold: Labels, predicted: Labels) -> float | None:
    """The share of right labels; None for no rows."""
    return float((gold == predicted).mean()) if len(gold) else None


MEASURES = {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1}


@dataclass(frozen=True, eq=False)
class LabelSample:
    """A number from true and predicted labels: `kind` is accuracy, f1 (of label 1) or macro_f1."""

    gold: Labels
    predicted: Labels
    kind: str = "accuracy"

    @property
    def items(self) -> int:
        return len(self.gold)

    def number(self, rows: NDArray[np.int64]) -> float | None:
        return MEASURES[self.kind](self.gold[rows], self.predicted[rows])


# Thresholds: how well a score separates two classes.


@dataclass(frozen=True)
class Threshold:
    """A threshold and the numbers at it: rows with a score of `threshold` or more are predicted as positive."""

    value: float
    threshold: float
    precision: float
    recall: float


@dataclass(frozen=True, eq=False)
class ThresholdSweep:
    """All thresholds of scored rows, from "no row is positive" to "all rows are". Equal scores are never separated."""

    thresholds: Floats
    """(c,) descending: above the highest score, halfway between each two consecutive scores, the lowest score."""
    above: Floats
    """(c,) rows at or above the threshold; the first is 0."""
    positive: Floats
    """(c,) of these, rows that are positive."""

    @property
    def rows(self) -> float:
        return float(self.above[-1])

    @property
    def positives(self) -> float:
        return float(self.positive[-1])

    @property
    def average_precision(self) -> float | None:
        """The sum of precision times the increase of recall, without interpolation; None without positives."""
        if not self.positives:
            return None
        return float((np.diff(self.positive) * self._precision[1:]).sum() / self.positives)

    @property
    def roc_auc(self) -> float | None:
        """The share of (positive, negative) pairs in which the positive has the higher score; a tie counts half.

        None without positives or negatives.
        """
        negatives = self.rows - self.positives
        if not self.positives or not negatives:
            return None
        heights = (self.positive[1:] + self.positive[:-1]) / 2
        return float((np.diff(self.above - self.positive) * heights).sum() / self.positives / negatives)

    @property
    def best_f1(self) -> Threshold | None:
        """The threshold with the highest F1; of equal ones the highest. None without positives."""
        return self._best(2 * self.positive / (self.above + self.positives)) if self.positives else None

    @property
    def best_accuracy(self) -> Threshold | None:
        """The threshold with the highest accuracy; of equal ones the highest."""
        if not self.rows:
            return None
        return self._best((self.rows - self.positives - self.above + 2 * self.positive) / self.rows)

    @property
    def _precision(self) -> Floats:
        return np.asarray(self.positive / np.maximum(self.above, 1.0), dtype=np.float64)

    def _best(self, values: Floats) -> Threshold:
        best = int(values.argmax())
        recall = float(self.positive[best] / self.positives) if self.positives else 0.0
        return Threshold(
            float(values[best]), float(self.thresholds[best]), float(self._precision[best]), recall
        )


def all_cuts(labels: ArrayLike, scores: ArrayLike) -> ThresholdSweep:
    """All thresholds of rows with a label (True is positive) and a score."""
    distinct, codes = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    return cuts_of_codes(np.asarray(labels, dtype=bool), np.asarray(codes, dtype=np.int64), distinct)


def cuts_of_codes(labels: NDArray[np.bool_], codes: Codes, distinct: Floats) -> ThresholdSweep:
    """`all_cuts` for scores given as positions in `distinct`, which is ascending: counts instead of sorting."""
    total = np.bincount(codes, minlength=len(distinct))
    positive = np.bincount(codes[labels], minlength=len(distinct))
    present = np.flatnonzero(total)[::-1]  # a bootstrap draw does not have every score
    if not len(present):
        return ThresholdSweep(np.zeros(1), np.zeros(1), np.zeros(1))
    scores = distinct[present]
    return ThresholdSweep(
        np.concatenate([[np.nextafter(scores[0], np.inf)], (scores[1:] + scores[:-1]) / 2, scores[-1:]]),
        np.concatenate([[0.0], np.cumsum(total[present])]),
        np.concatenate([[0.0], np.cumsum(positive[present])]),
    )


# Clusters: how well they agree with classes. Names of labels do not matter.

AnyLabels = Sequence[Any] | NDArray[Any]  # strings or numbers: anything that can be sorted


@dataclass(frozen=True)
class ClusterAgreement:
    """Clusters against classes. All are 1 for a perfect match; `ari` is 0 by chance and may be negative."""

    v_measure: float
    homogeneity: float
    """Each cluster has texts of one class only: MI / H(classes)."""
    completeness: float
    """The texts of each class are in one cluster only: MI / H(clusters)."""
    nmi: float
    """MI over the geometric mean of the entropies (the V-measure is MI over the arithmetic mean)."""
    ari: float
    accuracy: float
    """Texts in the right cluster under the best assignment of each cluster to at most one class."""


def agreement(classes: AnyLabels, clusters: AnyLabels) -> ClusterAgreement:
    """All measures. One class alone counts as homogeneous and one cluster alone as complete, as is usual."""
    try:
        from scipy.optimize import linear_sum_assignment
        from sklearn import metrics
        from sklearn.metrics.cluster import contingency_matrix
    except ImportError as error:
        raise MissingExtra("agreement of clusters with classes", "scikit-learn", "evaluate") from error
    if len(classes) != len(clusters):
        raise InputError(
            f"{len(classes)} classes but {len(clusters)} clusters: both must label the same items"
        )
    if len(classes) == 0:
        raise InputError("clusters of no items cannot be measured: give at least one")
    homogeneity, completeness, v_measure = metrics.homogeneity_completeness_v_measure(classes, clusters)
    nmi = metrics.normalized_mutual_info_score(classes, clusters, average_method="geometric")
    counts = contingency_matrix(classes, clusters)
    assigned = counts[linear_sum_assignment(counts, maximize=True)].sum()
    return ClusterAgreement(
        v_measure=float(v_measure),
        homogeneity=float(homogeneity),
        completeness=float(completeness),
        nmi=float(nmi),
        ari=float(metrics.adjusted_rand_score(classes, clusters)),
        accuracy=float(assigned / len(classes)),
    )


# Ranked lists: one value per query.


@dataclass(frozen=True, eq=False)
class Ranked:
    """The gains of ranked lists, and of the ideal lists."""

    gains: Floats
    """(q, depth): the gain of the document at each rank; 0 where it is not relevant or there is none."""
    ideal: Floats
    """(q, most): the gains of all relevant documents of a query, best first, then zeros."""

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def relevant(self) -> Floats:
        """(q,) relevant documents of each query, found or not."""
        return np.asarray((self.ideal > 0).sum(axis=1), dtype=np.float64)


def ranked(index: NDArray[np.int64], gains: Sequence[Mapping[int, float]]) -> Ranked:
    """`index` (q, depth) has positions in a corpus, -1 for none; `gains` the gain of each position.

    A gain of 0 or less is "not relevant". A query without a relevant document raises an InputError.
    """
    if len(index) != len(gains):
        raise InputError(
            f"{len(index)} ranked lists but relevance for {len(gains)} queries; give one for each"
        )
    relevant = [{i: gain for i, gain in of_query.items() if gain > 0} for of_query in gains]
    empty = next((query for query, of_query in enumerate(relevant) if not of_query), None)
    if empty is not None:
        raise InputError(f"query {empty} has no relevant document; leave it out before ranking")
    ideal = np.zeros((len(gains), max(map(len, relevant), default=0)))
    achieved = np.zeros(index.shape)
    for row, of_query in enumerate(relevant):
        ideal[row, : len(of_query)] = sorted(of_query.values(), reverse=True)
        for rank in np.flatnonzero(np.isin(index[row], list(of_query))):
            achieved[row, rank] = of_query[int(index[row, rank])]
    return Ranked(achieved, ideal)


def ndcg(lists: Ranked, k: int) -> Floats:
    """The discounted gain of the first `k` ranks over that of the ideal list."""
    return _discounted(lists.gains, k) / _discounted(lists.ideal, k)


def average_precision(lists: Ranked, k: int | None = None) -> Floats:
    """The mean over the relevant documents of the precision where each was found; 0 for one not among the first `k`."""
    hit = lists.gains[:, :k] > 0
    precisions = np.cumsum(hit, axis=1) / np.arange(1, hit.shape[1] + 1)
    return np.asarray((precisions * hit).sum(axis=1) / lists.relevant)


def reciprocal_rank(lists: Ranked, k: int | None = None) -> Floats:
    """1 / the rank of the first relevant document; 0 where there is none among the first `k`."""
    hit = lists.gains[:, :k] > 0
    if hit.shape[1] == 0:
        return np.zeros(len(hit))
    return np.where(hit.any(axis=1), 1 / (hit.argmax(axis=1) + 1), 0.0)


def recall(lists: Ranked, k: int) -> Floats:
    """Relevant documents among the first `k`, divided by all relevant ones."""
    return _hits(lists, k) / lists.relevant


def precision(lists: Ranked, k: int) -> Floats:
    """Relevant documents among the first `k`, divided by k, also where the corpus or the list is shorter."""
    return _hits(lists, k) / k


def hit_rate(lists: Ranked, k: int) -> Floats:
    """1 where any relevant document is among the first `k`."""
    return np.asarray(_hits(lists, k) > 0, dtype=np.float64)


def _hits(lists: Ranked, k: int) -> Floats:
    return np.asarray((lists.gains[:, :k] > 0).sum(axis=1), dtype=np.float64)


def _discounted(gains: Floats, k: int) -> Floats:
    kept = gains[:, :k]
    return np.asarray((kept / np.log2(np.arange(2, kept.shape[1] + 2))).sum(axis=1))
