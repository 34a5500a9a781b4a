"""The content of a report as plain data, for Markdown and HTML: grids of results, tables, comparisons, the protocol."""

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
    """Results of one task; `cells[dataset, model]` exists where the model was run on the data set."""

    name: str
    models: tuple[str, ...]
    datasets: tuple[str, ...]
    cells: Mapping[tuple[str, str], Scores]

    @property
    def mains(self) -> tuple[str, ...]:
        """Names of the main numbers, usually one."""
        return _ordered(result.main for result in self.cells.values())

    def score(self, dataset: str, model: str) -> Score | None:
        """The main number, None where there is no result."""
        result = self.cells.get((dataset, model))
        return result.values[result.main] if result else None

    def average(self, model: str) -> float | None:
        """The mean over all data sets; None where one is missing or undefined, or where their main numbers differ."""
        scores = [self.score(dataset, model) for dataset in self.datasets]
        values = [score.value for score in scores if score is not None and score.value is not None]
        if len(self.mains) != 1 or len(values) < len(self.datasets):
            return None
        return sum(values) / len(values)

    def of_dataset(self, dataset: str) -> list[Scores]:
        """The results of a data set in the order of the models."""
        return [self.cells[dataset, model] for model in self.models if (dataset, model) in self.cells]

    def part_grids(self) -> list[Grid]:
        """A grid of parts for each data set that has some, and for each part that has parts itself."""
        grids = []
        for dataset in self.datasets:
            results = self.of_dataset(dataset)
            parts = [replace(part, model=result.model) for result in results for part in result.parts]
            if parts:
                inner = _grid(dataset, parts)
                grids += [inner, *(replace(g, name=f"{dataset} / {g.name}") for g in inner.part_grids())]
        return grids


def grids(results: Sequence[Scores]) -> list[Grid]:
    """One grid per task, in the order of the results."""
    return [
        _grid(task, [result for result in results if result.task == task])
        for task in _ordered(result.task for result in results)
    ]


def model_names(results: Sequence[Scores]) -> tuple[str, ...]:
    """All models in the order of the results; one without a name is called "model"."""
    return _ordered(result.model or "model" for result in results)


def _grid(name: str, results: Sequence[Scores]) -> Grid:
    cells: dict[tuple[str, str], Scores] = {}
    for result in results:
        model, count = result.model or "model", 1
        # Two results of the same name are both shown, the second with a number.
        while (result.dataset, model) in cells:
            count += 1
            model = f"{result.model or 'model'} ({count})"
        cells[result.dataset, model] = replace(result, model=model)
    # A stable sort: only the average moves, to the end.
    datasets = sorted(_ordered(dataset for dataset, _ in cells), key=lambda dataset: dataset == AVERAGE)
    return Grid(name, _ordered(model for _, model in cells), tuple(datasets), cells)


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


NOT_RUN = "–"


@dataclass(frozen=True)
class Cell:
    """The text of a cell, and its interval or note in small print."""

    text: str
    small: str = ""

    def __str__(self) -> str:
        return f"{self.text} {self.small}" if self.small else self.text


@dataclass(frozen=True)
class TextTable:
    """Column names, and rows whose first cell is their name."""

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

    An average among the results has an interval; without one, the plain mean is added.
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


def part_table(part_grids: list[Grid], models: tuple[str, ...]) -> TextTable:
    """Sub-sets down (there may be dozens), models across."""
    rows = []
    for grid in part_grids:
        for part in grid.datasets:
            result = grid.of_dataset(part)[0]
            cells = (score_cell(grid.score(part, model)) for model in models)
            rows.append((Cell(f"{grid.name} / {part}"), Cell(f"{result.items:,} {result.unit}"), *cells))
    return TextTable(("sub-set", "size", *models), tuple(rows))


def value_table(grid: Grid) -> TextTable:
    """Every number of every result, not only the main ones."""
    names = tuple(dict.fromkeys(name for result in grid.cells.values() for name in result.values))
    rows = []
    for dataset in grid.datasets:
        for result in grid.of_dataset(dataset):
            cells = (_noted_cell(result.values.get(name)) for name in names)
            rows.append(
                (Cell(f"{dataset} / {result.model}"), Cell(f"{result.items:,} {result.unit}"), *cells)
            )
    return TextTable(("data set / model", "size", *names), tuple(rows))


COST_NAMES = {
    "ms_per_query": "ms per query",
    "ms_per_document": "ms per document",
    "bytes_per_document": "bytes per document",
}
"""The costs of a search, and what tables call them."""

HOW_MEASURED = (
    "Milliseconds are those of encoding and searching all queries in one batch, and of encoding all documents, each "
    "divided by their number, on the machine that wrote this page. Bytes are those of the numbers that are stored."
)


