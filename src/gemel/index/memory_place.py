"""A place in this process's memory: the current table and the one that a migration builds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from gemel.errors import InputError, WorkError
from gemel.index.memory import MemoryTable
from gemel.index.port import AlreadyThere, Header

_FIRST = "no index is in this memory yet. Create one first"


class MemoryPlace:
    """A `Place` that is its own handle: who shares the object shares the index."""

    name = ":memory:"

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._current: MemoryTable | None = None
        self._next: MemoryTable | None = None

    def exists(self) -> bool:
        return self._current is not None

    def open(self) -> MemoryTable:
        if self._current is None:
            raise InputError(_FIRST)
        return self._current

    def create(self, header: Header) -> MemoryTable:
        with self._lock:
            if self._current is not None:
                raise AlreadyThere("an index is in this memory already. Open it instead")
            self._current = self._table(header)
            return self._current

    def begin(self, header: Header) -> MemoryTable:
        with self._lock:
            there = self._next
            if there is None or (there.header.dim, there.header.bound) != (header.dim, header.bound):
                self._next = self._table(header)
            assert self._next is not None
            return self._next

    def switch(self) -> MemoryTable:
        with self._lock:
            if self._next is None:
                raise InputError("no next table was begun, so there is none to switch to")
            self._current, self._next = self._next, None
            return self._current

    def abandon(self) -> None:
        with self._lock:
            self._next = None

    def repair(self, table: str | None = None, header: Header | None = None) -> list[str]:
        """There is nothing that could be damaged."""
        return []

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._lock:
            yield

    def close(self) -> None:
        """Nothing is held; the index stays as long as this object."""

    def _table(self, header: Header) -> MemoryTable:
        """A table that refuses to be written to once it was replaced or dropped."""

        @contextmanager
        def guard() -> Iterator[None]:
            with self._lock:
                if table is not self._current and table is not self._next:
                    raise WorkError("the index was migrated meanwhile, nothing was written. Open it again")
                yield

        table = MemoryTable(header, guard)
        return table
