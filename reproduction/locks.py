"""Locks for commands that run at the same time: one waits for what the other is making and then uses it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from reproduction.parts import Folders


@contextmanager
def alone(folders: Folders, name: str) -> Iterator[None]:
    """One process at a time; the system releases the lock when a process dies."""
    import fcntl

    path = Path(folders.work) / "locks" / f"{name.replace('/', '_')}.lock"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        yield
