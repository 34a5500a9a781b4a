"""Conditions over Arrow columns, as a mask of the rows in memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.index.where import Both, Compare, Condition, Contains, Either, IsNull, Literals, Not

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
    if isinstance(condition, Contains):
        return _contains(column, condition.value)
    return _one_of(column, condition.values)


def _contains(column: Column, value: Literals) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_contains(chunk, value) for chunk in column.chunks], pa.bool_())
    same = pc.equal(column.flatten(), pa.scalar(value, column.type.value_type))
    holding = pc.list_parent_indices(column).filter(same).to_numpy()
    found = np.zeros(len(column), dtype=np.bool_)
    found[holding] = True
    return pa.array(found, mask=column.is_null().to_numpy(zero_copy_only=False))


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
