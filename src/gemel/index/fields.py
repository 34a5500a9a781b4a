"""The user's fields: checks of names, types and values, and the types that a first `add` implies."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, date, datetime
from typing import Any, cast, get_args

import numpy as np

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError, did_you_mean
from gemel.index.port import LISTS, FieldType, FieldValue

TYPES: tuple[FieldType, ...] = get_args(FieldType)

KINDS: dict[type, FieldType] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    date: "date",
    datetime: "datetime",
}

_NAME = re.compile(r"[^\W\d][\w -]*")

_RESERVED = {"id", "and", "or", "not"}  # words of a condition

_LONGEST = 60  # bytes of a name; PostgreSQL cuts those of columns at 63, and two are a prefix

INT_LIMIT = 2**63

_MOST_VALUES = 10_000  # in a list

_LONGEST_IN_LIST = 1_000  # bytes of a text in a list; a server's index of lists takes no longer ones

_EMPTY = "an empty list"


def new_fields(existing: Mapping[str, FieldType], fields: Mapping[str, FieldType]) -> dict[str, FieldType]:
    """Those of `fields` that a table lacks; one of another type than the table's is refused."""
    for name, kind in fields.items():
        if existing.get(name, kind) != kind:
            raise InputError(f"the field {name!r} is {existing[name]} in this index, not {kind}")
    return {name: kind for name, kind in fields.items() if name not in existing}


def count_values(values: Iterable[FieldValue]) -> dict[FieldValue, int]:
    """How often each value is there, once per list for those in lists."""
    counts: Counter[FieldValue] = Counter()
    for value in values:
        counts.update(set(value) if isinstance(value, list) else (value,))
    return dict(counts)


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
            f"{name!r} cannot be a field: a name starts with a letter and continues with letters, digits, '_', '-' "
            f"or spaces, {_LONGEST} bytes at most"
        )
    if name.lower() in _RESERVED:
        raise InputError(f"{name!r} cannot be a field: the word has a meaning in conditions. Rename it")
    similar = next((other for other in beside if other != name and other.lower() == name.lower()), None)
    if similar is not None:
        raise InputError(f"the fields {name!r} and {similar!r} differ in case only. Rename one")


def infer(rows: Iterable[Mapping[str, Any]], known: Mapping[str, FieldType]) -> dict[str, FieldType]:
    """Types of the fields that `known` lacks, from all values; int and float together are float."""
    kinds: dict[str, set[str]] = {}
    for row in rows:
        for name, value in row.items():
            if name in known:
                continue
            seen = kinds.setdefault(name, set())
            plain = plain_value(value)
            if plain is not None:
                seen.add(_kind(name, plain))
    return {name: _one(name, seen) for name, seen in kinds.items()}


def unknown_field(name: str, known: Iterable[str]) -> InputError:
    """The error for a field that the index does not have."""
    names = list(known)
    hint = did_you_mean(name, names)
    return InputError(
        f"unknown field {name!r}.{hint} Known: {', '.join(names) or 'none'}. "
        "New ones are declared with index.add_fields"
    )


def single_field(name: str | None, known: Mapping[str, FieldType]) -> str | None:
    """The name of a field that holds one value per document, checked."""
    if name is not None and name not in known:
        raise unknown_field(name, known)
    if name is not None and known[name] in LISTS:
        raise InputError(f"group_by takes a field of one value, but {name!r} holds lists ({known[name]})")
    return name


def checked_value(name: str, value: Any, kind: FieldType) -> FieldValue:  # noqa: ANN401 - types are checked here
    """The value as the field keeps it; `name` stands for it in an error."""
    plain = plain_value(value)
    if plain is None:
        return None
    if kind in LISTS:
        return _checked_list(name, plain, kind)
    if kind == "float" and type(plain) is int and abs(plain) <= 2**53:
        return float(plain)
    if kind in ("date", "datetime"):
        return checked_time(name, plain, kind)
    if KINDS.get(type(plain)) != kind:
        raise InputError(f"{name} is {_short(plain)} ({type(plain).__name__}), but the field is {kind}")
    if isinstance(plain, str):
        check_characters(name, plain)
    elif isinstance(plain, float) and not math.isfinite(plain):
        raise InputError(f"{name} is {plain!r}: a float field takes finite numbers, or None for no value")
    elif kind == "int" and not -INT_LIMIT <= plain < INT_LIMIT:
        raise InputError(f"{name} is {plain!r}: an int field takes 64 bits")
    return plain  # type: ignore[no-any-return]


