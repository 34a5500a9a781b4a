"""The items behind a number, where they can be drawn: gold and predicted scores, or yes-no labels and scores."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np

from gemel.evaluation.samples import CorrelationSample, Floats, Sample


@runtime_checkable
class LabelledScores(Protocol):
    """A sample of yes-no labels with a score each."""

    labels: Floats
    scores: Floats


@dataclass(frozen=True, eq=False)
class Points:
    """Finite numbers, row by row."""

    gold: Floats
    predicted: Floats

    @property
    def binary(self) -> bool:
        """Gold says yes or no."""
        return bool(np.isin(self.gold, (0.0, 1.0)).all())


def points_of(sample: Sample | None) -> Points | None:
    """The points of a sample, None where it has none to show: fewer than two, or means of items."""
    if isinstance(sample, CorrelationSample):
        gold, predicted = sample.gold, sample.predicted
    elif isinstance(sample, LabelledScores):
        gold, predicted = sample.labels, sample.scores
    else:
        return None
    gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if gold.ndim != 1 or gold.shape != predicted.shape:
        return None
    kept = np.isfinite(gold) & np.isfinite(predicted)
    return Points(gold[kept], predicted[kept]) if kept.sum() > 1 else None
