"""The plots of a report as SVG: bars with intervals, scatter plots, differences of two models, calibration curves.

They are 340 units wide, so that text is readable on a phone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from gemel.evaluation.metrics import Floats
from gemel.evaluation.report.content import Grid, comparison_sentence, dataset_and_task, score_cell
from gemel.evaluation.statistics import CorrelationSample, NamedComparison, Sample
from gemel.evaluation.task import Score
from gemel.files.markup import (
    PLOT_HEIGHT,
    WIDTH,
    AxisRange,
    Frame,
    Markup,
    Scale,
    color,
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

_BAR, _LABEL, _GAP = 13, 15, 9

_LEFT, _RIGHT = 16, 44  # for the number of the model, and for the value


def bars(grid: Grid, datasets: Sequence[str], models: tuple[str, ...], span: AxisRange, title: str) -> Markup:
    """A bar plot of some data sets of a grid: one group per data set, one bar per model, all from zero.

    `models` are all models of the task: a model has the same number and color in every plot.
    """
    top, descriptions = 4.0, []
    groups = []
    scale = span.to(_LEFT, WIDTH - _RIGHT)
    for dataset in datasets:
        scores = [(model, grid.score(dataset, model)) for model in models]
        present = [(model, score) for model, score in scores if score is not None]
        groups.append(words(0, top + 11, cut(dataset, WIDTH), class_="strong"))
        for row, (model, score) in enumerate(present):
            y = top + _LABEL + row * (_BAR + 2)
            groups.append(_bar(score, models.index(model), scale, y, len(models) > 1))
            descriptions.append(f"{dataset}, {model}: {score_cell(score)}")
        top += _LABEL + len(present) * (_BAR + 2) + _GAP
    bottom = top - _GAP + 3
    back = [ruler(scale, 4, bottom), line(scale(0), 4, scale(0), bottom, "axis")]
    return drawing(title, "; ".join(descriptions), bottom + 20, *back, *groups)


def span_of(grid: Grid) -> AxisRange:
    """The range of all bars and intervals of a grid, so that its plots can be compared."""
    scores = [result.values[result.main] for result in grid.cells.values()]
    return range_of(
        [end for score in scores for end in (score.value, score.low, score.high) if end is not None],
        zero=True,
    )


def chunks(names: Sequence[str], size: int) -> list[Sequence[str]]:
    """The names in as few pieces of at most `size` as possible, of about equal length."""
    pieces = -(-len(names) // size)
    ends = [round(piece * len(names) / pieces) for piece in range(pieces + 1)]
    return [names[start:end] for start, end in pairwise(ends)]


def _bar(score: Score, position: int, scale: Scale, top: float, numbered: bool) -> Markup:
    middle = top + _BAR / 2
    shapes = [words(0, top + 10.5, str(position + 1), class_="small")] if numbered else []
    if score.value is None:
        return join([*shapes, words(scale(0) + 5, top + 10.5, "undefined", class_="small")])
    left, right = sorted((scale(0), scale(score.value)))
    shapes.append(
        element("rect", x=left, y=top, width=max(right - left, 0.5), height=_BAR, class_=color(position))
    )
    if score.low is not None and score.high is not None:
        shapes.append(whisker(scale(score.low), scale(score.high), middle))
    shapes.append(words(WIDTH, top + 10.5, f"{score.value:.2f}", anchor="end"))
    return join(shapes)


MANY = 2000
"""More points than this are drawn as a heat map."""

_LAYERS = 8  # points of one path do not darken each other, points of different paths do

_COLUMNS, _ROWS, _SHADES = 40, 26, 6


def scatter(points: ScatterPoints, every: list[ScatterPoints], title: str, position: int) -> Markup:
    """Predicted against gold. `every`: the points of all models on the data set, which share the axis of gold.

    `position` is that of the model, for its color.
    """
    axes = frame(_gold_range(every), range_of([float(points.predicted.min()), float(points.predicted.max())]))
    many = len(points.gold) > MANY
    cloud = _heat_map(points, axes) if many else _cloud(points, axes)
    description = f"{len(points.gold):,} items, predicted score against gold score"
    return drawing(
        title,
        description + (", darker where there are more" if many else ""),
        PLOT_HEIGHT,
        axes.draw("gold", "predicted"),
        element("g", cloud, class_=color(position)),
    )


def _cloud(points: ScatterPoints, axes: Frame) -> Markup:
    # A stroke of almost no length with round ends is a dot: 11 bytes, where a circle takes 40. Half units are enough.
    dots = [
        f"M{2 * axes.x(gold):.0f} {2 * axes.y(predicted):.0f}h.1"
        for gold, predicted in zip(points.gold, points.predicted, strict=True)
    ]
    layers = [element("path", d="".join(dots[start::_LAYERS])) for start in range(_LAYERS) if dots[start:]]
    return element("g", *layers, class_="dots", transform="scale(.5)")


def _heat_map(points: ScatterPoints, axes: Frame) -> Markup:
    x_edges = np.linspace(axes.x.low, axes.x.high, _COLUMNS + 1)
    y_edges = np.linspace(axes.y.low, axes.y.high, _ROWS + 1)
    counts, _, _ = np.histogram2d(
        points.gold.clip(axes.x.low, axes.x.high),
        points.predicted.clip(axes.y.low, axes.y.high),
        bins=(x_edges, y_edges),
    )
    # Square roots, so that one crowded corner does not leave the rest white.
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


_ROW, _DIFFERENCE = 34, 48  # height of a row, width of the number


def differences(comparisons: Sequence[NamedComparison], *, title: str) -> Markup:
    """All comparisons of two models: the differences and their intervals. A hollow dot is not significant."""
    ends = [end for named in comparisons for end in (named.comparison.low, named.comparison.high)]
    scale = range_of(ends + [named.comparison.difference for named in comparisons], zero=True).to(
        8, WIDTH - _DIFFERENCE
    )
    bottom = 4 + _ROW * len(comparisons)
    shapes = [ruler(scale, 4, bottom), line(scale(0), 4, scale(0), bottom, "axis")]
    for row, named in enumerate(comparisons):
        result, top = named.comparison, 4 + row * _ROW
        shapes.append(words(0, top + 11, cut(dataset_and_task(named), WIDTH), class_="strong halo-text"))
        shapes.append(whisker(scale(result.low), scale(result.high), top + 22))
        shapes.append(
            element(
                "circle",
                cx=scale(result.difference),
                cy=top + 22,
                r=4.5,
                class_="sure" if result.sure else "unsure",
            )
        )
        shapes.append(words(WIDTH, top + 26, f"{result.difference:+.2f}".replace("-", "−"), anchor="end"))
    description = "; ".join(comparison_sentence(named) for named in comparisons)
    return drawing(title, description, bottom + 20, *shapes)


BINS = 10

Mask = NDArray[np.bool_]


@dataclass(frozen=True)
class Bin:
    """One dot of a calibration curve: the means of its items, and their spread in y."""

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


def calibration(points: ScatterPoints, every: list[ScatterPoints], title: str, position: int) -> Markup:
    """For binary gold, the share of yes (y) by score (x), else the mean score (y) by gold (x).

    Plots of graded gold on the same data set share their axes: those of the points of all models, `every`.
    """
    if points.binary:
        bins = by_score(points)
        axes = frame(range_of([each.x for each in bins]), AxisRange(0.0, 1.0))
    else:
        bins = by_gold(points)
        ends = [end for other in every for each in by_gold(other) for end in (each.low, each.high)]
        axes = frame(_gold_range(every), range_of(ends))
    below, beside = ("predicted", "share of yes") if points.binary else ("gold", "mean predicted")
    spread = "95 % interval" if points.binary else "standard deviation"
    values = "; ".join(
        f"{below} {b.x:.2f}: {b.y:.2f} from {b.low:.2f} to {b.high:.2f}, {b.items} items" for b in bins
    )
    return drawing(
        title,
        f"{beside} by {below}, with {spread}: {values}",
        PLOT_HEIGHT,
        axes.draw(below, beside),
        *(_diagonal(axes) if points.binary else []),
        _curve(bins, axes, position),
    )


def _gold_range(every: list[ScatterPoints]) -> AxisRange:
    return range_of([float(end) for points in every for end in (points.gold.min(), points.gold.max())])


def _curve(bins: list[Bin], axes: Frame, position: int) -> Markup:
    def height(value: float) -> float:
        return axes.y(min(max(value, axes.y.low), axes.y.high))

    centers = [(axes.x(b.x), axes.y(b.y)) for b in bins]
    track = "M" + "L".join(f"{across:.1f} {up:.1f}" for across, up in centers)
    shapes = [element("path", d=track, class_="track")]
    shapes += [
        whisker(height(b.low), height(b.high), across, upright=True)
        for b, (across, _) in zip(bins, centers, strict=True)
    ]
    shapes += [element("circle", cx=across, cy=up, r=3.5) for across, up in centers]
    return element("g", *shapes, class_=color(position))


def _diagonal(axes: Frame) -> list[Markup]:
    """The line on which a score equals the probability; none for scores that are no shares, such as dot products."""
    low, high = max(axes.x.low, 0.0), min(axes.x.high, 1.0)
    if low >= high or max(-axes.x.low, axes.x.high) > 1.5:
        return []
    return [line(axes.x(low), axes.y(low), axes.x(high), axes.y(high), "zero")]


def _equal_widths(values: Floats) -> list[Mask]:
    """The items of each bin, without empty bins; few distinct values get a bin each."""
    levels = np.unique(values)
    if len(levels) <= BINS + 1:
        return [values == level for level in levels]
    bin_of = np.floor((values - levels[0]) / (levels[-1] - levels[0]) * BINS).clip(0, BINS - 1)
    return [bin_of == number for number in np.unique(bin_of)]


def _equal_counts(values: Floats) -> list[Mask]:
    """The items of bins with about equally many items each; equal values are in one bin.

    Scores may be concentrated (cosines of 0.95 and more), where most bins of equal width would be empty.
    """
    edges = np.unique(np.quantile(values, np.linspace(0, 1, BINS + 1)[1:-1]))
    bin_of = np.searchsorted(edges, values, side="left")
    return [bin_of == number for number in np.unique(bin_of)]


@dataclass(frozen=True, eq=False)
class ScatterPoints:
    """Gold and predicted scores of items, all finite."""

    gold: Floats
    predicted: Floats

    @property
    def binary(self) -> bool:
        """Gold is 0 or 1."""
        return bool(np.isin(self.gold, (0.0, 1.0)).all())


def points_of(sample: Sample | None) -> ScatterPoints | None:
    """The points of a sample; None for fewer than two, or a sample without gold and predicted scores."""
    graded = isinstance(sample, CorrelationSample)
    names = ("gold", "predicted") if graded else ("labels", "scores")
    if not all(hasattr(sample, name) for name in names):
        return None
    gold, predicted = (np.asarray(getattr(sample, name), np.float64) for name in names)
    kept = np.isfinite(gold) & np.isfinite(predicted)
    return ScatterPoints(gold[kept], predicted[kept]) if kept.sum() > 1 else None
