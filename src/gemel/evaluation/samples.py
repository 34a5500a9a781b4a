"""Items behind a number, and how sure the number is: bootstrap intervals and a paired test between two models.

A sample knows its items and how to compute its number from any choice of them (rows may repeat). The bootstrap draws
such choices: the interval is where 95 % of the numbers fall; the paired test draws the same rows for both models.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.metrics import pearson, spearman

Floats = NDArray[np.float64]
Rows = NDArray[np.int64]


class Sample(Protocol):
    """Items of one evaluation."""

    @property
    def items(self) -> int: ...

    def number(self, rows: Rows) -> float | None:
        """The number over these rows; None where it is not defined."""
        ...


@dataclass(frozen=True, eq=False)
class MeanSample:
    """A number that is the mean over items: accuracy, nDCG, reciprocal rank."""

    values: Floats

    @property
    def items(self) -> int:
        return len(self.values)

    def number(self, rows: Rows) -> float | None:
        return float(self.values[rows].mean()) if len(rows) else None


@dataclass(frozen=True, eq=False)
class CorrelationSample:
    """A number that correlates predictions with gold scores."""

    gold: Floats
    predicted: Floats
    kind: str = "spearman"

    @property
    def items(self) -> int:
        return len(self.gold)

    def number(self, rows: Rows) -> float | None:
        correlate = spearman if self.kind == "spearman" else pearson
        return correlate(self.gold[rows], self.predicted[rows])


@dataclass(frozen=True)
class Interval:
    """Ends of the interval that holds `level` of the bootstrap numbers."""

    low: float
    high: float
    level: float = 0.95


@dataclass(frozen=True)
class Comparison:
    """Two models on the same items: the difference, its interval, and how often the better one won."""

    difference: float
    """Second minus first."""
    low: float
    high: float
    p_value: float
    """Two-sided: how often a difference this far from zero would come up if the models were equally good."""
    items: int
    rounds: int

    @property
    def sure(self) -> bool:
        """The interval does not hold zero."""
        return self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, Any]:
        return {
            "difference": self.difference,
            "low": self.low,
            "high": self.high,
            "p_value": self.p_value,
            "items": self.items,
            "rounds": self.rounds,
            "sure": self.sure,
        }


@dataclass(frozen=True)
class NamedComparison:
    """A comparison and what it compares: two models by name, on one data set."""

    first: str
    second: str
    dataset: str
    comparison: Comparison

    @property
    def better(self) -> str:
        """The model that is better for sure; empty where chance alone would do as much."""
        if not self.comparison.sure:
            return ""
        return self.second if self.comparison.difference > 0 else self.first

    def to_json(self) -> dict[str, Any]:
        names = {"first": self.first, "second": self.second, "dataset": self.dataset}
        return {**names, **self.comparison.to_json(), "better": self.better}


def interval(sample: Sample, *, rounds: int = 1000, seed: int = 0, level: float = 0.95) -> Interval | None:
    """The percentile bootstrap interval of a sample's number; None where the number is not defined."""
    drawn = [sample.number(rows) for rows in _draws(sample.items, rounds, seed)]
    defined = [number for number in drawn if number is not None]
    if len(defined) < len(drawn) / 2 or not defined:
        return None
    tail = (1 - level) / 2
    low, high = np.quantile(defined, [tail, 1 - tail])
    return Interval(float(low), float(high), level)


def compare(first: Sample, second: Sample, *, rounds: int = 2000, seed: int = 0) -> Comparison:
    """The paired bootstrap: each round draws the same rows for both, so that hard items are hard for both."""
    if first.items != second.items:
        raise InputError(
            f"two models are compared on the same items, but they have {first.items} and {second.items}"
        )
    every = np.arange(first.items, dtype=np.int64)
    one, two = first.number(every), second.number(every)
    if one is None or two is None:
        raise InputError("two models are compared by a number that is not defined for one of them")
    differences = []
    for rows in _draws(first.items, rounds, seed):
        left, right = first.number(rows), second.number(rows)
        if left is not None and right is not None:
            differences.append(right - left)
    spread = np.asarray(differences)
    low, high = np.quantile(spread, [0.025, 0.975])
    # Centred on zero, the spread is what chance alone would do. One is added so that p is never exactly 0.
    beyond = int((np.abs(spread - spread.mean()) >= abs(two - one)).sum())
    return Comparison(
        two - one, float(low), float(high), (beyond + 1) / (len(spread) + 1), len(every), rounds
    )


def _draws(items: int, rounds: int, seed: int) -> list[Rows]:
    if items < 2:
        return []
    random = np.random.default_rng(seed)
    return [random.integers(0, items, items) for _ in range(rounds)]
