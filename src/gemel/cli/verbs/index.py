"""Store texts with their vectors; search, add and delete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from itertools import tee
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags, index_documents
from gemel.cli.index_documents import location_argument
from gemel.cli.output import RowsOut, echo, echo_block, echo_json, report, shortened
from gemel.errors import InputError, WorkError
from gemel.terminal import counted

if TYPE_CHECKING:
    from gemel.index.ingest import Existing
    from gemel.index.query import Answer
    from gemel.model import Model

EXAMPLES = """\b
Examples:
  gemel index create notes
  gemel index add notes articles.csv --text-column body --field lang --field year:int
  gemel index search notes "oil prices" -k 5 --where "year >= 2020 and lang = 'en'"
  gemel index search "postgresql://localhost/db#notes" "oil prices" """

kept_field_option = click.option(
    "--field",
    "typed",
    multiple=True,
    metavar="NAME[:TYPE]",
    help="A column to keep for filters: text, int, float, bool, date, datetime, or a list: texts, ints, floats, bools, "
    "dates, datetimes. Without a type: that in JSON and parquet; in .csv and .tsv int, float, date or datetime if all "
    "values are, else text. May be repeated. Default: all other columns.",
)

stemming_option = click.option(
    "--stemming",
    metavar="LANGUAGE",
    help="Remove endings of words in this language for hybrid search, e.g. english. Needs PyStemmer. Default: none.",
)

_MANY = 10_000  # documents written by one command: a bulk load, after which the index is compacted

_SEARCH_COLUMNS = ("query", "rank", "score", "cosine", "id", "text")  # our names in a row of `search`


@click.group(epilog=EXAMPLES)
def command() -> None:
    """Store texts with their vectors; search, add, change and delete them. The index records its model.

    LOCATION is a folder, s3://bucket/path for a bucket, or postgresql://user@host/database#name for a server.
    """


@command.command(
    short_help="Create an empty index.",
    epilog="""\b
Examples:
  gemel index create notes
  gemel index create tickets --model ./my-model --field year:int --field lang
  gemel index create "postgresql://localhost/db#notes" """,
)
@location_argument
@flags.model_option
@flags.model_for_task
@click.option(
    "--field",
    "typed",
    multiple=True,
    metavar="NAME[:TYPE]",
    help="A column for filters: text (default), int, float, bool, date, datetime, or a list: texts, ints, floats, "
    "bools, dates, datetimes. May be repeated. "
    "Without any, the first add decides.",
)
@click.option(
    "--passage-tokens",
    type=click.IntRange(8),
    help="Longer documents are stored as passages of at most this many tokens. Default: what the model reads.",
)
@click.option("--dim", type=click.IntRange(1), help="Keep only the first DIM dimensions. Default: all.")
@flags.precision_option
@stemming_option
@flags.json_option()
def create(
    *,
    location: str,
    model: str | Model,
    typed: tuple[str, ...],
    dim: int | None,
    precision: str,
    as_json: bool,
    **settings: Any,
) -> None:
    """Create an empty index at LOCATION for a model."""
    import gemel
    from gemel.cli.documents import field_types
    from gemel.options import EncodeOptions

    options = EncodeOptions(dim=dim, precision=precision)  # type: ignore[arg-type]
    with gemel.open_index(
        location, model=model, options=options, fields=field_types(typed) or None, create=True, **settings
    ) as index:
        name = model if isinstance(model, str) else model.name
        created = {"location": str(index.location), "model": name, "dim": index.dim, "precision": precision}
    report(created, f"{created['location']}: an empty index of {name}, {created['dim']} dimensions", as_json)


@command.command(
    short_help="Add the texts of a file.",
    epilog="""\b
