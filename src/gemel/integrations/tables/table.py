"""A column of texts in, a column of vectors out: pandas and Polars data frames and pyarrow tables.

The same kind of table comes back. Only the package of the table that is given is imported.

Which tables there are, and what a kind of table must be able to do.
"""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

from gemel.errors import InputError
from gemel.integrations.framework import encoder_of
from gemel.integrations.tables import arrow, pandas, polars
from gemel.integrations.tables.column import EncodedColumn, encoded
from gemel.types import Encoder, Vectors

__all__ = ["encode_column", "vectors_of"]

Frame = TypeVar("Frame")


def encode_column(table: Frame, column: str, *, model: Encoder, to: str = "vector", **changes: Any) -> Frame:
    """The table with one more column, `to`: the vector of each text in `column`.

    A null stays null, equal texts are encoded once, and the table that was given is not changed. `changes` are fields
    of EncodeOptions: `dim=128`, `prompt_name="document"`, `progress=True`.
    """
    kind = kind_of(table)
    names = kind.names(table)
    _check_column(column, names)
    if to in names:
        raise InputError(f"the table has a column {to!r} already. Choose another name with to=")
    encoder = encoder_of(model, changes)
    return kind.with_vectors(table, to, encoded(kind.texts(table, column), column, encoder))  # type: ignore[no-any-return]


def vectors_of(table: object, column: str = "vector") -> Vectors:
    """(n, dim) float32 of a column of vectors, in the order of the rows.

    Where the vectors lie one behind the other in memory, as `encode_column` makes them and Parquet files of one row
    group are read, the array is a view of the table: copy it before you write to it. A null is refused.
    """
    kind = kind_of(table)
    _check_column(column, kind.names(table))
    return kind.vectors(table, column)


def _check_column(column: str, names: list[str]) -> None:
    if names.count(column) != 1:
        found = f"{names.count(column)} columns" if column in names else "no column"
        raise InputError(f"the table has {found} {column!r}. Its columns: {', '.join(map(str, names))}")


class TableKind(Protocol):
    """The tables of one package. Each module below this folder that fits is a kind."""

    def names(self, table: Any) -> list[str]:  # noqa: ANN401 - a table of that package
        """The columns, in order."""

    def texts(self, table: Any, column: str) -> list[Any]:  # noqa: ANN401 - as above
        """The values of a column, with None for a null."""

    def with_vectors(self, table: Any, to: str, vectors: EncodedColumn) -> Any:  # noqa: ANN401 - as above
        """A new table with one column more."""

    def vectors(self, table: Any, column: str) -> Vectors:  # noqa: ANN401 - as above
        """(n, dim) of a column of vectors, without a copy where that is possible."""


_KINDS: dict[tuple[str, str], TableKind] = {
    ("pyarrow", "Table"): arrow,
    ("pandas", "DataFrame"): pandas,
    ("polars", "DataFrame"): polars,
}

_HINTS = {
    ("pyarrow", "RecordBatch"): ". Write pyarrow.Table.from_batches([batch]) first",
    ("polars", "LazyFrame"): ". Write table.collect() first",
    ("duckdb", "DuckDBPyRelation"): ". Write relation.to_arrow_table() first",
}


def kind_of(table: object) -> TableKind:
    """Known by the names of its classes, so that no package is imported to ask."""
    classes = [
        (parent.__module__.split(".")[0].lstrip("_"), parent.__name__) for parent in type(table).__mro__
    ]
    for name in classes:
        if name in _KINDS:
            return _KINDS[name]
    hint = next((_HINTS[name] for name in classes if name in _HINTS), "")
    known = "a pyarrow.Table, a pandas.DataFrame or a polars.DataFrame"
    raise InputError(f"the table must be {known}, got a {'.'.join(classes[0])}{hint}")
