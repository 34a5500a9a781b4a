"""Semantic textual similarity: do pairs that people rate as similar get a high similarity?

The main number is Spearman's correlation of similarity and gold score over all pairs of a data set. A year of the STS
shared task is several sub-sets; `spearman` is over the pairs of all of them, as in the Sentence-BERT paper, and
`spearman-mean` and `spearman-wmean` are the two other ways in use. They differ by many points: see the page on
evaluation in docs/reference.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from gemel.evaluation.data import LEFT, RIGHT, DataTable, fingerprint, tables_with, with_columns
from gemel.evaluation.metrics import Floats
from gemel.evaluation.statistics import CorrelationSample, Rows, Sample, WeightedSample
from gemel.evaluation.task import (
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


@dataclass(frozen=True, eq=False)
class StsTask:
    """Pairs of texts with the score that people gave them."""

    dataset: str
    left: tuple[str, ...]
    right: tuple[str, ...]
    gold: Floats
    subsets: tuple[str, ...]
    """The sub-set of each pair; empty where the set has none."""
    metrics: tuple[str, ...]
    bootstrap: Bootstrap
    protocol: Mapping[str, Any]

    def score(self, encoder: Encoder) -> Scores:
        """Correlations for each similarity; the first is the main one."""
        predicted = pair_scores(encoder, self.left, self.right, self.metrics, task="sts")
        main = predicted[self.metrics[0]]
        parts = tuple(
            self._part(name, rows, {metric: numbers[rows] for metric, numbers in predicted.items()})
            for name, rows in self._subset_rows().items()
        )
        return Scores(
            task="sts",
            dataset=self.dataset,
            main="spearman",
            values=side_by_side(self.metrics, lambda metric: self._correlations(self.gold, predicted[metric]))
            | self._means(parts),
            items=len(self.gold),
            unit="pairs",
            parts=parts,
            protocol=self.protocol,
            sample=CorrelationSample(self.gold, main),
        )

    def _correlations(self, gold: Floats, predicted: Floats) -> dict[str, Score]:
        return {
            kind: self.bootstrap.score(
                CorrelationSample(gold, predicted, kind),
                undefined=_undefined(gold, predicted),
            )
            for kind in ("spearman", "pearson")
        }

    def _part(self, name: str, rows: Rows, predicted: Mapping[str, Floats]) -> Scores:
        gold = self.gold[rows]
        return Scores(
            task="sts",
            dataset=name,
            main="spearman",
            values=side_by_side(self.metrics, lambda metric: self._correlations(gold, predicted[metric])),
            items=len(gold),
            unit="pairs",
            sample=CorrelationSample(gold, predicted[self.metrics[0]]),
        )

    def _means(self, parts: tuple[Scores, ...]) -> dict[str, Score]:
        """The mean over sub-sets, plain and weighted by their pairs."""
        samples: tuple[Sample, ...] = tuple(part.sample for part in parts if part.sample is not None)
        if not samples:
            return {}
        missing = [part.dataset for part in parts if part.values["spearman"].value is None]
        weights = {
            "spearman-mean": (1.0,) * len(parts),
            "spearman-wmean": tuple(float(part.items) for part in parts),
        }
        return {
            name: self.bootstrap.score(
                WeightedSample(samples, chosen),
                undefined=f"not defined in the sub-set {', '.join(missing)}",
            )
            for name, chosen in weights.items()
        }

    def _subset_rows(self) -> dict[str, Rows]:
        """The rows of each sub-set, in the order of the file."""
        names = np.asarray(self.subsets)
        return {name: np.flatnonzero(names == name) for name in dict.fromkeys(self.subsets)}


@TASKS.add("sts")
def load(path: str | Path, *, metric: str = "cosine", rounds: int = 1000, seed: int = 0) -> list[Task]:
    """A task for each table of sentence1, sentence2 (or left, right), score: a file, or the test sets of a folder."""
    tables = tables_with(path, with_columns(LEFT, RIGHT, ("score",)), names=r"sts|^sick")
    return [_task(table, metric, Bootstrap(rounds, seed)) for table in tables]


def _task(table: DataTable, metric: str, bootstrap: Bootstrap) -> StsTask:
    left, right, gold = table.texts(*LEFT), table.texts(*RIGHT), table.numbers("score")
    subsets = table.texts("subset") if table.has("subset") else []
    if len(set(subsets)) < 2:
        subsets = []
    aggregation = "one correlation over all pairs"
    if subsets:
        aggregation += " of all sub-sets; mean and wmean are over the sub-sets' own correlations"
    return StsTask(
        dataset=table.name,
        left=tuple(left),
        right=tuple(right),
        gold=gold,
        subsets=tuple(subsets),
        metrics=chosen_metrics(metric),
        bootstrap=bootstrap,
        protocol={
            "metric": metric,
            **bootstrap.settings,
            **table.protocol,
            "aggregation": aggregation,
            "data": fingerprint(left, right, gold.tolist()),
        },
    )


def _undefined(gold: Floats, predicted: Floats) -> str:
    """Why a correlation of these is not defined."""
    if len(gold) < 2:
        return "a correlation needs two pairs or more"
    side = "gold scores" if np.ptp(gold) == 0 else "similarities"
    return f"no correlation: all {side} are equal"
