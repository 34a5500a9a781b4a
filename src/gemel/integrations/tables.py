"""A column of texts in, a column of vectors out: pandas and Polars data frames and pyarrow tables.

`encode_column` returns the same kind of table with one more column, `vectors_of` reads such a column as an array. Only
the package of the table that is given is imported.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError, WorkError
from gemel.integrations.framework import encoder_of
from gemel.types import Encoder, Vectors

if TYPE_CHECKING:
    import pandas
    import polars
    import pyarrow

__all__ = ["encode_column", "vectors_of"]

Frame = TypeVar("Frame")


def encode_column(table: Frame, column: str, *, model: Encoder, to: str = "vector", **changes: Any) -> Frame:
    """The table with one more column, `to`: the vector of each text in `column`.

    A null stays null, equal texts are encoded once, and the given table is not changed. `changes` are fields of
    EncodeOptions: `dim=128`, `prompt_name="document"`, `progress=True`.
    """
    adapter = _adapter_of(table)
    names = adapter.columns(table)
    _check_column(column, names)
    if to in names:
        raise InputError(f"the table has a column {to!r} already. Choose another name with to=")
    vectors = encode_texts(adapter.texts(table, column), column, encoder_of(model, changes))
    return adapter.with_vectors(table, to, vectors)  # type: ignore[no-any-return]


def vectors_of(table: object, column: str = "vector") -> Vectors:
    """(n, dim) float32 of a column of vectors, in the order of the rows.

    Where the vectors are contiguous in memory, as `encode_column` makes them and Parquet files of one row group are
    read, the array is a view of the table: copy it before you write to it. A null raises an InputError.
    """
    adapter = _adapter_of(table)
    _check_column(column, adapter.columns(table))
    return adapter.vectors(table, column)


def _check_column(column: str, names: list[str]) -> None:
    if names.count(column) != 1:
        count = f"{names.count(column)} columns" if column in names else "no column"
        raise InputError(f"the table has {count} {column!r}. Its columns: {', '.join(map(str, names))}")


@dataclass(frozen=True, eq=False)
class EncodedColumn:
    """A column of vectors, each distinct vector stored once."""

    vectors: Vectors
    """(distinct texts, dim), in the order in which the texts first appear."""
    index: NDArray[np.int64]
    """(rows,) the position in `vectors` of each row's vector; -1 for a null."""

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def present(self) -> NDArray[np.bool_]:
        """(rows,) False for a null."""
        return self.index >= 0

    @property
    def all_distinct(self) -> bool:
        """Every row has a vector of its own: `vectors` is the column."""
        return len(self.vectors) == len(self.index)

    def rows(self) -> Vectors:
        """(rows, dim): the vector of each row, zeros for a null."""
        if self.all_distinct:
            return self.vectors
        rows = np.zeros((len(self.index), self.dim), np.float32)
        rows[self.present] = self.vectors[self.index[self.present]]
        return rows


def encode_texts(texts: Sequence[str | None], column: str, encoder: Encoder) -> EncodedColumn:
    """The vectors of a column's texts, each distinct text encoded once."""
    check_texts(("" if text is None else text for text in texts), column)  # an error names the row
    first: dict[str, int] = {}
    index = np.fromiter(
        (-1 if text is None else first.setdefault(text, len(first)) for text in texts), np.int64, len(texts)
    )
    vectors = np.ascontiguousarray(encoder.encode(list(first)), dtype=np.float32)
    if vectors.shape != (len(first), encoder.dim):
        raise WorkError(
            f"the encoder gave {vectors.shape} for {len(first)} texts; expected {(len(first), encoder.dim)}"
        )
    return EncodedColumn(vectors, index)


class TableAdapter(Protocol):
    """What must be known about the tables of one package."""

    def columns(self, table: Any) -> list[str]:  # noqa: ANN401 - a table of that package
        """The names of the columns, in order."""

    def texts(self, table: Any, column: str) -> list[Any]:  # noqa: ANN401 - as above
        """The values of a column, with None for a null."""

    def with_vectors(self, table: Any, to: str, vectors: EncodedColumn) -> Any:  # noqa: ANN401 - as above
        """A new table with one more column."""

    def vectors(self, table: Any, column: str) -> Vectors:  # noqa: ANN401 - as above
        """(n, dim) of a column of vectors, without a copy where that is possible."""


