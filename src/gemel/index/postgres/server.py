"""Connections to one server: addresses, a pool, reads that survive a lost connection, writes that happen exactly once.

An address is `postgresql://user:password@host:port/db#name`; its secrets stay in this module. What is not in it libpq
takes from elsewhere: PGHOST, PGPASSWORD, ~/.pgpass, a service file. Errors of the server become gemel's.
"""

from __future__ import annotations

import logging
import os
import re
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from gemel.errors import GemelError, InputError, MissingExtra, WorkError

T = TypeVar("T")

Connection = Any  # psycopg.Connection; psycopg is loaded late

_AT_ONCE = 8  # connections of a pool

_PATIENCE_S = 15  # for a first connection, and for a free one in the pool

_PAUSES_S = (0.05, 0.2, 0.75)  # a server restarts in this time after the crash of one of its processes

_CROSSED = ("40P01", "40001")  # deadlock, serialization: rolled back by the server, so it may be tried again

_of_parents: list[Any] = []


class ColumnsChanged(WorkError):
    """A column that a statement names is gone: another process removed a field."""


class Server:
    """Safe to use from several threads. No connection is made before the first request."""

    def __init__(self, address: Address, *, durable: bool = True, read_only: bool = False) -> None:
        self.address = address
        self.read_only = read_only
        self._settings = {"client_min_messages": "error", "application_name": "gemel", "TimeZone": "UTC"}
        if not durable:
            self._settings["synchronous_commit"] = "off"
        if read_only:
            self._settings["default_transaction_read_only"] = "on"
        self._pool: Any = None
        self._lock = threading.Lock()
        self._process = os.getpid()

    def read(self, work: Callable[[Connection], T]) -> T:
        """`work` only reads; after a lost connection it is run once more on a fresh one.

        Each statement sees its own moment, unless `work` begins a transaction.
        """
        return self._twice(work, lambda _: nullcontext())

    def write(self, work: Callable[[Connection], int]) -> int:
        """`work` in one transaction, exactly once, also where the connection is lost while it commits.

        A token is written in the same transaction. The second try begins with the same token: if the first one
        committed, or is about to, the token exists (PostgreSQL waits for a transaction that has it) and its answer is
        returned; else nothing of it was or will be written, and the work is done now.
        """
        token, state = uuid.uuid4(), _State()

        def once(connection: Connection) -> int:
            state.committing = False
            new = "INSERT INTO gemel.writes (token) VALUES (%s) ON CONFLICT DO NOTHING RETURNING token"
            if connection.execute(new, [token]).fetchone() is None:
                done = connection.execute("SELECT result FROM gemel.writes WHERE token = %s", [token])
                return int(done.fetchone()[0])
            result = work(connection)
            if result:
                connection.execute("UPDATE gemel.writes SET result = %s WHERE token = %s", [result, token])
            state.committing = True
            return result

        return self._twice(once, lambda connection: connection.transaction(), state)

    @contextmanager
    def session(self) -> Iterator[Connection]:
        """A connection of its own, outside the pool, each statement its own transaction: for locks and long work."""
        connection = self.connect()
        try:
            yield connection
        finally:
            let_go(connection)

    def connect(self) -> Connection:
        """A fresh connection, or a WorkError that says why there is none."""
        psycopg = load_psycopg()
        try:
            connection = psycopg.connect(self.address.conninfo, **_arguments())
            self._prepare(connection)
        except psycopg.Error as error:
            raise unreachable(error, self.address) from None
        return connection

    def close(self) -> None:
        self._notice_fork()
        with self._lock:
            pool, self._pool = self._pool, None
        if pool is not None:
            pool.close()

    def _twice(
        self,
        work: Callable[[Connection], T],
        around: Callable[[Connection], Any],
        state: _State | None = None,
    ) -> T:
        psycopg = load_psycopg()
        for attempt in range(4):
            connection = None
            try:
                with self._pooled() as connection, around(connection):
                    return work(connection)
            except psycopg.Error as error:
                lost = connection is None or connection.closed
                if not lost and not (error.sqlstate in _CROSSED and attempt < 3):
                    raise explain(error, self.address) from error
                if lost:
                    break
        return self._afresh(work, around, state)

    def _afresh(
        self, work: Callable[[Connection], T], around: Callable[[Connection], Any], state: _State | None
    ) -> T:
        """The second try, after a lost connection: the pool is thrown away, as its other connections are lost too."""
        psycopg = load_psycopg()
        self.close()
        connection = self._connect_patiently(state)
        try:
            with around(connection):
                return work(connection)
        except psycopg.Error as error:
            if connection.closed:
                raise self._gone(error, state) from error
            raise explain(error, self.address) from error
        finally:
            connection.close()

    def _connect_patiently(self, state: _State | None) -> Connection:
        for pause in _PAUSES_S:
            try:
                return self.connect()
            except WorkError:
                time.sleep(pause)
        try:
            return self.connect()
        except WorkError as error:
            raise self._gone(error, state) from error

    def _gone(self, error: Exception, state: _State | None) -> WorkError:
        if state is not None and state.committing:
            return WorkError(
                f"the connection to {self.address.shown} was lost while a write was committed and the server does not "
                "answer: all of that write is there or nothing of it. Write it again with existing='replace'"
            )
        if isinstance(error, WorkError):
            return error
        return unreachable(error, self.address)

    @contextmanager
    def _pooled(self) -> Iterator[Connection]:
        from psycopg_pool import PoolTimeout

        try:
            with self._opened().connection(timeout=_PATIENCE_S) as connection:
                yield connection
        except PoolTimeout:
            raise WorkError(
                f"no connection to {self.address.shown} came free in {_PATIENCE_S} s: "
                f"the server does not answer, or more than {_AT_ONCE} requests wait for one another"
            ) from None

    def _opened(self) -> Any:  # noqa: ANN401
        from psycopg_pool import ConnectionPool

        self._notice_fork()
        with self._lock:
            if self._pool is None:
                self.connect().close()  # says why at once, where a pool would only say that it took too long
                logging.getLogger("psycopg.pool").addHandler(
                    logging.NullHandler()
                )  # we say it in our own words
                self._pool = ConnectionPool(
                    self.address.conninfo,
                    kwargs=_arguments(),
                    min_size=1,
                    max_size=_AT_ONCE,
                    open=True,
                    configure=self._prepare,
                    num_workers=1,
                    reconnect_timeout=5,
                    name="gemel",
                )
            return self._pool

    def _notice_fork(self) -> None:
        """A forked child has connections of its own: two processes cannot share one."""
        if self._process != os.getpid():
            _of_parents.append(self._pool)  # closing it would end the connections of the parent
            self._process, self._pool, self._lock = os.getpid(), None, threading.Lock()

    def _prepare(self, connection: Connection) -> None:
        calls = ", ".join("set_config(%s, %s, false)" for _ in self._settings)
        connection.execute(f"SELECT {calls}", [part for pair in self._settings.items() for part in pair])


