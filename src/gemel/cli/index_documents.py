"""Commands of `gemel index` on documents: add, read, count, change, delete. The group: `verbs/index.py`."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from functools import wraps
from itertools import tee
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.documents import FileChoice, file_options, has_document_files, location_and_source
from gemel.cli.output import RowsOut, echo, report
from gemel.errors import InputError, WorkError
from gemel.terminal import counted

if TYPE_CHECKING:
    from gemel.index.documents import IndexDocument, VectorChoice
    from gemel.index.ingest import Existing
    from gemel.model import Model

location_argument = click.argument("location", metavar="LOCATION")

stemming_option = click.option(
    "--stemming",
    metavar="LANGUAGE",
    help="Remove endings of words in this language for hybrid search, e.g. english. Needs PyStemmer. Default: none.",
)

_vectors_flag = click.option(
    "--vectors",
    is_flag=True,
    help="With the stored vectors: a list with one entry per passage, as column vectors, and if the index has them "
    "as columns sparse_vectors and late_vectors.",
)
_kind_option = click.option(
    "--vector-kind",
    "kinds",
    multiple=True,
    type=click.Choice(["dense", "sparse", "late"]),
    help="With the stored vectors of this kind only. May be repeated.",
)


def vectors_option(function: Callable[..., Any]) -> Callable[..., Any]:
    """--vectors and --vector-kind, as one argument `vectors`."""

    @wraps(function)
    def command(*given: Any, vectors: bool, kinds: tuple[str, ...], **named: Any) -> Any:  # noqa: ANN401
        return function(*given, vectors=kinds or vectors, **named)

    return _vectors_flag(_kind_option(command))


kept_field_option = click.option(
    "--field",
    "typed",
    multiple=True,
    metavar="NAME[:TYPE]",
    help="A column to keep for filters: text, int, float, bool, date, datetime, or a list: texts, ints, floats, bools, "
    "dates, datetimes. Without a type: that in JSON and parquet; in .csv and .tsv int, float, date or datetime if all "
    "values are, else text. May be repeated. Default: all other columns.",
)

vector_column_option = click.option(
    "--vector-column",
    metavar="NAME",
    help="A column with the vector of each text, or a .npy file with one row per row of FILE. Nothing is encoded, but "
    "the first text: its vector must be that of the index's model.",
)

_MANY = 10_000  # documents written by one command: a bulk load, after which the index is compacted

_GET_COLUMNS = ("id", "text", "passages")  # our names in a row of `get`, besides those of vectors


@click.command(
    short_help="Add the texts of a file, or a folder of files.",
    epilog="""\b
