"""Bars with interval whiskers: one group a data set, one bar a model, all from zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from gemel.evaluation.report.grid import Grid
from gemel.evaluation.report.markup import Markup, element, join
from gemel.evaluation.report.plots.axis import Range, Scale, range_of, ruler
from gemel.evaluation.report.plots.svg import WIDTH, colour, cut, drawing, line, whisker, words
from gemel.evaluation.report.tables import score_cell
from gemel.evaluation.scores import Score

_BAR, _LABEL, _GAP = 13, 15, 9
_LEFT, _RIGHT = 16, 44  # for the number of the model, and for the value


@dataclass(frozen=True)
class Bars:
    """Some data sets of a grid, to be drawn in one picture."""

    grid: Grid
    datasets: Sequence[str]
    models: tuple[str, ...]
    """All models of the task: a model has the same number and colour in every picture."""
    span: Range

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


def span_of(grid: Grid) -> Range:
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
