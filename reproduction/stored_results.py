"""Results as a page needs them: of each table the largest scale that was run, its lines over seeds."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from reproduction.scales import SCALES

HERE = Path(__file__).parent
RESULTS = HERE / "results"

Content = dict[str, Any]


@dataclass(frozen=True)
class Line:
    """A line of a table: its measurements, one for each seed."""

    label: str
    entries: Sequence[Content]

    def values(self, dataset: str = "", number: str = "value") -> list[float]:
        """Over seeds; without a name, on the first data set."""
        scores = [entry["scores"] for entry in self.entries]
        return [(score[dataset] if dataset else next(iter(score.values())))[number] for score in scores]

    def mean(self, dataset: str = "", number: str = "value") -> float:
        return float(np.mean(self.values(dataset, number)))

    def cell(self, dataset: str = "") -> str:
        """Mean ± standard deviation of several seeds, else the value with its interval."""
        values = self.values(dataset)
        if len(values) > 1:
            return f"{np.mean(values):.2f} ± {np.std(values, ddof=1):.2f}"
        score = self.entries[0]["scores"]
        one = score[dataset] if dataset else next(iter(score.values()))
        return f"{one['value']:.2f} [{one['low']:.1f}, {one['high']:.1f}]"


def read_results(folder: Path = RESULTS) -> dict[str, Content]:
    """Table to content."""
    result: dict[str, Content] = {}
    for scale in SCALES:  # from small to large: a larger one replaces a smaller one
        for path in sorted(folder.glob(f"table-*-{scale}.json")):
            content = json.loads(path.read_text(encoding="utf-8"))
            if content["rows"]:
                result[content["table"]] = content
    return result


def lines_of(content: Content) -> dict[str, Line]:
    """By label, in the order of the plan."""
    grouped: dict[str, list[Content]] = {}
    for entry in content["rows"]:
        grouped.setdefault(entry["label"], []).append(entry)
    return {label: Line(label, entries) for label, entries in grouped.items()}
