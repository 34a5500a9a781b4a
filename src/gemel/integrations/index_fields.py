"""Metadata of frameworks in the fields of an index: plain values are columns for conditions, the rest is JSON."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import numpy as np

from gemel.errors import InputError
from gemel.index.field_types import check_name, infer
from gemel.index.index import Index
from gemel.index.port import FieldValue

REST = "more_metadata"
"""The column of what no column of its own can hold."""


def store_fields(
    index: Index,
    metadatas: Iterable[Mapping[str, Any] | None],
    only: Collection[str] | None = None,
    *,
    rest: bool = True,
) -> list[dict[str, FieldValue]]:
    """The fields of each document, none for None; columns that the index lacks are added to it.

    Lists, mappings, None, and names that no field can have are the rest; `rest` False: it is left out, being kept
    elsewhere. `only`: the names that get a column; None: all.
    """
    names = [*index.fields, REST]  # a name that differs from one of these in case only is no field
    rows = [_row(metadata or {}, names, only, rest=rest) for metadata in metadatas]
    new = infer(rows, index.fields)
    if new:
        index.add_fields(new)
    return rows


def metadata_of(fields: Mapping[str, FieldValue]) -> dict[str, Any]:
    """What `store_fields` was given. Of a document that came another way: its fields that are not null."""
    plain = {name: value for name, value in fields.items() if value is not None and name != REST}
    rest: dict[str, Any] = json.loads(str(fields.get(REST) or "{}"))
    return plain | rest


def _row(
    metadata: Mapping[str, Any], names: list[str], only: Collection[str] | None, *, rest: bool
) -> dict[str, FieldValue]:
    row: dict[str, FieldValue] = {}
    others: dict[str, Any] = {}
    for name, value in metadata.items():
        plain = isinstance(value, str | int | float | np.generic) and name != REST
        if plain and (only is None or name in only) and _can_be_field(name, names):
            row[name] = value
        else:
            others[name] = value
    if others and rest:
        row[REST] = _as_json(others)
    return row


def _can_be_field(name: str, names: list[str]) -> bool:
    if name in names:
        return True
    try:
        check_name(name, names)
    except InputError:
        return False
    names.append(name)
    return True


def _as_json(rest: Mapping[str, Any]) -> str:
    try:
        return json.dumps(rest, ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise InputError(
            f"the metadata {', '.join(map(repr, rest))} cannot be written as JSON: {error}. Convert it first"
        ) from error
