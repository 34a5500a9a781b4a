"""Rows of a file as documents: which column is the text, which the id, and the fields with their types."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gemel.errors import InputError
from gemel.text.records import RecordFile
from gemel.text.rows import Bad, listed

_TYPES = ("text", "int", "float", "bool")
_TRUE, _FALSE = ("true", "yes", "1"), ("false", "no", "0")


@dataclass(frozen=True)
class Document:
    text: str
    id: str | None
    fields: dict[str, Any]


@dataclass(frozen=True)
class Stream:
    documents: Iterator[Document]
    fields: Mapping[str, Any]
    """Name to type, of the columns that are kept."""
    with_ids: bool


def documents_of(
    path: str,
    text_column: str | None,
    id_column: str | None,
    wanted: Mapping[str, Any] | None,
    *,
    known: Mapping[str, Any],
) -> Stream:
    """The file, streamed. `wanted` None: every other column is a field, typed as the index knows it, else as text."""
    if path == "-":
        lines = (line.rstrip("\r\n") for line in sys.stdin)
        return Stream((Document(line, None, {}) for line in lines if line), {}, False)
    file = RecordFile(path)
    columns = file.columns()
    text = _column(path, columns, text_column, "text", "--text-column")
    key = id_column or ("id" if "id" in columns else None)
    if key is not None and key not in columns:
        raise InputError(f"{path} has no column {key!r}. It has {listed(columns)}")
    others = [name for name in columns if name not in (text, key)]
    if wanted is not None:
        missing = [name for name in wanted if name not in columns]
        if missing:
            raise InputError(f"{path} has no column {missing[0]!r}. It has {listed(columns)}")
        others = list(wanted)
    types = {name: known.get(name) or (wanted or {}).get(name) or _type_in(file, name) for name in others}
    return Stream(_documents(file, text, key, types), types, key is not None)


def _documents(file: RecordFile, text: str, key: str | None, types: Mapping[str, Any]) -> Iterator[Document]:
    names = [text, *([key] if key else []), *types]
    first = 2 if key else 1
    for record in file.records(names):
        if isinstance(record, Bad):
            raise InputError(f"{file.path}:{record.place}: {record.reason}")
        body, identity = record.values[0], record.values[1] if key else None
        if not isinstance(body, str):
            raise InputError(f"{file.path}:{record.place}: {text} is {type(body).__name__}, not a text")
        place = f"{file.path}:{record.place}"
        values = zip(types.items(), record.values[first:], strict=True)
        fields = {name: _typed(value, kind, f"{place}: {name}") for (name, kind), value in values}
        yield Document(body, None if identity is None else str(identity), fields)


def _column(path: str, columns: list[str], asked: str | None, default: str, flag: str) -> str:
    name = asked or (default if default in columns else columns[0] if len(columns) == 1 else None)
    if name is None:
        raise InputError(f"{path} has the columns {listed(columns)}. Say which with {flag}")
    if name not in columns:
        raise InputError(f"{path} has no column {name!r}. It has {listed(columns)}")
    return name


def _type_in(file: RecordFile, name: str) -> str:
    """Numbers of JSON and parquet keep their type; columns of .csv and .tsv are texts unless said otherwise."""
    if file.kind not in ("jsonl", "parquet"):
        return "text"
    kinds = set()
    for at, record in enumerate(file.records([name])):
        if at == 1000:
            break
        if not isinstance(record, Bad) and record.values[0] is not None:
            kinds.add(type(record.values[0]))
    if kinds == {bool}:
        return "bool"
    if kinds and kinds <= {int, float}:
        return "float" if float in kinds else "int"
    return "text"


def _typed(value: object, kind: str, place: str) -> object:
    """What a cell means in a column of this type; an empty cell of another type than text is null."""
    if value is None or (value == "" and kind != "text"):
        return None
    if not isinstance(value, str):
        return str(value) if kind == "text" else value
    try:
        if kind == "int":
            return int(value)
        if kind == "float":
            return float(value)
        if kind == "bool":
            return {**dict.fromkeys(_TRUE, True), **dict.fromkeys(_FALSE, False)}[value.lower()]
    except (ValueError, KeyError):
        raise InputError(f"{place} is {value[:40]!r}, which is no {kind}") from None
    return value


def field_types(typed: tuple[str, ...]) -> dict[str, Any]:
    """`--field NAME[:TYPE]`, each name once."""
    found: dict[str, Any] = {}
    for each in typed:
        name, _, kind = each.partition(":")
        if not name or (kind or "text") not in _TYPES or name in found:
            raise InputError(
                f"--field takes NAME or NAME:TYPE with a type of {', '.join(_TYPES)}; got {each!r}"
            )
        found[name] = kind or "text"
    return found
