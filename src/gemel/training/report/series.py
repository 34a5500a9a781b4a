"""A journal as series of numbers, ready to be drawn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.training.bar import Smoothed
from gemel.training.geometry import Similarities
from gemel.training.journal import Line

Floats: TypeAlias = NDArray[np.float64]
POINTS = 600
"""More than this many points of a line cannot be seen apart."""


@dataclass(frozen=True, eq=False)
class Series:
    """A number over the steps; all values are finite."""

    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def smoothed(self) -> Series:
        """A running mean over about a fiftieth of the points, at least ten."""
        mean = Smoothed(1 - 1 / max(10, len(self) / 50))
        return Series(self.steps, np.array([mean.add(value) for value in self.values.tolist()]))

    def thinned(self) -> Series:
        """At most `POINTS` points: the lowest and the highest of each stretch, so that no peak is lost."""
        if len(self) <= POINTS:
            return self
        kept: set[int] = {0, len(self) - 1}
        for part in np.array_split(np.arange(len(self)), POINTS // 2 - 1):
            kept |= {int(part[self.values[part].argmin()]), int(part[self.values[part].argmax()])}
        order = sorted(kept)
        return Series(self.steps[order], self.values[order])


def series(journal: Sequence[Line], kind: str, name: str) -> Series:
    """The field `name` of all lines of this kind; lines where it is missing or not finite are left out."""
    found = [
        (line["step"], line[name])
        for line in journal
        if line["kind"] == kind and isinstance(line.get(name), int | float)
    ]
    table = np.array(found, dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    return Series(table[:, 0], table[:, 1])


def similarities_of(journal: Sequence[Line]) -> tuple[Similarities | None, Similarities | None]:
    """The first and the last histograms that the journal holds; the last is None where there is but one."""
    found = [Similarities.from_json(line) for line in journal if line["kind"] == "similarities"]
    return (found[0] if found else None), (found[-1] if len(found) > 1 else None)


def warnings_of(journal: Sequence[Line]) -> list[str]:
    return [str(line["text"]) for line in journal if line["kind"] == "warning" and line.get("text")]
