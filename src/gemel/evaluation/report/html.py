"""The report as one HTML page: tables, plots, protocol, and the style sheet that other pages of gemel use too.

The page loads nothing from the network and runs no script.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from gemel.evaluation.metrics import Floats
from gemel.evaluation.report.content import (
    HOW_COMPARED,
    Cell,
    Grid,
    Heading,
    TextTable,
    comparison_sentence,
    fingerprint_of,
    grids,
    model_names,
    model_table,
    number_line,
    part_table,
    protocol_lines,
    score_cell,
    value_table,
)
from gemel.evaluation.report.markup import AxisRange, Markup, color, element, join, range_of
from gemel.evaluation.report.plots import (
    Bars,
    ScatterPoints,
    by_gold,
    by_score,
    calibration,
    chunks,
    differences,
    points_of,
    scatter,
    span_of,
)
from gemel.evaluation.statistics import NamedComparison
from gemel.evaluation.task import Scores

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
    tasks = grids(results)
    title = f"Evaluation: {', '.join(model_names(results))}"
    main = element(
        "main",
        *(_task(grid, number) for number, grid in enumerate(tasks)),
        *([_comparisons(comparisons)] if comparisons else []),
    )
    return page(title, STYLE, _top(results, comparisons, heading, tasks), main)


def page(title: str, style: str, *body: Markup) -> str:
    """An HTML page as text, with a style sheet inside; training reports use it too."""
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        element("style", Markup(style)),
    )
    return f"<!doctype html>\n{element('html', head, element('body', *body), lang='en')}\n"


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
        element("dl", *(join([element("dt", name), element("dd", value)]) for name, value in facts)),
        element("nav", *links),
    )


def _task(grid: Grid, number: int) -> Markup:
    part_grids = grid.part_grids()
    blocks = [
        element("h2", grid.name),
        element("p", number_line(grid), class_="soft"),
        _table(model_table(grid)),
        _legend(grid.models),
        bar_panels(grid),
    ]
    if part_grids:
        blocks += [
            element("h3", "Sub-sets"),
            part_panels(part_grids, grid.models),
            _folded("Sub-sets as a table", _table(part_table(part_grids, grid.models))),
        ]
    for title, explanation, panels in (
        ("Predicted against gold", "Each model has its own scale.", scatter_panels(grid)),
        ("Calibration", _CALIBRATION, calibration_panels(grid)),
        ("Reliability", _RELIABILITY, reliability_panels(grid)),
    ):
        if panels:
            blocks += [element("h3", title), element("p", explanation, class_="soft"), panels]
    blocks.append(_folded("Every number", _table(value_table(grid))))
    protocol = [
        element("li", f"{name}: {value}") for name, value in protocol_lines(grid) if name != "fingerprint"
    ]  # fingerprints are at the top of the page
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
    """Number, color and name of each model; empty for one model."""
    if len(models) == 1:
        return Markup("")
    keys = (
        element("li", element("b", str(position + 1), class_=color(position)), model)
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


# The six colors of models have a contrast of 3:1 or more with the page and differ in lightness, for color-blind
# readers too; tests check both.
STYLE = """
:root { color-scheme: light dark; --paper: #ffffff; --panel: #f6f7f9; --ink: #1c2024; --soft: #5a626b; --rule: #d5d9de;
  --dot: .22; --link: #0067a8; --c0: #0f7fc0; --c1: #d96300; --c2: #0a3a34; --c3: #8c7d76; --c4: #7a2e00;
  --c5: #55157a; }
@media screen and (prefers-color-scheme: dark) { :root { --paper: #14171a; --panel: #1c2024; --ink: #e8eaed;
  --soft: #a3abb5; --rule: #363c43; --link: #6db5ff; --c0: #3b96f5; --c1: #e9801e; --c2: #6f8250;
  --c3: #a55c97; --c4: #f2ec55; --c5: #4fe9ad; --dot: .4; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 16px; max-width: 1400px; background: var(--paper); color: var(--ink);
  font: 15px/1.5 system-ui, sans-serif; }
h1 { font-size: 1.6em; margin: .2em 0; } h2 { font-size: 1.3em; margin: 2em 0 .3em; padding-top: .6em;
  border-top: 2px solid var(--rule); } h3 { font-size: 1.05em; margin: 1.5em 0 .4em; }
p, ul { margin: .4em 0; max-width: 75ch; } ul { padding-left: 1.3em; } li { overflow-wrap: anywhere; }
a { color: var(--link); } nav a { display: inline-block; margin-right: 1em; padding: .3em 0; }
.soft, figcaption small, td small { color: var(--soft); }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1em 1em; margin: .6em 0; }
dt { color: var(--soft); } dd { margin: 0; overflow-wrap: anywhere; }
.scroll { overflow-x: auto; margin: .5em 0; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .35em .55em; text-align: right; vertical-align: top; border-bottom: 1px solid var(--rule); }
td small { display: block; white-space: nowrap; } td small.long { white-space: normal; min-width: 9em; }
th { font-weight: 600; } thead th { border-bottom-width: 2px; max-width: 14em; min-width: 5em;
  overflow-wrap: break-word; }
th:first-child { padding-left: 0; text-align: left; position: sticky; left: 0; background: var(--paper);
  max-width: min(24em, 42vw); overflow-wrap: break-word; min-width: 7em; }
th.long, th.long:first-child { min-width: min(11em, 40vw); }
details { margin: .6em 0; } summary { cursor: pointer; padding: .3em 0; }
.legend { display: flex; flex-wrap: wrap; gap: .2em 1.4em; list-style: none; padding: 0; max-width: none; }
.legend b { display: inline-block; min-width: 1.6em; margin-right: .5em; padding: 0 .3em; text-align: center;
  color: var(--paper); font-size: .85em; border-radius: 3px; }
.panels { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(100%, 300px), 1fr)); gap: 14px;
  align-items: start; }
