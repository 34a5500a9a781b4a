"""Show why two texts score as they do, word by word."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gemel.cli import flags
from gemel.cli.output import cell, echo, echo_json
from gemel.errors import InputError, WorkError

if TYPE_CHECKING:
    from rich.table import Table

    from gemel.texts.explanation import Explanation

EXAMPLES = """\b
Examples:
  gemel explain "a man plays a guitar" "someone is playing an instrument"
  gemel explain "refund not received" "where is my money" -o why.html"""

_FOR, _AGAINST = (15, 127, 192), (217, 99, 0)

_MOST = 15  # pairs shown where the table does not fit

_STRONGEST = 0.75  # share of the color in the strongest cell


@click.command(epilog=EXAMPLES)
@click.argument("left")
@click.argument("right")
@click.option("--tokens", is_flag=True, help="Show pieces of words as the model reads them, not whole words.")
@flags.out_option("A file for a page that shows the table: .html.", metavar="FILE")
@flags.json_option(piped=True)
@flags.threads_option
@flags.model_option
@flags.task_option()
def command(
    left: str,
    right: str,
    tokens: bool,
    out: Path | None,
    as_json: bool,
    threads: int | None,
    model: str,
    task: str | None,
) -> None:
    """Split the cosine of LEFT and RIGHT into the contribution of each pair of words.

    For models whose vector is a sum over tokens: mean and cls pooling and the like, without non-linear layers.
    """
    import gemel

    if out is not None:
        _check(out)
    explanation = gemel.explain(gemel.load(model, task=task), left, right, threads=threads)
    if out is not None:
        _write(out, explanation)
    if as_json or (not sys.stdout.isatty() and out is None):
        echo_json(explanation.to_json())
    elif out is None:
        _show(explanation if tokens else explanation.words())


def _check(out: Path) -> None:
    """Refuse a path that cannot be written before any work is done."""
    if out.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"cannot tell from its name what to write to {out}. Known ending: .html")
    if not out.absolute().parent.is_dir():
        raise InputError(f"no folder {out.absolute().parent}")


def _write(out: Path, explanation: Explanation) -> None:
    try:
        out.write_text(explanation.to_html(), encoding="utf-8")
    except OSError as error:
        raise WorkError(f"cannot write {out}: {error}") from error
    echo(f"{out}: cosine {explanation.score:.4f}", err=True)


def _show(explanation: Explanation) -> None:
    from rich.console import Console

    console = Console()
    console.print(f"cosine {explanation.score:.4f} = the sum of the table", style="bold")
    table = heat_map(explanation)
    if console.measure(table).minimum <= console.width:
        console.print(table)
        return
    console.print(
        f"The table is wider than this screen (-o FILE.html shows it). The {_MOST} strongest pairs:"
    )
    for value, one, other in strongest(explanation)[:_MOST]:
        console.print(cell(f"  {value:6.3f}  {one} - {other}"), highlight=False)


def strongest(explanation: Explanation) -> list[tuple[float, str, str]]:
    """(value, left, right) of all pairs, those that change the score most first."""
    pairs = [
        (float(value), one, other)
        for one, line in zip(explanation.left_tokens, explanation.table, strict=True)
        for other, value in zip(explanation.right_tokens, line, strict=True)
    ]
    return sorted(pairs, key=lambda pair: -abs(pair[0]))


def heat_map(explanation: Explanation) -> Table:
    """Rows are the left text, columns the right; blue raises the score, orange lowers it; sums at the edges."""
    from rich.style import Style
    from rich.table import Table
    from rich.text import Text

    from gemel.texts.explanation import short

    most = float(abs(explanation.table).max(initial=0.0)) or 1.0
    table = Table("", box=None, padding=(0, 1), show_footer=True)
    table.columns[0].footer = "sum"
    for name, total in zip(explanation.right_tokens, explanation.table.sum(axis=0), strict=True):
        table.add_column(cell(name), footer=short(float(total)), justify="right", no_wrap=True)
    table.add_column("sum", footer=short(explanation.score), justify="right")
    for name, line in zip(explanation.left_tokens, explanation.table, strict=True):
        cells = [
            Text(short(float(value)), Style(color="white", bgcolor=_color(float(value) / most)))
            for value in line
        ]
        table.add_row(cell(name), *cells, short(float(line.sum())))
    return table


def _color(part: float) -> str:
    """From black to the full color: white numbers stay readable on both."""
    red, green, blue = (int(_STRONGEST * abs(part) * tone) for tone in (_FOR if part >= 0 else _AGAINST))
    return f"rgb({red},{green},{blue})"
