"""Find the best texts of a file for a query."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import RowsOut, echo
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
@flags.query_options
@flags.text_column_option()
@flags.id_column_option()
@flags.where_option("Only rows")
@click.option(
    "--field",
    "typed",
    multiple=True,
    metavar="NAME:TYPE",
    help="The type of a column for --where: text, int, float or bool. May be repeated. Default: the type in JSON and "
    "parquet, text in .csv and .tsv.",
)
@flags.k_option("results per query", default=10)
@click.option("--hybrid", is_flag=True, help="Combine with keyword search (BM25) by rank in both.")
@click.option("--rerank", metavar="MODEL", help="A cross-encoder that reranks the candidates.")
@flags.candidates_option("Texts")
@flags.fast_option
@flags.rows_out_option()
@flags.on_option
@flags.model_option
@flags.encode_options
def command(  # noqa: PLR0913 - one argument per flag
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
    target: RowsOut,
    model: str,
    options: EncodeOptions,
    on: flags.On | None,
    **steps: Any,
) -> None:
    """Find the best texts of CORPUS for each query: exact, every text compared.

    CORPUS is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz. The prompts of
    the model for queries and documents are used. A model with a classification head adds label probabilities.
    """
    import gemel

    if on is not None and candidates_each is not None:
        raise InputError("--fast finds candidates on one machine; --on compares everything. Choose one")
    all_queries = flags.read_queries(query, queries, query_column)
    rows = _rows(corpus, text_column, id_column, where, typed)
    with flags.machine(on, model, options) as here:
        found = gemel.search_texts(
            here.model,
            all_queries,
            [row.text for row in rows],
            ids=[row.id for row in rows],
            options=options,
            rerank=None if rerank is None else gemel.load_cross(rerank),
            find=here.find_hits(),
            **steps,
            **flags.student_of(here.model, candidates_each, options),
        )
        here.done("search", len(all_queries))
    target.put(found.rows())
    echo(found.summary(), err=True)


def _rows(
    path: str, text_column: str | None, id_column: str | None, where: str | None, typed: tuple[str, ...]
) -> list[Row]:
    """The rows that meet the condition, with their numbers in the file."""
    from gemel.files.rows import read_rows

    if typed and not where:
        raise InputError("--field gives the type of a column for --where, and there is no --where")
    if where and path == "-":
        raise InputError("--where needs a file: the columns of standard input are not known")
    if not where:
        return list(read_rows(path, text_column=text_column, id_column=id_column))
    found = list(_matching(path, text_column, id_column, where, typed))
    if not found:
        raise InputError(f"{path}: no row meets {where}")
    return found


def _matching(
    path: str, text_column: str | None, id_column: str | None, where: str, typed: tuple[str, ...]
) -> Iterator[Row]:
    """Only the columns that the condition names are read. Without an id column, `id` is "id", else the number."""
    from gemel.cli.documents import check_columns, document_file, field_types
    from gemel.files.rows import Row
    from gemel.index.where import fields_of, matches
    from gemel.index.where_parse import parse_where

    file = document_file(path, text_column, id_column)
    typed_fields = field_types(typed)
    check_columns(file, typed_fields)
    types = {**file.fields, **({"id": "text"} if "id" in file.fields else {}), **typed_fields}
    condition = parse_where(where, types)
    assert condition is not None, "there is one"
    named = fields_of(condition)
    for each in file.documents({name: kind for name, kind in types.items() if name in named}):
        name = str(each.row) if each.id is None else each.id
        if matches(condition, {"id": name, **each.fields}):
            yield Row(name, each.text)