Examples:
  gemel index add notes articles.csv --text-column body --id-column id
  gemel index add notes tickets.jsonl --field lang --field year:int
  gemel index add notes articles.parquet --vector-column embedding
  gemel index add notes reports/ --glob '**/*.{md,html,pdf,docx}'
  cat lines.txt | gemel index add notes -
  gemel index add notes articles.jsonl.gz --on ray""",
)
@location_argument
@click.argument("file", metavar="SOURCE")
@flags.text_column_option()
@flags.id_column_option('"id" if there is one; else ids are hashes of the texts')
@flags.encoding_option
@flags.skip_bad_option
@kept_field_option
@vector_column_option
@click.option("--no-fields", is_flag=True, help="Keep texts and ids only.")
@click.option(
    "--existing",
    type=click.Choice(["replace", "skip", "error"]),
    default="replace",
    show_default=True,
    help="What to do with a document whose id exists. Unchanged ones are never encoded again.",
)
@file_options
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
    vector_column: str | None,
    no_fields: bool,
    existing: Existing,
    choice: FileChoice,
    block: int,
    durable: bool,
    compact: bool | None,
    progress: bool | None,
    as_json: bool,
    on: flags.On | None,
) -> None:
    """Add the texts of SOURCE to the index at LOCATION; `-` reads lines from standard input.

    SOURCE is a file with rows: .txt (one text per line), .jsonl, .csv, .tsv or .parquet, text formats also with .gz.
    Or it is a folder of document files, or one .pdf, .docx, .html or .md: each page or section becomes a document with
    the fields path, title, page, heading and section; only new and changed files are read. A file that cannot be read
    is reported and skipped. If it is stopped, run it again to resume.
    """
    import gemel
    from gemel.cli.documents import documents_of, field_types, of_model, say_recognized

    if no_fields and typed:
        raise InputError("--no-fields and --field exclude each other. Choose one")
    of_files = has_document_files(file)
    if of_files and (
        text_column or id_column or skip_bad or typed or no_fields or vector_column or existing != "replace"
    ):
        raise InputError(
            f"{file} has document files, not rows: flags of columns, --skip-bad and --existing are not for it"
        )
    with (
        flags.machine_of_index(on, location) as where,
        gemel.open_index(location, where.model, create=False, durable=durable) as index,
    ):
        block = block if on is None else max(block, flags.CLUSTER_BLOCK)
        if of_files:
            read = gemel.sync_files(
                index,
                file,
                remove=choice.sync,
                block=block,
                on_skip=lambda skipped: echo(f"skipped: {skipped}", err=True),
                progress=flags.shows_progress(progress),
                **choice.settings(),
            )
            facts, line = read.to_json(), read.summary()
            written = read.added + read.replaced
        else:
            choice.refuse(file)
            wanted = {} if no_fields else (field_types(typed, default=None) or None)
            stream = documents_of(
                file,
                text_column,
                id_column,
                wanted,
                known=index.fields,
                skip_bad=skip_bad,
                vectors=vector_column,
            )
            say_recognized(file, stream.recognized)
            documents = stream.documents if vector_column is None else of_model(stream.documents, index)
            one, two, three, four = tee(documents, 4)
            if stream.fields and not len(index):
                index.add_fields(stream.fields)
            done = index.add(
                (each.text for each in one),
                ids=(each.id or "" for each in two) if stream.with_ids else None,
                fields=(each.fields for each in three) if stream.fields else None,
                vectors=None if vector_column is None else (each.vector for each in four),
                existing=existing,
                block=block,
                progress=flags.shows_progress(progress),
            )
            facts, line = {**asdict(done), "skipped": stream.skipped.count}, done.summary()
            line += f"; {stream.skipped.summary()}" if stream.skipped.count else ""
            written = done.added + done.replaced
        if written >= _MANY if compact is None else compact and (written or not of_files):
            index.compact()
        where.done("index add", written + facts["unchanged"])
    report({"location": location, **facts}, f"{location}: {line}", as_json)


@click.command(
    short_help="Create an index from a file or a folder of files.",
    epilog="""\b
Examples:
  gemel index build reports/
  gemel index build reports/ library --glob '**/*.{md,pdf}' --mode hybrid
  gemel index build notes articles.csv --text-column body --id-column id
  gemel index build tickets tickets.jsonl --field lang --field year:int --on ray""",
)
@click.argument("first", metavar="SOURCE")
@click.argument("second", metavar="[LOCATION]", required=False)
@flags.model_option
@flags.model_for_task
@flags.text_column_option()
@flags.id_column_option('"id" if there is one; else ids are hashes of the texts')
@flags.encoding_option
@flags.skip_bad_option
@kept_field_option
@file_options
@flags.kind_options
@vector_column_option
@flags.new_mode_option
@flags.passage_tokens_option
@flags.late_chunks_option
@flags.progress_option
@flags.json_option()
@flags.on_option
@click.pass_context
def build(
    context: click.Context,
    /,
    *,
    first: str,
    second: str | None,
    model: str | Model,
    choice: FileChoice,
    **given: Any,
) -> None:
    """Create the index at LOCATION from SOURCE: `create`, `add` and `compact` in one.

    SOURCE is a file or a folder, as of `gemel index add`. LOCATION may also stand first; without one, the index of
    reports/ is reports.index beside it. Run it again to bring the index up to date, or to resume if it was stopped: new
    and changed files of a folder are read, and those that are gone are deleted from the index.
    """
    import gemel
    from gemel.files.document_files import DOCUMENT_GLOB, read_documents
    from gemel.files.records import RecordFile, no_rows

    location, file = location_and_source(first, second)
    of_files = has_document_files(file)
    if of_files:  # an error before an index is created
        if not read_documents(file, **choice.settings()).files:
            raise InputError(f"no file of {file} matches {choice.glob or DOCUMENT_GLOB!r}")
    elif file != "-":
        rows = RecordFile(file)
        if next(rows.records(rows.columns()), None) is None:
            raise no_rows(file)
    names = ("sparse", "late", "late_form", "mode", "passage_tokens", "late_chunks")
    settings: dict[str, Any] = {name: given.pop(name) for name in names}
    # Created if new; one of another model is refused.
    gemel.open_index(location, model=model, **settings).close()
    # Everything else has the default of `add`, which takes the choice of files flag by flag.
    given |= {"glob": choice.glob, "max_size": choice.max_size, "sync": of_files}
    context.invoke(add, location=location, file=file, compact=True, **given)


@click.command(
    short_help="Show documents by id or by a condition.",
    epilog="""\b
