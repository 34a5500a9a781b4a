"""Conditions over Arrow columns: as a mask of the rows in memory, and as the SQL that Lance filters with."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.index.lance.columns import column_of
from gemel.index.where import Both, Compare, Condition, Either, IsNull, Literals, Not, OneOf, links, pushed

if TYPE_CHECKING:
    import pyarrow as pa

    Column: TypeAlias = pa.Array | pa.ChunkedArray

_COMPARE = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


def mask(condition: Condition, columns: Mapping[str, Column]) -> NDArray[np.bool_]:
    """(n,) the rows of which the condition is true. Columns go by the names of fields, and `id`."""
    import pyarrow.compute as pc

    known = pc.fill_null(_truth(condition, columns), False)
    return np.asarray(known.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _truth(condition: Condition, columns: Mapping[str, Column]) -> Column:
    """(n,) true, false, or null where it is unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(condition, Both | Either):
        join = pc.and_kleene if isinstance(condition, Both) else pc.or_kleene
        return join(_truth(condition.left, columns), _truth(condition.right, columns))
    if isinstance(condition, Not):
        return pc.invert(_truth(condition.inner, columns))
    column = columns[condition.field]
    if isinstance(condition, IsNull):
        return pc.is_null(column)
    if isinstance(condition, Compare):
        return getattr(pc, _COMPARE[condition.operator])(column, pa.scalar(condition.value, column.type))
    return _one_of(column, condition.values)


def _one_of(column: Column, values: tuple[Literals, ...]) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.is_in(column, pa.array([*values, *_zeros(values)], column.type))
    if not values:
        return found  # nothing is one of none, known or not
    return pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), found)


def _zeros(values: tuple[Literals, ...]) -> list[float]:
    """Lists are looked up by bits, but 0.0 and -0.0 are equal."""
    return [0.0, -0.0] if any(isinstance(value, float) and value == 0 for value in values) else []


def to_lance(condition: Condition) -> str:
    """The condition in the SQL of Lance's `filter`: names in backticks, values as literals, nothing pasted.

    `not` is pushed down to the comparisons: Lance needs a minute to read forty of them inside one another.
    """
    return _sql(pushed(condition))


def _sql(condition: Condition) -> str:
    if isinstance(condition, Either):
        return " OR ".join(map(_sql, links(condition, Either)))
    if isinstance(condition, Both):
        parts = links(condition, Both)
        return " AND ".join(f"({_sql(part)})" if isinstance(part, Either) else _sql(part) for part in parts)
    negated = isinstance(condition, Not)
    leaf: Any = condition.inner if isinstance(condition, Not) else condition
    name = _name(leaf.field)
    if isinstance(leaf, IsNull):
        return f"{name} IS {'NOT ' if negated else ''}NULL"
    if isinstance(leaf, OneOf):
        if not leaf.values:
            return "true" if negated else "false"
        values = ", ".join(map(_literal, [*leaf.values, *_zeros(leaf.values)]))
        return f"{name} {'NOT ' if negated else ''}IN ({values})"
    return f"{name} {leaf.operator} {_literal(leaf.value)}"


def _name(field: str) -> str:
    column = "id" if field == "id" else column_of(field)
    assert "`" not in column, "a column's name is escaped"
    return f"`{column}`"


def _literal(value: Literals) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return "'" + value.replace("'", "''") + "'"
    if isinstance(value, float):
        assert math.isfinite(value), "conditions hold finite numbers"
        return f"{value!r}"
    return str(value) if value > -(2**63) else f"({value + 1} - 1)"  # 2 to the 63rd alone is no int64
