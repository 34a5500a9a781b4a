"""What verbs read: texts with ids or row numbers, and documents of an index with typed fields.

Columns of .csv and .tsv have no types; one that contains only whole numbers, numbers, dates or times is read as such.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from types import GenericAlias
from typing import Any, get_args

from gemel.cli.output import echo
from gemel.errors import InputError, did_you_mean
from gemel.files.records import Bad, InputFormat, Record, RecordFile
from gemel.files.rows import (
    ID_COLUMN,
    Columns,
    Row,
    SkippedRows,
    read_rows,
    row_of,
    text_column_of,
)
from gemel.files.write_rows import as_json
from gemel.index.fields import TYPES, checked_time, plain_value
from gemel.index.port import LISTS, FieldType
from gemel.terminal import counted

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


_KINDS: tuple[FieldType, ...] = (
    "int",
    "float",
    "date",
    "datetime",
)  # of columns of .csv and .tsv; the first fits best

# Leading zeros are part of a code, and more digits than a 64-bit number has are part of a name.
_INT = re.compile(r"-?(?:0|[1-9][0-9]{0,17})")

_FLOAT = re.compile(r"-?(?:0|[1-9][0-9]*)?(?:\.[0-9]+(?:[eE][+-]?[0-9]+)?|(?<=[0-9])[eE][+-]?[0-9]+)")

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")

_TIME = re.compile(_DATE.pattern + r"[T ][0-9]{2}:[0-9]{2}.*")


@dataclass(frozen=True)
class InputRows:
    """The texts of a file with their ids."""

    rows: list[Row]
    with_ids: bool
    """Whether the ids are those of a column; else they are row numbers from 0."""

    @property
    def texts(self) -> list[str]:
        return [row.text for row in self.rows]

    @property
    def ids(self) -> list[str]:
        return [row.id for row in self.rows]


def read_input(
    path: str,
    *,
    text_column: str | None = None,
    id_column: str | None = None,
    skip_bad: bool = False,
    input_format: InputFormat | None = None,
) -> InputRows:
    """All rows of a file; those that were skipped are reported on standard error."""
    rows = read_rows(
        path, text_column=text_column, id_column=id_column, skip_bad=skip_bad, format=input_format
    )
    result = InputRows(list(rows), rows.with_ids)
    if rows.skipped:
        echo(rows.skipped_summary(), err=True)
    return result


def warn_of_blank(ids: Sequence[str], texts: Sequence[str], with_ids: bool) -> None:
    """Say which texts have nothing to compare."""
    blank = [name for name, text in zip(ids, texts, strict=True) if not text.strip()]
    if blank:
        shown = ", ".join(blank[:5]) + (", ..." if len(blank) > 5 else "")
        verb, what = "is" if len(blank) == 1 else "are", "id" if with_ids else "row"
        echo(
            f"warning: {counted(len(blank), 'text')} {verb} blank ({what} {shown}). Blank texts are equal to each "
            "other, with a score of 1.0. Remove them, or choose another --text-column",
            err=True,
        )


def with_names(rows: Iterable[dict[str, Any]], with_ids: Mapping[str, bool]) -> Iterator[dict[str, Any]]:
    """Rows of results with left_id beside `left` if that is an id, or left_row, a number, if not; row beside `id`."""
    last = [*with_ids][-1]
    for row in rows:
        named: dict[str, Any] = {}
        for name, value in row.items():
            named[name] = value
            if name == last:
                for each, has_ids in with_ids.items():
                    label = f"{'' if each == 'id' else each + '_'}{'id' if has_ids else 'row'}"
                    named[label] = row[each] if has_ids else int(row[each])
        yield named


@dataclass(frozen=True)
class InputDocument:
    row: int
    """From 0."""
    text: str
    id: str | None
    fields: dict[str, Any]


@dataclass(frozen=True)
class Stream:
    documents: Iterator[InputDocument]
    fields: Mapping[str, Any]
    """Name to type, of the columns that are kept."""
    with_ids: bool
    skipped: SkippedRows
    recognized: Mapping[str, Any] = field(default_factory=dict)
    """Those of the fields whose type was taken from the values of a table."""


@dataclass(frozen=True)
class DocumentFile:
    """A file with the role of each of its columns."""

    file: RecordFile
    text: str
    id: str | None
    id_type: FieldType
    fields: Mapping[str, Any]
    """Every other column, with its type."""

    def documents(self, fields: Mapping[str, Any], skipped: SkippedRows) -> Iterator[InputDocument]:
        """The rows, with these of the fields; one that a row of .jsonl lacks is null. No row at all is an error."""
        named = [self.text, *([self.id] if self.id else [])]
        records = self.file.records(
            [*named, *fields], optional=[name for name in fields if name not in named]
        )
        count = 0
        for number, record in enumerate(records):
            try:
                document = self._document(number, record, named, fields)
            except InputError as error:
                skipped.add(str(error))
                continue
            count += 1
            yield document
        if not count:
            raise skipped.nothing_left(self.file.name)

    def _document(
        self, number: int, record: Record | Bad, named: list[str], fields: Mapping[str, Any]
    ) -> InputDocument:
        row = record if isinstance(record, Bad) else row_of(record, named, number)
        if isinstance(record, Bad) or isinstance(row, Bad):
            raise self.file.error(row)  # type: ignore[arg-type]  # one of the two is
        values = zip(fields.items(), record.values[len(named) :], strict=True)
        where = f"{self.file.name}:{record.line}"
        typed = {name: typed_cell(value, kind, f"{where}: {name}") for (name, kind), value in values}
        return InputDocument(number, row.text, row.id if self.id else None, typed)


def document_file(path: str, text_column: str | None, id_column: str | None) -> DocumentFile:
    """The roles of the columns of a file; the ids are those of the column "id", if none is named and this exists."""
    file = RecordFile(path)
    types = file.types()
    key = id_column
    if key is None and ID_COLUMN in types and text_column != ID_COLUMN and len(types) > 1:
        key = ID_COLUMN
    columns = Columns(text_column, key, path)
    columns.check(list(types))
    text = text_column_of(file, columns)
    others = {name: kinds for name, kinds in types.items() if name != text}
    if file.kind in ("jsonl", "parquet"):
        fields = {name: _field_type(kinds) for name, kinds in others.items()}
    else:
        fields = _recognized(file, list(others))
    return DocumentFile(file, text, key, fields.pop(key, "text") if key else "text", fields)


def _recognized(file: RecordFile, names: Sequence[str]) -> dict[str, FieldType]:
    """The type of each column of a table: that of all its values, or text. Reads on until every column is text."""
    possible = dict.fromkeys(names, frozenset(_KINDS))
    filled: set[str] = set()
    open_names = list(names)
    for record in file.records(names) if names else ():
        if isinstance(record, Bad):
            continue
        values = dict(zip(names, record.values, strict=True))
        for name in [name for name in open_names if values[name] != ""]:
            filled.add(name)
            possible[name] &= _kinds_of(values[name])
            if not possible[name]:
                open_names.remove(name)
        if not open_names:
            break
    return {
        name: next((kind for kind in _KINDS if kind in possible[name]), "text") if name in filled else "text"
        for name in names
    }


def _kinds_of(value: str) -> frozenset[FieldType]:
    """What a cell of a table may be besides a text."""
    if _INT.fullmatch(value):
        return frozenset({"int", "float"})
    if _FLOAT.fullmatch(value):
        return frozenset({"float"} if math.isfinite(float(value)) else ())
    kinds: frozenset[FieldType] = frozenset(
        {"date", "datetime"} if _DATE.fullmatch(value) else {"datetime"} if _TIME.fullmatch(value) else ()
    )
    try:
        for kind in kinds:
            checked_time("a cell", value, kind)
    except InputError:
        return frozenset()
    return kinds


def say_recognized(path: str, fields: Mapping[str, Any]) -> None:
    """Say once which columns of a table are read as numbers and times."""
    if fields:
        shown = ", ".join(f"{name} {kind}" for name, kind in fields.items())
        other = next(iter(fields))
        echo(
            f"{path}: by their values these columns are {shown} (for a text: --field {other}:text)", err=True
        )


def documents_of(
    path: str,
    text_column: str | None,
    id_column: str | None,
    wanted: Mapping[str, Any] | None,
    *,
    known: Mapping[str, Any],
    skip_bad: bool = False,
) -> Stream:
    """The file, streamed. `wanted` None: every other column is a field, typed as in the index, else as in the file.

    A wanted field without a type (None) has that of the index or of the file, too.
    """
    skipped = SkippedRows(skip_bad)
    if path == "-":
        return Stream(_typed_lines(skipped), {}, False, skipped)
    file = document_file(path, text_column, id_column)
    if wanted is not None:
        check_columns(file, wanted)
    chosen = dict.fromkeys(file.fields) if wanted is None else wanted
    fields = {name: known.get(name) or kind or file.fields.get(name, "text") for name, kind in chosen.items()}
    guessed = {name: kind for name, kind in fields.items() if not known.get(name) and not chosen[name]}
    if file.file.kind not in ("csv", "tsv"):
        guessed = {}
    recognized = {name: kind for name, kind in guessed.items() if kind != "text"}
    return Stream(file.documents(fields, skipped), fields, file.id is not None, skipped, recognized)


def _typed_lines(skipped: SkippedRows) -> Iterator[InputDocument]:
    """The lines of standard input that are not empty."""
    file = RecordFile("-")
    count = 0
    for number, record in enumerate(file.records(["text"])):
        if isinstance(record, Bad):
            skipped.add(str(file.error(record)))
        elif record.values[0]:
            count += 1
            yield InputDocument(number, record.values[0], None, {})
    if not count:
        raise skipped.nothing_left(file.name)


def check_columns(file: DocumentFile, names: Mapping[str, Any]) -> None:
    """Refuse fields that the file does not have."""
    columns = [file.text, *([file.id] if file.id else []), *file.fields]
    for name in names:
        Columns(name, None, file.file.name).check(columns)


def _field_type(kinds: set[Any]) -> FieldType:
    """The type of a column of JSON or parquet, whose values have these."""
    lists = {kind for kind in kinds if kind is list or isinstance(kind, GenericAlias)}
    if not lists:
        return _one_type(kinds) or "text"
    inside = {get_args(kind)[0] for kind in lists if kind is not list}
    element = _one_type(inside) if inside else "text"
    if lists != kinds or element is None:  # lists of lists, or lists and other values: as JSON
        return "text"
    return next(kind for kind, inner in LISTS.items() if inner == element)


def _one_type(kinds: set[Any]) -> FieldType | None:
    """None: no one type holds all of these."""
    names: dict[Any, FieldType] = {str: "text", bool: "bool", int: "int", float: "float", date: "date"}
    names[datetime] = "datetime"
    if kinds == {int, float}:
        return "float"
    return names.get(next(iter(kinds))) if len(kinds) == 1 else None


def typed_cell(value: object, kind: FieldType, where: str) -> object:
    """What a cell means in a column of this type; an empty cell of another type than text is null."""
    if value is None or (value == "" and kind != "text"):
        return None
    if kind in LISTS:
        return _list(value, kind, where)
    if not isinstance(value, str):
        return _as_text(value) if kind == "text" else _number(value, kind, where)
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
        if kind == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[value.lower()]
    except (ValueError, KeyError):
        raise InputError(f"{where} is {value[:40]!r}, which is no {kind}") from None
    return checked_time(where, value, kind) if kind in ("date", "datetime") else value


def _as_text(value: object) -> str:
    """Lists and objects as the JSON they were."""
    return as_json(value) if isinstance(value, list | dict) else str(value)


def _list(value: object, kind: FieldType, where: str) -> list[object]:
    """A list from JSON or parquet; in .csv and .tsv it is written as JSON."""
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError:
            value = str(value)
    if not isinstance(value, list):
        raise InputError(
            f"{where} is {repr(value)[:40]}, which is no list. In a table write it as JSON: [...]"
        )
    return [typed_cell(each, LISTS[kind], where) for each in value]


def _number(value: object, kind: FieldType, where: str) -> object:
    """A number, bool or time from JSON or parquet; one that would lose something is refused."""
    if kind == "int" and isinstance(value, float) and value.is_integer():
        return int(value)  # pandas keeps whole numbers as floats where some are missing
    if kind in ("date", "datetime"):
        return checked_time(where, plain_value(value), kind)
    fits = {"int": (int,), "float": (int, float), "bool": (bool,)}[kind]
    if type(value) not in fits:
        raise InputError(f"{where} is {repr(value)[:40]}, which is no {kind}")
    return value


def field_types(typed: tuple[str, ...], default: FieldType | None = "text") -> dict[str, Any]:
    """`--field NAME[:TYPE]`, each name once; `default`: the type of a name alone."""
    found: dict[str, Any] = {}
    for each in typed:
        name, _, kind = each.partition(":")
        if not name or (kind or "text") not in TYPES or name in found:
            raise InputError(
                f"--field takes NAME or NAME:TYPE with a type of {', '.join(TYPES)}; got {each!r}"
            )
        found[name] = kind or default
    return found


def shown_fields(show: str | None, known: Mapping[str, Any]) -> list[str]:
    """The fields that `--show` names; all of them for "all" and without it."""
    if show is None or show == "all":
        return list(known)
    names = [name.strip() for name in show.split(",") if name.strip()]
    for name in names:
        if name not in known:
            hint = did_you_mean(name, list(known))
            raise InputError(f"--show: no field {name!r}.{hint} Known: {', '.join(known) or 'none'}; or all")
    return names
