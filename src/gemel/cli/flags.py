"""Flags that several verbs have: one spelling and one description, with room for what is special to a verb."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import click

from gemel.cli.options import Function

Decorator = Callable[[Function], Function]

_JSON = {"object": "Print one JSON object.", "lines": "Print JSON lines, an object a row."}
TEXT_COLUMN = 'The column with the texts. Default: "text", or the only column with strings.'
PROGRESS = "Show texts per second and the time left on standard error. Default: when that is a terminal."
PRECISION = "Numbers used in the computation: float32, or int8 (faster, nearly as good)."


def json_option(
    shape: Literal["object", "lines"] = "object", *, piped: bool = False, more: str = ""
) -> Decorator:
    """`--json`, as the argument `as_json`. `piped`: what is not shown on a terminal is JSON anyway."""
    help = " ".join(part for part in (_JSON[shape], more, "The same when piped." if piped else "") if part)
    return click.option("--json", "as_json", is_flag=True, help=help)


def out_option(help: str, *, place: Literal["FILE", "FOLDER", "PATH"], **settings: Any) -> Decorator:
    """`-o`, `--out`: where the answer is written; PATH may be a file or a folder."""
    kind = click.Path(path_type=Path, file_okay=place != "FOLDER")
    return click.option(
        "-o", "--out", type=kind, metavar=place, callback=_can_be_written, help=help, **settings
    )


def _can_be_written(_: click.Context, __: click.Parameter, out: Path | None) -> Path | None:
    """Refuse a place before any work is done, not after hours of it."""
    if out is None:
        return None
    above = next(folder for folder in out.absolute().parents if folder.exists())
    if not above.is_dir():
        raise click.BadParameter(f"{above} is a file, so nothing can be written below it")
    if not os.access(out if out.exists() else above, os.W_OK):
        raise click.BadParameter(f"{out if out.exists() else above} cannot be written to")
    return out


def rows_out_option(more: str = "") -> Decorator:
    """`-o`, `--out` for rows, as `RowsOut` writes them, and `--escape-formulas`."""
    out = out_option(f"A file for the rows: .tsv, .csv, .jsonl or .parquet.{more}", place="FILE")
    escape = click.option(
        "--escape-formulas",
        is_flag=True,
        help="Put ' before texts of .csv and .tsv that a spreadsheet would compute (= + - @).",
    )
    return lambda function: out(escape(function))


def overwrite_option(what: str) -> Decorator:
    """`--overwrite`: nothing that is there is replaced without it."""
    return click.option("--overwrite", is_flag=True, help=f"Replace {what}.")


def text_column_option(more: str = "", *, multiple: bool = False) -> Decorator:
    """`--text-column`."""
    help = f"{TEXT_COLUMN} {more}".strip()
    return click.option("--text-column", multiple=multiple, metavar="NAME", help=help)


def id_column_option(default: str = "rows are numbered from 0") -> Decorator:
    """`--id-column`."""
    help = f"The column with the ids. Default: {default}."
    return click.option("--id-column", metavar="NAME", help=help)


def input_format_option(function: Function) -> Function:
    """`--input-format`."""
    return click.option(
        "--input-format",
        type=click.Choice(["txt", "jsonl", "csv", "tsv", "parquet"]),
        help="What FILE holds. Default: as its name ends; txt for standard input.",
    )(function)


def skip_bad_option(function: Function) -> Function:
    """`--skip-bad`, as the options of training have it."""
    return click.option(
        "--skip-bad/--no-skip-bad",
        default=False,
        help="Leave out rows that cannot be used, and say how many.",
    )(function)


def k_option(what: str, default: int | None = None) -> Decorator:
    """`-k`, `--k`: how many answers."""
    shown = default is not None
    return click.option(
        "-k", "--k", type=click.IntRange(1), default=default, show_default=shown, help=f"How many {what}."
    )


def min_score_option(what: str, default: float | None = None) -> Decorator:
    """`--min-score`: a cosine."""
    shown = default is not None
    return click.option(
        "--min-score", type=float, default=default, show_default=shown, help=f"The lowest cosine {what}."
    )


def seed_option(what: str, default: int | None = 0) -> Decorator:
    """`--seed`; with `default` None the library's own, which is 0 too, holds."""
    help = f"The seed of {what}." + (" Default: 0." if default is None else "")
    shown = default is not None
    return click.option("--seed", type=click.IntRange(0), default=default, show_default=shown, help=help)


def threads_option(function: Function) -> Function:
    """`--threads`, of verbs without EncodeOptions."""
    return click.option(
        "--threads", type=click.IntRange(1), help="Cores to use. Default: all that the process may use."
    )(function)


def progress_option(function: Function) -> Function:
    """`--progress/--no-progress`, of verbs without EncodeOptions; see `shows_progress`."""
    return click.option("--progress/--no-progress", default=None, help=PROGRESS)(function)


def shows_progress(progress: bool | None) -> bool:
    """What the flag means: as it says, else whether somebody looks."""
    return sys.stderr.isatty() if progress is None else progress


def precision_option(function: Function) -> Function:
    """`--precision`, of verbs without EncodeOptions."""
    return click.option(
        "--precision",
        type=click.Choice(["float32", "int8"]),
        default="float32",
        show_default=True,
        help=PRECISION,
    )(function)


def candidates_option(what: str) -> Decorator:
    """`--candidates`."""
    help = f"{what} a query that --hybrid and --rerank look at. Default: 50, or -k if that is more."
    return click.option("--candidates", type=click.IntRange(1), help=help)
