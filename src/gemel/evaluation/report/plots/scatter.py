"""Predicted score against gold: a cloud of points, or a map of how many there are where they would cover each other."""

from __future__ import annotations

from itertools import groupby

import numpy as np

from gemel.evaluation.report.markup import Markup, element, join, short
from gemel.evaluation.report.plots.axis import PLOT_HEIGHT, Frame, Range, frame
from gemel.evaluation.report.plots.points import Points
from gemel.evaluation.report.plots.svg import colour, drawing

MANY = 2000
"""More points than this are drawn as a map."""
_LAYERS = 8  # points of one path do not darken each other, those of different paths do
_COLUMNS, _ROWS, _SHADES = 40, 26, 6


def scatter(points: Points, x: Range, y: Range, *, title: str, position: int) -> Markup:
    """One panel; `position` is the model's, for its colour."""
    axes = frame(x, y)
    many = len(points.gold) > MANY
    cloud = _map(points, axes) if many else _cloud(points, axes)
    told = f"{len(points.gold):,} items, predicted score against gold score"
    return drawing(
        title,
        told + (", darker where there are more" if many else ""),
        PLOT_HEIGHT,
        axes.drawn("gold", "predicted"),
        element("g", cloud, class_=colour(position)),
    )


def _cloud(points: Points, axes: Frame) -> Markup:
    # A zero-length stroke with round ends is a dot: 11 bytes each, where a circle takes 40. Half units are enough.
    dots = [
        f"M{2 * axes.x(gold):.0f} {2 * axes.y(predicted):.0f}h.1"
        for gold, predicted in zip(points.gold, points.predicted, strict=True)
    ]
    layers = [element("path", d="".join(dots[start::_LAYERS])) for start in range(_LAYERS) if dots[start:]]
    return element("g", *layers, class_="dots", transform="scale(.5)")


def _map(points: Points, axes: Frame) -> Markup:
    x_edges = np.linspace(axes.x.low, axes.x.high, _COLUMNS + 1)
    y_edges = np.linspace(axes.y.low, axes.y.high, _ROWS + 1)
    counts, _, _ = np.histogram2d(
        points.gold.clip(axes.x.low, axes.x.high),
        points.predicted.clip(axes.y.low, axes.y.high),
        bins=(x_edges, y_edges),
    )
    # Square roots, so that the one crowded corner does not leave the rest white.
    shades = np.ceil(np.sqrt(counts / counts.max()) * _SHADES).astype(int)
    width = (axes.x.end - axes.x.start) / _COLUMNS
    height = (axes.y.start - axes.y.end) / _ROWS
    paths: dict[int, list[str]] = {}
    for row in range(_ROWS):
        column = 0
        for shade, run in groupby(shades[:, row]):
            length = len(list(run))
            if shade:
                left, low = axes.x.start + column * width, axes.y.start - row * height
                along, up = short(length * width), short(-height)
                cell = f"M{short(left)} {short(low)}h{along}v{up}h-{along}z"
                paths.setdefault(int(shade), []).append(cell)
            column += length
    return join(
        [
            element(
                "path", d="".join(cells), class_="cell", fill_opacity=f"{0.12 + 0.88 * shade / _SHADES:.2f}"
            )
            for shade, cells in sorted(paths.items())
        ]
    )
