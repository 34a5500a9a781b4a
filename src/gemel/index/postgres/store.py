"""`PostgresStore` and `PostgresTable`: an index on a server, safe for many threads and many processes at once.

A store has the current table of the index and, while it is migrated, the next one.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Concatenate, ParamSpec, TypeVar

import numpy as np

from gemel.checkpoint.cache import cache_root
from gemel.errors import InputError, WorkError
from gemel.index.port import (
    AlreadyThere,
    Count,
    DocumentPassages,
    FieldType,
    FieldValue,
    Header,
    PassageRows,
    Passages,
    TableStats,
    no_dense_vectors,
)
from gemel.index.postgres import rows as stored
from gemel.index.postgres import schema as catalog
from gemel.index.postgres.graph import (
    CompactLimits,
    TokenCopy,
    broken_indexes,
    by_tokens,
    compact,
    read_layout,
    rebuild_indexes,
    stats,
)
from gemel.index.postgres.schema import Entry, Filter, check_fields, filter_of, lock_key, read_header
from gemel.index.postgres.search import (
    GraphLayout,
    Lengths,
    NeighborQuery,
    by_terms,
    by_words,
    nearest,
    read_lengths,
)
from gemel.index.postgres.server import (
    ColumnsChanged,
    Connection,
    Server,
    explained,
    let_go,
    parse_address,
)
from gemel.index.where import Condition
from gemel.types import Vectors

P = ParamSpec("P")

T = TypeVar("T")

_FRESH_S = 2.0  # what is known of the layout and of the lengths of texts; answers stay right when it is older

_of_parents: list[tuple[Connection, Connection]] = []


class PostgresStore:
    """A `Store` at postgresql://user:password@host:port/db#name."""

    def __init__(
        self,
        location: str,
        *,
        durable: bool = True,
        read_only: bool = False,
        limits: CompactLimits | None = None,
    ) -> None:
        """`durable` False: a write may be lost if the server crashes within the next moments, though never half."""
        self._address = parse_address(location)
        self._durable, self._read_only = durable, read_only
        self._limits = limits
        self._server = self._new_server()
        self._holding: Connection = None
        """A session that holds the lock of the next table."""
        self._alone: Connection = None
        """A session that keeps all others from writing."""
        self._process = os.getpid()

    @property
    def name(self) -> str:
        return self._address.shown

    def exists(self) -> bool:
        return self._find("current") is not None

    def open(self) -> PostgresTable:
        return self._table(self._current())

    def create(self, header: Header) -> PostgresTable:
        self._check_writable()
        with explained(self._address), self._server.session() as connection, connection.transaction():
            catalog.prepare(connection, self.name)
            connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock_key("create", self._address.name)])
            if catalog.find(connection, self._address.name, "current", self.name) is not None:
                raise AlreadyThere(
                    f"there is an index at {self.name} already. Open it, or choose another name"
                )
            entry = catalog.add(connection, self._address.name, "current", header)
        return self._table(entry)

    def begin(self, header: Header) -> PostgresTable:
        self._check_writable()
        connection = self._hold()
        name = self._address.name
        with explained(self._address), connection.transaction():
            entry = catalog.find(connection, name, "next", self.name)
            if entry is not None and not entry.header.same_vectors(header):
                catalog.drop(connection, entry.relation)
                entry = None
            if entry is None:
                entry = catalog.add(connection, name, "next", header)
        return self._table(entry)

    def switch(self) -> PostgresTable:
        entry = self._next_entry()
        name = self._address.name
        try:
            with explained(self._address), self._holding.transaction():
                old = catalog.find(self._holding, name, "current", self.name)
                if old is not None:
                    catalog.drop(self._holding, old.relation)
                self._holding.execute(
                    "UPDATE gemel.indexes SET state = 'current' WHERE relation = %s", [entry.relation]
                )
        except WorkError:
            current = self._find("current")  # the connection may have been lost after the commit
            if current is None or current.relation != entry.relation:
                raise
        self._release()
        return self._table(entry)

    def abandon(self) -> None:
        self._check_writable()
        connection = self._hold()
        try:
            with explained(self._address), connection.transaction():
                entry = catalog.find(connection, self._address.name, "next", self.name)
                if entry is not None:
                    catalog.drop(connection, entry.relation)
        finally:
            self._release()

    def drop(self) -> None:
        self._check_writable()
        self._current()
        connection = self._hold()
        try:
            with self.writing(), explained(self._address), connection.transaction():
                states: tuple[catalog.State, ...] = ("next", "current")
                for state in states:
                    entry = catalog.find(connection, self._address.name, state, self.name)
                    if entry is not None:
                        catalog.drop(connection, entry.relation)
        finally:
            self._release()

    def repair(self, table: str | None = None, header: Header | None = None) -> list[str]:
        """Rows are the server's own to keep; the indexes of the table are built again."""
        self._check_writable()
        entry = self._current()
        with explained(self._address), self._server.session() as connection:
            rebuild_indexes(connection, entry.relation)
        return ["built all indexes of the table again"]

    @contextmanager
    def writing(self) -> Iterator[None]:
        entry = self._current()
        with self._server.session() as connection:
            with explained(self._address):
                connection.execute("SELECT pg_advisory_lock(%s)", [lock_key("write", entry.relation)])
            self._alone = connection
            try:
                yield
            finally:
                self._alone = None

    def close(self) -> None:
        self._release()
        self._server.close()

    def _new_server(self) -> Server:
        return Server(self._address, durable=self._durable, read_only=self._read_only)

    def _table(self, entry: Entry) -> PostgresTable:
        return PostgresTable(self._new_server(), entry.relation, entry.header, self._limits)

    def _find(self, state: catalog.State) -> Entry | None:
        return self._server.read(
            lambda connection: catalog.find(connection, self._address.name, state, self.name)
        )

    def _current(self) -> Entry:
        entry = self._find("current")
        if entry is None:
            raise InputError(
                f"there is no index at {self.name}. Create it first, or check the name behind the #"
            )
        return entry

    def _next_entry(self) -> Entry:
        """The lock is the session's: were it lost, another process could be building the same table."""
        if self._holding is None or self._holding.closed:
            raise InputError("no next table was begun here, so there is none to switch to")
        with explained(self._address):
            if self._alone is None:
                raise InputError(
                    "switch is called inside writing(), so that no write gets lost between two tables"
                )
            self._alone.execute("SELECT 1")  # were it lost, others would be writing again
            entry = catalog.find(self._holding, self._address.name, "next", self.name)
        if entry is None:
            raise WorkError(f"the next table of {self.name} is gone. Begin the migration again")
        return entry

    def _notice_fork(self) -> None:
        """Sessions of the parent are the parent's: to use or close them here would break them there."""
        if self._process != os.getpid():
            self._process = os.getpid()
            _of_parents.append((self._holding, self._alone))
            self._holding = self._alone = None

    def _hold(self) -> Connection:
        self._notice_fork()
        if self._holding is not None and not self._holding.closed:
            return self._holding
        connection = self._server.connect()
        with explained(self._address):
            catalog.prepare(connection, self.name)
            taken = connection.execute(
                "SELECT pg_try_advisory_lock(%s)", [lock_key("next", self._address.name)]
            ).fetchone()[0]
        if not taken:
            connection.close()
            raise WorkError(f"another process is migrating {self.name}. Wait for it, or end it")
        self._holding = connection
        return connection

    def _release(self) -> None:
        self._notice_fork()
        if self._holding is not None:
            let_go(self._holding)
            self._holding = None

    def _check_writable(self) -> None:
        if self._read_only:
            raise InputError(f"{self.name} was opened to read only: open it without read_only to change it")


