"""Store texts with their vectors; search, add and delete."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import RowsOut, echo, echo_json
from gemel.cli.verbs import index_write
from gemel.cli.verbs.index_write import location_argument

if TYPE_CHECKING:
    from gemel.index.query import Answer

EXAMPLES = """\b
Examples:
  gemel index create notes
  gemel index add notes articles.csv --text-column body --field lang --field year:int
  gemel index search notes "oil prices" -k 5 --where "year >= 2020 and lang = 'en'"
  gemel index search "postgresql://localhost/db#notes" "oil prices" """


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Store texts with their vectors; search, add, change and delete them. The index records its model.

    LOCATION is a folder, s3://bucket/path for a bucket, or postgresql://user@host/database#name for a server.
    """


_SEARCH_COLUMNS = ("query", "rank", "score", "cosine", "id", "text")  # our names in a row of `search`

_GET_COLUMNS = ("id", "text", "passages")  # and of `get`


@click.command(
    short_help="Find documents.",
    epilog="""\b
Examples:
  gemel index search notes "oil prices" -k 5 --where "label = '3'"
  gemel index search notes "blank pages when printing" --hybrid
  gemel index search notes --queries questions.txt -o answers.jsonl""",
)
@location_argument
@flags.query_options
@flags.k_option("documents per query", default=10)
@flags.where_option("Only documents")
@click.option(
    "--offset",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Skip this many results, for the next page.",
)
@click.option("--hybrid", is_flag=True, help="Combine with keyword search (BM25) by rank in both.")
@click.option("--rerank", metavar="MODEL", help="A cross-encoder that reranks the candidates.")
@flags.candidates_option("Documents")
@click.option("--exact", is_flag=True, help="Compare every passage, whatever the size.")
@click.option(
    "--recall",
    type=click.FloatRange(0, 1, min_open=True),
    help="Find at least this share of the exact results, e.g. 0.99, by a wider search. Default: about 0.985.",
)
@flags.rows_out_option()
def search(
    *,
    location: str,
    query: tuple[str, ...],
    queries: str | None,
    query_column: str | None,
    rerank: str | None,
    target: RowsOut,
    **question: Any,
) -> None:
    """Find the documents of the index at LOCATION that are nearest to each QUERY.

    A long document is found by its best passage, and that is what is shown. A field with the name of a column of the
    result (score, text, ...) is shown as field_score.
    """
    import gemel

    all_queries = flags.read_queries(query, queries, query_column)
    cross = None if rerank is None else gemel.load_cross(rerank)
    with gemel.open_index(location, create=False, read_only=True) as index:
        answers = index.search_many(all_queries, rerank=cross, **question)
    target.put(_rows(all_queries, answers, question["offset"]))


@click.command(
    short_help="Show documents by id.",
    epilog="""\b
Example:
  gemel index get notes 17 18""",
)
@location_argument
@click.argument("ids", nargs=-1, required=True, metavar="ID...")
@flags.rows_out_option()
def get(location: str, ids: tuple[str, ...], target: RowsOut) -> None:
    """Show documents of the index at LOCATION: text and fields. Missing ids are listed; exit code 1.

    A field called text or passages is shown as field_text or field_passages.
    """
    import gemel
    from gemel.errors import WorkError

    with gemel.open_index(location, create=False, read_only=True) as index:
        documents = index.get(list(ids))
    target.put(
        {"id": each.id, **_fields(each.fields, _GET_COLUMNS), "text": each.text, "passages": each.passages}
        for each in documents
    )
    present = {document.id for document in documents}
    missing = [each for each in ids if each not in present]
    if missing:
        raise WorkError(f"{len(missing)} of {len(ids)} ids are not in {location}: {', '.join(missing[:5])}")


@click.command(
    short_help="Sizes, layout and measured recall.",
    epilog="""\b
Example:
  gemel index stats notes""",
)
@location_argument
@flags.json_option(piped=True)
def stats(location: str, as_json: bool) -> None:
    """Show the size, model and layout of the index at LOCATION, and its recall measured against exact search."""
    import gemel

    with gemel.open_index(location, create=False, read_only=True) as index:
        facts = index.stats().to_json()
    if as_json or not sys.stdout.isatty():
        echo_json(facts)
        return
    width = max(len(name) for name in facts)
    for name, value in facts.items():
        echo(f"{name.replace('_', ' '):{width}}  {_plain(name, value)}")


for each in (
    index_write.build,
    index_write.create,
    index_write.add,
    search,
    get,
    index_write.delete,
    stats,
    index_write.compact,
    index_write.migrate,
    index_write.verify,
    index_write.repair,
    index_write.words,
):
    command.add_command(each)


def _rows(queries: list[str], answers: list[Answer], offset: int) -> Iterator[dict[str, Any]]:
    for query, answer in zip(queries, answers, strict=True):
        for rank, hit in enumerate(answer, offset + 1):
            row: dict[str, Any] = {"query": query} if len(queries) > 1 else {}
            row |= {"rank": rank, "score": hit.score}
            if answer.scored_by != "cosine":
                row["cosine"] = hit.cosine
            yield {**row, "id": hit.id, **_fields(hit.fields, _SEARCH_COLUMNS), "text": hit.text}


def _fields(fields: Mapping[str, Any], ours: tuple[str, ...]) -> dict[str, Any]:
    """A field with one of our names is shown as `field_NAME`, whether or not this row has ours."""
    shown = {}
    for name, value in fields.items():
        label = name
        while label in ours or (label != name and label in fields):
            label = f"field_{label}"
        shown[label] = value
    return shown


def _plain(name: str, value: object) -> str:
    if name == "bytes" and isinstance(value, int):
        return f"{value / 1e6:,.1f} MB"
    if isinstance(value, bool) or value is None:
        return {None: "-", True: "yes", False: "no"}[value]
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.3f}"
    if isinstance(value, dict):
        shown = (
            f"{key} {_plain(key, inner) if isinstance(inner, dict) else inner}"
            for key, inner in value.items()
        )
        return ", ".join(shown) or "-"
    return str(value)
