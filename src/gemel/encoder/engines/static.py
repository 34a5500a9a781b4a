"""The engine of a static model: a token's vector is its row of a table, whatever stands around it."""

from __future__ import annotations

from gemel.encoder.engines.port import check_ids
from gemel.encoder.network import Array
from gemel.types import Ids, Vectors


class StaticEngine:
    """Looks rows up; the table may be a view of a file."""

    name = "static"
    batch_tokens = 65_536

    def __init__(self, table: Array) -> None:
        self._table = table
        self.width = int(table.shape[1])

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids -> (b, t, width): the rows."""
        check_ids(ids, vocabulary=len(self._table), max_positions=ids.shape[1] if ids.ndim == 2 else 0)
        rows: Vectors = self._table[ids]
        return rows

    def bytes_per_text(self, tokens: int) -> int:
        """The rows themselves, twice: once gathered, once summed."""
        return 8 * tokens * self.width