figure { margin: 0; padding: 10px 12px; background: var(--panel); border-radius: 6px; break-inside: avoid;
  min-width: 0; }
figcaption { margin-bottom: .4em; font-weight: 600; line-height: 1.3; overflow-wrap: anywhere; }
figcaption small { display: block; font-weight: 400; font-size: .87em; }
svg { display: block; width: 100%; max-width: 460px; height: auto; overflow: visible; }
svg text { font: 11px system-ui, sans-serif; fill: var(--soft); font-variant-numeric: tabular-nums; }
svg .strong { fill: var(--ink); font-weight: 600; paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }
.grid { stroke: var(--rule); } .axis { stroke: var(--soft); } .zero { stroke: var(--soft); stroke-dasharray: 4 3; }
.whisker { fill: none; stroke: var(--ink); stroke-width: 1.2; }
.halo { fill: none; stroke: var(--panel); stroke-width: 3; }
.track { fill: none; stroke: currentColor; stroke-width: 1.5; } .dots path { fill: none; stroke: currentColor;
  stroke-width: 8; stroke-linecap: round; opacity: var(--dot); }
rect, .cell, circle { fill: currentColor; }
.sure { fill: var(--c0); } .unsure { fill: var(--panel); stroke: var(--soft); stroke-width: 1.5; }
.c0 { color: var(--c0); } .c1 { color: var(--c1); } .c2 { color: var(--c2); } .c3 { color: var(--c3); }
.c4 { color: var(--c4); } .c5 { color: var(--c5); }
b.c0 { background: var(--c0); } b.c1 { background: var(--c1); } b.c2 { background: var(--c2); }
b.c3 { background: var(--c3); } b.c4 { background: var(--c4); } b.c5 { background: var(--c5); }
@media print { body { max-width: none; font-size: 11px; padding: 0; } nav { display: none; }
  .scroll { overflow: visible; } table { font-size: 9px; }
  figure { border: 1px solid var(--rule); background: none; --panel: #ffffff; }
  .panels { grid-template-columns: repeat(2, 1fr); } h2, h3 { break-after: avoid; } tr { break-inside: avoid; } }
"""

_GROUPS = 3  # data sets in one bar plot


def bar_panels(grid: Grid) -> Markup:
    """Bar plots of the main numbers of a task, on one scale."""
    span = span_of(grid)
    pictures = []
    for names in chunks(grid.datasets, _GROUPS):
        title = f"{grid.name}: {', '.join(grid.mains)}"
        pictures.append(figure("", "", Bars(grid, names, grid.models, span).draw(title)))
    return panels(pictures)


def part_panels(part_grids: list[Grid], models: tuple[str, ...]) -> Markup:
    """One bar plot for each data set that has sub-sets."""
    pictures = []
    for grid in part_grids:
        bars = Bars(grid, grid.datasets, models, span_of(grid))
        pictures.append(figure(grid.name, ", ".join(grid.mains), bars.draw(f"sub-sets of {grid.name}")))
    return panels(pictures)


def scatter_panels(grid: Grid) -> Markup:
    """Predicted against gold for each data set and model that has graded gold scores; empty where none has."""
    return _point_panels(grid, _scatter, binary=False)


def calibration_panels(grid: Grid) -> Markup:
    """Mean predictions by gold score, for each data set and model; empty where no gold is graded."""
    return _point_panels(grid, _calibration, binary=False)


def reliability_panels(grid: Grid) -> Markup:
    """The share of yes by score, for each data set and model; empty where no gold is binary."""
    return _point_panels(grid, _calibration, binary=True)


def difference_panels(comparisons: Sequence[NamedComparison]) -> Markup:
    """One plot for each pair of models."""
    pairs = dict.fromkeys((named.first, named.second) for named in comparisons)
    pictures = []
    for first, second in pairs:
        own = [named for named in comparisons if (named.first, named.second) == (first, second)]
        caption, hint = f"{second} minus {first}", f"right of zero: {second} is ahead; hollow: cannot tell"
        pictures.append(figure(caption, hint, differences(own, title=caption)))
    return panels(pictures)


class _Draw(Protocol):
    """Draws the points of one model; `every` are those of all models on the data set, for shared axes."""

    def __call__(
        self, points: ScatterPoints, every: list[ScatterPoints], *, title: str, position: int
    ) -> Markup: ...


def _point_panels(grid: Grid, draw: _Draw, *, binary: bool) -> Markup:
    pictures = []
    for dataset in grid.datasets:
        each = [(result, points_of(result.sample)) for result in grid.of_dataset(dataset)]
        shown = [(result, points) for result, points in each if points and points.binary == binary]
        every = [points for _, points in shown]
        for result, points in shown:
            position, title = grid.models.index(result.model), f"{dataset} by {result.model}"
            number = f"{result.main} {score_cell(result.values[result.main])}"
            picture = draw(points, every, title=title, position=position)
            pictures.append(figure(dataset, f"{result.model} · {number}", picture))
    return panels(pictures)


def _scatter(points: ScatterPoints, every: list[ScatterPoints], *, title: str, position: int) -> Markup:
    across = _ends([other.gold for other in every])
    return scatter(points, across, _ends([points.predicted]), title=title, position=position)


def _calibration(points: ScatterPoints, every: list[ScatterPoints], *, title: str, position: int) -> Markup:
    if points.binary:
        across, up = range_of([each.x for each in by_score(points)]), AxisRange(0.0, 1.0)
    else:
        across = _ends([other.gold for other in every])
        up = range_of([end for other in every for each in by_gold(other) for end in (each.low, each.high)])
    return calibration(points, across, up, title=title, position=position)


def _ends(columns: list[Floats]) -> AxisRange:
    return range_of([float(end) for column in columns for end in (column.min(), column.max())])


def figure(caption: str, hint: str, picture: Markup) -> Markup:
    """A plot with its caption; an empty caption is left out."""
    if not caption:
        return element("figure", picture)
    return element("figure", element("figcaption", caption, element("small", hint)), picture)


def panels(pictures: Sequence[Markup]) -> Markup:
    """Figures side by side."""
    return element("div", *pictures, class_="panels") if pictures else join([])