Examples:
  gemel index add notes articles.csv --text-column body --id-column id
  gemel index add notes tickets.jsonl --field lang --field year:int
  cat lines.txt | gemel index add notes -
  gemel index add notes articles.jsonl.gz --on ray""",
)
@location_argument
@click.argument("file", metavar="FILE")
@flags.text_column_option()
@flags.id_column_option('"id" if there is one; else ids are hashes of the texts')
@flags.encoding_option
@flags.skip_bad_option
@kept_field_option
@click.option("--no-fields", is_flag=True, help="Keep texts and ids only.")
@click.option(
    "--existing",
    type=click.Choice(["replace", "skip", "error"]),
    default="replace",
    show_default=True,
    help="What to do with a document whose id exists. Unchanged ones are never encoded again.",
)
@click.option(
    "--block", type=click.IntRange(1), default=2048, show_default=True, help="Documents per commit."
)
@click.option(
    "--durable/--no-durable", default=True, show_default=True, help="Wait until a commit is on disk."
)
@click.option(
    "--compact/--no-compact",
    default=None,
    help="Compact at the end: merge small files, build the search structures. Default: if many documents were written.",
)
@flags.progress_option
@flags.json_option()
@flags.on_option
def add(  # noqa: PLR0913 - one argument per flag
    *,
    location: str,
    file: str,
    text_column: str | None,
    id_column: str | None,
    skip_bad: bool,
    typed: tuple[str, ...],
    no_fields: bool,
    existing: Existing,
    block: int,
    durable: bool,
    compact: bool | None,
    progress: bool | None,
    as_json: bool,
    on: flags.On | None,
) -> None:
    """Add the texts of FILE to the index at LOCATION; `-` reads lines from standard input.

    FILE is .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz. If it is stopped, run
    it again to resume.
    """
    import gemel
    from gemel.cli.documents import documents_of, field_types, say_recognized

    if no_fields and typed:
        raise InputError("--no-fields and --field exclude each other. Choose one")
    with (
        flags.machine_of_index(on, location) as where,
        gemel.open_index(location, where.model, create=False, durable=durable) as index,
    ):
        wanted = {} if no_fields else (field_types(typed, default=None) or None)
        stream = documents_of(file, text_column, id_column, wanted, known=index.fields, skip_bad=skip_bad)
        say_recognized(file, stream.recognized)
        one, two, three = tee(stream.documents, 3)
        if stream.fields and not len(index):
            index.add_fields(stream.fields)
        done = index.add(
            (each.text for each in one),
            ids=(each.id or "" for each in two) if stream.with_ids else None,
            fields=(each.fields for each in three) if stream.fields else None,
            existing=existing,
            block=block if on is None else max(block, flags.CLUSTER_BLOCK),
            progress=flags.shows_progress(progress),
        )
        if done.added + done.replaced >= _MANY if compact is None else compact:
            index.compact()
        where.done("index add", done.added + done.replaced + done.unchanged)
    skipped = f"; {stream.skipped.summary()}" if stream.skipped.count else ""
    facts = {"location": location, **asdict(done), "skipped": stream.skipped.count}
    report(facts, f"{location}: {done.summary()}{skipped}", as_json)


@command.command(
    short_help="Create an index from a file.",
    epilog="""\b
Examples:
  gemel index build notes articles.csv --text-column body --id-column id
  gemel index build tickets tickets.jsonl --field lang --field year:int --on ray""",
)
@location_argument
@click.argument("file", metavar="FILE")
@flags.model_option
@flags.model_for_task
@flags.text_column_option()
@flags.id_column_option('"id" if there is one; else ids are hashes of the texts')
@flags.encoding_option
@flags.skip_bad_option
@kept_field_option
@flags.progress_option
@flags.json_option()
@flags.on_option
@click.pass_context
def build(context: click.Context, /, *, location: str, file: str, model: str | Model, **given: Any) -> None:
    """Create the index at LOCATION, add the texts of FILE to it, and build the search structures.

    It is `create`, `add` and `compact` in one, with their default settings. If it is stopped, run it again to resume.
    """
    import gemel
    from gemel.files.records import RecordFile, no_rows

    if file != "-":  # an error before an index is created
        rows = RecordFile(file)
        if next(rows.records(rows.columns()), None) is None:
            raise no_rows(file)
    gemel.open_index(location, model=model).close()  # created if new; one of another model is refused
    # Everything else has the default of `add`.
    context.invoke(add, location=location, file=file, compact=True, **given)


@command.command(
    short_help="Merge small files and build the search structures.",
    epilog="""\b
