"""A condition as SQL that also uses the indexes of text fields."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from gemel.index.port import FieldType
from gemel.index.postgres.columns import PREFIX, column_of
from gemel.index.where import Both, Compare, Condition, Either, OneOf


@dataclass(frozen=True, eq=False)
class Filter:
    """What stands behind WHERE, and its parameters in order."""

    sql: Any
    parameters: list[Any]


def filter_of(condition: Condition | None, fields: Mapping[str, FieldType]) -> Filter:
    """`condition` None: every row."""
    from psycopg.sql import SQL

    from gemel.index.postgres.where import to_postgres

    if condition is None:
        return Filter(SQL("true"), [])
    compiled = to_postgres(condition)
    hint = _hint(condition, fields)
    if hint is None:
        return Filter(compiled.sql, list(compiled.parameters))
    sql = SQL("({} AND ({}))").format(hint.sql, compiled.sql)
    return Filter(sql, [*hint.parameters, *compiled.parameters])


def _hint(condition: Condition, fields: Mapping[str, FieldType]) -> Filter | None:
    """Something that is true wherever the condition is, in the words of the indexes on the beginnings of texts."""
    from psycopg.sql import SQL, Identifier, Literal

    if isinstance(condition, Both | Either):
        return _joined(condition, fields)
    if not isinstance(condition, Compare | OneOf) or fields.get(condition.field) != "text":
        return None
    beginning = SQL("left({}, {})").format(Identifier(column_of(condition.field)), Literal(PREFIX))
    if isinstance(condition, OneOf):
        values = sorted({str(value)[:PREFIX] for value in condition.values})
        return Filter(SQL("{} = ANY(%s::text[])").format(beginning), [values])
    if condition.operator != "=":
        return None
    return Filter(SQL("{} = %s").format(beginning), [str(condition.value)[:PREFIX]])


def _joined(condition: Both | Either, fields: Mapping[str, FieldType]) -> Filter | None:
    from psycopg.sql import SQL

    left, right = _hint(condition.left, fields), _hint(condition.right, fields)
    if left is None or right is None:
        return (left or right) if isinstance(condition, Both) else None
    word = "AND" if isinstance(condition, Both) else "OR"
    return Filter(SQL("({} " + word + " {})").format(left.sql, right.sql), left.parameters + right.parameters)
