"""Pairs that are equal in meaning or not: how well the similarity separates them, and the best threshold.

The main number is the average precision, which needs no threshold. F1 and accuracy are at the threshold that is best
on these rows; for a threshold to use on other data, choose it on a development set.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.data import LEFT, PAIRS, RIGHT, DataTable, binary_labels, fingerprint, tables_with
from gemel.evaluation.metrics import Codes, Floats, ThresholdSweep, cuts_of_codes
from gemel.evaluation.statistics import Rows
from gemel.evaluation.task import (
    POINTS,
    TASKS,
    Bootstrap,
    Score,
    Scores,
    Task,
    chosen_metrics,
    pair_scores,
    side_by_side,
)
from gemel.types import Encoder

_NAMES = ("average-precision", "roc-auc", "f1", "precision", "recall", "accuracy", "f1-threshold",
          "accuracy-threshold")  # fmt: skip

_ONE_KIND = "all labels are equal: there are no two classes to separate"


@dataclass(frozen=True, eq=False)
class BinarySample:
    """Labeled pairs with their similarity. F1 and accuracy are at the best threshold for the given rows."""

    labels: NDArray[np.bool_]
    scores: Floats
    kind: str = "average-precision"

    @property
    def items(self) -> int:
        return len(self.labels)

    def cuts(self, rows: Rows) -> ThresholdSweep:
        distinct, codes = self._codes
        return cuts_of_codes(self.labels[rows], codes[rows], distinct)

    def number(self, rows: Rows) -> float | None:
        cuts = self.cuts(rows)
        if not 0 < cuts.positives < cuts.rows:
            return None
        if self.kind == "average-precision":
            return cuts.average_precision
        if self.kind == "roc-auc":
            return cuts.roc_auc
        best = cuts.best_f1 if self.kind == "f1" else cuts.best_accuracy
        return best.value if best else None

    @cached_property
    def _codes(self) -> tuple[Floats, Codes]:
        distinct, codes = np.unique(self.scores, return_inverse=True)
        return distinct, np.asarray(codes, dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BinaryPairsTask:
    """Pairs of texts with a label: 1 for equal in meaning, 0 for not."""

    dataset: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    labels: NDArray[np.bool_]
    metrics: tuple[str, ...]
    bootstrap: Bootstrap
    protocol: Mapping[str, Any]

    def score(self, encoder: Encoder) -> Scores:
        """Average precision, ROC AUC, and F1 and accuracy at their best thresholds."""
        similar = pair_scores(encoder, self.left, self.right, self.metrics, task="binary-pairs")
        return Scores(
            task="binary-pairs",
            dataset=self.dataset,
            main="average-precision",
            values=side_by_side(self.metrics, lambda metric: self._values(similar[metric])),
            items=len(self.labels),
            unit="pairs",
            protocol=self.protocol,
            sample=BinarySample(self.labels, similar[self.metrics[0]]),
        )

    def _values(self, similar: Floats) -> dict[str, Score]:
        def points(kind: str) -> Score:
            sample = BinarySample(self.labels, similar, kind)
            return self.bootstrap.score(sample, undefined=_ONE_KIND)

        cuts = BinarySample(self.labels, similar).cuts(np.arange(len(self.labels)))
        f1, accuracy = cuts.best_f1, cuts.best_accuracy
        if f1 is None or accuracy is None or cuts.positives == cuts.rows:
            return dict.fromkeys(_NAMES, Score(None, note=_ONE_KIND))
        return {
            "average-precision": points("average-precision"),
            "roc-auc": points("roc-auc"),
            "f1": points("f1"),
            "f1-threshold": Score(f1.threshold, note="a similarity, not points"),
            "precision": Score(POINTS * f1.precision, note="at the threshold of the best F1"),
            "recall": Score(POINTS * f1.recall, note="at the threshold of the best F1"),
            "accuracy": points("accuracy"),
            "accuracy-threshold": Score(accuracy.threshold, note="a similarity, not points"),
        }


@TASKS.add("binary-pairs")
def load(path: str | Path, *, metric: str = "cosine", rounds: int = 1000, seed: int = 0) -> list[Task]:
    """A task for each table of two texts and a label of 0 or 1: a file, or the test sets of a folder."""
    return [_task(table, metric, Bootstrap(rounds, seed)) for table in tables_with(path, PAIRS)]


def _task(table: DataTable, metric: str, bootstrap: Bootstrap) -> BinaryPairsTask:
    left, right, labels = table.texts(*LEFT), table.texts(*RIGHT), binary_labels(table)
    return BinaryPairsTask(
        dataset=table.name,
        left=tuple(left),
        right=tuple(right),
        labels=labels,
        metrics=chosen_metrics(metric),
        bootstrap=bootstrap,
        protocol={
            "metric": metric,
            **bootstrap.settings,
            **table.protocol,
            "thresholds": "the best on these rows",
            "data": fingerprint(left, right, labels.astype(float).tolist()),
        },
    )
