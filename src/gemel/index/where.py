"""Conditions on fields: `lang = 'en' and year >= 2020`, or {"lang": "en", "year": {">=": 2020}}, as one small tree.

Parsed once and checked against the fields of the index (`where_parse.py`); each table compiles the tree to its own
language with parameters or typed literals, never by pasting strings. Here: the tree and what it means.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from functools import lru_cache
from typing import Any, Literal, TypeAlias

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]
Literals: TypeAlias = str | int | float | bool | date | datetime
KEYWORDS = frozenset({"and", "or", "not", "in", "is", "null", "between", "true", "false"})
NAME = re.compile(r"[^\W\d]\w*")
"""A field that can be written without quotes."""


@dataclass(frozen=True)
class Compare:
    """A field against a value. A null meets no comparison, as in SQL."""

    field: str
    operator: Operator
    value: Literals


@dataclass(frozen=True)
class OneOf:
    """The field has one of the values; of none, it never has."""

    field: str
    values: tuple[Literals, ...]


@dataclass(frozen=True)
class IsNull:
    field: str


@dataclass(frozen=True)
class Contains:
    """The list of the field has the value in it. Of a null it is unknown, as in SQL.

    For a text that has characters in it, a checked condition has `Like`.
    """

    field: str
    value: Literals


@dataclass(frozen=True)
class Like:
    """The text of the field has the form of the pattern, case-sensitive. Of a null it is unknown.

    `%` stands for any characters, `_` for one, `\\` before one of the three for that character itself.
    """

    field: str
    pattern: str

    @property
    def start(self) -> str:
        """The characters that every such text begins with."""
        first = pattern_segments(self.pattern)[0]
        return "".join(first[: first.index(None) if None in first else len(first)])  # type: ignore[arg-type]

    @property
    def regex(self) -> str:
        """For RE2, as Arrow has it; it matches the whole text."""
        segments = [_segment_regex(each) for each in pattern_segments(self.pattern)]
        return rf"\A{'(?s:.*)'.join(segments)}\z"


@dataclass(frozen=True)
class Both:
    left: Condition
    right: Condition


@dataclass(frozen=True)
class Either:
    left: Condition
    right: Condition


@dataclass(frozen=True)
class Not:
    inner: Condition


Condition: TypeAlias = Compare | OneOf | IsNull | Contains | Like | Both | Either | Not

_COMPARISONS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}

_OPPOSITES: Mapping[Operator, Operator] = {"=": "!=", "!=": "=", "<": ">=", ">=": "<", ">": "<=", "<=": ">"}


def matches(condition: Condition, row: Mapping[str, Any]) -> bool:
    """Whether the condition is true of the row; texts are ordered by code points. Unknown is not true."""
    return truth(condition, row) is True


def truth(condition: Condition, row: Mapping[str, Any]) -> bool | None:
    """True, false, or None: unknown, because a value is null. SQL's logic of three values."""
    if isinstance(condition, Both | Either):
        decides = isinstance(condition, Either)  # one true side decides `or`, one false side decides `and`
        sides = truth(condition.left, row), truth(condition.right, row)
        if decides in sides:
            return decides
        return None if None in sides else not decides
    if isinstance(condition, Not):
        inner = truth(condition.inner, row)
        return None if inner is None else not inner
    value = row[condition.field]
    if isinstance(condition, IsNull):
        return value is None
    if isinstance(condition, OneOf) and not condition.values:
        return False
    if value is None:
        return None
    if isinstance(condition, OneOf):
        return value in condition.values
    if isinstance(condition, Contains):
        return condition.value in value
    if isinstance(condition, Like):
        return _is_like(value, condition.pattern)
    return _COMPARISONS[condition.operator](value, condition.value)


def escape_like(text: str) -> str:
    """The pattern that matches this text only."""
    return re.sub(r"([%_\\])", r"\\\1", text)


def pattern_segments(pattern: str) -> list[list[str | None]]:
    """The characters between the `%` of a pattern, None for any one; ValueError if it ends with a single `\\`."""
    segments: list[list[str | None]] = [[]]
    characters = iter(pattern)
    for each in characters:
        if each == "%":
            segments.append([])
        elif each == "\\":
            escaped = next(characters, None)
            if escaped is None:
                raise ValueError("the pattern ends with a single \\")
            segments[-1].append(escaped)
        else:
            segments[-1].append(None if each == "_" else each)
    return segments


def _segment_regex(segment: Sequence[str | None]) -> str:
    return "".join("(?s:.)" if each is None else re.escape(each) for each in segment)


@lru_cache(maxsize=256)
def _compiled_segments(pattern: str) -> tuple[tuple[re.Pattern[str], int], ...]:
    """Each segment and its length."""
    segments = pattern_segments(pattern)
    return tuple((re.compile(_segment_regex(each)), len(each)) for each in segments)


def _is_like(text: str, pattern: str) -> bool:
    """Segment by segment, each at the first place it fits: no pattern takes long, as one regex for all could."""
    first, *others = _compiled_segments(pattern)
    if not others:
        return first[0].fullmatch(text) is not None
    if first[0].match(text) is None:
        return False
    at, end = first[1], len(text) - others[-1][1]
    for segment, length in others[:-1]:
        found = segment.search(text, at)
        if found is None:
            return False
        at = found.start() + length
    return at <= end and others[-1][0].match(text, end) is not None


def chain(parts: Sequence[Condition], join: type[Both] | type[Either]) -> Condition:
    """Conditions joined by `and` or `or`, as a tree that is not deep; (a, b, c) is ((a, b), c)."""
    if len(parts) == 1:
        return parts[0]
    half = (len(parts) + 1) // 2
    return join(chain(parts[:half], join), chain(parts[half:], join))


def links(condition: Condition, join: type[Both] | type[Either]) -> list[Condition]:
    """What `chain` would join to mean the same: the conditions below all `join`s at the top, left to right."""
    found: list[Condition] = []
    waiting = [condition]
    while waiting:
        each = waiting.pop()
        if isinstance(each, join):
            waiting += [each.right, each.left]
        else:
            found.append(each)
    return found


def fields_of(condition: Condition) -> set[str]:
    """The fields in the condition."""
    if isinstance(condition, Both | Either):
        return fields_of(condition.left) | fields_of(condition.right)
    return fields_of(condition.inner) if isinstance(condition, Not) else {condition.field}


def show_value(value: Literals) -> str:
    """A value as a condition writes it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, date):
        return f"'{value.isoformat()}'"
    return repr(value)


def pushed(condition: Condition, *, negated: bool = False) -> Condition:
    """The same truth for every row, null or not, with `not` only before a list or a null; `negated`: its opposite."""
    if isinstance(condition, Both | Either):
        sides = pushed(condition.left, negated=negated), pushed(condition.right, negated=negated)
        return Both(*sides) if isinstance(condition, Both) is not negated else Either(*sides)
    if isinstance(condition, Not):
        return pushed(condition.inner, negated=not negated)
    if not negated:
        return condition
    if isinstance(condition, Compare):
        return Compare(condition.field, _OPPOSITES[condition.operator], condition.value)
    return Not(condition)
