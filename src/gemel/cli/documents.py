"""What verbs read: texts with ids or row numbers, and documents of an index with typed fields.

Columns of .csv and .tsv have no types; one that contains only whole numbers, numbers, dates or times is read as such.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from types import GenericAlias
from typing import Any, get_args

from gemel.errors import InputError
from gemel.files.records import Bad, RecordFile
from gemel.files.rows import Columns, read_rows, row_of, text_column_of
from gemel.files.write_rows import as_json
from gemel.index.fields import TYPES, checked_time, plain_value
from gemel.index.port import LISTS, FieldType

_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


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


@dataclass(frozen=True)
class DocumentFile:
    """A file with the role of each of its columns."""

    file: RecordFile
    text: str
    id: str | None
    fields: Mapping[str, Any]
    """Every other column, with its type."""

    def documents(self, fields: Mapping[str, Any]) -> Iterator[InputDocument]:
        """The rows, with these of the fields; one that a row of .jsonl lacks is null."""
        named = [self.text, *([self.id] if self.id else [])]
        records = self.file.records(
            [*named, *fields], optional=[name for name in fields if name not in named]
        )
        for number, record in enumerate(records):
            if isinstance(record, Bad):
                raise self.file.error(record)
            row = row_of(record, named, number)
            if isinstance(row, Bad):
                raise self.file.error(row)
            values = zip(fields.items(), record.values[len(named) :], strict=True)
            where = f"{self.file.name}:{record.line}"
            typed = {name: _typed(value, kind, f"{where}: {name}") for (name, kind), value in values}
            yield InputDocument(number, row.text, row.id if self.id else None, typed)


def document_file(
    path: str, text_column: str | None, id_column: str | None, *, default_id: str | None = None
) -> DocumentFile:
    """The roles of the columns of a file. `default_id`: the column of ids if none is named and this exists."""
    file = RecordFile(path)
    types = file.types()
    key = id_column or (default_id if default_id in types else None)
    columns = Columns(text_column, key, path)
    columns.check(list(types))
    text = text_column_of(file, columns)
    fields = {name: _field_type(file, kinds) for name, kinds in types.items() if name not in (text, key)}
    return DocumentFile(file, text, key, fields)


def documents_of(
    path: str,
    text_column: str | None,
    id_column: str | None,
    wanted: Mapping[str, Any] | None,
    *,
    known: Mapping[str, Any],
) -> Stream:
    """The file, streamed. `wanted` None: every other column is a field, typed as in the index, else as in the file."""
    if path == "-":
        lines = (row for row in read_rows(path) if row.text)
        return Stream((InputDocument(int(row.id), row.text, None, {}) for row in lines), {}, False)
    file = document_file(path, text_column, id_column, default_id="id")
    if wanted is None:
        fields = {name: known.get(name) or kind for name, kind in file.fields.items()}
    else:
        fields = {name: known.get(name) or kind for name, kind in wanted.items()}
        check_columns(file, fields)
    return Stream(file.documents(fields), fields, file.id is not None)


def check_columns(file: DocumentFile, names: Mapping[str, Any]) -> None:
    """Refuse fields that the file does not have."""
    columns = [file.text, *([file.id] if file.id else []), *file.fields]
    for name in names:
        Columns(name, None, file.file.name).check(columns)


def _field_type(file: RecordFile, kinds: set[Any]) -> FieldType:
    """Values of JSON and parquet keep their type; columns of .csv and .tsv are texts unless a type is given."""
    if file.kind not in ("jsonl", "parquet"):
        return "text"
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


def _typed(value: object, kind: FieldType, where: str) -> object:
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
    return [_typed(each, LISTS[kind], where) for each in value]


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


def field_types(typed: tuple[str, ...]) -> dict[str, Any]:
    """`--field NAME[:TYPE]`, each name once."""
    found: dict[str, Any] = {}
    for each in typed:
        name, _, kind = each.partition(":")
        if not name or (kind or "text") not in TYPES or name in found:
            raise InputError(
                f"--field takes NAME or NAME:TYPE with a type of {', '.join(TYPES)}; got {each!r}"
            )
        found[name] = kind or "text"
    return found