Example:
  gemel index compact notes""",
)
@location_argument
@click.option(
    "--now",
    is_flag=True,
    help="Fail if files of old versions cannot be deleted because another process has the index open.",
)
@flags.json_option()
def compact(location: str, now: bool, as_json: bool) -> None:
    """Merge small files of the index at LOCATION, drop deleted rows, build the search structures.

    Files of old versions are deleted at once if no other process has the index open, else after an hour.
    """
    import gemel

    with gemel.open_index(location, create=False) as index:
        before = index.stats().bytes
        index.compact(now=now)
        after = index.stats()
    facts = {"location": location, "bytes_before": before, "bytes": after.bytes, "layout": after.layout}
    sizes = f"{before / 1e6:,.1f} MB → {after.bytes / 1e6:,.1f} MB"
    report(facts, f"{location}: {sizes}, {after.layout}", as_json)


@command.command(
    short_help="Check an index.",
    epilog="""\b
Example:
  gemel index verify notes --sample 500""",
)
@location_argument
@click.option(
    "--sample", type=click.IntRange(1), default=100, show_default=True, help="Documents encoded again."
)
@flags.json_option()
def verify(location: str, sample: int, as_json: bool) -> None:
    """Check the index at LOCATION: no damaged rows, vectors of its model. Exit code 1 if something is wrong."""
    import gemel

    with gemel.open_index(location, create=False, read_only=True) as index:
        found = index.verify(sample=sample)
    if as_json:
        echo_json(found.to_json())
    else:
        for line in found.lines():
            echo(line)
    if not found.ok:
        raise WorkError(f"{location} has errors")


@command.command(
    short_help="Make a damaged index usable again.",
    epilog="""\b
Examples:
  gemel index repair notes
  gemel index repair notes --model ./my-model""",
)
@location_argument
@click.option(
    "--table", metavar="NAME", help="The table to keep, if index.json is lost and there are several."
)
@click.option(
    "-m",
    "--model",
    metavar="NAME",
    help="A model's name, or its folder: the one that created the index, if its table does not record it.",
)
@flags.model_for_task
@flags.json_option()
def repair(location: str, table: str | None, model: str | Model | None, as_json: bool) -> None:
    """Rebuild a lost index.json at LOCATION, drop what cannot be read, build word index and cache again.

    Everything that can be read is kept. Close other programs that have the index open.
    """
    import gemel

    done = gemel.repair_index(location, model=model, table=table)
    if as_json:
        echo_json({"location": location, "actions": list(done.actions)})
        return
    for line in done.lines():
        echo(f"{location}: {line}", err=True)


@command.command(
    short_help="Encode everything again with another model.",
    epilog="""\b
Examples:
  gemel index migrate notes --model ./my-model
  gemel index migrate notes --model ./my-model --passage-tokens 64""",
)
@location_argument
@click.option(
    "-m", "--model", required=True, metavar="NAME", help="A model's name, or its folder: the one to move to."
)
@flags.model_for_task
@click.option(
    "--passage-tokens",
    type=click.IntRange(8),
    help="Longer documents are stored as passages of at most this many tokens. Default: as in the index.",
)
@click.option(
    "--dim", type=click.IntRange(1), help="Keep only the first DIM numbers. Default: as in the index."
)
@click.option(
    "--precision", type=click.Choice(flags.PRECISIONS), help=f"{flags.PRECISION} Default: as in the index."
)
@flags.progress_option
@flags.json_option()
def migrate(
    *,
    location: str,
    model: str | Model,
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Encode all documents of the index at LOCATION with another model, then switch to it in one step.

    Searches use the old vectors until the switch. If it is stopped, run it again to resume.
    """
    import gemel

    with gemel.open_index(location, create=False) as index:
        done = index.migrate(model, progress=flags.shows_progress(progress), **settings)
    report({"location": location, **asdict(done)}, f"{location}: {done.summary()}", as_json)


@command.command(
    short_help="Build the word index again.",
    epilog="""\b
Examples:
  gemel index words notes
  gemel index words notes --stemming english""",
)
@location_argument
@stemming_option
@flags.progress_option
@flags.json_option()
def words(location: str, stemming: str | None, progress: bool | None, as_json: bool) -> None:
    """Split the texts of the index at LOCATION into words again, by the newest rules, for hybrid search.

    An index that was created by an older gemel does not find parts of Chinese, Japanese or Thai text until then;
    `gemel index stats` reports it. Vectors do not change. Searches continue meanwhile.
    """
    import gemel

    with gemel.open_index(location, create=False) as index:
        done = index.rebuild_words(stemming=stemming, progress=flags.shows_progress(progress))
    count = counted(done, "document") if done else "nothing to do"
    line = f"{location}: {count}, {f'stemming {stemming}' if stemming else 'no stemming'}"
    report({"location": location, "documents": done, "stemming": stemming}, line, as_json)


