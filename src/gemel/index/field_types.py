"""Names, types and values of the user's fields: what is taken, what is refused, what a first `add` decides."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, get_args

import numpy as np

from gemel.errors import InputError
from gemel.index.port import FieldType, Scalar
from gemel.text.tokenizer import check_texts

TYPES: tuple[FieldType, ...] = get_args(FieldType)
_KINDS: dict[type, FieldType] = {bool: "bool", int: "int", float: "float", str: "text"}
_NAME = re.compile(r"[^\W\d][\w -]*")
_RESERVED = {"id", "and", "or", "not"}  # words of a condition
_LONGEST = 60  # bytes of a name; a server cuts longer ones
_INT = 2**63


def new_fields(known: Mapping[str, FieldType], fields: Mapping[str, FieldType]) -> dict[str, FieldType]:
    """Those of `fields` that a table lacks; one of another type than the table's is refused."""
    for name, kind in fields.items():
        if known.get(name, kind) != kind:
            raise InputError(f"the field {name!r} is {known[name]} in this index, not {kind}")
    return {name: kind for name, kind in fields.items() if name not in known}


def check_fields(fields: Mapping[str, Any]) -> dict[str, FieldType]:
    """Declared fields, or an error that says what a name or type may be."""
    for name, kind in fields.items():
        check_name(name, fields)
        if kind not in TYPES:
            raise InputError(f"field {name!r} is declared {kind!r}. Known types: {', '.join(TYPES)}")
    return dict(fields)


def check_name(name: object, beside: Iterable[str]) -> None:
    """A name that every table can hold and a condition can say."""
    if (
        not isinstance(name, str)
        or not _NAME.fullmatch(name)
        or name != name.strip()
        or len(name.encode("utf-8", "replace")) > _LONGEST
    ):
        raise InputError(
            f"{name!r} cannot be a field: a name starts with a letter and goes on with letters, digits, '_', '-' "
            f"or spaces, {_LONGEST} bytes at most"
        )
    if name.lower() in _RESERVED:
        raise InputError(f"{name!r} cannot be a field: the word has a meaning in conditions. Rename it")
    twin = next((other for other in beside if other != name and other.lower() == name.lower()), None)
    if twin is not None:
        raise InputError(f"the fields {name!r} and {twin!r} differ in case only. Rename one")


def infer(rows: Iterable[Mapping[str, Any]], known: Mapping[str, FieldType]) -> dict[str, FieldType]:
    """Types of the fields that `known` lacks, from all values; int and float together are float."""
    kinds: dict[str, set[FieldType]] = {}
    for row in rows:
        for name, value in row.items():
            if name in known:
                continue
            seen = kinds.setdefault(name, set())
            plain = _plain(value)
            if plain is not None:
                seen.add(_kind(name, plain))
    return {name: _one(name, seen) for name, seen in kinds.items()}


def unknown_field(name: str, known: Iterable[str]) -> InputError:
    """The error for a field that the index does not have."""
    names = list(known)
    close = get_close_matches(name, names, n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    return InputError(
        f"unknown field {name!r}.{hint} Known: {', '.join(names) or 'none'}. "
        "New ones are declared with index.add_fields"
    )


def checked_value(place: str, value: Any, kind: FieldType) -> Scalar:  # noqa: ANN401 - this is where types are checked
    """The value as the field keeps it; `place` names it in an error."""
    plain = _plain(value)
    if plain is None:
        return None
    if kind == "float" and type(plain) is int and abs(plain) <= 2**53:
        return float(plain)
    if _KINDS.get(type(plain)) != kind:
        raise InputError(f"{place} is {plain!r} ({type(plain).__name__}), but the field is {kind}")
    if isinstance(plain, str):
        check_characters(place, plain)
    elif isinstance(plain, float) and not math.isfinite(plain):
        raise InputError(f"{place} is {plain!r}: a float field takes finite numbers, or None for no value")
    elif kind == "int" and not -_INT <= plain < _INT:
        raise InputError(f"{place} is {plain!r}: an int field takes 64 bits")
    return plain  # type: ignore[no-any-return]


def check_characters(place: str, text: str) -> None:
    """No NUL, which not every place can keep, and no half characters."""
    if "\0" in text:
        raise InputError(f"{place} has a NUL character at place {text.index(chr(0))}. Remove it first")
    if not text.isascii():
        try:
            check_texts([text])
        except InputError as error:
            raise InputError(str(error).replace("texts[0]", place, 1)) from None


def _plain(value: Any) -> Any:  # noqa: ANN401 - any value may come in
    """numpy's scalars as Python's."""
    return value.item() if isinstance(value, np.generic) else value


def _kind(name: str, value: object) -> FieldType:
    if type(value) not in _KINDS:
        raise InputError(
            f"field {name!r} has a value of type {type(value).__name__}. Fields take str, int, float, bool or None"
        )
    return _KINDS[type(value)]


def _one(name: str, seen: set[FieldType]) -> FieldType:
    if not seen:
        raise InputError(
            f"field {name!r} has no value, so its type is unknown. Declare it: fields={{{name!r}: 'text'}}"
        )
    if len(seen) == 1:
        return next(iter(seen))
    if seen == {"int", "float"}:
        return "float"
    raise InputError(
        f"field {name!r} has values of several types: {', '.join(sorted(seen))}. Convert them first"
    )
