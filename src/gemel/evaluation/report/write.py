"""Results on disk: results.json for programs, results.md for a pull request, report.html with plots for people.

The report as Markdown, for a pull request or a README.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from gemel.errors import InputError, WorkError
from gemel.evaluation.report.content import (
    HOW_COMPARED,
    Grid,
    Heading,
    TextTable,
    comparison_sentence,
    grids,
    heading,
    model_table,
    number_line,
    part_table,
    protocol_lines,
)
from gemel.evaluation.report.html import html
from gemel.evaluation.report.markup import clean
from gemel.evaluation.statistics import NamedComparison
from gemel.evaluation.task import Scores
from gemel.files.atomic import write_atomic


def write_report(
    results: Sequence[Scores],
    comparisons: Sequence[NamedComparison],
    folder: str | Path,
    *,
    date: datetime | None = None,
) -> list[Path]:
    """Write the three files and return their paths; each is there whole or not at all.

    `date` is the moment the report carries, now if it is not given.
    """
    if not results:
        raise InputError("a report needs at least one result, got none")
    top = heading(date)
    content = {
        "date": top.date,
        "versions": list(top.versions),
        "results": [result.to_json() for result in results],
        "comparisons": [named.to_json() for named in comparisons],
    }
    texts = {
        "results.json": _json(content),
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


def _json(content: object) -> str:
    try:
        text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=_plain)
    except ValueError as error:
        raise InputError(
            f"a report holds numbers that are finite, but a result does not ({error}). "
            "An undefined score is None with a note"
        ) from error
    return text + "\n"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a protocol holds NumPy numbers, paths and whatever else
    return value.tolist() if hasattr(value, "tolist") else str(value)


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
