"""`gemel search`: the best texts of a file for a query."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli.flags import (
    candidates_option,
    id_column_option,
    json_option,
    k_option,
    rows_out_option,
    text_column_option,
)
from gemel.cli.on_cluster import On, machine, on_option
from gemel.cli.options import encode_options, model_option
from gemel.cli.rows_out import RowsOut
from gemel.cli.two_speeds import fast_option, student_of
from gemel.errors import InputError

if TYPE_CHECKING:
    from gemel.options import EncodeOptions
    from gemel.text.rows import Row

EXAMPLES = """\b
Examples:
  gemel search tickets.csv --text-column body --query "refund not received" -k 5
  gemel search docs.jsonl --queries questions.txt --hybrid --where lang=en -o answers.tsv
  gemel search docs.jsonl --query "blank pages" --rerank ./my-reranker --candidates 50"""


@click.command(epilog=EXAMPLES)
@click.argument("corpus", metavar="CORPUS")
@click.option("--query", "typed", multiple=True, metavar="TEXT", help="What to look for; may be repeated.")
@click.option("--queries", metavar="FILE", help="A file of queries: .txt, .jsonl, .csv, .tsv or .parquet.")
@click.option("--query-column", metavar="NAME", help="The column of --queries with the texts.")
@text_column_option()
@id_column_option()
@click.option(
    "--where", multiple=True, metavar="COLUMN=VALUE", help="Only rows with this value; may be repeated."
)
@k_option("answers a query", default=10)
@click.option("--hybrid", is_flag=True, help="Fuse with a search by words (BM25), by the places in both.")
@click.option("--rerank", metavar="MODEL", help="A cross-encoder that orders the candidates anew.")
@candidates_option("Texts")
@click.option(
    "--coarse",
    type=click.Choice(["int8", "binary"]),
    help="Find by small vectors first, score those exactly; the recall is measured and shown.",
)
@fast_option
@rows_out_option()
@json_option("lines", piped=True)
@on_option
@model_option
@encode_options
def command(  # noqa: PLR0913 - one argument a flag
    *,
    corpus: str,
    typed: tuple[str, ...],
    queries: str | None,
    query_column: str | None,
    text_column: str | None,
    id_column: str | None,
    where: tuple[str, ...],
    rerank: str | None,
    out: Path | None,
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
    from gemel.from_texts.search import SearchQuestion, search_texts

    place = RowsOut(out, as_json)
    place.check()
    question = SearchQuestion(**steps)
    if on is not None and (question.dial is not None or question.coarse is not None):
        raise InputError(
            "--fast and --coarse find candidates on one machine; --on compares everything. Choose one"
        )
    asked = [*typed, *(row.text for row in (_rows(queries, query_column, None) if queries else []))]
    if not asked:
        raise InputError("no query. Give --query TEXT or --queries FILE")
    rows = _corpus(corpus, text_column, id_column, where)
    with machine(on, model, options) as here:
        found = search_texts(
            here.model,
            asked,
            [row.text for row in rows],
            question,
            options=options,
            rerank=None if rerank is None else gemel.load_cross(rerank),
            student=student_of(here.model, question.dial, options),
            find=here.find_hits(),
        )
        here.done("search", len(asked))
    place.put(found.rows([row.id for row in rows]))
    click.echo(found.summary(), err=True)


def _rows(path: str, text_column: str | None, id_column: str | None) -> list[Row]:
    from gemel.text.read import read_rows

    return list(read_rows(path, text_column=text_column, id_column=id_column))


def _corpus(path: str, text_column: str | None, id_column: str | None, where: tuple[str, ...]) -> list[Row]:
    if not where:
        return _rows(path, text_column, id_column)
    from gemel.text.filtered import filtered_rows

    wanted = dict(condition.partition("=")[::2] for condition in where)
    if any("=" not in condition for condition in where) or len(wanted) != len(where):
        raise InputError(f"--where takes COLUMN=VALUE, each column once; got {', '.join(where)}")
    if path == "-":
        raise InputError("--where needs a file: the columns of standard input are not known")
    rows = filtered_rows(path, wanted, text_column=text_column, id_column=id_column)
    if not rows:
        raise InputError(f"{path}: no row has {' and '.join(where)}")
    return rows
