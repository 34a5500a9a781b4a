"""A number over the steps as a picture: each value, a smoothed line, a level to compare with, the best point.

Cosines of random texts and of texts that belong together, before training and after, on the same axes.

A journal as series of numbers, ready to be drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.report.markup import (
    PLOT_HEIGHT,
    AxisRange,
    Frame,
    Markup,
    drawing,
    element,
    frame,
    line,
    range_of,
    words,
)
from gemel.training.journal import Line, Smoothed
from gemel.training.watch import BINS, SimilaritySample

_DOTTED = 40  # up to so many points each gets a dot


@dataclass(frozen=True)
class Level:
    """A dashed line across the picture."""

    name: str
    value: float


@dataclass(frozen=True)
class Curve:
    """What one picture shows."""

    title: str
    values: Series
    smooth: bool = False
    """Each value as a thin line, and a smoothed one over it."""
    level: Level | None = None
    best_step: int | None = None
    zero: bool = False
    """The axis begins at 0, so that a small change looks small."""

    @property
    def hint(self) -> str:
        """The line below the title."""
        said = ["thin: as measured; thick: smoothed"] if self.smooth else []
        top, above = self._top()
        if above:
            most = f"{self.values.values.max():.4g}"
            said.append(f"{above} above {top:.4g} are cut off, the highest is {most}")
        return "; ".join(said) or f"last: {self.values.values[-1]:.4g}"

    def drawn(self) -> Markup:
        values, top = self.values.values, self._top()[0]
        factor, unit = _factor(values)
        shown = Series(self.values.steps, np.minimum(values, top) * factor)
        levels = [] if self.level is None else [self.level.value * factor]
        ends = [float(end) for end in (self.values.steps.min(), self.values.steps.max())]
        axes = frame(_steps(*ends), range_of([*shown.values.tolist(), *levels], zero=self.zero))
        marks = [axes.drawn("step", unit)]
        if self.smooth:
            marks.append(_path(shown.thinned(), axes, "thin"))
            mean = self.values.smoothed().values
            smooth = Series(self.values.steps, np.minimum(mean, top) * factor)
            marks.append(_path(smooth.thinned(), axes, "track"))
        else:
            marks.append(_path(shown.thinned(), axes, "track"))
        if len(shown) <= _DOTTED:
            marks += [_dot(axes, step, value) for step, value in zip(shown.steps, shown.values, strict=True)]
        marks += self._level(axes, factor) + self._best(axes, shown, factor)
        return drawing(self.title, self._told(), PLOT_HEIGHT, element("g", *marks, class_="c0"))

    def _top(self) -> tuple[float, int]:
        """Where the picture ends, and how many values are above: a few wild ones must not flatten the rest."""
        values = self.values.values
        usual = float(np.quantile(values, 0.98)) if self.smooth and len(values) > 50 else math.inf
        top = 1.5 * usual
        if usual <= 0 or values.max() <= 2 * usual:
            return math.inf, 0
        return top, int((values > top).sum())

    def _level(self, axes: Frame, factor: float) -> list[Markup]:
        if self.level is None:
            return []
        height = axes.y(self.level.value * factor)
        name = f"{self.level.name} {self.level.value:.4g}"
        return [
            line(axes.x.start, height, axes.x.end, height, "zero"),
            words(axes.x.end, height - 4, name, anchor="end", class_="strong"),
        ]

    def _best(self, axes: Frame, shown: Series, factor: float) -> list[Markup]:
        places = np.flatnonzero(shown.steps == (-1 if self.best_step is None else self.best_step))
        if not len(places):
            return []
        value = float(shown.values[places[-1]])
        across, up = axes.x(float(shown.steps[places[-1]])), axes.y(value)
        right = across > (axes.x.start + axes.x.end) / 2
        below = up < axes.y.end + 20
        return [
            element("circle", cx=across, cy=up, r=6.5, class_="ring"),
            words(
                across - 10 if right else across + 10,
                up + 18 if below else up - 10,
                f"best {value / factor:.4g}",
                anchor="end" if right else None,
                class_="strong",
            ),
        ]

    def _told(self) -> str:
        steps, values = self.values.steps, self.values.values
        low, high = int(values.argmin()), int(values.argmax())
        told = (
            f"{len(values):,} values from step {steps[0]:.0f} to {steps[-1]:.0f}: first {values[0]:.4g}, last "
            f"{values[-1]:.4g}, lowest {values[low]:.4g} at step {steps[low]:.0f}, highest {values[high]:.4g} at step "
            f"{steps[high]:.0f}"
        )
        return told if self.level is None else f"{told}; {self.level.name}: {self.level.value:.4g}"


def _path(shown: Series, axes: Frame, look: str) -> Markup:
    places = (
        f"{axes.x(step):.1f} {axes.y(value):.1f}"
        for step, value in zip(shown.steps.tolist(), shown.values.tolist(), strict=True)
    )
    return element("path", d="M" + "L".join(places), class_=look)


def _dot(axes: Frame, step: float, value: float) -> Markup:
    return element("circle", cx=axes.x(float(step)), cy=axes.y(float(value)), r=2.5)


def _steps(low: float, high: float) -> AxisRange:
    """All steps, and no more: a run of 5,400 steps need not end at 6,000."""
    return AxisRange(low, high) if high > low else AxisRange(low - 0.5, high + 0.5)


def _factor(values: np.ndarray) -> tuple[float, str]:
    """What to multiply by so that the numbers at the axis are short, and how the axis says so."""
    most = float(np.abs(values).max())
    if most == 0 or 0.01 <= most < 10_000:
        return 1.0, ""
    power = math.floor(math.log10(most))
    return 10.0**-power, f"× 10{str(power).translate(_RAISED)}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")

_EDGES = np.linspace(-1, 1, BINS + 1)


@dataclass(frozen=True)
class CosineHistogram:
    """One picture: the filled shape is of random texts, the line of those that belong together."""

    title: str
    counts: SimilaritySample
    x: AxisRange
    y: AxisRange

    @property
    def hint(self) -> str:
        said = f"filled: random texts, mean {_mean(self.counts.random):.2f}"
        if self.counts.positive is not None:
            said += f"; line: texts that belong together, mean {_mean(self.counts.positive):.2f}"
        return said

    def drawn(self) -> Markup:
        axes = frame(self.x, self.y)
        marks = [
            axes.drawn("cosine", "% of pairs"),
            element("path", d=_outline(_shares(self.counts.random), axes), class_="filled c0"),
        ]
        if self.counts.positive is not None:
            marks.append(
                element("path", d=_outline(_shares(self.counts.positive), axes), class_="outline c1")
            )
        return drawing(f"Cosines, {self.title.lower()}", self.hint, PLOT_HEIGHT, *marks)


def histograms(named: list[tuple[str, SimilaritySample]]) -> list[CosineHistogram]:
    """The pictures, with axes that they share."""
    kinds = [each for _, counts in named for each in (counts.random, counts.positive) if each is not None]
    used = np.flatnonzero(np.sum([np.array(kind) for kind in kinds], axis=0))
    low, high = (float(_EDGES[used[0]]), float(_EDGES[used[-1] + 1])) if len(used) else (-1.0, 1.0)
    across = range_of([low, high])
    up = range_of([float(_shares(kind).max()) for kind in kinds], zero=True)
    return [CosineHistogram(title, counts, across, up) for title, counts in named]


def _shares(counts: tuple[int, ...]) -> Floats:
    """In percent."""
    numbers = np.array(counts, dtype=np.float64)
    return np.asarray(100 * numbers / max(numbers.sum(), 1))


def _mean(counts: tuple[int, ...]) -> float:
    """To within half a bin, 0.0125."""
    middles = (_EDGES[:-1] + _EDGES[1:]) / 2
    return float(np.average(middles, weights=counts)) if sum(counts) else 0.0


def _outline(shares: Floats, axes: Frame) -> str:
    """Stairs from the floor and back to it."""
    inside = np.flatnonzero((_EDGES[:-1] >= axes.x.low - 1e-9) & (_EDGES[1:] <= axes.x.high + 1e-9))
    path = [f"M{axes.x(float(_EDGES[inside[0]])):.1f} {axes.y(0):.1f}"]
    for place in inside:
        path.append(f"V{axes.y(float(shares[place])):.1f}H{axes.x(float(_EDGES[place + 1])):.1f}")
    return "".join(path) + f"V{axes.y(0):.1f}"


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


def similarities_of(journal: Sequence[Line]) -> tuple[SimilaritySample | None, SimilaritySample | None]:
    """The first and the last histograms that the journal holds; the last is None where there is but one."""
    found = [SimilaritySample.from_json(line) for line in journal if line["kind"] == "similarities"]
    return (found[0] if found else None), (found[-1] if len(found) > 1 else None)


def warnings_of(journal: Sequence[Line]) -> list[str]:
    return [str(line["text"]) for line in journal if line["kind"] == "warning" and line.get("text")]
