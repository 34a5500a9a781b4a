"""All that the commands print: foreign text goes through `gemel.printable` on its way to a terminal.

`echo` for people, `echo_json` for programs, `echo_path` for a path that a script takes, `cell` for tables of rich.
`tests/test_cli_screen.py` watches that no command prints by other means.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.printable import printable, printable_json

if TYPE_CHECKING:
    from rich.text import Text


def echo(text: object = "", *, err: bool = False) -> None:
    """A message for people, on standard output or standard error; cleaned also when piped, as logs are read too."""
    click.echo(printable(str(text)), err=err)


def echo_json(value: Any, **settings: Any) -> None:  # noqa: ANN401 - whatever JSON can hold
    """One line of JSON, which reads back as it was."""
    click.echo(printable_json(value, **settings))


def echo_path(path: Path) -> None:
    """A path as the answer: to the letter for a program that reads it, cleaned on a terminal."""
    click.echo(printable(str(path)) if sys.stdout.isatty() else str(path))


def cell(text: object) -> Text:
    """A cell, heading or title of a table: no markup, no control characters."""
    from rich.text import Text

    return Text(printable(str(text)))


@contextmanager
def printable_warnings() -> Iterator[None]:
    """Warnings, which name files and quote texts, as one clean line without a place in the source."""
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
