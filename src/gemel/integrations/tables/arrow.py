"""pyarrow tables: a column of vectors is a fixed-size list of float32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.errors import InputError
from gemel.integrations.tables.column import EncodedColumn
from gemel.types import Vectors

if TYPE_CHECKING:
    import pyarrow


def names(table: pyarrow.Table) -> list[str]:
    return list(table.column_names)


def texts(table: pyarrow.Table, column: str) -> list[Any]:
    return list(table.column(column).to_pylist())


def with_vectors(table: pyarrow.Table, to: str, vectors: EncodedColumn) -> pyarrow.Table:
    return table.append_column(to, array_of(vectors))


def vectors(table: pyarrow.Table, column: str) -> Vectors:
    return vectors_in(table.column(column), column)


def array_of(vectors: EncodedColumn) -> pyarrow.FixedSizeListArray:
    """One vector a row."""
    import pyarrow as pa

    rows = vectors.rows()
    kind = pa.list_(pa.float32(), vectors.dim)
    mask = None if vectors.present.all() else pa.array(~vectors.present)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=kind, mask=mask)


def vectors_in(column: pyarrow.ChunkedArray, name: str) -> Vectors:
    """(n, dim) of fixed-size lists, or of lists that happen to be of one size, as other programs write them."""
    import pyarrow as pa

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if array.null_count:
        row = array.is_null().index(pa.scalar(True)).as_py()
        raise InputError(f"row {row} of column {name!r} is null. Drop the rows without a vector first")
    numbers = array.flatten() if _is_list(array.type) else None
    if numbers is None or not _is_number(numbers.type):
        raise InputError(f"column {name!r} holds {array.type}, not vectors")
    dim = _dim(array, name)
    if numbers.null_count:
        row = numbers.is_null().index(pa.scalar(True)).as_py() // dim
        raise InputError(f"the vector in row {row} of column {name!r} holds a null")
    flat = np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float32)
    return flat.reshape(len(array), dim)


def _dim(array: pyarrow.Array, name: str) -> int:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(array.type):
        return int(array.type.list_size)
    lengths = array.value_lengths().to_numpy(zero_copy_only=False)
    other = np.flatnonzero(lengths != lengths[:1])
    if len(other):
        row = int(other[0])
        raise InputError(
            f"row {row} of column {name!r} holds {lengths[row]} numbers, row 0 holds {lengths[0]}"
        )
    return int(lengths[0]) if len(lengths) else 0


def _is_list(kind: pyarrow.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_fixed_size_list(kind) or types.is_list(kind) or types.is_large_list(kind))


def _is_number(kind: pyarrow.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_floating(kind) or pa.types.is_integer(kind))
