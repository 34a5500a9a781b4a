"""What an evaluation gives: named numbers with their intervals, the parts they were made of, and nothing hidden.

A number that cannot be computed (constant predictions, one row) is `None` with the reason, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemel.evaluation.samples import Sample, interval

POINTS = 100
"""Shares are shown as the field shows them: a Spearman correlation of 0.8203 is 82.03."""


@dataclass(frozen=True)
class Score:
    """One number; a share is in points (82.03). `low` and `high` are the ends of its 95 % bootstrap interval."""

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Why the value is undefined, or what to know about it."""

    def to_json(self) -> dict[str, Any]:
        content = {"value": _short(self.value), "low": _short(self.low), "high": _short(self.high)}
        return {**content, "note": self.note} if self.note else content


@dataclass(frozen=True)
class Scores:
    """The result of one task on one data set by one model, or of a whole made of such parts."""

    task: str
    dataset: str
    main: str
    """The name in `values` of the number to compare models by."""
    values: Mapping[str, Score]
    items: int
    """Rows that were scored: pairs, queries, texts; `unit` says which."""
    unit: str
    model: str = ""
    parts: tuple[Scores, ...] = ()
    """Sub-sets, years, folds: each a result of its own."""
    protocol: Mapping[str, Any] = field(default_factory=dict)
    """Everything that another person needs to get the same number: similarity, aggregation, folds, seeds."""
    sample: Sample | None = None
    """The items behind the main number, so that two models can be compared item by item."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object: the main number and its interval at the top, then all values, parts and the protocol."""
        main = self.values[self.main]
        return {
            "model": self.model,
            "task": self.task,
            "dataset": self.dataset,
            "main": self.main,
            **{name: _short(score.value) for name, score in self.values.items()},
            "low": _short(main.low),
            "high": _short(main.high),
            self.unit: self.items,
            "values": {name: score.to_json() for name, score in self.values.items()},
            "protocol": dict(self.protocol),
            "parts": [part.to_json() for part in self.parts],
        }


def score_of(sample: Sample, *, rounds: int = 1000, seed: int = 0, undefined: str = "") -> Score:
    """A sample's number in points with its bootstrap interval; `undefined` says why there may be none."""
    number = sample.number(np.arange(sample.items, dtype=np.int64))
    if number is None:
        return Score(None, note=undefined or "not defined for these items")
    ends = interval(sample, rounds=rounds, seed=seed)
    if ends is None:
        return Score(POINTS * number, note="too few items for an interval" if rounds else "")
    return Score(POINTS * number, POINTS * ends.low, POINTS * ends.high)


def _short(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
