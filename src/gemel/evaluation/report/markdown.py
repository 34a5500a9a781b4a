"""The report as Markdown, for a pull request or a README."""

from __future__ import annotations

import re
from collections.abc import Sequence

from gemel.evaluation.report.grid import Grid, grids
from gemel.evaluation.report.heading import Heading
from gemel.evaluation.report.markup import clean
from gemel.evaluation.report.sentences import HOW_COMPARED, comparison_sentence, number_line, protocol_lines
from gemel.evaluation.report.tables import TextTable, model_table, part_table
from gemel.evaluation.samples import NamedComparison
from gemel.evaluation.scores import Scores


def markdown(results: Sequence[Scores], comparisons: Sequence[NamedComparison], heading: Heading) -> str:
    """The whole page: a table a task, sub-sets, protocol, comparisons."""
    blocks = ["# Evaluation", plain(" · ".join([heading.date, *heading.versions]))]
    for grid in grids(results):
        blocks += _task(grid)
    if comparisons:
        sentences = "\n".join(f"- {plain(comparison_sentence(named))}." for named in comparisons)
        blocks += ["## Comparisons", HOW_COMPARED, sentences]
    return "\n\n".join(blocks) + "\n"


def _task(grid: Grid) -> list[str]:
    blocks = [f"## {plain(grid.name)}", plain(number_line(grid)), _table(model_table(grid))]
    wholes = grid.wholes()
    if wholes:
        blocks += ["### Sub-sets", _table(part_table(wholes, grid.models))]
    protocol = protocol_lines(grid)
    if protocol:
        blocks += ["### Protocol", "\n".join(f"- {plain(name)}: {plain(value)}" for name, value in protocol)]
    return blocks


def plain(text: str) -> str:
    """Text that stays text: no mark of it is taken for Markdown or HTML."""
    text = re.sub(r"\s+", " ", clean(text)).strip()
    # "p < 0.001" reads as it stands: a tag has no space behind its bracket.
    text = re.sub(r"<(?! )", "&lt;", text.replace("&", "&amp;").replace(">", "&gt;"))
    # A bracket makes a link only with another one right behind it, so an interval is left as it is.
    return re.sub(r"(\]\(|\]\[|[\\`*|])", lambda found: "\\" + found[0], text)


def _table(table: TextTable) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "\n".join("| " + " | ".join(plain(str(cell)) for cell in line) + " |" for line in lines)
