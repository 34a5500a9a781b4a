"""Rows of an answer to where they were asked for: a file, JSON lines, or a table on the screen."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from gemel.cli.screen import cell, echo, echo_json

_SHOWN = 100  # rows on a screen
_NARROW = ("score", "cosine", "percentile", "expected_false", "rank", "query")


@dataclass(frozen=True)
class RowsOut:
    """Where rows go."""

    out: Path | None
    as_json: bool
    escape_formulas: bool = False
    """In .csv and .tsv; see `write_rows`."""

    def check(self) -> None:
        """Refuse a file that cannot be written before any work is done."""
        if self.out is not None:
            from gemel.text.write_rows import check_output

            check_output(self.out)

    def put(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write or show them all; a screen gets the first hundred."""
        if self.out is not None:
            from gemel.text.write_rows import write_rows

            count = write_rows(self.out, rows, escape_formulas=self.escape_formulas)
            echo(f"{self.out}: {count:,} rows", err=True)
        elif self.as_json or not sys.stdout.isatty():
            for row in rows:
                echo_json(row)
        else:
            _show(iter(rows))


def _show(rows: Iterator[dict[str, Any]]) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    first = list(islice(rows, _SHOWN))
    if not first:
        echo("nothing found", err=True)
        return
    table = Table(box=SIMPLE_HEAD)
    for name in first[0]:
        narrow = name in _NARROW or name.startswith("p_")
        table.add_column(
            cell(name.replace("_", " ")), justify="right" if narrow and name != "query" else "left"
        )
    for row in first:
        table.add_row(*(cell(_cell(name, value)) for name, value in row.items()))
    Console(highlight=False).print(table)
    more = sum(1 for _ in rows)
    if more:
        echo(f"{more:,} more; write all of them with -o FILE", err=True)


def _cell(name: str, value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value))
    if not isinstance(value, float):
        return str(value)
    if name == "expected_false":
        return f"{value:.2g}" if value < 100 else f"{value:,.0f}"
    return f"{value:.4f}" if name == "percentile" else f"{value:.3f}"
