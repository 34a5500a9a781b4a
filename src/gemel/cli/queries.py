"""What is looked for, as two verbs take it: typed, in a file, or both."""

from __future__ import annotations

import click

from gemel.cli.flags import Decorator
from gemel.cli.options import Function
from gemel.errors import InputError


def query_options(function: Function) -> Function:
    """[QUERY]..., `--queries` and `--query-column`, for `asked_queries`."""
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


def asked_queries(typed: tuple[str, ...], path: str | None, column: str | None) -> list[str]:
    """Those that were typed, then those of the file."""
    from gemel.text.read import read_rows

    asked = [*typed, *(row.text for row in (read_rows(path, text_column=column) if path else ()))]
    if not asked:
        raise InputError("no query. Give QUERY or --queries FILE")
    return asked
