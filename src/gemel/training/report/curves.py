"""A number over the steps as a picture: each value, a smoothed line, a level to compare with, the best point."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from gemel.evaluation.report.markup import Markup, element
from gemel.evaluation.report.plots.axis import PLOT_HEIGHT, Frame, Range, frame, range_of
from gemel.evaluation.report.plots.svg import drawing, line, words
from gemel.training.report.series import Series

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


def _steps(low: float, high: float) -> Range:
    """All steps, and no more: a run of 5,400 steps need not end at 6,000."""
    return Range(low, high) if high > low else Range(low - 0.5, high + 0.5)


def _factor(values: np.ndarray) -> tuple[float, str]:
    """What to multiply by so that the numbers at the axis are short, and how the axis says so."""
    most = float(np.abs(values).max())
    if most == 0 or 0.01 <= most < 10_000:
        return 1.0, ""
    power = math.floor(math.log10(most))
    return 10.0**-power, f"× 10{str(power).translate(_RAISED)}"


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
