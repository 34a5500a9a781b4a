"""Which tables there are, and what a kind of table must be able to do."""

from __future__ import annotations

from typing import Any, Protocol

from gemel.errors import InputError
from gemel.integrations.tables import arrow, pandas, polars
from gemel.integrations.tables.encoded import Encoded
from gemel.types import Vectors


class Kind(Protocol):
    """The tables of one package. Each module below this folder that fits is a kind."""

    def names(self, table: Any) -> list[str]:  # noqa: ANN401 - a table of that package
        """The columns, in order."""

    def texts(self, table: Any, column: str) -> list[Any]:  # noqa: ANN401 - as above
        """The values of a column, with None for a null."""

    def with_vectors(self, table: Any, to: str, vectors: Encoded) -> Any:  # noqa: ANN401 - as above
        """A new table with one column more."""

    def vectors(self, table: Any, column: str) -> Vectors:  # noqa: ANN401 - as above
        """(n, dim) of a column of vectors, without a copy where that is possible."""


_KINDS: dict[tuple[str, str], Kind] = {
    ("pyarrow", "Table"): arrow,
    ("pandas", "DataFrame"): pandas,
    ("polars", "DataFrame"): polars,
}
_HINTS = {
    ("pyarrow", "RecordBatch"): ". Write pyarrow.Table.from_batches([batch]) first",
    ("polars", "LazyFrame"): ". Write table.collect() first",
    ("duckdb", "DuckDBPyRelation"): ". Write relation.to_arrow_table() first",
}


def kind_of(table: object) -> Kind:
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
