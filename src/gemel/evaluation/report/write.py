"""Writes a report: results.json for programs, results.md for pull requests, report.html with plots for readers."""

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
    """Write the three files atomically and return their paths. `date` is that of the report, now by default."""
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
            f"numbers of a report must be finite, but those of a result are not ({error}). "
            "An undefined score is None with a note"
        ) from error
    return text + "\n"


def _plain(value: Any) -> Any:  # noqa: ANN401 - a protocol holds NumPy numbers, paths and whatever else
    return value.tolist() if hasattr(value, "tolist") else str(value)


def markdown(results: Sequence[Scores], comparisons: Sequence[NamedComparison], heading: Heading) -> str:
    """The report as Markdown: for each task a table, sub-sets and protocol, then comparisons."""
    blocks = ["# Evaluation", plain(" · ".join([heading.date, *heading.versions]))]
    for grid in grids(results):
        blocks += _task(grid)
    if comparisons:
        sentences = "\n".join(f"- {plain(comparison_sentence(named))}." for named in comparisons)
        blocks += ["## Comparisons", HOW_COMPARED, sentences]
    return "\n\n".join(blocks) + "\n"


def _task(grid: Grid) -> list[str]:
    blocks = [f"## {plain(grid.name)}", plain(number_line(grid)), _table(model_table(grid))]
    part_grids = grid.part_grids()
    if part_grids:
        blocks += ["### Sub-sets", _table(part_table(part_grids, grid.models))]
    protocol = protocol_lines(grid)
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


def _table(table: TextTable) -> str:
    lines = [table.head, ["---"] * len(table.head), *table.rows]
    return "\n".join("| " + " | ".join(plain(str(cell)) for cell in line) + " |" for line in lines)