Examples:
  gemel index get notes 17 18
  gemel index get notes --where "year < 2015" --limit 20
  gemel index get notes --limit 100 --after 0117""",
)
@location_argument
@click.argument("ids", nargs=-1, metavar="[ID]...")
@flags.where_option("Only documents")
@click.option("--limit", type=click.IntRange(1), help="At most this many documents. Default: all.")
@click.option("--after", metavar="ID", help="Start after this id: the last one of the page before.")
@vectors_option
@flags.rows_out_option()
def get(
    *,
    location: str,
    ids: tuple[str, ...],
    where: str | None,
    limit: int | None,
    after: str | None,
    vectors: VectorChoice,
    target: RowsOut,
) -> None:
    """Show documents of the index at LOCATION: text and fields. Without ids: those that meet --where, by ascending id.

    Missing ids are listed; exit code 1. A field with the name of another column (text, passages, vectors,
    sparse_vectors, late_vectors) is shown as field_text and so on.
    """
    import gemel

    if ids and (where is not None or limit is not None or after is not None):
        raise InputError("get takes ids, or --where, --limit and --after, not both")
    with gemel.open_index(location, create=False, read_only=True) as index:
        if not ids:
            target.put(_rows(index.documents(where, after=after, limit=limit, vectors=vectors)))
            return
        documents = index.get(list(ids), vectors=vectors)
    target.put(_rows(documents))
    present = {document.id for document in documents}
    missing = [each for each in ids if each not in present]
    if missing:
        raise WorkError(f"{len(missing)} of {len(ids)} ids are not in {location}: {', '.join(missing[:5])}")


def _rows(documents: Iterable[IndexDocument]) -> Iterator[dict[str, Any]]:
    from gemel.index.documents import VECTOR_COLUMNS, relabeled

    for each in documents:
        fields = relabeled(each.fields, (*_GET_COLUMNS, *VECTOR_COLUMNS))
        row = {"id": each.id, **fields, "text": each.text}
        row["passages"] = each.passages
        yield row | each.vector_columns()


@click.command(
    short_help="Write the documents to a file.",
    epilog="""\b
Examples:
  gemel index export notes -o notes.jsonl
  gemel index export notes -o recent.parquet --where "year >= 2020" --vectors
  gemel index export notes -o vectors.jsonl --vector-kind dense""",
)
@location_argument
@flags.out_option(
    "A file for the documents: .jsonl, .csv, .tsv (each also with .gz) or .parquet.",
    metavar="FILE",
    required=True,
)
@flags.where_option("Only documents")
@vectors_option
@flags.json_option()
def export(location: str, out: Path, where: str | None, vectors: VectorChoice, as_json: bool) -> None:
    """Write the documents of the index at LOCATION to a file: id, text and fields, by ascending id.

    The file is complete or absent. `gemel index build` reads it and encodes the texts, or takes the dense vectors of
    documents of one passage with --vector-column vectors. .jsonl and .parquet keep lists and null; in .csv and .tsv
    null is an empty cell.
    """
    import gemel

    with gemel.open_index(location, create=False, read_only=True) as index:
        count = index.export(out, where=where, vectors=vectors)
    facts = {"location": location, "out": str(out), "documents": count}
    report(facts, f"{out}: {counted(count, 'document')}", as_json)


@click.command(
    short_help="Delete documents.",
    epilog="""\b
