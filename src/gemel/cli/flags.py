"""Flags that several verbs share: one spelling, one description, with room for what is special to a verb.

Flags of encoding, training, serving and planning are generated from dataclasses of options, one for each field.
"""

from __future__ import annotations

import ast
import inspect
import os
import re
import sys
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, fields
from functools import wraps
from itertools import pairwise
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any, Literal, get_args, get_origin, get_type_hints

import click

from gemel.errors import InputError
from gemel.options import EncodeOptions

if TYPE_CHECKING:
    from gemel.model import Model
    from gemel.options import EncodeOptions

Function = Callable[..., Any]  # a click callback: its arguments are whatever its decorators declare

Decorator = Callable[[Function], Function]

_JSON = {"object": "Print one JSON object.", "lines": "Print JSON lines, one object per row."}

TEXT_COLUMN = 'The column with the texts. Default: "text", or the only column with strings.'

PROGRESS = "Show texts per second and the time left on standard error. Default: when that is a terminal."

PRECISION = "Numbers used in the computation: float32, or int8 (faster, nearly as good)."


def json_option(
    shape: Literal["object", "lines"] = "object", *, piped: bool = False, more: str = ""
) -> Decorator:
    """`--json`, as the argument `as_json`. `piped`: what is not shown on a terminal is JSON anyway."""
    help = " ".join(part for part in (_JSON[shape], more, "The same when piped." if piped else "") if part)
    return click.option("--json", "as_json", is_flag=True, help=help)


def out_option(help: str, *, metavar: Literal["FILE", "FOLDER", "PATH"], **settings: Any) -> Decorator:
    """`-o`, `--out`: where the result is written; PATH may be a file or a folder."""
    kind = click.Path(path_type=Path, file_okay=metavar != "FOLDER")
    return click.option(
        "-o", "--out", type=kind, metavar=metavar, callback=_can_be_written, help=help, **settings
    )


def _can_be_written(_: click.Context, __: click.Parameter, out: Path | None) -> Path | None:
    """Refuse a path that cannot be written before any work is done, not after hours of it."""
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
    out = out_option(f"A file for the rows: .tsv, .csv, .jsonl or .parquet.{more}", metavar="FILE")
    escape = click.option(
        "--escape-formulas",
        is_flag=True,
        help="Put ' before texts of .csv and .tsv that a spreadsheet would evaluate (= + - @).",
    )
    return lambda function: out(escape(function))


def overwrite_option(what: str) -> Decorator:
    """`--overwrite`: nothing is replaced without it."""
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
        help="The format of FILE. Default: by its name; txt for standard input.",
    )(function)


def skip_bad_option(function: Function) -> Function:
    """`--skip-bad`, as the options of training have it."""
    return click.option(
        "--skip-bad/--no-skip-bad",
        default=False,
        help="Leave out rows that cannot be used, and report how many.",
    )(function)


def k_option(what: str, default: int | None = None) -> Decorator:
    """`-k`, `--k`: how many results."""
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
    """`--seed`; with `default` None the library's own is used, which is 0 too."""
    help = f"Seed of {what}." + (" Default: 0." if default is None else "")
    shown = default is not None
    return click.option("--seed", type=click.IntRange(0), default=default, show_default=shown, help=help)


def threads_option(function: Function) -> Function:
    """`--threads`, of verbs without EncodeOptions."""
    return click.option(
        "--threads", type=click.IntRange(1), help="CPU cores to use. Default: all that the process may use."
    )(function)


def progress_option(function: Function) -> Function:
    """`--progress/--no-progress`, of verbs without EncodeOptions; see `shows_progress`."""
    return click.option("--progress/--no-progress", default=None, help=PROGRESS)(function)


def shows_progress(progress: bool | None) -> bool:
    """Whether to show progress: as the flag says, else if standard error is a terminal."""
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
    help = f"{what} per query that --hybrid and --rerank consider. Default: 50, or -k if that is more."
    return click.option("--candidates", type=click.IntRange(1), help=help)


DEFAULT_MODEL = "all-MiniLM-L6-v2"


def model_option(function: Function) -> Function:
    """`--model`: a name or a folder."""
    return click.option(
        "-m",
        "--model",
        default=DEFAULT_MODEL,
        show_default=True,
        metavar="NAME",
        help="A model's name, or its folder.",
    )(function)


def encode_options(function: Function) -> Function:
    """A flag for every field of EncodeOptions; `function` gets all of them as one argument `options`."""
    return options_of(EncodeOptions)(function)


