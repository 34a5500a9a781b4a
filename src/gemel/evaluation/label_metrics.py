"""Predicted labels against true ones: accuracy and F1, and the sample behind them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
