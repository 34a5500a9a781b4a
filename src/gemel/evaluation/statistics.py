"""Statistics of evaluations: bootstrap intervals, the paired bootstrap test of two models, random rows and folds.

A sample has items and computes its number from any rows of them, which may repeat. The bootstrap draws such rows: the
interval is where 95 % of the numbers are; the paired test draws the same rows for both models. All is seeded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.metrics import Codes, Floats, pearson, ranks_of_codes, value_codes
from gemel.types import ShownResult

Rows = NDArray[np.int64]

_ENDS = (0.025, 0.975)  # quantiles between which 95 % of the numbers are


class Sample(Protocol):
    """Items of one evaluation. A stratified sample also has a method `draw(random) -> rows`."""

    @property
    def items(self) -> int: ...

    def number(self, rows: Rows) -> float | None:
        """The number over these rows, as a share (0.82, not 82); None where it is not defined."""
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
    """A number that correlates predictions with gold scores. Ranks are computed within the drawn rows."""

    gold: Floats
    predicted: Floats
    kind: str = "spearman"

    @property
    def items(self) -> int:
        return len(self.gold)

    def number(self, rows: Rows) -> float | None:
        if self.kind == "pearson":
            return pearson(self.gold[rows], self.predicted[rows])
        gold, predicted = self._codes
        return pearson(ranks_of_codes(gold[rows]), ranks_of_codes(predicted[rows]))

    @cached_property
    def _codes(self) -> tuple[Codes, Codes]:
        return value_codes(self.gold), value_codes(self.predicted)


@dataclass(frozen=True, eq=False)
class WeightedSample:
    """The weighted mean of the numbers of several samples; each draws from its own items only."""

    parts: tuple[Sample, ...]
    weights: tuple[float, ...]

    @property
    def items(self) -> int:
        return sum(part.items for part in self.parts)

    def number(self, rows: Rows) -> float | None:
        owners = self._owners[rows]
        if (owners[1:] < owners[:-1]).any():  # rows of `draw` are ordered by part; others may not be
            rows, owners = rows[np.argsort(owners, kind="stable")], np.sort(owners)
        ends = np.searchsorted(owners, np.arange(len(self.parts)), side="right")
        total, begin = 0.0, 0
        for part, weight, start, end in zip(self.parts, self.weights, self._starts, ends, strict=True):
            number = part.number(rows[begin:end] - start)
            if number is None:
                return None
            total, begin = total + weight * number, end
        return total / sum(self.weights)

    def draw(self, random: np.random.Generator) -> Rows:
        return np.concatenate(
            [start + draw_rows(part, random) for start, part in zip(self._starts, self.parts, strict=True)]
        )

    @cached_property
    def _starts(self) -> Rows:
        """The row at which each part begins."""
        return np.cumsum([0, *(part.items for part in self.parts)], dtype=np.int64)[:-1]

    @cached_property
    def _owners(self) -> Rows:
        """The part that each row belongs to."""
        return np.repeat(np.arange(len(self.parts)), [part.items for part in self.parts])


@dataclass(frozen=True)
class Interval:
    """Ends of the interval that contains 95 % of the bootstrap numbers."""

    low: float
    high: float


@dataclass(frozen=True)
class PairedComparison(ShownResult):
    """Two models on the same items: the difference, its interval and p-value."""

    difference: float
    """Second minus first."""
    low: float
    high: float
    p_value: float
    """Two-sided: the probability of a difference this far from zero if the models were equally good."""
    items: int
    rounds: int

    @property
    def sure(self) -> bool:
        """The interval does not contain zero."""
        return self.low > 0 or self.high < 0

    def to_json(self) -> dict[str, Any]:
        return {
            "difference": round(self.difference, 4),
            "low": round(self.low, 4),
            "high": round(self.high, 4),
            "p_value": round(self.p_value, 6),
            "items": self.items,
            "rounds": self.rounds,
            "sure": self.sure,
        }


@dataclass(frozen=True)
class NamedComparison(ShownResult):
    """A comparison and what it compares: two models by name, on one data set of a task."""

    first: str
    second: str
    task: str
    dataset: str
    comparison: PairedComparison

    @property
    def better(self) -> str:
        """The model that is significantly better; empty where the interval contains zero."""
        if not self.comparison.sure:
            return ""
        return self.second if self.comparison.difference > 0 else self.first

    def to_json(self) -> dict[str, Any]:
        names = {"first": self.first, "second": self.second, "task": self.task, "dataset": self.dataset}
        return {**names, **self.comparison.to_json(), "better": self.better}


def interval(sample: Sample, *, rounds: int = 1000, seed: int = 0) -> Interval | None:
    """The percentile bootstrap interval of a sample's number; None where it is undefined in too many rounds."""
    defined = [number for rows in _draws(sample, rounds, seed) if (number := sample.number(rows)) is not None]
    if not defined or len(defined) < rounds / 2:
        return None
    low, high = np.quantile(defined, _ENDS)
    return Interval(float(low), float(high))


