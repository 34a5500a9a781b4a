"""How often random pairs score high: counted where there are many, continued by a curve where there are few.

The curve is fitted to the upper tenth without its top 0.5 %, where pairs that truly belong together would pull on it.
Scores are first stretched so that the best possible one lies at infinity; there the logarithm of the share of random
pairs above a score falls as a straight line for real texts and as a parabola for random directions.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors

Numbers = NDArray[np.float64]

FIT_FROM = 0.1  # share of random pairs above the lowest fitted score
FIT_TO = 0.005  # and above the highest: rarer pairs may be no chance
_FEWEST_ABOVE = 20  # scores above the highest fitted one, where the sample is small
_POINTS = 25


@dataclass(frozen=True)
class Stretch:
    """A way to put the best possible score at infinity, and back."""

    out: Callable[[Numbers], Numbers]
    back: Callable[[Numbers], Numbers]


_NEAREST = 1e-12
_AS_IS = Stretch(lambda x: x, lambda y: y)
_DISTANCE = Stretch(lambda x: -np.log(np.maximum(-x, _NEAREST)), lambda y: -np.exp(-y))
STRETCHES = {
    "cosine": Stretch(lambda x: np.arctanh(np.clip(x, _NEAREST - 1, 1 - _NEAREST)), np.tanh),
    "euclidean": _DISTANCE,
    "manhattan": _DISTANCE,
}


def stretch_of(metric: str) -> Stretch:
    return STRETCHES.get(metric, _AS_IS)


@dataclass(frozen=True)
class Tail:
    """From `start` on (a stretched score), -log share = level + slope t + bend t² / 2, with t the way from `start`."""

    start: float
    level: float
    slope: float
    bend: float

    def minus_log_share(self, stretched: Numbers) -> Numbers:
        t = np.maximum(stretched - self.start, 0)
        return self.level + self.slope * t + self.bend * t * t / 2

    def at(self, minus_log: float) -> float:
        """The stretched score above which exp(-minus_log) of random pairs lie; not below `start`."""
        rest = max(minus_log - self.level, 0.0)
        if self.bend * rest < 1e-9 * self.slope**2:
            return self.start + rest / self.slope
        return self.start + float((np.sqrt(self.slope**2 + 2 * self.bend * rest) - self.slope) / self.bend)


def fit_tail(ordered: Vectors, stretch: Stretch) -> Tail | None:
    """The tail of ascending scores; None where they do not differ enough to show one."""
    count = len(ordered)
    last = min(max(FIT_TO, _FEWEST_ABOVE / count), FIT_FROM / 2)
    shares = np.geomspace(FIT_FROM, last, _POINTS)
    places = np.clip(np.round(count * (1 - shares)).astype(np.int64), 0, count - 1)
    y = stretch.out(ordered[places].astype(np.float64))
    if y[-1] - y[0] <= 1e-9:
        return None
    t, height = y - y[-1], -np.log(shares)
    bend, slope = _parabola(t, height)
    return Tail(float(y[-1]), float(height[-1]), slope, bend)


def _parabola(t: Numbers, height: Numbers) -> tuple[float, float]:
    """Bend and slope at t = 0 by least squares; a curve that flattens is taken as straight, so that it always falls."""
    half_bend, slope, _ = np.polyfit(t, height, 2)
    if half_bend <= 0 or slope <= 0:
        half_bend, slope = 0.0, np.polyfit(t, height, 1)[0]
    return 2 * float(half_bend), float(slope)
