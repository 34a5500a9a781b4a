"""Everything that commands print, with control characters escaped, and rows of results to a file or a table.

`echo` for people, `echo_json` for programs, `report` for either, `echo_path` for a path that a script reads,
`new_table`, `cell` and `console` for tables.
`tests/cli/test_screen.py` checks that no command prints by other means.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.terminal import printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def echo(text: object = "", *, err: bool = False) -> None:
    """A message for people, on standard output or standard error; escaped also when piped, as logs are read too."""
    click.echo(printable(str(text)), err=err)


def echo_json(value: Any, **settings: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """One line of JSON, which parses to the same value."""
    click.echo(printable_json(value, **settings))


def report(facts: Mapping[str, Any], line: str, as_json: bool) -> None:
    """What a command did: one JSON object, or a line for people on standard error."""
    if as_json:
        echo_json(facts)
    else:
        echo(line, err=True)


def echo_path(path: Path) -> None:
    """A path as the result: unchanged for a program that reads it, escaped on a terminal."""
    click.echo(printable(str(path)) if sys.stdout.isatty() else str(path))


def cell(text: object) -> Text:
    """A cell, heading or title of a table: no markup, no control characters."""
    from rich.text import Text

    return Text(printable(str(text)))


def console() -> Console:
    """Standard output for tables."""
    from rich.console import Console

    return Console(highlight=False)


def new_table(title: str | None = None) -> Table:
    """A table with a line below its head only; the title may be any text."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    heading = None if title is None else cell(title)
    return Table(title=heading, title_justify="left", box=SIMPLE_HEAD)


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Warnings, which name files and quote texts, as one escaped line without a position in the source."""
    original = warnings.formatwarning

    def shown(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if issubclass(category, UserWarning):
            return f"warning: {' '.join(printable(str(message)).splitlines())}\n"
        return printable(original(message, category, filename, lineno, line))

    warnings.formatwarning = shown
    try:
        yield
    finally:
        warnings.formatwarning = original


_SHOWN = 100  # rows on a screen

_NARROW = ("score", "cosine", "percentile", "expected_false", "rank", "query")


@dataclass(frozen=True)
class RowsOut:
    """Where rows of results go: a file, JSON lines or a table."""

    out: Path | None
    as_json: bool
    escape_formulas: bool = False
    """In .csv and .tsv; see `write_rows`."""

    def check(self) -> None:
        """Refuse a file that cannot be written before any work is done."""
        if self.out is not None:
            from gemel.files.write_rows import check_output

            check_output(self.out)

    def put(self, rows: Iterable[dict[str, Any]]) -> None:
        """Write or show all rows; a terminal gets the first hundred."""
        if self.out is not None:
            from gemel.files.write_rows import write_rows

            count = write_rows(self.out, rows, escape_formulas=self.escape_formulas)
            echo(f"{self.out}: {count:,} rows", err=True)
        elif self.as_json or not sys.stdout.isatty():
            for row in rows:
                echo_json(row)
        else:
            _show(iter(rows))


def _show(rows: Iterator[dict[str, Any]]) -> None:
    first = list(islice(rows, _SHOWN))
    if not first:
        echo("nothing found", err=True)
        return
    table = new_table()
    for name in first[0]:
        narrow = name in _NARROW or name.startswith("p_")
        table.add_column(
            cell(name.replace("_", " ")), justify="right" if narrow and name != "query" else "left"
        )
    for row in first:
        table.add_row(*(cell(_cell(name, value)) for name, value in row.items()))
    console().print(table)
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
