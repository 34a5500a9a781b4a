"""Conditions as dictionaries, for programs and JSON.

{"lang": "en"}, {"lang": ["en", "de"]} for one of these, {"lang": None} for null, {"year": {">=": 2020, "<": 2025}},
{"tags": {"contains": "new"}}; and {"and": [...]}, {"or": [...]}, {"not": {...}}. Several keys mean all of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemel.errors import InputError
from gemel.index.port import FieldType
from gemel.index.where import Both, Condition, Either, Not, chain
from gemel.index.where_check import DEEPEST, MOST_COMPARISONS, compare, contains, is_null, one_of

_OPERATORS = {"=": "=", "!=": "!=", "<>": "!=", "<": "<", "<=": "<=", ">": ">", ">=": ">="}
_WORDS = ("in", "not in", "between", "contains", "not contains")
Fields = Mapping[str, FieldType]


def from_dict(where: Mapping[str, Any], fields: Fields, depth: int = 0) -> Condition:
    if depth > DEEPEST:
        raise InputError(f"the condition is more than {DEEPEST} levels deep")
    if not isinstance(where, Mapping):
        raise InputError(f"expected a dictionary of conditions, found {where!r:.60}")
    if not where:
        raise InputError("where is empty. Write a condition, or leave it out")
    return chain([_entry(name, value, fields, depth) for name, value in where.items()], Both)


def _entry(name: Any, value: Any, fields: Fields, depth: int) -> Condition:  # noqa: ANN401 - anything may come in
    if not isinstance(name, str):
        raise InputError(f"a field is named by a string, not by {name!r:.60}")
    if name in ("and", "or"):
        if not isinstance(value, list | tuple) or not value:
            raise InputError(f"{name!r} needs a list of conditions, at least one; got {value!r:.60}")
        if len(value) > MOST_COMPARISONS:
            raise InputError(
                f"{name!r} joins {len(value):,} conditions, at most {MOST_COMPARISONS:,} are allowed"
            )
        parts = [from_dict(each, fields, depth + 1) for each in value]
        return chain(parts, Both if name == "and" else Either)
    if name == "not":
        return Not(from_dict(value, fields, depth + 1))
    if isinstance(value, Mapping):
        if not value:
            raise InputError(f"{name} has no comparison. Known: {_known()}")
        return chain([_comparison(name, sign, each, fields) for sign, each in value.items()], Both)
    return _one_of(name, value, fields) if _is_list(value) else _equal(name, value, fields)


def _comparison(name: str, sign: Any, value: Any, fields: Fields) -> Condition:  # noqa: ANN401
    if sign in ("in", "not in"):
        if not _is_list(value):
            raise InputError(f"{name} {sign} needs a list of values, got {value!r:.60}")
        found = _one_of(name, value, fields)
        return found if sign == "in" else Not(found)
    if sign in ("contains", "not contains"):
        holds = contains(name, value, fields)
        return holds if sign == "contains" else Not(holds)
    if sign == "between":
        if not _is_list(value) or len(value) != 2:
            raise InputError(f"{name} between needs a list of two values, got {value!r:.60}")
        low, high = value
        return Both(compare(name, ">=", low, fields), compare(name, "<=", high, fields))
    if sign not in _OPERATORS:
        raise InputError(f"unknown comparison {sign!r:.60} of {name}. Known: {_known()}")
    sign = _OPERATORS[sign]
    if value is None and sign in ("=", "!="):
        return is_null(name, fields) if sign == "=" else Not(is_null(name, fields))
    return compare(name, sign, value, fields)


def _equal(name: str, value: Any, fields: Fields) -> Condition:  # noqa: ANN401
    return is_null(name, fields) if value is None else compare(name, "=", value, fields)


def _one_of(name: str, values: Any, fields: Fields) -> Condition:  # noqa: ANN401
    """Null among the values counts as one of them."""
    found = one_of(name, [value for value in values if value is not None], fields)
    return Either(found, is_null(name, fields)) if len(found.values) < len(values) else found


def _is_list(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, list | tuple | set | frozenset)


def _known() -> str:
    return ", ".join((*_OPERATORS, *_WORDS))