def compare(first: Sample, second: Sample, *, rounds: int = 2000, seed: int = 0) -> PairedComparison:
    """The paired bootstrap: each round draws the same rows for both models."""
    if first.items != second.items:
        raise InputError(
            f"two models can only be compared on the same items, but they have {first.items} and {second.items}"
        )
    if first.items < 2 or rounds < 1:
        raise InputError(f"a comparison needs two items and a round, got {first.items} and {rounds}")
    every = np.arange(first.items, dtype=np.int64)
    one, two = first.number(every), second.number(every)
    if one is None or two is None:
        raise InputError("two models cannot be compared by a number that is not defined for one of them")
    differences = []
    for rows in _draws(first, rounds, seed):
        left, right = first.number(rows), second.number(rows)
        if left is not None and right is not None:
            differences.append(right - left)
    if len(differences) < rounds / 2:
        raise InputError(
            f"{first.items} items are too few to compare two models by: most draws have no number"
        )
    spread = np.asarray(differences)
    low, high = np.quantile(spread, _ENDS)
    # Centered on zero, the differences are those of equally good models. One is added so that p is never exactly 0.
    beyond = int((np.abs(spread - spread.mean()) >= abs(two - one)).sum())
    p_value = (beyond + 1) / (len(spread) + 1)
    return PairedComparison(two - one, float(low), float(high), p_value, first.items, rounds)


def _draws(sample: Sample, rounds: int, seed: int) -> Iterator[Rows]:
    """The same rows for the same seed and number of items."""
    if sample.items < 2:
        return
    random = np.random.default_rng(seed)
    for _ in range(rounds):
        yield draw_rows(sample, random)


def draw_rows(sample: Sample, random: np.random.Generator) -> Rows:
    """As many rows as a sample has items, with repeats; by its own `draw` where it has one."""
    own: Callable[[np.random.Generator], Rows] | None = getattr(sample, "draw", None)
    return own(random) if own else random.integers(0, sample.items, sample.items)


def choose(rows: int, limit: int | None, seed: int) -> Rows:
    """All row numbers, or `limit` of them at random, ascending. Not the first: files may be sorted by class."""
    if limit is None or limit >= rows:
        return np.arange(rows)
    if limit < 2:
        raise InputError(f"limit must be at least 2 rows, got {limit}")
    return np.sort(np.random.default_rng(seed).permutation(rows)[:limit])


def deal_folds(labels: Sequence[str] | NDArray[np.int64], folds: int, seed: int) -> Rows:
    """(n,) the fold of each row, 0 to folds - 1: stratified, with sizes that differ by at most 1."""
    if folds < 2 or len(labels) < folds:
        raise InputError(
            f"{len(labels)} rows cannot make {folds} folds: choose between 2 and the number of rows"
        )
    random = np.random.default_rng(seed)
    _, group = np.unique(np.asarray(labels), return_inverse=True)
    order = random.permutation(len(labels))
    order = order[np.argsort(group[order], kind="stable")]  # sorted by label, shuffled within
    fold = np.empty(len(labels), dtype=np.int64)
    fold[order] = np.arange(len(labels)) % folds
    return fold
