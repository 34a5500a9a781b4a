"""Store texts with their vectors; search, add and delete."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags, index_documents
from gemel.cli.index_documents import location_argument, stemming_option
from gemel.cli.output import RowsOut, echo, echo_block, echo_json, report, shortened
from gemel.errors import InputError, WorkError
from gemel.terminal import counted

if TYPE_CHECKING:
    from gemel.index.query import Answer
    from gemel.model import Model

EXAMPLES = """\b
Examples:
  gemel index create notes
  gemel index add notes articles.csv --text-column body --field lang --field year:int
  gemel index build reports/
  gemel index search notes "oil prices" -k 5 --where "year >= 2020 and lang = 'en'"
  gemel index search "postgresql://localhost/db#notes" "oil prices" """

_BY_WORDS = ("mode", "weights", "hybrid")  # options of a search by a text

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
  gemel index create papers --sparse ./splade --late ./colbert --mode hybrid
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
@flags.passage_tokens_option
@flags.late_chunks_option
@click.option("--dim", type=click.IntRange(1), help="Keep only the first DIM dimensions. Default: all.")
@flags.precision_option
@flags.kind_options
@click.option("--no-dense", is_flag=True, help="Without a model for dense vectors; with --sparse or --late.")
@flags.new_mode_option
@stemming_option
@flags.json_option()
def create(
    *,
    location: str,
    model: str | Model,
    typed: tuple[str, ...],
    dim: int | None,
    precision: str,
    no_dense: bool,
    as_json: bool,
    **settings: Any,
) -> None:
    """Create an empty index at LOCATION for a model, or for several that make different kinds of vectors."""
    import gemel
    from gemel.cli.documents import field_types
    from gemel.options import EncodeOptions

    options = EncodeOptions(dim=dim, precision=precision)  # type: ignore[arg-type]
    dense: dict[str, Any] = {} if no_dense else {"model": model, "options": options}
    fields = field_types(typed) or None
    with gemel.open_index(location, fields=fields, create=True, **dense, **settings) as index:
        name = None if no_dense else model if isinstance(model, str) else model.name
        created = {"location": str(index.location), "model": name, "dim": index.dim, "precision": precision}
        kinds = {kind: each["model"] for kind, each in index.stats().kinds.items()}
        created |= {"mode": index.mode, **kinds} if kinds else {}
    what = [] if name is None else [f"{name}, {created['dim']} dimensions"]
    what += [f"{kind} {model}" for kind, model in kinds.items()]
    report(created, f"{created['location']}: an empty index of {' + '.join(what)}", as_json)


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
  gemel index migrate notes --model ./my-model --passage-tokens 64
  gemel index migrate notes --sparse ./splade
  gemel index migrate notes --without late""",
)
@location_argument
@click.option("-m", "--model", metavar="NAME", help="A model's name, or its folder: the one to move to.")
@flags.model_for_task
@flags.kind_options
@click.option(
    "--without",
    multiple=True,
    type=click.Choice(["sparse", "late"]),
    help="Vectors to remove. May be repeated.",
)
@click.option(
    "--passage-tokens",
    type=click.IntRange(8),
    help="Longer documents are stored as passages of at most this many tokens. Default: as in the index.",
)
@flags.late_chunks_option
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
    model: str | Model | None,
    without: tuple[str, ...],
    progress: bool | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Encode all documents of the index at LOCATION with another model, then switch to it in one step.

    With --sparse and --late, models for further kinds of vectors are added or replaced. Searches use the old vectors
    until the switch. If it is stopped, run it again to resume.
    """
    import gemel

    for kind in without:
        if settings[kind] is not None:
            raise InputError(f"--without {kind} and --{kind} exclude each other. Choose one")
        settings[kind] = False
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
  gemel index search notes "oil prices" --mode hybrid --weights dense=1,words=0.5
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
@flags.mode_options
@click.option("--hybrid", is_flag=True, help="Short for --mode hybrid: combine with keyword search by ranks.")
@click.option(
    "--rerank",
    metavar="MODEL",
    help="A cross-encoder that reranks the candidates, or a late-interaction model.",
)
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
@click.option("--group-by", metavar="FIELD", help="Show only the best documents of each value of this field.")
@click.option(
    "--per-group",
    type=click.IntRange(1),
    default=1,
    show_default=True,
    help="Documents per value of --group-by.",
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
    from gemel.texts.late_model import load_reranker

    examples: dict[str, Any] = {"ids": like, "unlike": unlike, "unlike_texts": unlike_text}
    by_example = any(examples.values())
    if by_example and (rerank or any(question[name] for name in _BY_WORDS)):
        raise InputError(
            "--like, --unlike and --unlike-text search by vectors: without --hybrid, --mode and --rerank"
        )
    all_queries: list[str] = []
    if query or queries or not by_example:
        all_queries = flags.read_queries(query, queries, query_column)
    reranker = None if rerank is None else load_reranker(rerank)
    with gemel.open_index(location, create=False, read_only=True) as index:
        names = shown_fields(show, index.fields)
        if by_example:
            question = {name: value for name, value in question.items() if name not in _BY_WORDS}
            answers = [index.more_like(texts=all_queries, **examples, **question)]
            all_queries = [""]  # one search, so no column for its query
        else:
            question["weights"] = flags.weights_of(question["weights"])
            answers = index.search_many(all_queries, rerank=reranker, **question)
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
            if answer.scored_by != "cosine" and hit.cosine is not None:
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
