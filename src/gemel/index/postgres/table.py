"""`PostgresTable`: passages on a server, safe for many threads and many processes at once."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.index.port import Count, FieldType, Header, PassageRows, Passages, TableStats
from gemel.index.postgres import rows as stored
from gemel.index.postgres.graph import CompactLimits, broken_indexes, compact, read_layout, stats
from gemel.index.postgres.schema import Filter, check_fields, filter_of, read_header
from gemel.index.postgres.search import GraphLayout, Lengths, NeighborQuery, by_words, nearest, read_lengths
from gemel.index.postgres.server import Connection, Server
from gemel.index.where import Condition
from gemel.types import Vectors

P = ParamSpec("P")

T = TypeVar("T")

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
        now = self._read(read_header)
        if now is None:
            raise WorkError(f"{self.location} was migrated or dropped meanwhile. Open the index again")
        self._header = now
        return now

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        check_fields(fields)
        self._change(stored.add_fields, fields)
        assert self.header is not None  # read again

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        return self._read(stored.digests, ids)

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
        blocks = stored.copy_blocks(rows, fields, self._header.words)
        self._change(stored.put, list(dict.fromkeys(rows.id)), blocks, fields, replace=replace)

    def delete(self, ids: Sequence[str]) -> int:
        self._check_writable()
        return self._change(stored.delete, ids) if ids else 0

    def delete_where(self, where: Condition) -> int:
        return self._change(stored.delete_where, self._filter(where))

    def get(self, ids: Sequence[str]) -> PassageRows:
        return self._read(stored.get, self._header, ids)

    def count(self, where: Condition | None = None) -> Count:
        return self._read(stored.count, self._filter(where))

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
        chosen = None if where is None else self._filter(where)
        question = NeighborQuery(self._relation, self._header, chosen, k)

        def search(connection: Connection) -> list[Passages]:
            layout = GraphLayout() if exact else self._fresh(self._layout, connection, read_layout)
            layout = layout.tuned_for(recall, far=far)
            return nearest(connection, queries, question, layout, self._limits.few)

        return self._server.read(search)

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        """BM25 as gemel.vectors.bm25 does it; `search.py` says what is approximate in large tables."""
        header, chosen = self._header, self._filter(where)

        def search(connection: Connection) -> Passages:
            lengths: Lengths = self._fresh(self._lengths, connection, read_lengths)
            return by_words(connection, self._relation, header, query, k, chosen, lengths)

        return self._server.read(search)

    def scan(self, *, after: str | None = None, block: int = 4096) -> Iterator[PassageRows]:
        return stored.scan(self._server, self._relation, self.header, after, block)

    def faults(self) -> list[str]:
        return self._read(broken_indexes)

    def compact(self, *, now: bool = False) -> None:
        """VACUUM and ANALYZE; above 20,000 passages the graph is built when it is not there or too old."""
        self._check_writable()
        compact(self._server, self._relation, self._header.dim, self._limits)
        self._layout.until = self._lengths.until = 0.0

    def stats(self) -> TableStats:
        return self._read(stats, self._header.dim)

    def close(self) -> None:
        self._server.close()

    def _filter(self, where: Condition | None) -> Filter:
        return filter_of(where, self._header.fields)

    def _read(
        self, work: Callable[Concatenate[Connection, str, P], T], *given: P.args, **named: P.kwargs
    ) -> T:
        return self._server.read(lambda connection: work(connection, self._relation, *given, **named))

    def _change(
        self, work: Callable[Concatenate[Connection, str, P], int], *given: P.args, **named: P.kwargs
    ) -> int:
        self._check_writable()
        if not self._tidy:
            self._tidy = True
            self._server.write(stored.forget_old_tokens)
        result = self._server.write(lambda connection: work(connection, self._relation, *given, **named))
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
