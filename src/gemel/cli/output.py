"""Everything that commands print, with control characters escaped, and rows of results to a file or a table.

`echo` for people, `echo_json` for programs, `report` for either, `echo_path` for a path that a script reads,
`new_table`, `cell` and `console` for tables.
`tests/cli/test_screen.py` checks that no command prints by other means.
"""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.terminal import counted, printable, printable_json

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text


def echo(text: object = "", *, err: bool = False) -> None:
    """A message for people, on standard output or standard error; escaped also when piped, as logs are read too."""
    click.echo(printable(in_flags(str(text)) if err else str(text)), err=err)


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


_BOTH = re.compile(r"`?\b([a-z]\w*)(?:=[^\s()]+)?`? \((--([a-z-]+)[^()]*)\)")  # text_column (--text-column)

_KEYWORD = re.compile(r"(?<![\w'\"/.{-])`?([a-z]+(?:_[a-z]+)*)=(?:'([\w.-]+)'|\"([\w.-]+)\"|([\w.-]+))`?")

_PLAIN_KEYWORD = re.compile(r"(?<![\w'\"/.{=-])`?([a-z]+(?:_[a-z]+)+)`?(?![\w'\"/(.=])")


def in_flags(message: str, command: click.Command | None = None) -> str:
    """The message with keywords of Python that are flags written as such: `--on-long chunk`.

    `command`: whose flags; None: those of the command that runs.
    """
    message = _BOTH.sub(lambda both: both[2] if both[1].replace("_", "-") == both[3] else both[0], message)
    context = click.get_current_context(silent=True)
    command = command or (context.command if context else None)
    options = [each for each in command.params if isinstance(each, click.Option)] if command else []
    flags = {str(each.name): next((one for one in each.opts if one.startswith("--")), "") for each in options}

    def keyword(match: re.Match[str]) -> str:
        flag, value = flags.get(match[1]), match[2] or match[3] or match[4]
        if not flag or ("_" not in match[1] and match[4] not in (None, "True")):  # k=9 is as clear as --k 9
            return match[0]
        return flag if value == "True" else f"{flag} {value}"

    message = _KEYWORD.sub(keyword, message)
    return _PLAIN_KEYWORD.sub(lambda match: flags.get(match[1]) or match[0], message)


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Warnings, which name files and quote texts, as one escaped line without a position in the source."""
    original = warnings.formatwarning

    def shown(
        message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
    ) -> str:
        if issubclass(category, UserWarning):
            code = getattr(category, "code", None)
            text = in_flags(" ".join(printable(str(message)).splitlines()))
            return f"warning: {text}{f' [{code}]' if code else ''}\n"
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
            from gemel.files.rows import check_output

            check_output(self.out)

    @property
    def on_screen(self) -> bool:
        """Whether a person sees the rows."""
        return self.out is None and not self.as_json and sys.stdout.isatty()

    def put(self, rows: Iterable[dict[str, Any]], *, hidden: Sequence[str] = ()) -> None:
        """Write or show all rows; a terminal gets the first hundred, without the columns that are `hidden`."""
        if self.out is not None:
            from gemel.files.rows import write_rows

            count = write_rows(self.out, rows, escape_formulas=self.escape_formulas)
            echo(f"{self.out}: {counted(count, 'row')}", err=True)
        elif self.as_json or not sys.stdout.isatty():
            for row in rows:
                echo_json(row)
        else:
            _show({name: value for name, value in row.items() if name not in hidden} for row in rows)


_SHORT_FIELD, _SHORT_FIELDS, _SHORT_TEXT = 24, 72, 160  # characters of a value, of all fields, of a text

_OWN_COLUMNS = 2  # fields that have a column each


def shortened(row: Mapping[str, Any], fields: Sequence[str]) -> dict[str, Any]:
    """A row for a table: one line of text, and these fields of it, as one column if they are more than two."""
    short = {name: _short(str(row[name]), _SHORT_FIELD) for name in fields if row[name] is not None}
    shown: dict[str, Any] = {name: short.get(name, "") for name in fields}
    if len(fields) > _OWN_COLUMNS:
        joined = ", ".join(f"{name} {value}" for name, value in short.items())
        shown = {"fields": _short(joined, _SHORT_FIELDS)}
    others = {name: value for name, value in row.items() if name not in (*fields, "text")}
    return {**others, **shown, "text": _short(str(row["text"]), _SHORT_TEXT)}


def _short(text: str, limit: int) -> str:
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"


def echo_block(head: str, values: Mapping[str, Any]) -> None:
    """One result in full: a line of numbers, then each value beside its name, wrapped to the screen."""
    from shutil import get_terminal_size
    from textwrap import wrap

    echo(head)
    margin = max(map(len, values), default=0) + 5
    width = max(get_terminal_size().columns - margin, 20)
    for name, value in values.items():
        shown = ", ".join(map(str, value)) if isinstance(value, list) else "" if value is None else str(value)
        lines = [part for line in shown.splitlines() for part in wrap(line, width) or [""]] or ["-"]
        for at, line in enumerate(lines):
            echo(f"   {'' if at else name:{margin - 5}}  {line}".rstrip())
    echo()


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
