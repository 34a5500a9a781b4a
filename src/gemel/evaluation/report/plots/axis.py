"""Numbers to places: scales, round ticks and the frame of a plot."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from gemel.evaluation.report.markup import Markup, join
from gemel.evaluation.report.plots.svg import WIDTH, line, words


@dataclass(frozen=True)
class Scale:
    """A range of numbers and where its two ends are drawn."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        share = (value - self.low) / (self.high - self.low)
        return self.start + share * (self.end - self.start)

    @property
    def ticks(self) -> list[float]:
        """Three to seven round numbers inside the range."""
        step = round_step(self.high - self.low)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [count * step for count in range(first, last + 1)]


@dataclass(frozen=True)
class Range:
    """The numbers that a plot has to show; plots that are compared share one."""

    low: float
    high: float

    def to(self, start: float, end: float) -> Scale:
        return Scale(self.low, self.high, start, end)


def range_of(numbers: Iterable[float], *, zero: bool = False) -> Range:
    """From the smallest to the largest, out to the next round tick; `zero` keeps 0 inside, as bars need it."""
    found = [number for number in numbers if math.isfinite(number)] + ([0.0] if zero else [])
    low, high = (min(found), max(found)) if found else (0.0, 1.0)
    if high - low < 1e-9:
        low, high = (min(low, 0.0), max(high, 1.0)) if zero else (low - 0.5, high + 0.5)
    step = round_step(high - low)
    # A cosine of 1.0000001 does not ask for another tick.
    return Range(math.floor(low / step + 1e-3) * step, math.ceil(high / step - 1e-3) * step)


def round_step(width: float) -> float:
    """1, 2 or 5 times a power of ten, such that `width` holds three to seven of it."""
    power = 10.0 ** math.floor(math.log10(width / 5))
    return next(factor * power for factor in (1, 2, 5, 10) if width / (factor * power) <= 7.5)


def ruler(scale: Scale, top: float, bottom: float) -> Markup:
    """Vertical grid lines with their numbers below."""
    marks = [line(scale(tick), top, scale(tick), bottom, "grid") for tick in scale.ticks]
    marks += [words(scale(tick), bottom + 13, tick_text(tick), anchor="middle") for tick in scale.ticks]
    return join(marks)


@dataclass(frozen=True)
class Frame:
    """The two scales of a plot with axes on the left and below."""

    x: Scale
    y: Scale

    def drawn(self, below: str, beside: str) -> Markup:
        """Grid, numbers and the names of the axes."""
        marks = [ruler(self.x, self.y.end, self.y.start)]
        for tick in self.y.ticks:
            marks.append(line(self.x.start, self.y(tick), self.x.end, self.y(tick), "grid"))
            marks.append(words(self.x.start - 5, self.y(tick) + 4, tick_text(tick), anchor="end"))
        marks.append(words((self.x.start + self.x.end) / 2, self.y.start + 28, below, anchor="middle"))
        marks.append(words(4, 11, beside))
        return join(marks)


PLOT_HEIGHT = 236


def frame(x: Range, y: Range) -> Frame:
    """The frame of a plot that fills a picture of PLOT_HEIGHT."""
    return Frame(x.to(42, WIDTH - 12), y.to(PLOT_HEIGHT - 36, 22))


def tick_text(tick: float) -> str:
    """0.2, not 0.2000000001, with a real minus sign."""
    return f"{round(tick, 9):g}".replace("-", "−")
