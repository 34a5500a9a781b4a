"""The tables of a report as plain data; `markdown` and `html` only dress them."""

from __future__ import annotations

from dataclasses import dataclass

from gemel.evaluation.report.grid import Grid
from gemel.evaluation.run import AVERAGE
from gemel.evaluation.scores import Score

NOT_RUN = "–"


@dataclass(frozen=True)
class Cell:
    """What a cell says, and in smaller letters how sure it is."""

    text: str
    small: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.small}" if self.small else self.text


@dataclass(frozen=True)
class TextTable:
    """Column names, and rows that each begin with their own name."""

    head: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


def score_cell(score: Score | None) -> Cell:
    """`82.03 [80.1, 83.8]`, `undefined (reason)`, or a dash where the model was not run."""
    if score is None:
        return Cell(NOT_RUN)
    if score.value is None:
        return Cell("undefined", f"({score.note})" if score.note else "")
    if score.low is None or score.high is None:
        return Cell(f"{score.value:.2f}")
    return Cell(f"{score.value:.2f}", f"[{score.low:.1f}, {score.high:.1f}]")


def model_table(grid: Grid) -> TextTable:
    """Models down, data sets across, the average last where there is more than one data set.

    An average among the results has an interval and is kept; without one, the plain mean is put in its place.
    """
    with_average = len(grid.datasets) > 1 and len(grid.mains) == 1 and AVERAGE not in grid.datasets
    rows = []
    for model in grid.models:
        cells = [score_cell(grid.score(dataset, model)) for dataset in grid.datasets]
        if with_average:
            mean = grid.average(model)
            cells.append(Cell(NOT_RUN if mean is None else f"{mean:.2f}"))
        rows.append((Cell(model), *cells))
    head = ("model", *(_column(grid, dataset) for dataset in grid.datasets))
    return TextTable((*head, AVERAGE) if with_average else head, tuple(rows))


def part_table(wholes: list[Grid], models: tuple[str, ...]) -> TextTable:
    """Sub-sets down (there may be dozens), models across."""
    rows = []
    for whole in wholes:
        for part in whole.datasets:
            result = whole.of_dataset(part)[0]
            cells = (score_cell(whole.score(part, model)) for model in models)
            rows.append((Cell(f"{whole.name} / {part}"), Cell(f"{result.items:,} {result.unit}"), *cells))
    return TextTable(("sub-set", "size", *models), tuple(rows))


def value_table(grid: Grid) -> TextTable:
    """Every number of every result, not the main ones alone."""
    names = tuple(dict.fromkeys(name for result in grid.cells.values() for name in result.values))
    rows = []
    for dataset in grid.datasets:
        for result in grid.of_dataset(dataset):
            cells = (_noted_cell(result.values.get(name)) for name in names)
            rows.append(
                (Cell(f"{dataset} / {result.model}"), Cell(f"{result.items:,} {result.unit}"), *cells)
            )
    return TextTable(("data set / model", "size", *names), tuple(rows))


def _noted_cell(score: Score | None) -> Cell:
    """A number with what there is to know about it."""
    cell = score_cell(score)
    return cell if score is None or cell.small or not score.note else Cell(cell.text, f"({score.note})")


def _column(grid: Grid, dataset: str) -> str:
    """The data set, with the name of its number where those differ within the task."""
    return dataset if len(grid.mains) == 1 else f"{dataset} ({grid.of_dataset(dataset)[0].main})"