class ArrowTable:
    """pyarrow tables: a column of vectors is a fixed-size list of float32."""

    def columns(self, table: pyarrow.Table) -> list[str]:
        return list(table.column_names)

    def texts(self, table: pyarrow.Table, column: str) -> list[Any]:
        return list(table.column(column).to_pylist())

    def with_vectors(self, table: pyarrow.Table, to: str, vectors: EncodedColumn) -> pyarrow.Table:
        return table.append_column(to, arrow_array(vectors))

    def vectors(self, table: pyarrow.Table, column: str) -> Vectors:
        return _arrow_vectors(table.column(column), column)


def arrow_array(vectors: EncodedColumn) -> pyarrow.FixedSizeListArray:
    """A pyarrow array with one vector per row."""
    import pyarrow as pa

    rows = vectors.rows()
    kind = pa.list_(pa.float32(), vectors.dim)
    mask = None if vectors.present.all() else pa.array(~vectors.present)
    return pa.FixedSizeListArray.from_arrays(pa.array(rows.reshape(-1)), type=kind, mask=mask)


def _arrow_vectors(column: pyarrow.ChunkedArray, name: str) -> Vectors:
    """(n, dim) of fixed-size lists, or of lists that all have one length, as other programs write them."""
    import pyarrow as pa

    array = column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()
    if array.null_count:
        raise _null_row(array.is_null().index(pa.scalar(True)).as_py(), name)
    kind = array.type
    fixed = pa.types.is_fixed_size_list(kind)
    is_list = fixed or pa.types.is_list(kind) or pa.types.is_large_list(kind)
    numbers = array.flatten() if is_list else None
    if numbers is None or not (pa.types.is_floating(numbers.type) or pa.types.is_integer(numbers.type)):
        raise InputError(f"column {name!r} holds {kind}, not vectors")
    lengths = None if fixed else array.value_lengths().to_numpy(zero_copy_only=False)
    dim = int(kind.list_size) if lengths is None else _common_length(lengths, name)
    if numbers.null_count:
        raise _null_inside(numbers.is_null().index(pa.scalar(True)).as_py() // dim, name)
    flat = np.asarray(numbers.to_numpy(zero_copy_only=False), dtype=np.float32)
    return flat.reshape(len(array), dim)


class PolarsFrame:
    """Polars data frames: a column of vectors has the type Array(Float32, dim)."""

    def columns(self, table: polars.DataFrame) -> list[str]:
        return list(table.columns)

    def texts(self, table: polars.DataFrame, column: str) -> list[Any]:
        return list(table.get_column(column).to_list())

    def with_vectors(self, table: polars.DataFrame, to: str, vectors: EncodedColumn) -> polars.DataFrame:
        import polars as pl

        series = pl.Series(to, vectors.vectors, dtype=pl.Array(pl.Float32, vectors.dim))
        if not vectors.all_distinct:
            index = pl.Series(vectors.index)
            series = series.gather(index.set(index < 0, None))
        return table.with_columns(series)

    def vectors(self, table: polars.DataFrame, column: str) -> Vectors:
        import polars as pl

        series = table.get_column(column)
        if series.null_count():
            raise _null_row(series.is_null().arg_true()[0], column)
        if isinstance(series.dtype, pl.List):  # of one length, as other programs write them
            series = series.list.to_array(_common_length(series.list.len().to_numpy(), column))
        if not isinstance(series.dtype, pl.Array) or not series.dtype.inner.is_numeric():
            raise InputError(f"column {column!r} holds {series.dtype}, not vectors")
        if series.explode().null_count():
            raise _null_inside(series.arr.contains(None).arg_true()[0], column)
        return np.asarray(series.to_numpy(), dtype=np.float32).reshape(len(series), series.dtype.size)


class PandasFrame:
    """pandas data frames: a column of vectors is a column of numpy arrays.

    Not an Arrow-backed fixed-size list, which would be smaller: pandas writes such a column to Parquet and cannot read
    it again (pandas-dev/pandas#57411, #59738). Arrays come back as arrays.
    """

    def columns(self, table: pandas.DataFrame) -> list[str]:
        return list(table.columns)

    def texts(self, table: pandas.DataFrame, column: str) -> list[Any]:
        values = table[column]
        return [None if null else value for value, null in zip(values.tolist(), values.isna(), strict=True)]

    def with_vectors(self, table: pandas.DataFrame, to: str, vectors: EncodedColumn) -> pandas.DataFrame:
        import pandas

        cells = np.full(len(table), None, dtype=object)
        rows = vectors.rows()
        for row in np.flatnonzero(vectors.present):
            cells[row] = rows[row]  # a view: all vectors stay one array
        return table.assign(**{to: pandas.Series(cells, index=table.index, dtype=object)})

    def vectors(self, table: pandas.DataFrame, column: str) -> Vectors:
        import pandas

        values = table[column]
        if isinstance(values.dtype, pandas.ArrowDtype):
            import pyarrow

            return _arrow_vectors(pyarrow.chunked_array([pyarrow.array(values.array)]), column)
        missing = np.flatnonzero(values.isna())
        if len(missing):
            raise _null_row(int(missing[0]), column)
        cells = [_cell_vector(value, row, column) for row, value in enumerate(values)]
        if not cells:
            return np.zeros((0, 0), np.float32)
        _common_length(np.array([len(cell) for cell in cells]), column)
        rows = _shared_array(cells)
        return np.stack(cells) if rows is None else rows


def _cell_vector(value: object, row: int, column: str) -> Vectors:
    if isinstance(value, np.ndarray) and value.ndim == 1 and value.dtype == np.float32:
        return value
    if isinstance(value, np.ndarray | list | tuple):
        try:
            vector = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            vector = np.zeros((), np.float32)
        if vector.ndim == 1:
            return vector
    raise InputError(f"row {row} of column {column!r} is {type(value).__name__} {value!r:.40}, not a vector")


def _shared_array(cells: list[Vectors]) -> Vectors | None:
    """The array whose consecutive rows these cells are, without a copy; None where they are not such rows."""
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


def _common_length(lengths: NDArray[Any], column: str) -> int:
    different = np.flatnonzero(lengths != lengths[:1])
    if len(different):
        row = int(different[0])
        raise InputError(
            f"row {row} of column {column!r} holds {lengths[row]} numbers, row 0 holds {lengths[0]}"
        )
    return int(lengths[0]) if len(lengths) else 0


def _null_row(row: int, column: str) -> InputError:
    return InputError(f"row {row} of column {column!r} is null. Drop the rows without a vector first")


def _null_inside(row: int, column: str) -> InputError:
    return InputError(f"the vector in row {row} of column {column!r} holds a null")


_ADAPTERS: dict[tuple[str, str], TableAdapter] = {
    ("pyarrow", "Table"): ArrowTable(),
    ("pandas", "DataFrame"): PandasFrame(),
    ("polars", "DataFrame"): PolarsFrame(),
}
"""Package and class name of a table."""

_HINTS = {
    ("pyarrow", "RecordBatch"): ". Write pyarrow.Table.from_batches([batch]) first",
    ("polars", "LazyFrame"): ". Write table.collect() first",
    ("duckdb", "DuckDBPyRelation"): ". Write relation.to_arrow_table() first",
}


def _adapter_of(table: object) -> TableAdapter:
    """The adapter for the class of a table, by its name, so that no package is imported to look."""
    classes = [
        (parent.__module__.split(".")[0].lstrip("_"), parent.__name__) for parent in type(table).__mro__
    ]
    for name in classes:
        if name in _ADAPTERS:
            return _ADAPTERS[name]
    hint = next((_HINTS[name] for name in classes if name in _HINTS), "")
    expected = "a pyarrow.Table, a pandas.DataFrame or a polars.DataFrame"
    raise InputError(f"the table must be {expected}, got a {'.'.join(classes[0])}{hint}")
