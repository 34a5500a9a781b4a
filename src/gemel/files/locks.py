"""Locks between threads and processes, on files. The system releases a lock when its process dies.

A forked child closes its copies of the locks of its parent, which would otherwise keep them alive.
"""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemel.errors import InputError, WorkError

LOCK = ".lock"


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Exclusive use of the file `path`; yields False if another holder has it and `wait` is False."""
    import fcntl

    try:
        held = _Lock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise WorkError(f"cannot write to {path.parent}: {error.strerror}. Check rights and space") from error
    try:
        try:
            fcntl.flock(held.handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        held.release()


@contextmanager
def lock_folder(folder: Path, busy: str) -> Iterator[None]:
    """Exclusive use of a folder by one job; `busy` is the error if another job has it. Its lock file is removed.

    A killed job leaves its file behind, but not its lock, so it never blocks the next one. Windows has no such locks:
    there two jobs can use one folder.
    """
    if sys.platform == "win32":
        yield
        return
    path = folder / LOCK
    while True:
        try:
            held = _Lock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            raise WorkError(
                f"cannot write to {folder}: {error.strerror or error}. Make room or fix the folder, then run the same "
                "again"
            ) from error
        try:
            _lock_now(held.handle, folder, busy)
            if not _same_file(held.handle, path):  # its holder removed it between our open and our lock
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            held.release()


def _lock_now(handle: int, folder: Path, busy: str) -> None:
    import fcntl  # not on Windows

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(busy) from error
    except OSError as error:
        raise WorkError(f"cannot lock {folder}: {error.strerror}. Choose a folder on a local disk") from error


def _same_file(handle: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(handle), path.stat())
    except FileNotFoundError:
        return False


class SharedLock:
    """A lock that any number of readers hold together; `alone` asks for the exclusive one.

    Released by `close`, when the object is deleted, or when the process dies. If the file can neither be created nor
    opened (a read-only folder without one), nothing is locked.
    """

    def __init__(self, path: Path) -> None:
        import fcntl

        handle = _open_shared(path)
        self._lock: _Lock | None = None
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_SH)
            self._lock = _Lock(handle)
            weakref.finalize(self, self._lock.release)

    def close(self) -> None:
        if self._lock is not None:
            self._lock.release()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """True: no other reader exists, in this or another process, and none can begin until the block ends."""
        import fcntl

        held = self._lock
        if held is None or held not in _all_locks:
            yield False
            return
        try:
            fcntl.flock(held.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(held.handle, fcntl.LOCK_SH)  # the attempt may have released the shared lock
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(held.handle, fcntl.LOCK_SH)


def _open_shared(path: Path) -> int | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError:
            continue
    return None


class _Lock:
    """An open file with a lock on it. A forked child closes its copy at once; the parent unlocks explicitly."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        _all_locks.add(self)

    def release(self) -> None:
        import fcntl

        if self in _all_locks:
            _all_locks.discard(self)
            try:
                fcntl.flock(self.handle, fcntl.LOCK_UN)
            except OSError:  # a file system without locks
                pass
            finally:
                os.close(self.handle)


_all_locks: set[_Lock] = set()


def _close_locks_of_the_parent() -> None:
    for held in _all_locks:
        os.close(held.handle)
    _all_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_of_the_parent)
