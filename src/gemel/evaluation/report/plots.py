"""Bars with interval whiskers: one group a data set, one bar a model, all from zero.

Predicted score against gold: a cloud of points, or a map of how many there are where they would cover each other.

Two models compared: a dot a data set for the difference, its interval, and the line where there is none.

Calibration: what a model predicts for each level of gold; for yes-no gold, how often a score means yes.

The items behind a number, where they can be drawn: gold and predicted scores, or yes-no labels and scores.

The pictures of a report: SVG inside the page, drawn 340 units wide so that letters stay readable on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.report.content import Grid, comparison_sentence, place, score_cell
from gemel.evaluation.report.markup import (
    PLOT_HEIGHT,
    WIDTH,
    AxisRange,
    Frame,
    Markup,
    Scale,
    colour,
    cut,
    drawing,
    element,
    frame,
    join,
    line,
    range_of,
    ruler,
    short,
    whisker,
    words,
)
from gemel.evaluation.statistics import CorrelationSample, Floats, NamedComparison, Sample
from gemel.evaluation.task import Score

_BAR, _LABEL, _GAP = 13, 15, 9

_LEFT, _RIGHT = 16, 44  # for the number of the model, and for the value


@dataclass(frozen=True)
class Bars:
    """Some data sets of a grid, to be drawn in one picture."""

    grid: Grid
    datasets: Sequence[str]
    models: tuple[str, ...]
    """All models of the task: a model has the same number and colour in every picture."""
    span: AxisRange

    def drawn(self, title: str) -> Markup:
        top, said = 4.0, []
        groups = []
        scale = self.span.to(_LEFT, WIDTH - _RIGHT)
        for dataset in self.datasets:
            present = [model for model in self.models if self.grid.score(dataset, model) is not None]
            groups.append(words(0, top + 11, cut(dataset, WIDTH), class_="strong"))
            for row, model in enumerate(present):
                score = self.grid.score(dataset, model)
                assert score is not None
                place = top + _LABEL + row * (_BAR + 2)
                groups.append(_bar(score, self.models.index(model), scale, place, len(self.models) > 1))
                said.append(f"{dataset}, {model}: {score_cell(score)}")
            top += _LABEL + len(present) * (_BAR + 2) + _GAP
        bottom = top - _GAP + 3
        back = [ruler(scale, 4, bottom), line(scale(0), 4, scale(0), bottom, "axis")]
        return drawing(title, "; ".join(said), bottom + 20, *back, *groups)


def span_of(grid: Grid) -> AxisRange:
    """The range of all bars and whiskers of a grid, so that its pictures can be compared."""
    scores = [result.values[result.main] for result in grid.cells.values()]
    return range_of(
        [end for score in scores for end in (score.value, score.low, score.high) if end is not None],
        zero=True,
    )


def chunks(names: Sequence[str], size: int) -> list[Sequence[str]]:
    """The names in as few pieces of at most `size` as will do, about equally long."""
    pieces = -(-len(names) // size)
    ends = [round(piece * len(names) / pieces) for piece in range(pieces + 1)]
    return [names[start:end] for start, end in pairwise(ends)]


def _bar(score: Score, position: int, scale: Scale, top: float, numbered: bool) -> Markup:
    middle = top + _BAR / 2
    marks = [words(0, top + 10.5, str(position + 1), class_="small")] if numbered else []
    if score.value is None:
        return join([*marks, words(scale(0) + 5, top + 10.5, "undefined", class_="small")])
    left, right = sorted((scale(0), scale(score.value)))
    marks.append(
        element("rect", x=left, y=top, width=max(right - left, 0.5), height=_BAR, class_=colour(position))
    )
    if score.low is not None and score.high is not None:
        marks.append(whisker(scale(score.low), scale(score.high), middle))
    marks.append(words(WIDTH, top + 10.5, f"{score.value:.2f}", anchor="end"))
    return join(marks)


MANY = 2000
"""More points than this are drawn as a map."""

_LAYERS = 8  # points of one path do not darken each other, those of different paths do

_COLUMNS, _ROWS, _SHADES = 40, 26, 6


def scatter(points: ScatterPoints, x: AxisRange, y: AxisRange, *, title: str, position: int) -> Markup:
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


def _cloud(points: ScatterPoints, axes: Frame) -> Markup:
    # A zero-length stroke with round ends is a dot: 11 bytes each, where a circle takes 40. Half units are enough.
    dots = [
        f"M{2 * axes.x(gold):.0f} {2 * axes.y(predicted):.0f}h.1"
        for gold, predicted in zip(points.gold, points.predicted, strict=True)
    ]
    layers = [element("path", d="".join(dots[start::_LAYERS])) for start in range(_LAYERS) if dots[start:]]
    return element("g", *layers, class_="dots", transform="scale(.5)")


def _map(points: ScatterPoints, axes: Frame) -> Markup:
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


_ROW, _RIGHT_differences = 34, 48


def differences(comparisons: Sequence[NamedComparison], *, title: str) -> Markup:
    """All comparisons of the same two models. A hollow dot says that nobody can tell."""
    ends = [end for named in comparisons for end in (named.comparison.low, named.comparison.high)]
    scale = range_of(ends + [named.comparison.difference for named in comparisons], zero=True).to(
        8, WIDTH - _RIGHT_differences
    )
    bottom = 4 + _ROW * len(comparisons)
    marks = [ruler(scale, 4, bottom), line(scale(0), 4, scale(0), bottom, "axis")]
    for row, named in enumerate(comparisons):
        found, top = named.comparison, 4 + row * _ROW
        marks.append(words(0, top + 11, cut(place(named), WIDTH), class_="strong halo-text"))
        marks.append(whisker(scale(found.low), scale(found.high), top + 22))
        marks.append(
            element(
                "circle",
                cx=scale(found.difference),
                cy=top + 22,
                r=4.5,
                class_="sure" if found.sure else "unsure",
            )
        )
        marks.append(words(WIDTH, top + 26, f"{found.difference:+.2f}".replace("-", "−"), anchor="end"))
    told = "; ".join(comparison_sentence(named) for named in comparisons)
    return drawing(title, told, bottom + 20, *marks)


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


def by_gold(points: ScatterPoints) -> list[Bin]:
    """Mean predicted score in ten equally wide bins of gold, with one standard deviation each way."""
    bins = []
    for inside in _equal_widths(points.gold):
        predicted = points.predicted[inside]
        mean, spread = float(predicted.mean()), float(predicted.std())
        bins.append(
            Bin(float(points.gold[inside].mean()), mean, mean - spread, mean + spread, len(predicted))
        )
    return bins


def by_score(points: ScatterPoints) -> list[Bin]:
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


def calibration(points: ScatterPoints, x: AxisRange, y: AxisRange, *, title: str, position: int) -> Markup:
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


@runtime_checkable
class LabelledScores(Protocol):
    """A sample of yes-no labels with a score each."""

    labels: Floats
    scores: Floats


@dataclass(frozen=True, eq=False)
class ScatterPoints:
    """Finite numbers, row by row."""

    gold: Floats
    predicted: Floats

    @property
    def binary(self) -> bool:
        """Gold says yes or no."""
        return bool(np.isin(self.gold, (0.0, 1.0)).all())


def points_of(sample: Sample | None) -> ScatterPoints | None:
    """The points of a sample, None where it has none to show: fewer than two, or means of items."""
    if isinstance(sample, CorrelationSample):
        gold, predicted = sample.gold, sample.predicted
    elif isinstance(sample, LabelledScores):
        gold, predicted = sample.labels, sample.scores
    else:
        return None
    gold, predicted = np.asarray(gold, np.float64), np.asarray(predicted, np.float64)
    if gold.ndim != 1 or gold.shape != predicted.shape:
        return None
    kept = np.isfinite(gold) & np.isfinite(predicted)
    return ScatterPoints(gold[kept], predicted[kept]) if kept.sum() > 1 else None
