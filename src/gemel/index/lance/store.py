"""`LanceStore`: a folder (or bucket) with the current table of an index and, during a migration, the next one.

notes/
  index.json      which table is the current one
  rows-1.lance/   the table: a Lance dataset, the header in its schema
  cache/          built for search; may be deleted
  lock, next.lock locked by the process that writes, and by the one that migrates
"""

from __future__ import annotations

import os
import secrets
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from gemel.errors import GemelError, InputError, MissingExtra, WorkError
from gemel.files.atomic import SharedLock, lock, sync
from gemel.index.lance import versions
from gemel.index.lance.location import Bucket, Folder, NoPointer, Pointer
from gemel.index.lance.recovery import RecoveredWarning, Synced, open_dataset
from gemel.index.lance.search import MANY
from gemel.index.lance.snapshot import LARGE
from gemel.index.lance.table import LanceTable
from gemel.index.lance.versions import Versions, described, restore_header
from gemel.index.port import AlreadyThere, Header

_of_parents: list[ExitStack] = []
"""Locks of the process that this one was forked from; kept, so that they are not released here."""


class LanceStore:
    """A `Store` of Lance tables."""

    def __init__(
        self,
        location: str | Path,
        *,
        durable: bool = True,
        read_only: bool = False,
        large: int = LARGE,
        many: int = MANY,
    ) -> None:
        """`durable` False: a write is acknowledged before it is on disk. `large`, `many`: see `LanceTable`."""
        if find_spec("lance") is None:  # without importing it: a search may not need it
            raise MissingExtra("an index in a folder", "pylance", "index")
        self._files: Folder | Bucket = (
            Bucket(str(location)) if "://" in str(location) else Folder(str(location))
        )
        self._folder = self._files.path if isinstance(self._files, Folder) else None
        self._bucket = self._files if isinstance(self._files, Bucket) else None
        self._durable, self._read_only = durable, read_only
        self._large, self._many = large, many
        self._begin_process()

    def _begin_process(self) -> None:
        """Start without locks. A forked child does so too: the locks of its parent stay with the parent."""
        self._process = os.getpid()
        self._here = threading.RLock()
        """In a bucket, threads wait for one another; other processes are noticed when a commit conflicts."""
        self._token = secrets.token_hex(8)
        self._building = ExitStack()
        self._next: LanceTable | None = None
        self._next_lock = threading.Lock()
        self._owner: int | None = None

    def _notice_fork(self) -> None:
        if self._process != os.getpid():
            _of_parents.append(self._building)
            self._begin_process()

    @property
    def name(self) -> str:
        return self._files.name

    def exists(self) -> bool:
        return self._files.read() is not None

    def open(self) -> LanceTable:
        return self._table(self._pointer())

    def create(self, header: Header) -> LanceTable:
        self._check_writable()
        if self._files.read() is not None:
            raise AlreadyThere(f"there is an index at {self.name} already. Open it, or name another location")
        self._files.prepare()
        with self._alone():
            first = Pointer(1)
            self._check_absent()
            if self._bucket is None:
                self._files.drop(first.table)  # of a process that died
            try:
                self._begin(first, header)
            except WorkError:  # no lock in a bucket: Lance lets one of two begin
                self._check_absent()
                raise
            self._files.write(first)
            if self._folder is not None and self._durable:
                sync(self._folder.parent)
        return self._table(first)

    def adopt(self, table: LanceTable) -> None:
        """Make an index of a copy of a table in another folder; AlreadyThere if there is one."""
        self._check_writable()
        self._files.prepare()
        with self._alone():
            self._check_absent()
            table.clone(self._files.uri(Pointer(1).table))
            self._files.write(Pointer(1))

    @property
    def folder(self) -> Path | None:
        """None: it is in a bucket."""
        return self._folder

    def begin(self, header: Header) -> LanceTable:
        self._check_writable()
        self._notice_fork()
        coming = self._pointer().next
        if self._next is None:
            self._lock_next(coming)
        try:
            if not self._can_resume(coming, header):
                self._files.drop(coming.table)
                self._begin(coming, header)
            self._claim(coming)
            self._next = self._table(coming)
        except BaseException:
            self._next = None
            self._building.close()
            raise
        return self._next

    def switch(self) -> LanceTable:
        if self._next is None:
            raise WorkError(f"no migration of {self.name} is under way in this process. Begin one first")
        pointer = self._pointer()
        if self._folder is not None and self._durable:
            Synced(Path(self._files.uri(pointer.next.table))).catch_up()
        self._mark_moved(pointer)
        self._files.write(pointer.next)
        self._next = None
        self._building.close()
        self._files.drop(pointer.table)
        return self._table(pointer.next)

    def abandon(self) -> None:
        self._check_writable()
        self._notice_fork()
        coming = self._pointer().next
        if self._next is None:
            self._lock_next(coming)
        self._next = None
        try:
            self._files.drop(coming.table)
        finally:
            self._building.close()

    def drop(self) -> None:
        """All that gemel wrote but the lock, which others may be waiting for; other files in the folder stay."""
        self._check_writable()
        self._notice_fork()
        if not isinstance(self._files, Folder):
            raise InputError(
                f"gemel does not delete an index in a bucket. Delete everything below {self.name} with your "
                "provider's tools"
            )
        pointer = self._pointer()
        with self._alone():
            if self._next is None:
                self._lock_next(pointer.next)
            self._next = None
            readers = SharedLock(self._files.readers(pointer.table))
            try:
                with readers.alone() as only:
                    if not only:
                        raise WorkError(
                            f"the index {self.name} is open, here or in another process. Close it, then drop it"
                        )
                    self._files.remove()
            finally:
                readers.close()
                self._building.close()

    @contextmanager
    def writing(self) -> Iterator[None]:
        self._check_writable()
        with self._alone(), self._exclusive():
            yield

    def repair(self, table: str | None = None, header: Header | None = None) -> list[str]:
        """Find the table again if index.json is lost, drop what cannot be read, rebuild what can be built.

        table: which one, if there are several. header: for a table that has lost its own. Returns what was done; empty:
        nothing was damaged. No table is deleted; those not chosen are moved to `damaged`.
        """
        self._check_writable()
        if self._folder is not None and not self._folder.is_dir():
            raise InputError(f"there is no index at {self.name}, and no folder")
        with self._alone():
            pointer, done = self._found(table)
            if header is not None:
                done += restore_header(self._files.uri(pointer.table), header)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RecoveredWarning)  # what was done is returned
                opened = self._table(pointer)
            try:
                if done:
                    self._files.write(pointer)
                return done + opened.repair()
            finally:
                opened.close()

    def _found(self, table: str | None) -> tuple[Pointer, list[str]]:
        """The current table, and what was done to find it."""
        try:
            pointer = self._files.read()
            if pointer is None:
                raise InputError(f"there is no index at {self.name}, and no table of one")
            if table in (None, pointer.table) and self._files.has(pointer.table):
                return pointer, []
        except NoPointer:
            pass
        tables = self._files.tables()
        if table is None and len(tables) == 1:
            table = tables[0]
        if table not in tables:
            about = [f"{each}: {described(self._files.uri(each), self._options)}" for each in tables]
            raise InputError(
                f"{self.name} has the tables {', '.join(tables) or 'none'}: {'; '.join(about)}. "
                "Name the one to keep: --table (table=)"
            )
        pointer = Pointer.of(table)
        assert pointer is not None
        done = [f"wrote index.json again: {table} is the current table"]
        if isinstance(self._files, Folder):
            done += self._files.set_aside([other for other in tables if other != table])
        return pointer, done

    @property
    def _options(self) -> dict[str, str] | None:
        return self._bucket.options if self._bucket is not None else None

    def close(self) -> None:
        self._notice_fork()
        self._next = None
        self._building.close()

    def _pointer(self) -> Pointer:
        found = self._files.read()
        if found is None:
            raise InputError(f"there is no index at {self.name}. Create one: gemel index create {self.name}")
        return found

    def _table(self, pointer: Pointer) -> LanceTable:
        return LanceTable(
            self._files.uri(pointer.table),
            self.name,
            guard=lambda: self._guard(pointer),
            cache=self._files.cache,
            options=self._options,
            readers=self._files.readers(pointer.table) if isinstance(self._files, Folder) else None,
            durable=self._durable,
            read_only=self._read_only,
            large=self._large,
            many=self._many,
        )

    @contextmanager
    def _guard(self, pointer: Pointer) -> Iterator[None]:
        """The lock of a table while it writes."""
        self._notice_fork()
        self._check_writable()
        if self._next is not None and self._pointer().next == pointer:
            with self._next_lock:  # `begin` keeps other processes out
                yield
            return
        with self._alone():
            # A table in a bucket records itself when it was replaced, and every commit checks that.
            if self._bucket is None and self._files.read() != pointer:
                raise WorkError(
                    f"the index {self.name} was migrated to another model meanwhile. Open it again, then repeat this"
                )
            yield

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """No other thread or process writes inside the block; reentrant."""
        self._notice_fork()
        me = threading.get_ident()
        if self._folder is None:
            with self._here:
                yield
            return
        if self._owner == me:
            yield
            return
        with lock(self._folder / "lock"):
            self._owner = me
            try:
                yield
            finally:
                self._owner = None

    def _exclusive(self) -> AbstractContextManager[None]:
        """In a bucket, other processes are kept out by an entry in the table."""
        if self._bucket is None:
            return nullcontext()
        return versions.exclusive(self._opened(self._pointer()), self.name, self._token)

    def _opened(self, pointer: Pointer) -> Callable[[], Any]:
        """Opens the newest version of a table in a bucket."""
        assert self._bucket is not None
        uri, options = self._bucket.uri(pointer.table), self._bucket.options
        return lambda: open_dataset(uri, options)

    def _lock_next(self, coming: Pointer) -> None:
        if self._folder is None:
            if self._files.has(coming.table):
                self._claim(coming)
            return
        locked: AbstractContextManager[bool] = lock(self._folder / "next.lock", wait=False)
        if not self._building.enter_context(locked):
            self._building.close()
            raise WorkError(f"another process is migrating {self.name}. Wait for it, or stop it")

    def _claim(self, coming: Pointer) -> None:
        if self._bucket is not None:
            opened = self._opened(coming)
            versions.claim(opened, self.name, self._token)
            self._building.callback(versions.release, opened, self._token)

    def _mark_moved(self, pointer: Pointer) -> None:
        if self._bucket is None:
            return
        if not versions.builds(self._opened(pointer.next)(), self._token):
            raise WorkError(f"another process took over the migration of {self.name}. Nothing was switched")
        versions.move(self._opened(pointer), self.name, self._token, pointer.next.current)

    def _can_resume(self, pointer: Pointer, header: Header) -> bool:
        """Whether an unfinished table for the same model can be resumed."""
        if not self._files.has(pointer.table):
            return False
        with suppress(GemelError):
            return self._table(pointer).header.same_vectors(header)
        return False

    def _begin(self, pointer: Pointer, header: Header) -> None:
        uri = self._files.uri(pointer.table)
        Versions.create(uri, header, self._options)
        if self._folder is not None and self._durable:
            Synced(Path(uri)).catch_up()
            sync(self._folder)

    def _check_absent(self) -> None:
        if self._files.read() is not None:
            raise AlreadyThere(
                f"there is an index at {self.name} already: another process was faster. Open it"
            )

    def _check_writable(self) -> None:
        if self._read_only:
            raise InputError(
                f"the index {self.name} was opened to read only. Open it without read_only to write"
            )
