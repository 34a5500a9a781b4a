"""A column of texts in, a column of vectors out: pandas and Polars data frames and pyarrow tables.

The same kind of table comes back. Only the package of the table that is given is imported.
"""

from __future__ import annotations

from typing import Any, TypeVar

from gemel.errors import InputError
from gemel.integrations.encoder_of import encoder_of
from gemel.integrations.tables.encoded import encoded
from gemel.integrations.tables.kinds import kind_of
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
