"""Calibration: what a model predicts for each level of gold; for yes-no gold, how often a score means yes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.report.markup import Markup, element
from gemel.evaluation.report.plots.axis import PLOT_HEIGHT, Frame, Range, frame
from gemel.evaluation.report.plots.points import Points
from gemel.evaluation.report.plots.svg import colour, drawing, line, whisker
from gemel.evaluation.samples import Floats

BINS = 10
Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Bin:
    """One dot: the mean place of its items, and their spread upwards and downwards."""

    x: float
    y: float
    low: float
    high: float
    items: int


def by_gold(points: Points) -> list[Bin]:
    """Mean predicted score in ten equally wide bins of gold, with one standard deviation each way."""
    bins = []
    for inside in _equal_widths(points.gold):
        predicted = points.predicted[inside]
        mean, spread = float(predicted.mean()), float(predicted.std())
        bins.append(
            Bin(float(points.gold[inside].mean()), mean, mean - spread, mean + spread, len(predicted))
        )
    return bins


def by_score(points: Points) -> list[Bin]:
    """The share of yes in ten equally full bins of the score, with its 95 % interval (Wilson)."""
    bins = []
    for inside in _equal_counts(points.predicted):
        count, share = int(inside.sum()), float(points.gold[inside].mean())
        z = 1.96
        middle = (share + z * z / (2 * count)) / (1 + z * z / count)
        half = z / (1 + z * z / count) * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
        bins.append(
            Bin(
                float(points.predicted[inside].mean()),
                share,
                float(middle - half),
                float(middle + half),
                count,
            )
        )
    return bins


def calibration(points: Points, x: Range, y: Range, *, title: str, position: int) -> Markup:
    """One panel. For yes-no gold `x` is the score and `y` the share of yes, else `x` is gold and `y` the score."""
    bins = by_score(points) if points.binary else by_gold(points)
    axes = frame(x, y)
    below, beside = ("predicted", "share of yes") if points.binary else ("gold", "mean predicted")
    spread = "95 % interval" if points.binary else "standard deviation"
    told = "; ".join(
        f"{below} {b.x:.2f}: {b.y:.2f} from {b.low:.2f} to {b.high:.2f}, {b.items} items" for b in bins
    )
    return drawing(
        title,
        f"{beside} by {below}, with {spread}: {told}",
        PLOT_HEIGHT,
        axes.drawn(below, beside),
        *(_diagonal(axes) if points.binary else []),
        _curve(bins, axes, position),
    )


def _curve(bins: list[Bin], axes: Frame, position: int) -> Markup:
    def height(value: float) -> float:
        return axes.y(min(max(value, axes.y.low), axes.y.high))

    places = [(axes.x(b.x), axes.y(b.y)) for b in bins]
    track = "M" + "L".join(f"{across:.1f} {up:.1f}" for across, up in places)
    marks = [element("path", d=track, class_="track")]
    marks += [
        whisker(height(b.low), height(b.high), across, upright=True)
        for b, (across, _) in zip(bins, places, strict=True)
    ]
    marks += [element("circle", cx=across, cy=up, r=3.5) for across, up in places]
    return element("g", *marks, class_=colour(position))


def _diagonal(axes: Frame) -> list[Markup]:
    """Where a score that is a probability would lie; a score that is no share (a dot product) has no such line."""
    low, high = max(axes.x.low, 0.0), min(axes.x.high, 1.0)
    if low >= high or max(-axes.x.low, axes.x.high) > 1.5:
        return []
    return [line(axes.x(low), axes.y(low), axes.x(high), axes.y(high), "zero")]


def _equal_widths(values: Floats) -> list[Mask]:
    """Which items fall into each bin; empty bins are left out, few distinct values get a bin each."""
    levels = np.unique(values)
    if len(levels) <= BINS + 1:
        return [values == level for level in levels]
    place = np.floor((values - levels[0]) / (levels[-1] - levels[0]) * BINS).clip(0, BINS - 1)
    return [place == number for number in np.unique(place)]


def _equal_counts(values: Floats) -> list[Mask]:
    """The same for bins of about as many items each; equal values are never parted.

    Scores may crowd into a corner (cosines of 0.95 and more), where bins of equal width are one full and nine empty.
    """
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
    place = np.searchsorted(edges, values, side="left")
    return [place == number for number in np.unique(place)]
