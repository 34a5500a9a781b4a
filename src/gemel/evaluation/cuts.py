"""How well a score tells two classes apart: every way to cut the scores in two, and the numbers made of that.

Rows with equal scores are on the same side of every cut. What is not defined is None, never NaN.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.evaluation.metrics import Codes, Floats


@dataclass(frozen=True)
class Cut:
    """A best place to cut: rows that score `threshold` or more are called positive."""

    value: float
    threshold: float
    precision: float
    recall: float


@dataclass(frozen=True, eq=False)
class Cuts:
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
    def best_f1(self) -> Cut | None:
        """The cut with the highest F1; of equal ones that with the highest threshold. None without positives."""
        return self._best(2 * self.right / (self.above + self.positives)) if self.positives else None

    @property
    def best_accuracy(self) -> Cut | None:
        """The cut with the most rows on their right side; of equal ones that with the highest threshold."""
        if not self.rows:
            return None
        return self._best((self.rows - self.positives - self.above + 2 * self.right) / self.rows)

    @property
    def _precision(self) -> Floats:
        return np.asarray(self.right / np.maximum(self.above, 1.0), dtype=np.float64)

    def _best(self, values: Floats) -> Cut:
        best = int(values.argmax())
        recall = float(self.right[best] / self.positives) if self.positives else 0.0
        return Cut(float(values[best]), float(self.thresholds[best]), float(self._precision[best]), recall)


def all_cuts(labels: ArrayLike, scores: ArrayLike) -> Cuts:
    """Every cut of rows with a label (true is positive) and a score."""
    distinct, codes = np.unique(np.asarray(scores, dtype=np.float64), return_inverse=True)
    return cuts_of_codes(np.asarray(labels, dtype=bool), np.asarray(codes, dtype=np.int64), distinct)


def cuts_of_codes(labels: NDArray[np.bool_], codes: Codes, distinct: Floats) -> Cuts:
    """The same for scores given as places in `distinct`, rising: counting takes the place of sorting."""
    total = np.bincount(codes, minlength=len(distinct))
    positive = np.bincount(codes[labels], minlength=len(distinct))
    present = np.flatnonzero(total)[::-1]  # a bootstrap draw does not hold every score
    if not len(present):
        return Cuts(np.zeros(1), np.zeros(1), np.zeros(1))
    scores = distinct[present]
    return Cuts(
        np.concatenate([[np.nextafter(scores[0], np.inf)], (scores[1:] + scores[:-1]) / 2, scores[-1:]]),
        np.concatenate([[0.0], np.cumsum(total[present])]),
        np.concatenate([[0.0], np.cumsum(positive[present])]),
    )
