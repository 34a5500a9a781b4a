"""One job per folder: a lock between threads and processes that the system drops when its holder dies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemel.errors import InputError, WorkError

LOCK = ".lock"


@contextmanager
def locked(folder: Path, busy: str) -> Iterator[None]:
    """Alone in `folder`; `busy` is the error where another job is in it. Afterwards the lock's file is gone.

    A killed job leaves its file behind, but not its lock, so it never blocks the next one. Windows has no such locks:
    there nothing keeps two jobs apart.
    """
    if sys.platform == "win32":
        yield
        return
    path = folder / LOCK
    while True:
        try:
            handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        except OSError as error:
            raise WorkError(
                f"cannot write to {folder}: {error.strerror or error}. Make room or fix the folder, then run the same "
                "again"
            ) from error
        try:
            _lock(handle, folder, busy)
            if not _same_file(handle, path):  # its holder removed it between our open and our lock
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            os.close(handle)


def _lock(handle: int, folder: Path, busy: str) -> None:
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
