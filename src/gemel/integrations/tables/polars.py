"""Polars data frames: a column of vectors is of the type Array(Float32, dim)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from gemel.errors import InputError
from gemel.integrations.tables.column import EncodedColumn
from gemel.types import Vectors

if TYPE_CHECKING:
    import polars


def names(table: polars.DataFrame) -> list[str]:
    return list(table.columns)


def texts(table: polars.DataFrame, column: str) -> list[Any]:
    return list(table.get_column(column).to_list())


def with_vectors(table: polars.DataFrame, to: str, vectors: EncodedColumn) -> polars.DataFrame:
    import polars as pl

    series = pl.Series(to, vectors.vectors, dtype=pl.Array(pl.Float32, vectors.dim))
    if not vectors.whole:
        places = pl.Series(vectors.places)
        series = series.gather(places.set(places < 0, None))
    return table.with_columns(series)


def vectors(table: polars.DataFrame, column: str) -> Vectors:
    import polars as pl

    series = table.get_column(column)
    if series.null_count():
        row = series.is_null().arg_true()[0]
        raise InputError(f"row {row} of column {column!r} is null. Drop the rows without a vector first")
    if isinstance(series.dtype, pl.List):  # of one size, as other programs write them
        series = series.list.to_array(_dim(series, column))
    if not isinstance(series.dtype, pl.Array) or not series.dtype.inner.is_numeric():
        raise InputError(f"column {column!r} holds {series.dtype}, not vectors")
    if series.explode().null_count():
        row = series.arr.contains(None).arg_true()[0]
        raise InputError(f"the vector in row {row} of column {column!r} holds a null")
    return np.asarray(series.to_numpy(), dtype=np.float32).reshape(len(series), series.dtype.size)


def _dim(series: polars.Series, column: str) -> int:
    lengths = series.list.len().to_numpy()
    other = np.flatnonzero(lengths != lengths[:1])
    if len(other):
        row = int(other[0])
        raise InputError(
            f"row {row} of column {column!r} holds {lengths[row]} numbers, row 0 holds {lengths[0]}"
        )
    return int(lengths[0]) if len(lengths) else 0
