"""What a condition may ask: fields that are there, values of their types, and no more than a server can bear."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from datetime import date, datetime
from difflib import get_close_matches
from typing import Any, get_args

from gemel.errors import InputError
from gemel.index.field_types import checked_time, plain_value
from gemel.index.port import LISTS, FieldType
from gemel.index.where import (
    Both,
    Compare,
    Condition,
    Contains,
    Either,
    IsNull,
    Literals,
    Not,
    OneOf,
    Operator,
    links,
    show_value,
)

LONGEST = 10_000
"""Characters of a condition that is a string."""
DEEPEST = 50
"""Levels of brackets and `not`."""
MOST_COMPARISONS = 1_000
MOST_VALUES = 10_000
"""In one list."""
_MOST_LEVELS = 300  # of a tree that a program has built: as many calls would be open at once
_INT = 2**63
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_KINDS: Mapping[type, FieldType] = {
    bool: "bool",
    int: "int",
    float: "float",
    str: "text",
    date: "date",
    datetime: "datetime",
}
_A = {kind: f"a{'n' if kind == 'int' else ''} {kind}" for kind in _KINDS.values()}


def kind_of(name: str, fields: Mapping[str, FieldType]) -> FieldType:
    """The type of a field; `id` is there without being declared."""
    if name in fields:
        return fields[name]
    if name == "id":
        return "text"
    close = get_close_matches(name, [*fields, "id"], n=1)
    hint = f" Did you mean {close[0]!r}?" if close else ""
    raise InputError(f"unknown field {name!r}.{hint} Known: {', '.join(fields) or 'id only'}")


def compare(name: str, operator: Any, value: Any, fields: Mapping[str, FieldType]) -> Compare:  # noqa: ANN401
    """A checked comparison, its value as the field keeps it."""
    kind = kind_of(name, fields)
    if operator not in get_args(Operator):
        raise InputError(
            f"unknown comparison {operator!r:.60} of {name}. Known: {', '.join(get_args(Operator))}"
        )
    if kind in LISTS:
        raise InputError(_of_a_list(name, kind, value))
    if kind == "bool" and operator not in ("=", "!="):
        raise InputError(f"{name} is a bool field: it can be = or != a value, not {operator}")
    return Compare(name, operator, _value(name, kind, operator, value))


def one_of(name: str, values: Any, fields: Mapping[str, FieldType]) -> OneOf:  # noqa: ANN401
    kind = kind_of(name, fields)
    if kind in LISTS:
        raise InputError(_of_a_list(name, kind, next(iter(values), None)))
    if len(values) > MOST_VALUES:
        raise InputError(
            f"the list for {name} has {len(values):,} values, at most {MOST_VALUES:,} are allowed"
        )
    return OneOf(name, tuple(_value(name, kind, "in", value) for value in values))


def contains(name: str, value: Any, fields: Mapping[str, FieldType]) -> Contains:  # noqa: ANN401
    kind = kind_of(name, fields)
    if kind not in LISTS:
        raise InputError(
            f"{name} is {_A[kind]} field: only a list contains a value. Compare it with = or in, or search by words"
        )
    return Contains(name, _value(name, LISTS[kind], "contains", value))


def _of_a_list(name: str, kind: FieldType, value: Any) -> str:  # noqa: ANN401
    shown = _short(value) if type(value) in _KINDS else "..."
    return f"{name} is a list of {LISTS[kind]}: write {name} contains {shown}, or {name} is null"


def is_null(name: str, fields: Mapping[str, FieldType]) -> IsNull:
    kind_of(name, fields)
    return IsNull(name)


def check_tree(condition: Condition, fields: Mapping[str, FieldType]) -> Condition:
    """A tree that a program has built, with the values as the fields keep them."""
    levels, nodes = 0, [condition]
    while nodes:
        levels += 1
        if levels > _MOST_LEVELS:
            raise InputError(
                f"the condition has more than {_MOST_LEVELS} levels. Join its parts with `chain`"
            )
        nodes = [inner for node in nodes for inner in _inner(node)]
    return _checked(condition, fields)


def check_size(condition: Condition) -> Condition:
    """Not too deep and not too many comparisons, whatever it was made from."""
    depth, comparisons, nodes = -1, 0, [condition]
    while nodes:
        depth += 1
        comparisons += sum(not isinstance(node, Both | Either | Not) for node in nodes)
        nodes = [inner for node in nodes for inner in _below(node)]
    if depth > DEEPEST:
        raise InputError(f"the condition is {depth} levels deep, at most {DEEPEST} are allowed")
    if comparisons > MOST_COMPARISONS:
        raise InputError(
            f"the condition has {comparisons:,} comparisons, at most {MOST_COMPARISONS:,} are allowed. "
            "Many values of one field go into a list: field in (...)"
        )
    return condition


def _inner(node: Condition) -> list[Condition]:
    if isinstance(node, Both | Either):
        return [node.left, node.right]
    return [node.inner] if isinstance(node, Not) else []


def _below(node: Condition) -> list[Condition]:
    """As `_inner`, a chain of one word counted as one level."""
    return links(node, type(node)) if isinstance(node, Both | Either) else _inner(node)


def _checked(node: Condition, fields: Mapping[str, FieldType]) -> Condition:
    if isinstance(node, Both | Either):
        return type(node)(_checked(node.left, fields), _checked(node.right, fields))
    if isinstance(node, Not):
        return Not(_checked(node.inner, fields))
    if isinstance(node, Compare):
        return compare(node.field, node.operator, node.value, fields)
    if isinstance(node, OneOf):
        return one_of(node.field, node.values, fields)
    if isinstance(node, Contains):
        return contains(node.field, node.value, fields)
    return is_null(node.field, fields)


def _value(name: str, kind: FieldType, operator: str, value: Any) -> Literals:  # noqa: ANN401
    """The value as the field keeps it: whole numbers of an int field as int, numbers of a float field as float."""
    plain = plain_value(value)
    if kind in ("date", "datetime") and isinstance(plain, str | date):
        return checked_time(f"{name} is compared with a value that", plain, kind)
    if type(plain) not in _KINDS:
        raise InputError(
            f"{name} is compared with {_short(plain)}, a {type(plain).__name__}, which no field holds"
        )
    if isinstance(plain, str):
        _check_characters(name, plain)
    elif isinstance(plain, float) and not math.isfinite(plain):
        raise InputError(f"{name} is compared with {plain!r}: only finite numbers can be")
    fitting = _fitting(kind, plain)
    if fitting is not None and (
        type(fitting) is type(plain) or {kind, _KINDS[type(plain)]} == {"int", "float"}
    ):
        return fitting
    if kind == _KINDS[type(plain)]:
        raise InputError(f"{name} is an int field of 64 bits, and {_short(plain)} does not fit")
    raise InputError(_mismatch(name, kind, operator, plain, fitting))


def _fitting(kind: FieldType, value: Literals) -> Literals | None:
    """The value, or the one that was probably meant for a field of this type; None: there is none."""
    if kind in ("date", "datetime"):
        return None
    if kind == "text":
        if isinstance(value, date):
            return value.isoformat()
        return value if isinstance(value, str) else show_value(value)
    if isinstance(value, date):
        return None
    text = str(value).strip()
    if kind == "bool":
        return {"true": True, "1": True, "false": False, "0": False}.get(text.lower())
    if isinstance(value, bool):
        return None
    try:
        number = float(value)
        whole = int(number) if isinstance(value, float) or not _WHOLE.fullmatch(text) else int(text)
    except (ValueError, OverflowError):
        return None
    if kind == "float":
        return number + 0.0 if math.isfinite(number) else None  # -0.0 becomes 0.0
    exact = _WHOLE.fullmatch(text) or number == whole
    return whole if exact and -_INT <= whole < _INT else None


def _mismatch(name: str, kind: FieldType, operator: str, value: Literals, fitting: Literals | None) -> str:
    found = _A[_KINDS[type(value)]]
    text = f"{name} is {_A[kind]} field, but {_short(value)} is {found}"
    if fitting is None:
        dates = kind.removesuffix("s") in ("date", "datetime")
        return f"{text}: write {name} {operator} '2024-12-31'" if dates else text
    meant = _short(fitting)
    return f"{text}: write {name} {operator} {f'({meant}, ...)' if operator == 'in' else meant}"


def _short(value: Any) -> str:  # noqa: ANN401
    shown = show_value(value) if type(value) in _KINDS else repr(value)
    return shown if len(shown) <= 60 else f"{shown[:57]}..."


def _check_characters(name: str, text: str) -> None:
    if "\0" in text:
        raise InputError(f"{name} is compared with a text that has a NUL character; no field holds one")
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InputError(
            f"{name} is compared with a text that has half a character (a lone surrogate)"
        ) from None
