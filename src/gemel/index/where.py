"""Conditions on fields: `lang = 'en' and year >= 2020`, or {"lang": "en", "year": {">=": 2020}}, as one small tree.

Parsed once and checked against the fields of the index; each table compiles the tree to its own language with
parameters or typed literals, never by pasting strings.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Operator: TypeAlias = Literal["=", "!=", "<", "<=", ">", ">="]


@dataclass(frozen=True)
class Compare:
    """A field against a value. A null meets no comparison, as in SQL."""

    field: str
    operator: Operator
    value: str | int | float | bool


@dataclass(frozen=True)
class OneOf:
    field: str
    values: tuple[str | int | float | bool, ...]


@dataclass(frozen=True)
class IsNull:
    field: str


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


Condition: TypeAlias = Compare | OneOf | IsNull | Both | Either | Not