def let_go(connection: Connection) -> None:
    """End a session with its locks gone before this returns; a closed connection alone frees them some time later."""
    psycopg = load_psycopg()
    idle = psycopg.pq.TransactionStatus.IDLE
    if not connection.closed and connection.info.transaction_status == idle:
        with suppress(psycopg.Error):  # the server is away, and the locks with it
            connection.execute("SELECT pg_advisory_unlock_all()")
    connection.close()


class _State:
    """How far a write has come."""

    committing = False


def _arguments() -> dict[str, Any]:
    # Nothing is prepared: a plan that is right for one condition is wrong for another, and poolers stay possible.
    return {
        "autocommit": True,
        "client_encoding": "utf8",
        "connect_timeout": _PATIENCE_S,
        "prepare_threshold": None,
    }


SCHEMES = ("postgresql", "postgres")

_NAME = re.compile(r"[a-z0-9_-]{1,40}")

_SECRET = {"password", "sslpassword", "passfile", "oauth_client_secret"}

_HOST = re.compile(r"(\[[^\]]*\]|[^:\[\]]*)(:\d*)?")

_FORM = "postgresql://user:password@host:port/db#name"

_UNREADABLE = (
    f"PostgreSQL cannot read this address; its form is {_FORM}, and in user and password "
    "the characters : / ? # [ ] @ % are written as %3A %2F %3F %23 %5B %5D %40 %25"
)


@dataclass(frozen=True)
class Address:
    """A server, a database in it, and the name of an index in that."""

    name: str
    shown: str
    """The whole address without secrets, for people."""
    conninfo: str = field(repr=False)
    """For libpq, secrets included: never shown."""
    secrets: tuple[str, ...] = field(repr=False)