def checked_time(name: str, value: Any, kind: FieldType) -> date | datetime:  # noqa: ANN401
    """A date, or an aware datetime in UTC; a text is read as ISO 8601, a time without a zone is UTC."""
    if isinstance(value, str):
        try:
            value = date.fromisoformat(value) if kind == "date" else datetime.fromisoformat(value)
        except ValueError:
            example = "2024-12-31" if kind == "date" else "2024-12-31T23:59:00+00:00"
            raise InputError(f"{name} is {_short(value)}, which is no {kind}. Write {example!r}") from None
    if type(value) is date and kind == "datetime":
        value = datetime(value.year, value.month, value.day, tzinfo=UTC)
    if type(value) is not (date if kind == "date" else datetime):
        raise InputError(f"{name} is {_short(value)} ({type(value).__name__}), but the field is {kind}")
    if not isinstance(value, datetime):
        return value
    try:
        moment = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise InputError(f"{name} is {value}: in UTC it is before the year 1 or after 9999") from None
    return moment


def _checked_list(name: str, value: Any, kind: FieldType) -> list[FieldValue]:  # noqa: ANN401
    if not isinstance(value, list | tuple):
        raise InputError(
            f"{name} is {_short(value)} ({type(value).__name__}), but the field is {kind}: a list of {LISTS[kind]}"
        )
    if len(value) > _MOST_VALUES:
        raise InputError(f"{name} has {len(value):,} values; a list holds {_MOST_VALUES:,} at most")
    found = [checked_value(f"{name}, value {n},", each, LISTS[kind]) for n, each in enumerate(value)]
    for n, each in enumerate(found):
        if each is None:
            raise InputError(f"{name}, value {n}, is None: a list holds no None. Leave it out")
        if isinstance(each, str) and len(each.encode()) > _LONGEST_IN_LIST:
            raise InputError(
                f"{name}, value {n}, has {len(each.encode()):,} bytes; in a list {_LONGEST_IN_LIST:,} are allowed"
            )
    return found


def check_characters(name: str, text: str) -> None:
    """InputError for a NUL, which not every store can keep, or a lone surrogate; `name` stands for the text."""
    if "\0" in text:
        raise InputError(f"{name} has a NUL character at position {text.index(chr(0))}. Remove it first")
    if not text.isascii():
        try:
            check_texts([text])
        except InputError as error:
            raise InputError(str(error).replace("texts[0]", name, 1)) from None


def in_utc(values: list[Any], kind: FieldType) -> list[FieldValue]:
    """Values as they were written: a store gives times another zone, or the same one of another class."""
    if kind == "datetime":
        return [None if each is None else each.astimezone(UTC) for each in values]
    if kind == "datetimes":
        return [None if each is None else [inner.astimezone(UTC) for inner in each] for each in values]
    return values


def plain_value(value: Any) -> Any:  # noqa: ANN401 - any value may come in
    """numpy's scalars and arrays, and pandas' times, as Python's; their missing times as None."""
    if isinstance(value, np.datetime64):
        moment = value.astype("datetime64[us]")
        return None if np.isnat(moment) else value.item() if type(value.item()) is date else moment.item()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist() if value.dtype.kind != "M" else list(value)
    if isinstance(value, datetime) and type(value) is not datetime:
        if value != value:  # noqa: PLR0124 - pandas.NaT
            return None
        return datetime.combine(value.date(), value.time(), value.tzinfo)
    return value


def _kind(name: str, value: object) -> str:
    """The type of the field that would hold the value; `_EMPTY` for a list of nothing."""
    if isinstance(value, list | tuple):
        kinds = {KINDS.get(type(plain_value(each))) for each in value if each is not None}
        if None not in kinds:
            return _EMPTY if not kinds else _one(name, {f"{kind}s" for kind in kinds})
    elif type(value) in KINDS:
        return KINDS[type(value)]
    raise InputError(
        f"field {name!r} has a value of type {type(value).__name__}: {_short(value)}. Fields take str, int, float, "
        "bool, date, datetime, lists of these, or None"
    )


def _short(value: object) -> str:
    return shortened(repr(value))


def shortened(shown: str) -> str:
    """For a message."""
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _one(name: str, seen: set[str]) -> FieldType:
    kinds = seen - {_EMPTY}
    if not kinds:
        values = "only empty lists" if seen else "no value"
        raise InputError(
            f"field {name!r} has {values}, so its type is unknown. Declare it: "
            f"fields={{{name!r}: {'texts' if seen else 'text'!r}}}"
        )
    for narrow, wide in (("int", "float"), ("date", "datetime"), ("ints", "floats"), ("dates", "datetimes")):
        if kinds == {narrow, wide}:
            return cast(FieldType, wide)
    if len(kinds) == 1 and (_EMPTY not in seen or kinds <= LISTS.keys()):
        return cast(FieldType, next(iter(kinds)))
    raise InputError(
        f"field {name!r} has values of several types: {', '.join(sorted(seen))}. Convert them first"
    )
