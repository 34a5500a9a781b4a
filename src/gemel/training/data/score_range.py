"""The scale of gold scores: declared or detected, and brought to what a cosine can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError

_SCALES = ((0.0, 1.0), (-1.0, 1.0), (1.0, 5.0), (0.0, 5.0))
"""Those that data sets use, the narrowest first. 1..5 stands before 0..5: a score below 1 rules it out."""


@dataclass(frozen=True)
class Range:
    """A scale, and the lowest and highest score that were seen on it."""

    low: float
    high: float
    lowest: float
    highest: float
    declared: bool

    @property
    def signed(self) -> bool:
        """Scores on -1..1 stay there; all others go to 0..1."""
        return (self.low, self.high) == (-1.0, 1.0)

    def said(self) -> str:
        how = "as declared" if self.declared else "detected; declare score_range if it is another"
        kept = "kept" if self.signed else "rescaled to 0..1"
        return (
            f"scores from {self.lowest:g} to {self.highest:g} on a scale of {self.low:g}..{self.high:g} "
            f"({how}), {kept}"
        )


def find_range(values: NDArray[np.float64], declared: tuple[float, float] | None, where: str) -> Range:
    """The declared scale, or the narrowest usual one that holds all values."""
    lowest, highest = float(values.min()), float(values.max())
    if declared is not None:
        low, high = map(float, declared)
        if not low < high:
            raise InputError(f"score_range goes from low to high, got {low:g}, {high:g}")
        return Range(low, high, lowest, highest, True)
    for low, high in _SCALES:
        if low <= lowest and highest <= high:
            return Range(low, high, lowest, highest, False)
    raise InputError(
        f"{where}: the scores go from {lowest:g} to {highest:g}, which is none of the usual scales (0..1, -1..1, "
        "1..5, 0..5). Declare theirs with score_range=(low, high)"
    )


def rescale(values: NDArray[Any], scale: Range) -> NDArray[np.float32]:
    """To 0..1, or as they are on -1..1. A value outside of the scale stays outside: the doctor reports it."""
    if scale.signed:
        return values.astype(np.float32)
    return ((values - scale.low) / (scale.high - scale.low)).astype(np.float32)
