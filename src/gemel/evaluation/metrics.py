"""Numbers out of arrays: correlations. Pure functions; what is not defined is None, never NaN.

Predicted labels against true ones: accuracy and F1, and the sample behind them.

How well a score tells two classes apart: every way to cut the scores in two, and the numbers made of that.

Rows with equal scores are on the same side of every cut. What is not defined is None, never NaN.

How well clusters agree with classes, out of two rows of labels. Names of labels do not matter, only who shares one.

With H the entropy of one side and MI what the two sides tell about each other: homogeneity is MI / H(classes),
completeness MI / H(clusters), V-measure their harmonic mean, which is MI over the arithmetic mean of the entropies. So
that NMI says something else, it is MI over their geometric mean here.

Numbers for ranked lists: nDCG, average precision, reciprocal rank, recall, precision, one value a query.

Pure functions on `Ranked`. The definitions are those of trec_eval: gains count as they stand (not 2^gain - 1), a place
counts 1 / log2(place + 1), and the average precision is divided by all relevant documents, found or not.
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
    """The linear correlation of two rows of numbers; None for fewer than two, or where one side is constant."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (left, right))
    if len(x) < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    length = np.sqrt((x @ x) * (y @ y))
    # A constant row is left with rounding errors of its mean, not always with exact zeros.
    if length <= 1e-30 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.clip(x @ y / length, -1.0, 1.0))


def spearman(left: ArrayLike, right: ArrayLike) -> float | None:
    """The correlation of ranks; equal numbers share the mean of their ranks."""
    return pearson(ranks(left), ranks(right))


def ranks(values: ArrayLike) -> Floats:
    """1 for the smallest; equal values get the mean of the ranks they take up."""
    return ranks_of_codes(value_codes(values))


def value_codes(values: ArrayLike) -> Codes:
    """0 for the smallest value, 1 for the next: equal values share a code, and codes can be ranked without sorting."""
    _, codes = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
    return np.asarray(codes, dtype=np.int64)


def ranks_of_codes(codes: Codes) -> Floats:
    """The same as `ranks`, for codes: counting instead of sorting, for a bootstrap does it thousands of times."""
    if len(codes) == 0:
        return np.empty(0)
    sizes = np.bincount(codes)
    means = np.cumsum(sizes) - (sizes - 1) / 2  # the mean of the ranks that each code takes up
    return np.asarray(means[codes], dtype=np.float64)


Labels = NDArray[np.int64]


def f1(gold: Labels, predicted: Labels, positive: int = 1) -> float | None:
    """The harmonic mean of precision and recall of one label; None where it neither is nor was predicted."""
    true, said = gold == positive, predicted == positive
    both = int(true.sum()) + int(said.sum())
    return 2 * int((true & said).sum()) / both if both else None


def macro_f1(gold: Labels, predicted: Labels) -> float | None:
    """The mean of the F1 of each label that is there; None where nothing is."""
    each = [f1(gold, predicted, int(label)) for label in np.union1d(gold, predicted)]
    return float(np.mean([number for number in each if number is not None])) if each else None


def accuracy(gold: Labels, predicted: Labels) -> float | None:
    """The share of right labels; None for no rows."""
    return float((gold == predicted).mean()) if len(gold) else None


MEASURES = {"accuracy": accuracy, "f1": f1, "macro_f1": macro_f1}


@dataclass(frozen=True, eq=False)
class LabelSample:
    """A number out of true and predicted labels: `kind` is accuracy, f1 (of label 1) or macro_f1."""

    gold: Labels
    predicted: Labels
    kind: str = "accuracy"

    @property
    def items(self) -> int:
        return len(self.gold)

    def number(self, rows: NDArray[np.int64]) -> float | None:
        return MEASURES[self.kind](self.gold[rows], self.predicted[rows])


@dataclass(frozen=True)
class Threshold:
    """A best place to cut: rows that score `threshold` or more are called positive."""

    value: float
    threshold: float
    precision: float
    recall: float


@dataclass(frozen=True, eq=False)
class ThresholdSweep:
    """All cuts of scored rows, from "nothing is positive" down to "everything is"."""

    thresholds: Floats
    """(c,) falling: above the highest score, then halfway between each two neighbours, then the lowest score."""
    above: Floats
    """(c,) rows at or above the threshold; the first is 0."""
    right: Floats
    """(c,) of these, rows that are positive."""

    @property
    def rows(self) -> float:
        return float(self.above[-1])

    @property
    def positives(self) -> float:
        return float(self.right[-1])

    @property
    def average_precision(self) -> float | None:
        """Precision averaged over recall, step by step, without interpolation; None without positives."""
        if not self.positives:
            return None
        return float((np.diff(self.right) * self._precision[1:]).sum() / self.positives)

    @property
    def roc_auc(self) -> float | None:
        """How often a positive scores above a negative, a tie being half; None where one of them is missing."""
        negatives = self.rows - self.positives
        if not self.positives or not negatives:
            return None
        heights = (self.right[1:] + self.right[:-1]) / 2
        return float((np.diff(self.above - self.right) * heights).sum() / self.positives / negatives)

    @property
    def best_f1(self) -> Threshold | None:
        """The cut with the highest F1; of equal ones that with the highest threshold. None without positives."""
        return self._best(2 * self.right / (self.above + self.positives)) if self.positives else None

    @property
    def best_accuracy(self) -> Threshold | None:
        """The cut with the most rows on their right side; of equal ones that with the highest threshold."""
        if not self.rows:
            return None
        return self._best((self.rows - self.positives - self.above + 2 * self.right) / self.rows)

    @property
    def _precision(self) -> Floats:
        return np.asarray(self.right / np.maximum(self.above, 1.0), dtype=np.float64)

    def _best(self, values: Floats) -> Threshold:
        best = int(values.argmax())
        recall = float(self.right[best] / self.positives) if self.positives else 0.0
        return Threshold(
            float(values[best]), float(self.thresholds[best]), float(self._precision[best]), recall
        )


