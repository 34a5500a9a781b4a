"""Find the best texts of a file for a query."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import RowsOut, echo
from gemel.errors import InputError

if TYPE_CHECKING:
    from gemel.cli.documents import InputRows
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
@flags.skip_bad_option
@flags.where_option("Only rows")
@click.option(
    "--field",
    "typed",
    multiple=True,
    metavar="NAME:TYPE",
    help="The type of a column for --where: text, int, float, bool, date or datetime. May be repeated. Default: the "
    "type in JSON and parquet; in .csv and .tsv int, float, date or datetime if all values are, else text.",
)
@flags.k_option("results per query", default=10)
@click.option("--hybrid", is_flag=True, help="Combine with keyword search (BM25) by rank in both.")
@click.option(
    "--rerank",
    metavar="MODEL",
    help="A cross-encoder that reranks the candidates, or a model for late interaction.",
)
@flags.candidates_option("Texts")
@flags.fast_option
@flags.rows_out_option()
@flags.on_option
@flags.model_option
@flags.task_option()
@flags.encode_options
def command(  # noqa: PLR0913 - one argument per flag
    *,
    corpus: str,
    query: tuple[str, ...],
    queries: str | None,
    query_column: str | None,
    text_column: str | None,
    id_column: str | None,
    skip_bad: bool,
    where: str | None,
    typed: tuple[str, ...],
    rerank: str | None,
    candidates_each: int | None,
    target: RowsOut,
    model: str,
    task: str | None,
    options: EncodeOptions,
    on: flags.On | None,
    **steps: Any,
) -> None:
    """Find the best texts of CORPUS for each query: exact, every text compared.

    CORPUS is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz. The prompts of
    the model for queries and documents are used. A model with a classification head adds label probabilities.
    """
    import gemel
    from gemel.cli.documents import with_names
    from gemel.texts.late_model import load_reranker

    if on is not None and candidates_each is not None:
        raise InputError("--fast finds candidates on one machine; --on compares everything. Choose one")
    all_queries = flags.read_queries(query, queries, query_column)
    columns = {"text_column": text_column, "id_column": id_column}
    texts = _rows(corpus, columns, where, typed, skip_bad=skip_bad)
    with flags.machine(on, model, options, task) as here:
        found = gemel.search_texts(
            here.model,
            all_queries,
            texts.texts,
            ids=texts.ids,
            options=options,
            rerank=None if rerank is None else load_reranker(rerank),
            find=here.find_hits(),
            **steps,
            **flags.student_of(here.model, candidates_each, options),
        )
        here.done("search", len(all_queries))
    named = with_names(found.rows(), {"id": texts.with_ids})
    target.put(named, hidden=() if texts.with_ids else ("id",))
    echo(found.summary(), err=True)


def _rows(
    path: str,
    columns: dict[str, str | None],
    where: str | None,
    typed: tuple[str, ...],
    *,
    skip_bad: bool,
) -> InputRows:
    """The rows that meet the condition, with their numbers in the file."""
    from gemel.cli.documents import read_input

    if typed and not where:
        raise InputError("--field gives the type of a column for --where, and there is no --where")
    if where and path == "-":
        raise InputError("--where needs a file: the columns of standard input are not known")
    if not where:
        text, names = columns["text_column"], columns["id_column"]
        return read_input(path, text_column=text, id_column=names, skip_bad=skip_bad)
    found = _matching(path, columns, where, typed, skip_bad=skip_bad)
    if not found.rows:
        raise InputError(f"{path}: no row meets {where}")
    return found


def _matching(
    path: str, columns: dict[str, str | None], where: str, typed: tuple[str, ...], *, skip_bad: bool
) -> InputRows:
    """Only the columns that the condition names are read. Without a column "id", `id` is what the results call so."""
    from gemel.cli.documents import InputRows, check_columns, document_file, field_types, say_recognized
    from gemel.files.rows import Row, SkippedRows
    from gemel.index.where import fields_of, matches
    from gemel.index.where_parse import parse_where

    file = document_file(path, **columns)
    declared = field_types(typed)
    check_columns(file, declared)
    own = {**file.fields, **({file.id: file.id_type} if file.id else {}), **declared}
    condition = parse_where(where, {"id": own[file.id], **own} if file.id else own)
    assert condition is not None, "there is one"
    wanted = {name: own[name] for name in fields_of(condition) | {file.id} if name in own}
    if file.file.kind in ("csv", "tsv"):
        named = {
            name: kind for name, kind in wanted.items() if kind != "text" and name in fields_of(condition)
        }
        say_recognized(path, {name: kind for name, kind in named.items() if name not in declared})
    skipped, found = SkippedRows(skip_bad), []
    for each in file.documents(wanted, skipped):
        name = str(each.row) if each.id is None else each.id
        if matches(condition, {"id": each.fields[file.id] if file.id else name, **each.fields}):
            found.append(Row(name, each.text))
    if skipped.count:
        echo(skipped.summary(), err=True)
    return InputRows(found, file.id is not None)
