"""Writes a report: results.json for programs, results.md for pull requests, report.html with plots for readers.

The HTML page loads nothing from the network and runs no script.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.evaluation.report import content, plots
from gemel.evaluation.report.content import Cell, Grid, Heading, TextTable
from gemel.evaluation.statistics import NamedComparison
from gemel.evaluation.task import Scores
from gemel.files.atomic import write_atomic
from gemel.files.markup import STYLE, Markup, clean, color, element, figure, join, page, panels


def write_report(
    results: Sequence[Scores],
    comparisons: Sequence[NamedComparison],
    folder: str | Path,
    *,
    date: datetime | None = None,
) -> list[Path]:
    """Write the three files atomically and return their paths. `date` is that of the report, now by default."""
    if not results:
        raise InputError("a report needs at least one result, got none")
    top = content.heading(date)
    facts = {
        "date": top.date,
        "versions": list(top.versions),
        "results": [result.to_json() for result in results],
        "comparisons": [named.to_json() for named in comparisons],
    }
    texts = {
        "results.json": _json(facts),
        "results.md": markdown(results, comparisons, top),
        "report.html": html(results, comparisons, top),
    }
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            write_atomic(folder / name, text)
        return [folder / name for name in texts]
    except OSError as error:
        raise WorkError(f"cannot write the report to {folder}: {error}") from error


def _json(facts: object) -> str:
    try:
        text = json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError as error:
        raise InputError(
            f"numbers of a report must be finite, but those of a result are not ({error}). "
            "An undefined score is None with a note"
        ) from error
    return text + "\n"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a protocol holds NumPy numbers, paths and whatever else
    return value.tolist() if hasattr(value, "tolist") else str(value)


def markdown(results: Sequence[Scores], comparisons: Sequence[NamedComparison], heading: Heading) -> str:
    """The report as Markdown: for each task a table, sub-sets and protocol, then comparisons."""
    blocks = ["# Evaluation", plain(" · ".join([heading.date, *heading.versions]))]
    for grid in content.grids(results):
        blocks += _markdown_task(grid)
    if comparisons:
        sentences = "\n".join(f"- {plain(content.comparison_sentence(named))}." for named in comparisons)
        blocks += ["## Comparisons", content.HOW_COMPARED, sentences]
    return "\n\n".join(blocks) + "\n"


def _markdown_task(grid: Grid) -> list[str]:
    blocks = [
        f"## {plain(grid.name)}",
        plain(content.number_line(grid)),
        _markdown_table(content.model_table(grid)),
    ]
    costs = content.cost_table(grid)
    if costs:
        blocks += ["### Quality and cost", content.HOW_MEASURED, _markdown_table(costs)]
    part_grids = grid.part_grids()
    if part_grids:
        blocks += ["### Sub-sets", _markdown_table(content.part_table(part_grids, grid.models))]
    protocol = content.protocol_lines(grid)
    if protocol:
        blocks += ["### Protocol", "\n".join(f"- {plain(name)}: {plain(value)}" for name, value in protocol)]
    return blocks


def plain(text: str) -> str:
    """Text in which nothing is taken for Markdown or HTML."""
    text = re.sub(r"\s+", " ", clean(text)).strip()
    # "p < 0.001" needs no escape: a tag has no space after its bracket.
    text = re.sub(r"<(?! )", "&lt;", text.replace("&", "&amp;").replace(">", "&gt;"))
    # A bracket starts a link only before another bracket, so an interval needs no escape.
    return re.sub(r"(\]\(|\]\[|[\\`*|])", lambda match: "\\" + match[0], text)


def _markdown_table(table: TextTable) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "\n".join("| " + " | ".join(plain(str(cell)) for cell in line) + " |" for line in lines)


_CALIBRATION = (
    "Mean predicted score by bins of gold, with one standard deviation each way. Models on the same data set share "
    "their scale."
)

_RELIABILITY = (
    "Share of yes in equally full bins of the score, with 95 % intervals. On the dashed line a score is a "
    "probability. Each model has its own scale."
)


def html(results: Sequence[Scores], comparisons: Sequence[NamedComparison], heading: Heading) -> str:
    """The page as text."""
    tasks = content.grids(results)
    title = f"Evaluation: {', '.join(content.model_names(results))}"
    main = element(
        "main",
        *(_task(grid, number) for number, grid in enumerate(tasks)),
        *([_comparisons(comparisons)] if comparisons else []),
    )
    return page(title, STYLE, _top(results, comparisons, heading, tasks), main)


def _top(
    results: Sequence[Scores], comparisons: Sequence[NamedComparison], heading: Heading, tasks: list[Grid]
) -> Markup:
    facts = [("date", heading.date), ("made with", ", ".join(heading.versions))]
    for number, model in enumerate(content.model_names(results), start=1):
        fingerprint = content.fingerprint_of(results, model)
        facts.append((f"model {number}", f"{model} · {fingerprint}" if fingerprint else model))
    links = [element("a", grid.name, href=f"#task{number}") for number, grid in enumerate(tasks)]
    links += [element("a", "comparisons", href="#comparisons")] if comparisons else []
    return element(
        "header",
        element("h1", "Evaluation"),
        element("dl", *(join([element("dt", name), element("dd", value)]) for name, value in facts)),
        element("nav", *links),
    )


def _task(grid: Grid, number: int) -> Markup:
    part_grids = grid.part_grids()
    blocks = [
        element("h2", grid.name),
        element("p", content.number_line(grid), class_="soft"),
        _table(content.model_table(grid)),
        _legend(grid.models),
        _bar_panels(grid),
    ]
    costs = content.cost_table(grid)
    if costs:
        blocks += [
            element("h3", "Quality and cost"),
            element("p", content.HOW_MEASURED, class_="soft"),
            _table(costs),
        ]
    if part_grids:
        blocks += [
            element("h3", "Sub-sets"),
            _part_panels(part_grids, grid.models),
            _folded("Sub-sets as a table", _table(content.part_table(part_grids, grid.models))),
        ]
    for title, explanation, draw, binary in (
        ("Predicted against gold", "Each model has its own scale.", plots.scatter, False),
        ("Calibration", _CALIBRATION, plots.calibration, False),
        ("Reliability", _RELIABILITY, plots.calibration, True),
    ):
        pictures = _point_panels(grid, draw, binary=binary)
        if pictures:
            blocks += [element("h3", title), element("p", explanation, class_="soft"), pictures]
    blocks.append(_folded("Every number", _table(content.value_table(grid))))
    protocol = [
        element("li", f"{name}: {value}")
        for name, value in content.protocol_lines(grid)
        if name != "fingerprint"
    ]  # fingerprints are at the top of the page
    if protocol:
        blocks += [element("h3", "Protocol"), element("ul", *protocol)]
    return element("section", *blocks, id=f"task{number}")


def _comparisons(comparisons: Sequence[NamedComparison]) -> Markup:
    return element(
        "section",
        element("h2", "Comparisons"),
        element("p", content.HOW_COMPARED, class_="soft"),
        element("ul", *(element("li", f"{content.comparison_sentence(named)}.") for named in comparisons)),
        _difference_panels(comparisons),
        id="comparisons",
    )


def _legend(models: tuple[str, ...]) -> Markup:
    """Number, color and name of each model; empty for one model."""
    if len(models) == 1:
        return Markup("")
    keys = (
        element("li", element("b", str(position + 1), class_=color(position)), model)
        for position, model in enumerate(models)
    )
    return element("ul", *keys, class_="legend")


def _folded(title: str, folded: Markup) -> Markup:
    return element("details", element("summary", title), folded)


def _table(table: TextTable) -> Markup:
    head = element("tr", *(_name(name, "col") for name in table.head))
    rows = (
        element("tr", _name(str(row[0]), "row"), *(_cell(cell) for cell in row[1:])) for row in table.rows
    )
    # The box can be scrolled, so it must be reachable by keyboard.
    return element(
        "div",
        element("table", element("thead", head), element("tbody", *rows)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="table",
    )


def _name(name: str, scope: str) -> Markup:
    """The name of a row or column; a long one gets a minimum width."""
    return element("th", name, scope=scope, class_="long" if len(name) > 20 else None)


def _cell(cell: Cell) -> Markup:
    if not cell.small:
        return element("td", cell.text)
    small = element("small", cell.small, class_="long" if len(cell.small) > 20 else None)
    return element("td", f"{cell.text} ", small)


_GROUPS = 3  # data sets in one bar plot


def _bar_panels(grid: Grid) -> Markup:
    """Bar plots of the main numbers of a task, on one scale."""
    span = plots.span_of(grid)
    pictures = []
    for names in plots.chunks(grid.datasets, _GROUPS):
        title = f"{grid.name}: {', '.join(grid.mains)}"
        pictures.append(figure("", "", plots.bars(grid, names, grid.models, span, title)))
    return panels(pictures)


def _part_panels(part_grids: list[Grid], models: tuple[str, ...]) -> Markup:
    """One bar plot for each data set that has sub-sets."""
    pictures = []
    for grid in part_grids:
        title = f"sub-sets of {grid.name}"
        picture = plots.bars(grid, grid.datasets, models, plots.span_of(grid), title)
        pictures.append(figure(grid.name, ", ".join(grid.mains), picture))
    return panels(pictures)


def _difference_panels(comparisons: Sequence[NamedComparison]) -> Markup:
    """One plot for each pair of models."""
    pairs = dict.fromkeys((named.first, named.second) for named in comparisons)
    pictures = []
    for first, second in pairs:
        own = [named for named in comparisons if (named.first, named.second) == (first, second)]
        caption, hint = f"{second} minus {first}", f"right of zero: {second} is ahead; hollow: cannot tell"
        pictures.append(figure(caption, hint, plots.differences(own, title=caption)))
    return panels(pictures)


Draw = Callable[[plots.ScatterPoints, list[plots.ScatterPoints], str, int], Markup]
"""The points of one model and of all models on the data set, a title, and the position of the model."""


def _point_panels(grid: Grid, draw: Draw, *, binary: bool) -> Markup:
    """One plot for each data set and model with gold of this kind; empty where there is none."""
    pictures = []
    for dataset in grid.datasets:
        each = [(result, plots.points_of(result.sample)) for result in grid.of_dataset(dataset)]
        shown = [(result, points) for result, points in each if points and points.binary == binary]
        every = [points for _, points in shown]
        for result, points in shown:
            number = f"{result.main} {content.score_cell(result.values[result.main])}"
            title, position = f"{dataset} by {result.model}", grid.models.index(result.model)
            pictures.append(
                figure(dataset, f"{result.model} · {number}", draw(points, every, title, position))
            )
    return panels(pictures)
