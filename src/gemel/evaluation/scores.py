"""What an evaluation gives: named numbers with their intervals, the parts they were made of, and nothing hidden.

A number that cannot be computed (constant predictions, one row) is `None` with the reason, never NaN.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gemel.evaluation.samples import Sample


@dataclass(frozen=True)
class Score:
    """One number. `low` and `high` are the ends of its 95 % bootstrap interval, where one was asked for."""

    value: float | None
    low: float | None = None
    high: float | None = None
    note: str = ""
    """Why the value is undefined, or what to know about it."""

    def to_json(self) -> dict[str, Any]:
        content = {"value": self.value, "low": self.low, "high": self.high}
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
            **{name: score.value for name, score in self.values.items()},
            "low": main.low,
            "high": main.high,
            self.unit: self.items,
            "values": {name: score.to_json() for name, score in self.values.items()},
            "protocol": dict(self.protocol),
            "parts": [part.to_json() for part in self.parts],
        }
