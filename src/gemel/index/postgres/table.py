"""`PostgresTable`: passages on a server, safe for many threads and many processes at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.index.port import Count, FieldType, Header, PassageRows, Passages, TableStats
from gemel.index.postgres import read as reading
from gemel.index.postgres import write as writing
from gemel.index.postgres.graph import GraphLayout, read_layout, stats
from gemel.index.postgres.read import copy_blocks
from gemel.index.postgres.schema import Filter, check_fields, filter_of, read_header
from gemel.index.postgres.search import NeighborQuery, nearest
from gemel.index.postgres.server import Connection, Server
from gemel.index.postgres.words import Lengths, by_words, read_lengths
from gemel.index.postgres.write import CompactLimits, broken_indexes, compact
from gemel.index.where import Condition
from gemel.types import Vectors

_FRESH_S = 2.0  # what is known of the layout and of the lengths of texts; answers stay right when it is older


@dataclass
class _Remembered:
    """Something read from the server and when."""

    value: Any = None
    until: float = 0.0


class PostgresTable:
    """A `Table`. The server is this object's own and closed with it."""

    def __init__(
        self, server: Server, relation: str, header: Header, limits: CompactLimits | None = None
    ) -> None:
        self._server = server
        self._relation = relation
        self._header = header
        self._limits = limits or CompactLimits()
        self._layout, self._lengths = _Remembered(), _Remembered()
        self._tidy = False

    @property
    def location(self) -> str:
        return self._server.address.shown

    @property
    def relation(self) -> str:
        """The table's name in the schema `gemel`."""
        return self._relation

    @property
    def header(self) -> Header:
        now = self._server.read(lambda connection: read_header(connection, self._relation))
        if now is None:
            raise WorkError(f"{self.location} was migrated or dropped meanwhile. Open the index again")
        self._header = now
        return now

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        check_fields(fields)
        self._change(lambda connection: writing.add_fields(connection, self._relation, fields))
        assert self.header is not None  # read again

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        found = self._server.read(lambda connection: reading.digests(connection, self._relation, ids))
        return {each: found[each] for each in ids if each in found}

    def write(self, rows: PassageRows, *, replace: bool) -> None:
        self._check_writable()
        if not len(rows):
            return
        fields = {name: kind for name, kind in self._header.fields.items() if name in rows.fields}
        if len(fields) < len(rows.fields):  # another handle added fields
            fields = {name: kind for name, kind in self.header.fields.items() if name in rows.fields}
        vectors = np.asarray(rows.vector, dtype=np.float32)
        if vectors.shape != (len(rows), self._header.dim):
            raise InputError(
                f"{self.location} holds vectors of {self._header.dim} numbers, not {vectors.shape}"
            )
        blocks, ids = copy_blocks(rows, fields, self._header.words), list(dict.fromkeys(rows.id))

        def put(connection: Connection) -> int:
            writing.put(connection, self._relation, ids, blocks, list(fields), replace=replace)
            return 0

        self._change(put)

    def delete(self, ids: Sequence[str]) -> int:
        self._check_writable()
        if not ids:
            return 0
        return self._change(lambda connection: writing.delete(connection, self._relation, ids))

    def delete_where(self, where: Condition) -> int:
        chosen = self._filter(where)
        return self._change(lambda connection: writing.delete_where(connection, self._relation, chosen))

    def get(self, ids: Sequence[str]) -> PassageRows:
        header = self._header
        return self._server.read(
            lambda connection: reading.get(connection, self._relation, header.fields, header.dim, ids)
        )

    def count(self, where: Condition | None = None) -> Count:
        chosen = self._filter(where)
        return self._server.read(lambda connection: reading.count(connection, self._relation, chosen))

    def nearest(
        self,
        queries: Vectors,
        k: int,
        *,
        where: Condition | None = None,
        exact: bool = False,
        recall: float | None = None,
        far: bool = False,
    ) -> list[Passages]:
        """Without a graph, with `exact`, and where few rows meet the condition, every row that counts is compared."""
        if not len(queries):
            return []
        header = self._header
        chosen = None if where is None else self._filter(where)
        question = NeighborQuery(self._relation, header.dim, header.fields, chosen, k)

        def search(connection: Connection) -> list[Passages]:
            layout = GraphLayout() if exact else self._fresh(self._layout, connection, read_layout)
            layout = layout.tuned_for(recall, far=far)
            return nearest(connection, queries, question, layout, self._limits.few)

        return self._server.read(search)

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        """BM25 as gemel.vectors.bm25 does it; `words.py` says what is approximate in large tables."""
        header, chosen = self._header, self._filter(where)

        def search(connection: Connection) -> Passages:
            lengths: Lengths = self._fresh(self._lengths, connection, read_lengths)
            return by_words(connection, self._relation, header, query, k, chosen, lengths)

        return self._server.read(search)

    def scan(self, *, after: str | None = None, block: int = 4096) -> Iterator[PassageRows]:
        header = self.header
        return reading.scan(self._server, self._relation, header.fields, header.dim, after, block)

    def faults(self) -> list[str]:
        return self._server.read(lambda connection: broken_indexes(connection, self._relation))

    def compact(self, *, now: bool = False) -> None:
        """VACUUM and ANALYZE; above 20,000 passages the graph is built when it is not there or too old."""
        self._check_writable()
        compact(self._server, self._relation, self._header.dim, self._limits)
        self._forget()

    def stats(self) -> TableStats:
        return self._server.read(lambda connection: stats(connection, self._relation, self._header.dim))

    def close(self) -> None:
        self._server.close()

    def _filter(self, where: Condition | None) -> Filter:
        return filter_of(where, self._header.fields)

    def _change(self, work: Callable[[Connection], int]) -> int:
        self._check_writable()
        if not self._tidy:
            self._tidy = True
            self._server.write(_tidied)
        result = self._server.write(work)
        self._lengths.until = 0.0
        return result

    def _check_writable(self) -> None:
        if self._server.read_only:
            raise InputError(
                f"{self.location} was opened to read only: open it without read_only to change it"
            )

    def _fresh(
        self, cached: _Remembered, connection: Connection, read: Callable[[Connection, str], Any]
    ) -> Any:  # noqa: ANN401 - a Layout or Lengths, as `cached` is for
        # Without a lock: two threads may both read, and a fork could leave a lock locked forever.
        if time.monotonic() >= cached.until:
            cached.value, cached.until = read(connection, self._relation), time.monotonic() + _FRESH_S
        return cached.value

    def _forget(self) -> None:
        self._layout.until = self._lengths.until = 0.0


def _tidied(connection: Connection) -> int:
    writing.forget_old_tokens(connection)
    return 0
