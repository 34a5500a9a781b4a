"""Results arranged for reading: a grid a task, data sets by models, and the same again for parts of a data set.

The tables of a report as plain data; `markdown` and `html` only dress them.

What a report says in words: comparisons of models, and the protocol behind the numbers.

When and with what a report was made.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from importlib.metadata import version
from typing import Any

from gemel.evaluation.evaluate import AVERAGE
from gemel.evaluation.statistics import NamedComparison
from gemel.evaluation.task import Score, Scores


@dataclass(frozen=True)
class Grid:
    """Results of one task; `cells[dataset, model]` is there where the model was run on the data set."""

    name: str
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    cells: Mapping[tuple[str, str], Scores]

    @property
    def mains(self) -> tuple[str, ...]:
        """Names of the numbers that models are compared by, mostly one."""
        return _ordered(result.main for result in self.cells.values())

    def score(self, dataset: str, model: str) -> Score | None:
        """The main number, None where there is no result."""
        result = self.cells.get((dataset, model))
        return result.values[result.main] if result else None

    def average(self, model: str) -> float | None:
        """The mean over all data sets; None where one is missing or undefined, or where they are of unlike kinds."""
        scores = [self.score(dataset, model) for dataset in self.datasets]
        values = [score.value for score in scores if score is not None and score.value is not None]
        if len(self.mains) != 1 or len(values) < len(self.datasets):
            return None
        return sum(values) / len(values)

    def of_dataset(self, dataset: str) -> list[Scores]:
        """The results of a data set in the order of the models."""
        return [self.cells[dataset, model] for model in self.models if (dataset, model) in self.cells]

    def wholes(self) -> list[Grid]:
        """A grid of parts for each data set that has some, and for each part that has parts itself."""
        found = []
        for dataset in self.datasets:
            results = self.of_dataset(dataset)
            parts = [replace(part, model=result.model) for result in results for part in result.parts]
            if parts:
                inner = _grid(dataset, parts)
                found += [inner, *(replace(g, name=f"{dataset} / {g.name}") for g in inner.wholes())]
        return found


def grids(results: Sequence[Scores]) -> list[Grid]:
    """One grid a task, all in the order in which they were given."""
    return [
        _grid(task, [result for result in results if result.task == task])
        for task in _ordered(result.task for result in results)
    ]


def model_names(results: Sequence[Scores]) -> tuple[str, ...]:
    """All models in the order of the results; one that came without a name is called "model"."""
    return _ordered(result.model or "model" for result in results)


def _grid(name: str, results: Sequence[Scores]) -> Grid:
    cells: dict[tuple[str, str], Scores] = {}
    for result in results:
        model, count = result.model or "model", 1
        # Two results of the same name are both shown: losing one would be worse than an odd name.
        while (result.dataset, model) in cells:
            count += 1
            model = f"{result.model or 'model'} ({count})"
        cells[result.dataset, model] = replace(result, model=model)
    # A stable sort: the average goes last, the others stay as they are.
    datasets = sorted(_ordered(dataset for dataset, _ in cells), key=lambda dataset: dataset == AVERAGE)
    return Grid(name, _ordered(model for _, model in cells), tuple(datasets), cells)


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


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


_HASH = re.compile(r"\b[0-9a-f]{40,}\b")  # results.json has them in full

HOW_COMPARED = (
    "Paired bootstrap: each round draws the same items for both models. A model is called better where the 95 % "
    "interval of the difference does not hold zero."
)


def comparison_sentence(named: NamedComparison) -> str:
    """Who is better and by how much, or that nobody can tell."""
    found = named.comparison
    ahead, behind, sign = (
        (named.second, named.first, 1) if found.difference >= 0 else (named.first, named.second, -1)
    )
    low, high = sorted((sign * found.low, sign * found.high))
    amount = f"by {sign * found.difference:.2f} [{low:.2f}, {high:.2f}], {_p(found.p_value)}"
    if found.sure:
        return f"{ahead} is better than {behind} on {place(named)} {amount}"
    return f"{place(named)}: cannot tell {ahead} from {behind} (ahead {amount})"


def place(named: NamedComparison) -> str:
    """Where two models met: the data set, and the task that it was used for."""
    return f"{named.dataset} ({named.task})"


def number_line(grid: Grid) -> str:
    """Which number the tables of a task hold."""
    scores = [result.values[result.main] for result in grid.cells.values()]
    with_interval = any(score.low is not None for score in scores)
    return (
        f"{', '.join(grid.mains)} × 100" + (", with 95 % bootstrap intervals" if with_interval else "") + "."
    )


def protocol_lines(grid: Grid) -> list[tuple[str, str]]:
    """Settings and their values; where results differ, each value is followed by the models or data sets it is for."""
    results = [result for result in grid.cells.values() if result.dataset != AVERAGE]
    names = dict.fromkeys(name for result in results for name in result.protocol)
    lines = [(name, _values(results, name)) for name in names]
    averages = grid.of_dataset(AVERAGE)
    if averages and "aggregation" in averages[0].protocol:
        lines.append((AVERAGE, _said(averages[0].protocol["aggregation"])))
    return lines


def fingerprint_of(results: Sequence[Scores], model: str) -> str:
    """What the results of a model say about its exact weights; empty where they say nothing."""
    for result in results:
        if (result.model or "model") == model and result.protocol.get("fingerprint"):
            return _said(result.protocol["fingerprint"])
    return ""


def _values(results: list[Scores], name: str) -> str:
    by_value: dict[str, list[Scores]] = {}
    for result in results:
        if name in result.protocol:
            by_value.setdefault(_said(result.protocol[name]), []).append(result)
    if len(by_value) == 1 and sum(map(len, by_value.values())) == len(results):
        return next(iter(by_value))
    return "; ".join(f"{value} ({_who(results, group)})" for value, group in by_value.items())


def _who(results: list[Scores], group: list[Scores]) -> str:
    """The shortest true name of some of the results: models, data sets, or both."""
    models = list(dict.fromkeys(result.model for result in group))
    datasets = list(dict.fromkeys(result.dataset for result in group))
    if len(group) == sum(result.model in models for result in results):
        return ", ".join(models)
    if len(group) == sum(result.dataset in datasets for result in results):
        return ", ".join(datasets)
    return ", ".join(f"{result.dataset} by {result.model}" for result in group)


def _said(value: Any) -> str:  # noqa: ANN401 - a protocol holds whatever JSON can hold
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(_said(part) for part in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_said(part)}" for name, part in value.items() if part not in ("", None))
    return _HASH.sub(lambda found: found[0][:16], str(value))


def _p(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.3f}"


@dataclass(frozen=True)
class Heading:
    """The first lines of a report."""

    date: str
    versions: tuple[str, ...]
    """Name and number of each, such as "Python 3.11.9"."""


def heading(date: datetime | None = None) -> Heading:
    """The heading of a report made at `date`, or now."""
    moment = (date or datetime.now(UTC)).isoformat(sep=" ", timespec="minutes")
    versions = (
        f"gemel {version('gemel')}",
        f"Python {platform.python_version()}",
        f"NumPy {version('numpy')}",
    )
    return Heading(moment, versions)
