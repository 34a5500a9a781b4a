"""Find the best texts of a file for a query."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli.flags import (
    asked_queries,
    candidates_option,
    encode_options,
    fast_option,
    id_column_option,
    json_option,
    k_option,
    model_option,
    query_options,
    rows_out_option,
    student_of,
    text_column_option,
    where_option,
)
from gemel.cli.output import RowsOut, echo
from gemel.cli.ray import On, machine, on_option
from gemel.errors import InputError

if TYPE_CHECKING:
    from gemel.files.rows import Row
    from gemel.options import EncodeOptions

EXAMPLES = """\b
Examples:
  gemel search tickets.csv "refund not received" --text-column body -k 5
  gemel search docs.jsonl --queries questions.txt --hybrid --where "lang = 'en'" -o answers.tsv
  gemel search docs.jsonl "blank pages" --rerank ./my-reranker --candidates 50"""


@click.command(epilog=EXAMPLES)
@click.argument("corpus", metavar="CORPUS")
@query_options
@text_column_option()
@id_column_option()
@where_option("Only rows")
@click.option(
    "--field",
    "typed",
    multiple=True,
    metavar="NAME:TYPE",
    help="What --where takes a column for: text, int, float or bool. May be repeated. Default: what JSON and parquet "
    "say, text in .csv and .tsv.",
)
@k_option("answers a query", default=10)
@click.option("--hybrid", is_flag=True, help="Fuse with a search by words (BM25), by the places in both.")
@click.option("--rerank", metavar="MODEL", help="A cross-encoder that orders the candidates anew.")
@candidates_option("Texts")
@fast_option
@rows_out_option()
@json_option("lines", piped=True)
@on_option
@model_option
@encode_options
def command(  # noqa: PLR0913 - one argument a flag
    *,
    corpus: str,
    query: tuple[str, ...],
    queries: str | None,
    query_column: str | None,
    text_column: str | None,
    id_column: str | None,
    where: str | None,
    typed: tuple[str, ...],
    rerank: str | None,
    candidates_each: int | None,
    out: Path | None,
    escape_formulas: bool,
    as_json: bool,
    model: str,
    options: EncodeOptions,
    on: On | None,
    **steps: Any,
) -> None:
    """Find the best texts of CORPUS for each query: exact, every text compared.

    CORPUS is .txt (a text a line), .jsonl, .csv, .tsv or .parquet, each text format also with .gz. Prompts that a model
    brings for queries and documents are used. A model that keeps its relation head adds label probabilities.
    """
    import gemel

    place = RowsOut(out, as_json, escape_formulas)
    place.check()
    if on is not None and candidates_each is not None:
        raise InputError("--fast finds candidates on one machine; --on compares everything. Choose one")
    asked = asked_queries(query, queries, query_column)
    rows = _rows(corpus, text_column, id_column, where, typed)
    with machine(on, model, options) as here:
        found = gemel.search_texts(
            here.model,
            asked,
            [row.text for row in rows],
            ids=[row.id for row in rows],
            options=options,
            rerank=None if rerank is None else gemel.load_cross(rerank),
            find=here.find_hits(),
            **steps,
            **student_of(here.model, candidates_each, options),
        )
        here.done("search", len(asked))
    place.put(found.rows())
    echo(found.summary(), err=True)


def _rows(
    path: str, text_column: str | None, id_column: str | None, where: str | None, typed: tuple[str, ...]
) -> list[Row]:
    """Rows that meet the condition keep the numbers that they have in the file."""
    from gemel.files.rows import read_rows

    if typed and not where:
        raise InputError("--field says what --where takes a column for, and there is no --where")
    if where and path == "-":
        raise InputError("--where needs a file: the columns of standard input are not known")
    if not where:
        return list(read_rows(path, text_column=text_column, id_column=id_column))
    found = list(_meeting(path, text_column, id_column, where, typed))
    if not found:
        raise InputError(f"{path}: no row meets {where}")
    return found


def _meeting(
    path: str, text_column: str | None, id_column: str | None, where: str, typed: tuple[str, ...]
) -> Iterator[Row]:
    """Only the columns that the condition names are read. Without an id column, `id` is "id", else the number."""
    from gemel.cli.documents import check_columns, document_file, field_types
    from gemel.files.rows import Row
    from gemel.index.where import fields_of, matches
    from gemel.index.where_parse import parse_where

    file = document_file(path, text_column, id_column)
    said = field_types(typed)
    check_columns(file, said)
    types = {**file.fields, **({"id": "text"} if "id" in file.fields else {}), **said}
    condition = parse_where(where, types)
    assert condition is not None, "there is one"
    named = fields_of(condition)
    for each in file.documents({name: kind for name, kind in types.items() if name in named}):
        name = str(each.row) if each.id is None else each.id
        if matches(condition, {"id": name, **each.fields}):
            yield Row(name, each.text)