def all_cuts(labels: ArrayLike, scores: ArrayLike) -> ThresholdSweep:
    """Every cut of rows with a label (true is positive) and a score."""
    distinct, codes = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    return cuts_of_codes(np.asarray(labels, dtype=bool), np.asarray(codes, dtype=np.int64), distinct)


def cuts_of_codes(labels: NDArray[np.bool_], codes: Codes, distinct: Floats) -> ThresholdSweep:
    """The same for scores given as places in `distinct`, rising: counting takes the place of sorting."""
    total = np.bincount(codes, minlength=len(distinct))
    positive = np.bincount(codes[labels], minlength=len(distinct))
    present = np.flatnonzero(total)[::-1]  # a bootstrap draw does not hold every score
    if not len(present):
        return ThresholdSweep(np.zeros(1), np.zeros(1), np.zeros(1))
    scores = distinct[present]
    return ThresholdSweep(
        np.concatenate([[np.nextafter(scores[0], np.inf)], (scores[1:] + scores[:-1]) / 2, scores[-1:]]),
        np.concatenate([[0.0], np.cumsum(total[present])]),
        np.concatenate([[0.0], np.cumsum(positive[present])]),
    )


Counts = NDArray[np.int64]

AnyLabels = Sequence[Any] | NDArray[Any]  # texts or numbers: anything that can be sorted


@dataclass(frozen=True)
class ClusterAgreement:
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


def agreement(classes: AnyLabels, clusters: AnyLabels) -> ClusterAgreement:
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
    return ClusterAgreement(
        v_measure=2 * homogeneity * completeness / both if both else 0.0,
        homogeneity=homogeneity,
        completeness=completeness,
        nmi=nmi,
        ari=_adjusted_rand(counts),
        accuracy=_best_accuracy(counts),
    )


def contingency(classes: AnyLabels, clusters: AnyLabels) -> Counts:
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


@dataclass(frozen=True, eq=False)
class Ranked:
    """Ranked lists by what is at each place, and the best list that was possible."""

    gains: Floats
    """(q, depth): the gain of the document at each place; 0 where it is not relevant or the place is empty."""
    ideal: Floats
    """(q, most): the gains of all relevant documents of a query, best first, then zeros."""

    def __len__(self) -> int:
        return len(self.gains)

    @property
    def relevant(self) -> Floats:
        """(q,) relevant documents of each query, found or not."""
        return np.asarray((self.ideal > 0).sum(axis=1), dtype=np.float64)


def ranked(index: NDArray[np.int64], gains: Sequence[Mapping[int, float]]) -> Ranked:
    """`index` (q, depth) holds positions in a corpus, -1 for an empty place; `gains` the gain of each position.

    A gain of 0 or less is "not relevant". A query without a relevant document has no numbers, so it is refused.
    """
    if len(index) != len(gains):
        raise InputError(
            f"{len(index)} ranked lists but relevance for {len(gains)} queries; give one for each"
        )
    positive = [{place: gain for place, gain in known.items() if gain > 0} for known in gains]
    empty = next((query for query, known in enumerate(positive) if not known), None)
    if empty is not None:
        raise InputError(f"query {empty} has no relevant document; leave it out before ranking")
    ideal = np.zeros((len(gains), max(map(len, positive), default=0)))
    found = np.zeros(index.shape)
    for row, known in enumerate(positive):
        ideal[row, : len(known)] = sorted(known.values(), reverse=True)
        for place in np.flatnonzero(np.isin(index[row], list(known))):
            found[row, place] = known[int(index[row, place])]
    return Ranked(found, ideal)


def ndcg(lists: Ranked, k: int) -> Floats:
    """The discounted gain of the first `k` places over that of the best order."""
    return _discounted(lists.gains, k) / _discounted(lists.ideal, k)


def average_precision(lists: Ranked, k: int | None = None) -> Floats:
    """The mean over the relevant documents of the precision where each was found; 0 for one not among the first `k`."""
    hit = lists.gains[:, :k] > 0
    precisions = np.cumsum(hit, axis=1) / np.arange(1, hit.shape[1] + 1)
    return np.asarray((precisions * hit).sum(axis=1) / lists.relevant)


def reciprocal_rank(lists: Ranked, k: int | None = None) -> Floats:
    """1 / the place of the first relevant document; 0 where there is none among the first `k`."""
    hit = lists.gains[:, :k] > 0
    if hit.shape[1] == 0:
        return np.zeros(len(hit))
    return np.where(hit.any(axis=1), 1 / (hit.argmax(axis=1) + 1), 0.0)


def recall(lists: Ranked, k: int) -> Floats:
    """Relevant documents among the first `k`, of all that there are."""
    return _hits(lists, k) / lists.relevant


def precision(lists: Ranked, k: int) -> Floats:
    """Relevant documents among the first `k`, of k: also where the corpus or the list is shorter."""
    return _hits(lists, k) / k


def hit_rate(lists: Ranked, k: int) -> Floats:
    """1 where any relevant document is among the first `k`."""
    return np.asarray(_hits(lists, k) > 0, dtype=np.float64)


def _hits(lists: Ranked, k: int) -> Floats:
    return np.asarray((lists.gains[:, :k] > 0).sum(axis=1), dtype=np.float64)


def _discounted(gains: Floats, k: int) -> Floats:
    kept = gains[:, :k]
    return np.asarray((kept / np.log2(np.arange(2, kept.shape[1] + 2))).sum(axis=1))
