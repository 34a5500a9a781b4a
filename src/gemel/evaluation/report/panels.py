"""Which plots a page has: results and comparisons in, rows of figures out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gemel.evaluation.report.grid import Grid
from gemel.evaluation.report.markup import Markup, element, join
from gemel.evaluation.report.plots.axis import Range, range_of
from gemel.evaluation.report.plots.bars import Bars, chunks, span_of
from gemel.evaluation.report.plots.calibration import by_gold, by_score, calibration
from gemel.evaluation.report.plots.differences import differences
from gemel.evaluation.report.plots.points import Points, points_of
from gemel.evaluation.report.plots.scatter import scatter
from gemel.evaluation.report.tables import score_cell
from gemel.evaluation.samples import Floats, NamedComparison

_GROUPS = 3  # data sets in one picture of bars


def bar_panels(grid: Grid) -> Markup:
    """The main numbers of a task, on one scale."""
    span = span_of(grid)
    pictures = []
    for names in chunks(grid.datasets, _GROUPS):
        title = f"{grid.name}: {', '.join(grid.mains)}"
        pictures.append(_figure("", "", Bars(grid, names, grid.models, span).drawn(title)))
    return _row(pictures)


def part_panels(wholes: list[Grid], models: tuple[str, ...]) -> Markup:
    """One picture for each data set that has sub-sets."""
    pictures = []
    for whole in wholes:
        bars = Bars(whole, whole.datasets, models, span_of(whole))
        pictures.append(_figure(whole.name, ", ".join(whole.mains), bars.drawn(f"sub-sets of {whole.name}")))
    return _row(pictures)


def scatter_panels(grid: Grid) -> Markup:
    """Predicted against gold for each data set and model that has graded gold scores; empty where none has."""
    return _point_panels(grid, _scatter, binary=False)


def calibration_panels(grid: Grid) -> Markup:
    """What is predicted for each level of gold, by data set and model; empty where no gold is graded."""
    return _point_panels(grid, _calibration, binary=False)


def reliability_panels(grid: Grid) -> Markup:
    """How often a score means yes, by data set and model; empty where no gold is yes or no."""
    return _point_panels(grid, _calibration, binary=True)


def difference_panels(comparisons: Sequence[NamedComparison]) -> Markup:
    """One picture for each two models."""
    pairs = dict.fromkeys((named.first, named.second) for named in comparisons)
    pictures = []
    for first, second in pairs:
        own = [named for named in comparisons if (named.first, named.second) == (first, second)]
        caption, hint = f"{second} minus {first}", f"right of zero: {second} is ahead; hollow: cannot tell"
        pictures.append(_figure(caption, hint, differences(own, title=caption)))
    return _row(pictures)


class _Draw(Protocol):
    """Draws the points of one model; `every` are those of all models on the data set, for axes they share."""

    def __call__(self, points: Points, every: list[Points], *, title: str, position: int) -> Markup: ...


def _point_panels(grid: Grid, draw: _Draw, *, binary: bool) -> Markup:
    pictures = []
    for dataset in grid.datasets:
        found = [(result, points_of(result.sample)) for result in grid.of_dataset(dataset)]
        shown = [(result, points) for result, points in found if points and points.binary == binary]
        every = [points for _, points in shown]
        for result, points in shown:
            position, title = grid.models.index(result.model), f"{dataset} by {result.model}"
            number = f"{result.main} {score_cell(result.values[result.main])}"
            picture = draw(points, every, title=title, position=position)
            pictures.append(_figure(dataset, f"{result.model} · {number}", picture))
    return _row(pictures)


def _scatter(points: Points, every: list[Points], *, title: str, position: int) -> Markup:
    across = _ends([other.gold for other in every])
    return scatter(points, across, _ends([points.predicted]), title=title, position=position)


def _calibration(points: Points, every: list[Points], *, title: str, position: int) -> Markup:
    if points.binary:
        across, up = range_of([found.x for found in by_score(points)]), Range(0.0, 1.0)
    else:
        across = _ends([other.gold for other in every])
        up = range_of([end for other in every for found in by_gold(other) for end in (found.low, found.high)])
    return calibration(points, across, up, title=title, position=position)


def _ends(columns: list[Floats]) -> Range:
    return range_of([float(end) for column in columns for end in (column.min(), column.max())])


def _figure(caption: str, hint: str, picture: Markup) -> Markup:
    if not caption:
        return element("figure", picture)
    return element("figure", element("figcaption", caption, element("small", hint)), picture)


def _row(pictures: list[Markup]) -> Markup:
    return element("div", *pictures, class_="panels") if pictures else join([])
