"""Commands of `gemel index` on stored documents: read, count, change, delete. The group: `verbs/index.py`."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from gemel.cli import flags
from gemel.cli.output import RowsOut, echo, report
from gemel.errors import InputError, WorkError
from gemel.terminal import counted

if TYPE_CHECKING:
    from gemel.index.documents import IndexDocument

location_argument = click.argument("location", metavar="LOCATION")

vectors_option = click.option(
    "--vectors", is_flag=True, help="With the stored vectors, a list with one per passage, as column vectors."
)

_GET_COLUMNS = ("id", "text", "passages", "vectors")  # our names in a row of `get`


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
    vectors: bool,
    target: RowsOut,
) -> None:
    """Show documents of the index at LOCATION: text and fields. Without ids: those that meet --where, by ascending id.

    Missing ids are listed; exit code 1. A field called text, passages or vectors is shown as field_text,
    field_passages or field_vectors.
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
    from gemel.index.documents import relabeled

    for each in documents:
        row = {"id": each.id, **relabeled(each.fields, _GET_COLUMNS), "text": each.text}
        row["passages"] = each.passages
        if each.vectors is not None:
            row["vectors"] = each.vectors.tolist()
        yield row


@click.command(
    short_help="Write the documents to a file.",
    epilog="""\b
Examples:
  gemel index export notes -o notes.jsonl
  gemel index export notes -o recent.parquet --where "year >= 2020" --vectors""",
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
def export(location: str, out: Path, where: str | None, vectors: bool, as_json: bool) -> None:
    """Write the documents of the index at LOCATION to a file: id, text and fields, by ascending id.

    The file is complete or absent. `gemel index build` reads it (without --vectors: it encodes the texts). .jsonl and
    .parquet keep lists and null; in .csv and .tsv null is an empty cell.
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


COMMANDS = (get, export, facets, update, delete, drop)