def options_of(cls: type[Any]) -> Decorator:
    """A flag for every field of a dataclass of options; the function gets all of them as one argument `options`."""
    names = [field.name for field in fields(cls)]

    def decorate(function: Function) -> Function:
        @wraps(function)
        def call(*arguments: Any, **values: Any) -> Any:  # noqa: ANN401
            settings = {name: values.pop(name) for name in names}
            if "progress" in settings:
                settings["progress"] = shows_progress(settings["progress"])
            return function(*arguments, options=cls(**settings), **values)

        docs, types = field_docs(cls), get_type_hints(cls)
        decorated: Function = call
        for field in reversed(fields(cls)):  # click shows the last decorator first
            default, help = field.default, flag_help(docs.get(field.name, ""), names)
            if field.name == "progress":
                default, help = None, f"{help} Default: when that is a terminal."
            if default is MISSING:
                kind = types[field.name]
                decorated = click.option(f"--{field.name}", type=kind, required=True, help=help)(decorated)
            else:
                decorated = flag_of(field.name, types[field.name], default=default, help=help)(decorated)
        return decorated

    return decorate


def flag_of(name: str, annotation: object, *, default: Any, help: str) -> Decorator:  # noqa: ANN401
    """The flag of one field: its name with hyphens, its type. Its environment variables: config.py."""
    flag = "--" + name.replace("_", "-")
    kinds = [kind for kind in get_args(annotation) or (annotation,) if kind is not NoneType]
    shape: dict[str, Any] = {}
    if get_origin(annotation) is tuple:
        shape = {"type": kinds[0], "multiple": True}
        help = f"{help} May be repeated."
    elif get_origin(annotation) is Literal or get_origin(kinds[0]) is Literal:
        literal = annotation if get_origin(annotation) is Literal else kinds[0]
        shape = {"type": click.Choice(get_args(literal))}
    elif kinds == [bool]:
        flag = f"{flag}/--no-{flag[2:]}"
    else:
        shape = {"type": kinds[0] if len(kinds) == 1 else str}
    shown = default is not None and default != ()
    return click.option(flag, name, default=default, show_default=shown, help=help, **shape)


def flag_help(doc: str, names: list[str]) -> str:
    """A field's docstring for the command line: flags instead of Python names."""
    for name in names:
        doc = doc.replace(f"`{name}`", "--" + name.replace("_", "-"))
    return re.sub(r"\bNone: ", "Default: ", doc)


def field_docs(cls: type) -> dict[str, str]:
    """The string below each field of a dataclass, by field; empty if the source is not available."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError):
        return {}
    docs: dict[str, str] = {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for node, below in pairwise(body):
        match node, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(doc))):
                docs[name] = " ".join(doc.split())
    return docs


def query_options(function: Function) -> Function:
    """[QUERY]..., `--queries` and `--query-column`, for `read_queries`."""
    for add in (
        click.option("--query-column", metavar="NAME", help="The column of --queries with the texts."),
        click.option(
            "--queries", metavar="FILE", help="A file of queries: .txt, .jsonl, .csv, .tsv or .parquet."
        ),
        click.argument("query", nargs=-1, metavar="[QUERY]..."),
    ):
        function = add(function)
    return function


def where_option(what: str) -> Decorator:
    """`--where`: a condition on fields."""
    return click.option(
        "--where", metavar="CONDITION", help=f"{what} that meet it: \"year >= 2020 and lang = 'en'\"."
    )


def read_queries(typed: tuple[str, ...], path: str | None, column: str | None) -> list[str]:
    """The queries of the command line, then those of the file."""
    from gemel.files.rows import read_rows

    queries = [*typed, *(row.text for row in (read_rows(path, text_column=column) if path else ()))]
    if not queries:
        raise InputError("no query. Give QUERY or --queries FILE")
    return queries


def fast_option(function: Function) -> Function:
    """`--fast N`."""
    return click.option(
        "--fast",
        "candidates_each",
        type=click.IntRange(1),
        metavar="N",
        help="A static student of the model (created once, then cached) proposes N candidates per result, the model "
        "scores only those; the recall is measured and shown. Start with 10; more finds more.",
    )(function)


def student_of(model: Model, candidates: int | None, options: EncodeOptions) -> dict[str, Any]:
    """Keywords of `search_texts` and `find_pairs` for a student; none without `--fast`."""
    if candidates is None:
        return {}
    import gemel
    from gemel.training.distill.static_table import make_static

    student = gemel.load(make_static(model, threads=options.threads, progress=options.progress))
    return {"student": student, "student_candidates": candidates}