Examples:
  gemel index delete notes 17 18
  gemel index delete notes --where "year < 2015" """,
)
@location_argument
@click.argument("ids", nargs=-1, metavar="[ID]...")
@flags.where_option("All documents")
@click.option(
    "--ids-file", type=click.Path(path_type=Path, exists=True), metavar="FILE", help="One id per line."
)
@flags.json_option()
def delete(
    location: str, ids: tuple[str, ...], where: str | None, ids_file: Path | None, as_json: bool
) -> None:
    """Delete documents of the index at LOCATION by id, or by a condition on their fields."""
    import gemel

    listed = [*ids, *(_lines(ids_file) if ids_file else [])]
    if bool(listed) == (where is not None):
        raise InputError("delete takes ids or --where, one of the two")
    with gemel.open_index(location, create=False) as index:
        gone = index.delete(where=where) if where is not None else index.delete(listed)
    report(
        {"location": location, "deleted": gone}, f"{location}: {counted(gone, 'document')} deleted", as_json
    )


def _lines(path: Path) -> Iterator[str]:
    from gemel.files.rows import read_rows

    return (row.text for row in read_rows(path, format="txt", encoding="utf-8") if row.text.strip())


@click.command(
    short_help="Count documents per value of a field.",
    epilog="""\b
Examples:
  gemel index facets notes lang
  gemel index facets notes year --where "lang = 'en'" --limit 10""",
)
@location_argument
@click.argument("field", metavar="FIELD")
@flags.where_option("Only documents")
@click.option("--limit", type=click.IntRange(1), help="At most this many values. Default: all.")
@flags.rows_out_option()
def facets(location: str, field: str, where: str | None, limit: int | None, target: RowsOut) -> None:
    """Show the values of FIELD in the index at LOCATION and how many documents have each, most frequent first.

    Of a list, each value counts. Documents without a value are counted as null.
    """
    import gemel

    with gemel.open_index(location, create=False, read_only=True) as index:
        counts = index.facets(field, where=where, limit=limit)
    target.put({"value": value, "documents": count} for value, count in counts.items())


@click.command(
    short_help="Change fields of documents.",
    epilog="""\b
Examples:
  gemel index update notes 17 18 --set lang=en --set year=2024
  gemel index update notes --where "year < 2015" --set label=old --clear lang""",
)
@location_argument
@click.argument("ids", nargs=-1, metavar="[ID]...")
@flags.where_option("All documents")
@click.option(
    "--set",
    "assigned",
    multiple=True,
    metavar="NAME=VALUE",
    help="A field and its new value; a list as JSON. May be repeated.",
)
@click.option(
    "--clear", "cleared", multiple=True, metavar="NAME", help="A field to make null. May be repeated."
)
@flags.json_option()
def update(
    *,
    location: str,
    ids: tuple[str, ...],
    where: str | None,
    assigned: tuple[str, ...],
    cleared: tuple[str, ...],
    as_json: bool,
) -> None:
    """Change fields of documents of the index at LOCATION by id, or by a condition. Texts and vectors stay.

    A missing id is an error, and nothing is changed.
    """
    import gemel
    from gemel.cli.documents import typed_cell
    from gemel.index.fields import unknown_field

    if bool(ids) == (where is not None):
        raise InputError("update takes ids or --where, one of the two")
    if not assigned and not cleared:
        raise InputError("nothing to change. Give --set NAME=VALUE or --clear NAME")
    with gemel.open_index(location, create=False) as index:
        types, fields = index.fields, dict[str, Any](dict.fromkeys(cleared))
        for each in assigned:
            name, equals, value = each.partition("=")
            if not equals or name in fields:
                raise InputError(f"--set takes NAME=VALUE, each name once; got {each!r}")
            if name not in types:
                raise unknown_field(name, types)
            fields[name] = typed_cell(value, types[name], f"--set {name}")
        done = index.update(list(ids) or None, where=where, fields=fields)
    facts = {"location": location, "changed": done.replaced, "unchanged": done.unchanged}
    line = f"{location}: {counted(done.replaced, 'document')} changed, {done.unchanged:,} unchanged"
    report(facts, line, as_json)


@click.command(
    "remove-field",
    short_help="Remove a field.",
    epilog="""\b
