"""`PostgresStore`: the current table of an index on a server, and the next one while it is migrated."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gemel.errors import InputError, WorkError
from gemel.index.port import AlreadyThere, Header
from gemel.index.postgres import schema as catalog
from gemel.index.postgres.graph import CompactLimits, rebuild_indexes
from gemel.index.postgres.schema import Entry, lock_key
from gemel.index.postgres.server import Connection, Server, explained, let_go, parse_address
from gemel.index.postgres.table import PostgresTable

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
        entry = self._find("current")
        if entry is None:
            raise InputError(
                f"there is no index at {self.name}. Create it first, or check the name behind the #"
            )
        return self._table(entry)

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
            if entry is not None and not _same(entry.header, header):
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

    def repair(self, table: str | None = None, header: Header | None = None) -> list[str]:
        """Rows are the server's own to keep; the indexes of the table are built again."""
        self._check_writable()
        entry = self._find("current")
        if entry is None:
            raise InputError(f"there is no index at {self.name}. Check the name behind the #")
        with explained(self._address), self._server.session() as connection:
            rebuild_indexes(connection, entry.relation)
        return ["built all indexes of the table again"]

    @contextmanager
    def writing(self) -> Iterator[None]:
        entry = self._find("current")
        if entry is None:
            raise InputError(f"there is no index at {self.name}. Create it first")
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


def _same(stored: Header, requested: Header) -> bool:
    same = stored.dim == requested.dim and dict(stored.bound) == dict(requested.bound)
    return same and stored.words == requested.words