def cost_table(grid: Grid) -> TextTable | None:
    """What each search finds and what it costs; None where nothing was measured."""
    if not any(result.costs for result in grid.cells.values()):
        return None
    every = dict.fromkeys(name for result in grid.cells.values() for name in result.values)
    names = tuple(name for name in every if name.startswith(("ndcg", "mrr", "recall")))
    rows = []
    for dataset in grid.datasets:
        for result in grid.of_dataset(dataset):
            costs = (Cell(cost_text(result.costs.get(name))) for name in COST_NAMES)
            numbers = (score_cell(result.values.get(name)) for name in names)
            rows.append((Cell(f"{dataset} / {result.model}"), *numbers, *costs))
    return TextTable(("data set / search", *names, *COST_NAMES.values()), tuple(rows))


def cost_text(cost: float | None) -> str:
    """`1,536`, `0.42`, or a dash where it is not known."""
    return NOT_RUN if cost is None else f"{cost:,.0f}" if cost >= 100 else f"{cost:.2f}"


def _noted_cell(score: Score | None) -> Cell:
    """A number with its interval, or with its note where it has none."""
    cell = score_cell(score)
    return cell if score is None or cell.small or not score.note else Cell(cell.text, f"({score.note})")


def _column(grid: Grid, dataset: str) -> str:
    """The data set, with the name of its main number where those differ within the task."""
    return dataset if len(grid.mains) == 1 else f"{dataset} ({grid.of_dataset(dataset)[0].main})"


_HASH = re.compile(r"\b[0-9a-f]{40,}\b")  # shortened; results.json has them in full

HOW_COMPARED = (
    "Paired bootstrap: each round draws the same items for both models. A model is called better where the 95 % "
    "interval of the difference does not contain zero."
)


def comparison_sentence(named: NamedComparison) -> str:
    """Which model is better and by how much, or that the difference is not significant."""
    result = named.comparison
    ahead, behind, sign = (
        (named.second, named.first, 1) if result.difference >= 0 else (named.first, named.second, -1)
    )
    low, high = sorted((sign * result.low, sign * result.high))
    amount = f"by {sign * result.difference:.2f} [{low:.2f}, {high:.2f}], {_p(result.p_value)}"
    if result.sure:
        return f"{ahead} is better than {behind} on {dataset_and_task(named)} {amount}"
    return f"{dataset_and_task(named)}: cannot tell {ahead} from {behind} (ahead {amount})"


def dataset_and_task(named: NamedComparison) -> str:
    """The data set of a comparison, with its task in parentheses."""
    return f"{named.dataset} ({named.task})"


def number_line(grid: Grid) -> str:
    """The name of the number in the tables of a task."""
    scores = [result.values[result.main] for result in grid.cells.values()]
    with_interval = any(score.low is not None for score in scores)
    return (
        f"{', '.join(grid.mains)} × 100" + (", with 95 % bootstrap intervals" if with_interval else "") + "."
    )


def protocol_lines(grid: Grid) -> list[tuple[str, str]]:
    """Settings and their values; where results differ, each value is followed by its models or data sets."""
    results = [result for result in grid.cells.values() if result.dataset != AVERAGE]
    names = dict.fromkeys(name for result in results for name in result.protocol)
    lines = [(name, _values(results, name)) for name in names]
    averages = grid.of_dataset(AVERAGE)
    if averages and "aggregation" in averages[0].protocol:
        lines.append((AVERAGE, _as_text(averages[0].protocol["aggregation"])))
    return lines


def fingerprint_of(results: Sequence[Scores], model: str) -> str:
    """The fingerprint of a model in its results; empty where they have none."""
    for result in results:
        if (result.model or "model") == model and result.protocol.get("fingerprint"):
            return _as_text(result.protocol["fingerprint"])
    return ""


def _values(results: list[Scores], name: str) -> str:
    by_value: dict[str, list[Scores]] = {}
    for result in results:
        if name in result.protocol:
            by_value.setdefault(_as_text(result.protocol[name]), []).append(result)
    if len(by_value) == 1 and sum(map(len, by_value.values())) == len(results):
        return next(iter(by_value))
    return "; ".join(f"{value} ({_scope(results, group)})" for value, group in by_value.items())


def _scope(results: list[Scores], group: list[Scores]) -> str:
    """The shortest description of some of the results: models, data sets, or both."""
    models = list(dict.fromkeys(result.model for result in group))
    datasets = list(dict.fromkeys(result.dataset for result in group))
    if len(group) == sum(result.model in models for result in results):
        return ", ".join(models)
    if len(group) == sum(result.dataset in datasets for result in results):
        return ", ".join(datasets)
    return ", ".join(f"{result.dataset} by {result.model}" for result in group)


def _as_text(value: Any) -> str:  # noqa: ANN401 - a protocol holds whatever JSON can hold
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, list | tuple):
        return ", ".join(_as_text(part) for part in value)
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_as_text(part)}" for name, part in value.items() if part not in ("", None))
    return _HASH.sub(lambda match: match[0][:16], str(value))


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
