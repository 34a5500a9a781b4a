"""The report as one HTML page: tables, plots, protocol. It asks for nothing from the network and runs no script."""

from __future__ import annotations

from collections.abc import Sequence

from gemel.evaluation.report.grid import Grid, grids, model_names
from gemel.evaluation.report.heading import Heading
from gemel.evaluation.report.markup import Markup, element, join
from gemel.evaluation.report.panels import (
    bar_panels,
    calibration_panels,
    difference_panels,
    part_panels,
    reliability_panels,
    scatter_panels,
)
from gemel.evaluation.report.plots.svg import colour
from gemel.evaluation.report.sentences import (
    HOW_COMPARED,
    comparison_sentence,
    fingerprint_of,
    number_line,
    protocol_lines,
)
from gemel.evaluation.report.style import STYLE
from gemel.evaluation.report.tables import Cell, TextTable, model_table, part_table, value_table
from gemel.evaluation.samples import NamedComparison
from gemel.evaluation.scores import Scores

_CALIBRATION = (
    "Mean predicted score by bins of gold, with one standard deviation each way. Models on the same data set share "
    "their scale."
)
_RELIABILITY = (
    "Share of yes in equally full bins of the score, with 95 % intervals. On the dashed line a score is a "
    "probability. Each model has its own scale."
)


def html(results: Sequence[Scores], comparisons: Sequence[NamedComparison], heading: Heading) -> str:
    """The whole page."""
    tasks = grids(results)
    title = f"Evaluation: {', '.join(model_names(results))}"
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(STYLE)),
    )
    body = element(
        "body",
        _top(results, comparisons, heading, tasks),
        element(
            "main",
            *(_task(grid, number) for number, grid in enumerate(tasks)),
            *([_comparisons(comparisons)] if comparisons else []),
        ),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


def _top(
    results: Sequence[Scores], comparisons: Sequence[NamedComparison], heading: Heading, tasks: list[Grid]
) -> Markup:
    facts = [("date", heading.date), ("made with", ", ".join(heading.versions))]
    for number, model in enumerate(model_names(results), start=1):
        fingerprint = fingerprint_of(results, model)
        facts.append((f"model {number}", f"{model} · {fingerprint}" if fingerprint else model))
    links = [element("a", grid.name, href=f"#task{number}") for number, grid in enumerate(tasks)]
    links += [element("a", "comparisons", href="#comparisons")] if comparisons else []
    return element(
        "header",
        element("h1", "Evaluation"),
        element("dl", *(join([element("dt", name), element("dd", said)]) for name, said in facts)),
        element("nav", *links),
    )


def _task(grid: Grid, number: int) -> Markup:
    wholes = grid.wholes()
    blocks = [
        element("h2", grid.name),
        element("p", number_line(grid), class_="soft"),
        _table(model_table(grid)),
        _legend(grid.models),
        bar_panels(grid),
    ]
    if wholes:
        blocks += [
            element("h3", "Sub-sets"),
            part_panels(wholes, grid.models),
            _folded("Sub-sets as a table", _table(part_table(wholes, grid.models))),
        ]
    for title, said, panels in (
        ("Predicted against gold", "Each model has its own scale.", scatter_panels(grid)),
        ("Calibration", _CALIBRATION, calibration_panels(grid)),
        ("Reliability", _RELIABILITY, reliability_panels(grid)),
    ):
        if panels:
            blocks += [element("h3", title), element("p", said, class_="soft"), panels]
    blocks.append(_folded("Every number", _table(value_table(grid))))
    protocol = [
        element("li", f"{name}: {value}") for name, value in protocol_lines(grid) if name != "fingerprint"
    ]  # fingerprints stand at the top of the page
    if protocol:
        blocks += [element("h3", "Protocol"), element("ul", *protocol)]
    return element("section", *blocks, id=f"task{number}")


def _comparisons(comparisons: Sequence[NamedComparison]) -> Markup:
    return element(
        "section",
        element("h2", "Comparisons"),
        element("p", HOW_COMPARED, class_="soft"),
        element("ul", *(element("li", f"{comparison_sentence(named)}.") for named in comparisons)),
        difference_panels(comparisons),
        id="comparisons",
    )


def _legend(models: tuple[str, ...]) -> Markup:
    """Number, colour and name of each model; one alone needs none."""
    if len(models) == 1:
        return Markup("")
    keys = (
        element("li", element("b", str(position + 1), class_=colour(position)), model)
        for position, model in enumerate(models)
    )
    return element("ul", *keys, class_="legend")


def _folded(title: str, content: Markup) -> Markup:
    return element("details", element("summary", title), content)


def _table(table: TextTable) -> Markup:
    head = element("tr", *(_name(name, "col") for name in table.head))
    rows = (
        element("tr", _name(str(row[0]), "row"), *(_cell(cell) for cell in row[1:])) for row in table.rows
    )
    # The box can be scrolled, so the keyboard must be able to reach it.
    return element(
        "div",
        element("table", element("thead", head), element("tbody", *rows)),
        class_="scroll",
        tabindex="0",
        role="region",
        aria_label="table",
    )


def _name(name: str, scope: str) -> Markup:
    """The name of a row or column; a long one gets room, so that it does not become a tower of syllables."""
    return element("th", name, scope=scope, class_="long" if len(name) > 20 else None)


def _cell(cell: Cell) -> Markup:
    if not cell.small:
        return element("td", cell.text)
    small = element("small", cell.small, class_="long" if len(cell.small) > 20 else None)
    return element("td", f"{cell.text} ", small)
