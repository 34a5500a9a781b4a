"""Conditions as the SQL of PostgreSQL, every value a parameter.

A condition as SQL that also uses the indexes of text fields.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any

from gemel.index.port import FieldType
from gemel.index.postgres.schema import PREFIX, column_of
from gemel.index.where import Both, Compare, Condition, Contains, Either, IsNull, Not, OneOf, links, pushed

_ELEMENTS = {
    bool: "boolean",
    int: "bigint",
    float: "double precision",
    str: "text",
    date: "date",
    datetime: "timestamptz",
}


@dataclass(frozen=True, eq=False)
class Compiled:
    """What stands behind WHERE."""

    sql: Any
    """A psycopg Composable."""
    parameters: tuple[Any, ...] = ()
    """For its placeholders, in order."""


def to_postgres(condition: Condition) -> Compiled:
    """The condition over the columns of a table; texts are ordered by code points, whatever the server's locale is."""
    return _compiled(pushed(condition))


def _compiled(condition: Condition) -> Compiled:
    from psycopg.sql import SQL

    if isinstance(condition, Both | Either):
        join = type(condition)
        parts = [_compiled(part) for part in links(condition, join)]
        word = SQL(" AND " if join is Both else " OR ")
        sql = SQL("({})").format(word.join(part.sql for part in parts))
        return Compiled(sql, tuple(value for part in parts for value in part.parameters))
    if isinstance(condition, Not):
        return _leaf(condition.inner, negated=True)
    return _leaf(condition, negated=False)


def _leaf(condition: Condition, *, negated: bool) -> Compiled:
    from psycopg.sql import SQL, Identifier

    assert isinstance(condition, Compare | OneOf | IsNull | Contains), (
        "`pushed` leaves `not` before lists and nulls only"
    )
    column = Identifier(column_of(condition.field))
    if isinstance(condition, IsNull):
        return Compiled(SQL("{} IS NOT NULL" if negated else "{} IS NULL").format(column))
    if isinstance(condition, OneOf):
        if not condition.values:
            return Compiled(SQL("true" if negated else "false"))
        sql = SQL("{} <> ALL(%s)" if negated else "{} = ANY(%s)").format(column)
        return Compiled(sql, (list(condition.values),))
    if isinstance(condition, Contains):
        kind = _ELEMENTS[type(condition.value)]
        # `@>` and not `= ANY`: the index of lists answers it.
        holds = SQL("{} @> ARRAY[%s]::" + kind + "[]").format(column)
        return Compiled(SQL("NOT {}").format(holds) if negated else holds, (condition.value,))
    ordered = isinstance(condition.value, str) and condition.operator not in ("=", "!=")
    sign = SQL("<>" if condition.operator == "!=" else condition.operator)
    sql = SQL('{} COLLATE "C" {} %s' if ordered else "{} {} %s").format(column, sign)
    return Compiled(sql, (condition.value,))


@dataclass(frozen=True, eq=False)
class Filter:
    """What stands behind WHERE, and its parameters in order."""

    sql: Any
    parameters: list[Any]


def filter_of(condition: Condition | None, fields: Mapping[str, FieldType]) -> Filter:
    """`condition` None: every row."""
    from psycopg.sql import SQL

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