Example:
  gemel index remove-field notes year""",
)
@location_argument
@click.argument("field", metavar="FIELD")
@flags.json_option()
def remove_field(location: str, field: str, as_json: bool) -> None:
    """Remove FIELD with its values from all documents of the index at LOCATION. It cannot be undone.

    Texts, vectors and other fields stay.
    """
    import gemel

    with gemel.open_index(location, create=False) as index:
        count = index.remove_field(field)
    line = f"{location}: field {field} removed, {counted(count, 'document')} had a value"
    report({"location": location, "field": field, "documents": count}, line, as_json)


@click.command(
    short_help="List indexes.",
    epilog="""\b
Examples:
  gemel index ls
  gemel index ls backups --json""",
)
@click.argument("location", default=".", metavar="[FOLDER]")
@flags.rows_out_option()
def ls(location: str, target: RowsOut) -> None:
    """List the indexes in FOLDER and the folders below it. Default: the current folder.

    Also s3://bucket/path, or postgresql://user@host/database for all indexes of a database. An index that cannot be
    read is listed with its problem.
    """
    from dataclasses import asdict

    import gemel

    rows = [asdict(each) for each in gemel.list_indexes(location)]
    good = all(row["problem"] is None for row in rows)
    target.put(iter(rows), hidden=("problem",) if good else ())


@click.command(
    short_help="Copy an index to a folder, while it is in use.",
    epilog="""\b
Example:
  gemel index snapshot notes backups/2026-11-18""",
)
@location_argument
@click.argument("folder", metavar="FOLDER")
@flags.json_option()
def snapshot(location: str, folder: str, as_json: bool) -> None:
    """Write the index at LOCATION, as it is now, to a new FOLDER, while others search it and write to it.

    A snapshot is an index: `gemel index search FOLDER` works. It is complete or absent, and nothing is overwritten.
    """
    import gemel

    with gemel.open_index(location, create=False, read_only=True) as index:
        done = index.snapshot(folder)
    report(vars(done), f"{folder}: {done.summary()}", as_json)


@click.command(
    short_help="Copy a snapshot to another location.",
    epilog="""\b
Examples:
  gemel index restore backups/2026-11-18 notes
  gemel index restore backups/2026-11-18 "postgresql://localhost/db#notes" """,
)
@click.argument("snapshot", metavar="SNAPSHOT")
@location_argument
@flags.json_option()
def restore(snapshot: str, location: str, as_json: bool) -> None:
    """Copy SNAPSHOT, or any other index, to LOCATION, where there is no index yet. Nothing is encoded."""
    import gemel

    done = gemel.restore_index(snapshot, location)
    report(vars(done), f"{done.location}: {done.summary()}", as_json)


@click.command(
    short_help="Delete an index.",
    epilog="""\b
Examples:
  gemel index drop notes
  gemel index drop notes --yes""",
)
@location_argument
@click.option("--yes", is_flag=True, help="Do not ask before deleting.")
@flags.json_option()
def drop(location: str, yes: bool, as_json: bool) -> None:
    """Delete the index at LOCATION with all of its documents, after a question. It cannot be undone.

    Other files in its folder, and a lock file, stay.
    """
    import gemel

    if not yes:
        with gemel.open_index(location, create=False, read_only=True) as index:
            count = counted(len(index), "document")
        if not sys.stdin.isatty():
            raise InputError(f"{location} has {count}. To delete it without a question: --yes")
        echo(f"Delete the index {location} with {count}? Type yes to delete it:", err=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            raise WorkError(f"{location} was not deleted")
    gemel.drop_index(location)
    report({"location": location, "deleted": True}, f"{location}: deleted", as_json)


COMMANDS = (add, build, get, export, facets, update, remove_field, delete, ls, snapshot, restore, drop)
