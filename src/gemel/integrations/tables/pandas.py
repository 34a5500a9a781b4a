"""pandas data frames: a column of vectors is a column of numpy arrays.

Not an Arrow-backed fixed-size list, which would be smaller: pandas writes such a column to Parquet and cannot read it
again (pandas-dev/pandas#57411, #59738). Arrays come back as arrays.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.integrations.tables import arrow
from gemel.integrations.tables.column import EncodedColumn
from gemel.types import Vectors

if TYPE_CHECKING:
    import pandas


def names(table: pandas.DataFrame) -> list[str]:
    return list(table.columns)


def texts(table: pandas.DataFrame, column: str) -> list[Any]:
    values = table[column]
    return [None if null else value for value, null in zip(values.tolist(), values.isna(), strict=True)]


def with_vectors(table: pandas.DataFrame, to: str, vectors: EncodedColumn) -> pandas.DataFrame:
    import pandas

    cells = np.full(len(table), None, dtype=object)
    rows = vectors.rows()
    for row in np.flatnonzero(vectors.present):
        cells[row] = rows[row]  # a view: all vectors stay one array
    return table.assign(**{to: pandas.Series(cells, index=table.index, dtype=object)})


def vectors(table: pandas.DataFrame, column: str) -> Vectors:
    import pandas

    values = table[column]
    if isinstance(values.dtype, pandas.ArrowDtype):
        import pyarrow

        return arrow.vectors_in(pyarrow.chunked_array([pyarrow.array(values.array)]), column)
    missing = np.flatnonzero(values.isna())
    if len(missing):
        raise InputError(
            f"row {missing[0]} of column {column!r} is null. Drop the rows without a vector first"
        )
    cells = [_vector(value, row, column) for row, value in enumerate(values)]
    if not cells:
        return np.zeros((0, 0), np.float32)
    for row, cell in enumerate(cells):
        if len(cell) != len(cells[0]):
            raise InputError(
                f"row {row} of column {column!r} holds {len(cell)} numbers, row 0 holds {len(cells[0])}"
            )
    rows = _rows_of_one_array(cells)
    return np.stack(cells) if rows is None else rows


def _vector(value: object, row: int, column: str) -> Vectors:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.float32:
        return value
    if isinstance(value, np.ndarray | list | tuple):
        try:
            found = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            found = np.zeros((), np.float32)
        if found.ndim == 1:
            return found
    raise InputError(f"row {row} of column {column!r} is {type(value).__name__} {value!r:.40}, not a vector")


def _rows_of_one_array(cells: list[Vectors]) -> Vectors | None:
    """The array whose rows these are, if they lie in one array one behind the other; then nothing is copied."""
    first, owner = cells[0], cells[0].base
    if not isinstance(owner, np.ndarray) or owner.dtype != np.float32 or not owner.flags.c_contiguous:
        return None
    start, step = _address(first), first.nbytes
    for row, cell in enumerate(cells):
        if cell.base is not owner or not cell.flags.c_contiguous or _address(cell) != start + row * step:
            return None
    begin = (start - _address(owner)) // first.itemsize
    return owner.reshape(-1)[begin : begin + len(cells) * len(first)].reshape(len(cells), len(first))


def _address(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])