def parse_address(location: str, *, named: bool = True) -> Address:
    """Checks the form only; no connection is made. No part of a wrong address is quoted: it may hold a password.

    `named` False: the name of an index may be missing.
    """
    url, _, name = location.rpartition("#") if "#" in location else (location, "", "")
    parts = urlsplit(url)
    if parts.scheme not in SCHEMES:
        raise InputError(f"not an address of PostgreSQL: it begins with {SCHEMES[0]}:// as in {_FORM}")
    hosts = parts.netloc.rpartition("@")[2].split(",")
    if (
        "@" in parts.fragment + parts.path
        or parts.netloc.count("@") > 1
        or not all(map(_HOST.fullmatch, hosts))
    ):
        raise InputError(_UNREADABLE)
    options = parse_qsl(parts.query, keep_blank_values=True)
    shown = _without_secrets(parts.netloc, parts.path, options)
    if not name and named:
        raise InputError(f"{shown} names no index: write its name behind a #, as in {_FORM}")
    if name and not _NAME.fullmatch(name):
        raise InputError(
            f"the name behind the # of {shown} is not one: 1 to 40 of the characters a-z, 0-9, _ and -"
        )
    secrets = [value for key, value in options if key in _SECRET]
    return Address(
        name, f"{shown}#{name}" if name else shown, url, tuple(filter(None, [*secrets, _password(url)]))
    )


def _without_secrets(netloc: str, path: str, options: list[tuple[str, str]]) -> str:
    user, at, host = netloc.rpartition("@")
    query = urlencode(
        [(key, value) for key, value in options if key not in _SECRET], quote_via=quote, safe="/"
    )
    return f"postgresql://{user.partition(':')[0]}{at}{host}{path}{'?' if query else ''}{query}"


def _password(url: str) -> str | None:
    """As libpq reads it; a form that libpq refuses is refused here, without its words: they quote the address."""
    psycopg = load_psycopg()
    try:
        settings = psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise InputError(_UNREADABLE) from None
    password = settings.get("password")
    return None if password is None else str(password)


def load_psycopg() -> Any:  # noqa: ANN401 - the module; it has no stubs here
    """With all that an index needs of it, or the line that installs it."""
    try:
        import psycopg
        import psycopg.conninfo
        import psycopg_pool  # noqa: F401
    except ImportError as error:
        raise MissingExtra("an index on PostgreSQL", "psycopg", "postgres") from error
    return psycopg


_MESSAGES = {
    "42P01": "its table is gone: the index was migrated or dropped by another process. Open the index again",
    "42703": "a column is gone or new: another process changed the fields. Open the index again",
    "42501": "this user may not do it: {why}. Ask the owner of the database for the right",
    "53100": "the disk of the server is full, so nothing was changed: {why}",
    "53200": "the server is out of memory, so nothing was changed: {why}",
    "25006": "the server or this connection is read-only, so nothing was changed",
    "57014": "the server stopped the request, so nothing was changed: {why}",
}

_WRONG = {
    "54000": "a value is too large for PostgreSQL, so nothing was written: {why}. Ids hold about 2,700 bytes",
    "23505": "an id is there twice, so nothing was written: {why}",
}


def explain(error: Any, address: Address) -> GemelError:  # noqa: ANN401 - psycopg is loaded late
    """The same trouble as a WorkError or InputError that names the index and never a password."""
    why = server_message(error, address)
    if error.sqlstate in _WRONG:
        return InputError(f"{address.shown}: {_WRONG[error.sqlstate].format(why=why)}")
    message = _MESSAGES.get(error.sqlstate, "{why}").format(why=why)
    kind = ColumnsChanged if error.sqlstate == "42703" else WorkError
    return kind(f"{address.shown}: {message}")


def unreachable(error: Any, address: Address) -> WorkError:  # noqa: ANN401
    return WorkError(
        f"cannot reach the server of {address.shown}: {server_message(error, address)}. Nothing was changed. "
        "Is it running, and are host, user and password right?"
    )


def server_message(error: Any, address: Address) -> str:  # noqa: ANN401
    """The words of the server in one line, without secrets."""
    words = " ".join((getattr(error.diag, "message_primary", None) or str(error)).split())
    for secret in address.secrets:
        words = words.replace(secret, "***")
    return words.rstrip(".") or type(error).__name__


@contextmanager
def explained(address: Address) -> Iterator[None]:
    """Errors of psycopg that pass through become gemel's."""
    from psycopg import Error

    try:
        yield
    except Error as error:
        raise explain(error, address) from error