def locations_at(location: str) -> list[str]:
    """The addresses of the indexes in a database, with the secrets of `location`; of one, if that names one."""
    address = parse_address(location, named=False)
    server = Server(address, read_only=True)
    try:
        names = server.read(catalog.names)
    finally:
        server.close()
    return [f"{address.conninfo}#{name}" for name in names if address.name in ("", name)]


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

    @cached_property
    def _tokens(self) -> TokenCopy:
        """The vectors of tokens on this machine."""
        where = hashlib.sha256(self.location.encode()).hexdigest()[:24]
        folder = cache_root() / "indexes" / where / f"{self._relation}.late"
        return TokenCopy(folder, self._relation, self._header.kinds["late"])

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

    def remove_field(self, field: str, changed: Callable[[DocumentPassages], DocumentPassages]) -> int:
        count = self._change(stored.remove_field, field, changed)
        assert self.header is not None  # read again
        return count

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        return self._read(stored.digests, ids)

    def write(self, rows: PassageRows, *, replace: bool, expected: Mapping[str, str] | None = None) -> None:
        self._check_writable()
        if not len(rows):
            return
        fields = {name: kind for name, kind in self._header.fields.items() if name in rows.fields}
        if len(fields) < len(rows.fields):  # another handle added fields
            fields = {name: kind for name, kind in self.header.fields.items() if name in rows.fields}
        if self._header.dim and rows.vector.shape != (len(rows), self._header.dim):
            raise InputError(
                f"{self.location} holds vectors of {self._header.dim} numbers, not {rows.vector.shape}"
            )
        blocks = stored.copy_blocks(rows, self._header, fields)
        ids = list(dict.fromkeys(rows.id))
        self._change(stored.put, ids, blocks, self._header, fields, replace=replace, expected=expected)

    def delete(self, ids: Sequence[str]) -> int:
        self._check_writable()
        return self._change(stored.delete, ids) if ids else 0

    def delete_where(self, where: Condition) -> int:
        return self._change(stored.delete_where, self._filter(where))

    def get(self, ids: Sequence[str], *, kinds: bool = False) -> PassageRows:
        return self._with_header(lambda header: self._read(stored.get, header, ids, kinds=kinds))

    def count(self, where: Condition | None = None) -> Count:
        return self._read(stored.count, self._filter(where))

    def values(self, field: str, where: Condition | None = None) -> dict[FieldValue, int]:
        header, chosen = self.header, self._filter(where)
        return self._read(stored.values, header, field, chosen)

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
        if not self._header.dim:
            raise no_dense_vectors(self.location)
        if not len(queries):
            return []
        chosen = None if where is None else self._filter(where)

        def search(connection: Connection, header: Header) -> list[Passages]:
            question = NeighborQuery(self._relation, header, chosen, k)
            layout = GraphLayout() if exact else self._fresh(self._layout, connection, read_layout)
            layout = layout.tuned_for(recall, far=far)
            return nearest(connection, queries, question, layout, self._limits.few)

        return self._with_header(lambda header: self._server.read(partial(search, header=header)))

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        """BM25 as gemel.vectors.bm25 does it; `search.py` says what is approximate in large tables."""
        chosen = self._filter(where)

        def search(connection: Connection, header: Header) -> Passages:
            lengths: Lengths = self._fresh(self._lengths, connection, read_lengths)
            return by_words(connection, self._relation, header, query, k, chosen, lengths)

        return self._with_header(lambda header: self._server.read(partial(search, header=header)))

    def by_kind(
        self,
        kind: str,
        queries: Sequence[Any],
        k: int,
        *,
        where: Condition | None = None,
        exact: bool = False,
        recall: float | None = None,
    ) -> list[Passages]:
        """Weights of words are compared by the server, row by row; vectors of tokens here, see `TokenCopy`."""
        chosen = None if where is None else self._filter(where)

        def search(connection: Connection, header: Header) -> list[Passages]:
            question = NeighborQuery(self._relation, header, chosen, k)
            if kind == "late":
                few = self._limits.tokens
                return by_tokens(connection, queries, question, self._tokens, few, exact=exact, recall=recall)
            return [by_terms(connection, query, question) for query in queries]

        return self._with_header(lambda header: self._server.read(partial(search, header=header)))

    def scan(
        self,
        *,
        after: str | None = None,
        block: int = 4096,
        where: Condition | None = None,
        kinds: bool = False,
    ) -> Iterator[PassageRows]:
        chosen = self._filter(where)
        return stored.scan(self._server, self._relation, self.header, after, block, chosen, kinds=kinds)

    @contextmanager
    def frozen(self, block: int = 4096) -> Iterator[tuple[Header, Iterator[PassageRows]]]:
        address = self._server.address
        with explained(address), self._server.session() as connection, connection.transaction():
            connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY")
            header = read_header(connection, self._relation)
            if header is None:
                raise WorkError(f"{self.location} was migrated or dropped meanwhile. Open the index again")
            every = filter_of(None, {})
            yield header, stored.pages(connection, self._relation, header, block, every, kinds=True)

    def faults(self) -> list[str]:
        return self._read(broken_indexes)

    def compact(self, *, now: bool = False) -> None:
        """VACUUM and ANALYZE; above 20,000 passages the graph is built when it is not there or too old."""
        self._check_writable()
        compact(self._server, self._relation, self._header.dim, self._limits)
        self._layout.until = self._lengths.until = 0.0
        late = self._header.kinds.get("late")
        if late is not None:  # a search builds what it needs on this machine
            self.by_kind("late", [np.ones((1, late.dim), np.float32)], 1)

    def stats(self) -> TableStats:
        found = self._read(stats, self._header)
        built = self._tokens.built if "late" in self._header.kinds else None
        if built is not None:
            late = found.details["kinds"]["late"]
            late |= {"layout": "TokenIndex", "unindexed": max(0, found.passages - len(built.numbers))}
            late |= {} if built.searched.recall is None else {"recall": built.searched.recall}
        return found

    def close(self) -> None:
        self._server.close()

    def _with_header(self, work: Callable[[Header], T]) -> T:
        """`work` with the fields that this handle knows; again with the current ones if another process removed one."""
        try:
            return work(self._header)
        except ColumnsChanged:
            return work(self.header)

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