@command.command(
    short_help="Find documents.",
    epilog="""\b
Examples:
  gemel index search notes "oil prices" -k 5 --where "label = '3'"
  gemel index search notes "blank pages when printing" --hybrid --show lang,year
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
@flags.min_score_option("of a document; with --hybrid and --rerank, the lowest of their scores")
@click.option(
    "--diversity",
    type=click.FloatRange(0, 1),
    help="Avoid documents that are similar to better ones (maximal marginal relevance): 0 not at all, 1 only that.",
)
@click.option(
    "--like", multiple=True, metavar="ID", help="Find documents similar to this one. May be repeated."
)
@click.option("--unlike", multiple=True, metavar="ID", help="And unlike this one. May be repeated.")
@click.option("--unlike-text", multiple=True, metavar="TEXT", help="And unlike this text. May be repeated.")
@click.option(
    "--show",
    metavar="FIELDS",
    help="Fields to print in full, with commas between them, or all. Default: on a terminal all fields, shortened; in "
    "JSON and files all fields.",
)
@flags.rows_out_option()
def search(  # noqa: PLR0913 - one argument per flag
    *,
    location: str,
    query: tuple[str, ...],
    queries: str | None,
    query_column: str | None,
    rerank: str | None,
    like: tuple[str, ...],
    unlike: tuple[str, ...],
    unlike_text: tuple[str, ...],
    show: str | None,
    target: RowsOut,
    **question: Any,
) -> None:
    """Find the documents of the index at LOCATION that are nearest to each QUERY.

    A long document is found by its best passage, and that is what is shown. With --like, --unlike or --unlike-text
    there is one search: near the mean of --like and QUERY, away from the mean of the others; the documents named are
    left out. A field with the name of a column of the result (score, text, ...) is shown as field_score.
    """
    import gemel
    from gemel.cli.documents import shown_fields
    from gemel.index.documents import relabeled

    examples: dict[str, Any] = {"ids": like, "unlike": unlike, "unlike_texts": unlike_text}
    by_example = any(examples.values())
    if by_example and (question["hybrid"] or rerank is not None):
        raise InputError(
            "--like, --unlike and --unlike-text search by vectors: without --hybrid and --rerank"
        )
    all_queries: list[str] = []
    if query or queries or not by_example:
        all_queries = flags.read_queries(query, queries, query_column)
    cross = None if rerank is None else gemel.load_cross(rerank)
    with gemel.open_index(location, create=False, read_only=True) as index:
        names = shown_fields(show, index.fields)
        if by_example:
            del question["hybrid"]
            answers = [index.more_like(texts=all_queries, **examples, **question)]
            all_queries = [""]  # one search, so no column for its query
        else:
            answers = index.search_many(all_queries, rerank=cross, **question)
    labels = [*relabeled(dict.fromkeys(names), _SEARCH_COLUMNS)]
    rows = _rows(all_queries, answers, question["offset"], names)
    if target.on_screen and show is not None:
        for row in rows:
            shown = {name: row.pop(name) for name in (*labels, "text")}
            echo_block("  ".join(f"{name} {_plain(name, value)}" for name, value in row.items()), shown)
    else:
        target.put((shortened(row, labels) for row in rows) if target.on_screen else rows)


@command.command(
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


def _rows(
    queries: list[str], answers: list[Answer], offset: int, names: list[str]
) -> Iterator[dict[str, Any]]:
    """One row per result, with the fields of these names."""
    from gemel.index.documents import relabeled

    for query, answer in zip(queries, answers, strict=True):
        for rank, hit in enumerate(answer, offset + 1):
            row: dict[str, Any] = {"query": query} if len(queries) > 1 else {}
            row |= {"rank": rank, "score": hit.score}
            if answer.scored_by != "cosine":
                row["cosine"] = hit.cosine
            fields = {name: value for name, value in hit.fields.items() if name in names}
            yield {**row, "id": hit.id, **relabeled(fields, _SEARCH_COLUMNS), "text": hit.text}


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


for each in index_documents.COMMANDS:
    command.add_command(each)
