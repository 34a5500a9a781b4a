"""Atomic files and folders: data is written under a temporary name and synced, then renamed, then the folder is synced.

After a crash a file has its old content or the new one, and a folder is complete or absent. For jobs that can be
resumed there are growing files: `name.part` until they are finished. Locks between threads and processes are files
too: the system releases one when its process dies, and a forked child closes its copies of those of its parent.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import uuid
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from gemel.errors import InputError, WorkError

START_AGAIN = "Choose another folder (-o), or start again with overwrite (--overwrite)"


@contextmanager
def atomic_file(path: Path, *, exclusive: bool = False) -> Iterator[Path]:
    """A temporary path to write to, in the same folder; it becomes `path`, synced, when the block ends without error.

    `exclusive`: no other process writes this file, so its temporary name can be the same each time (`name.tmp`) and a
    killed process leaves at most one. Otherwise the name is random, so nobody can prepare a link there.
    """
    name = f"{path.name}.tmp" if exclusive else f".{path.name}.{uuid.uuid4().hex}.part"
    temporary = path.with_name(name)
    try:
        yield temporary
        sync(temporary)
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    sync(path.parent)


def write_atomic(path: Path, content: bytes | str | Mapping[str, Any], *, exclusive: bool = False) -> None:
    """Write bytes, text as UTF-8, or a mapping as JSON; see `atomic_file`."""
    if isinstance(content, Mapping):
        content = json.dumps(content, indent=2) + "\n"
    data = content.encode("utf-8", "replace") if isinstance(content, str) else content
    with atomic_file(path, exclusive=exclusive) as temporary:
        temporary.write_bytes(data)


@contextmanager
def atomic_folder(target: Path) -> Iterator[Path]:
    """An empty folder to fill; it replaces `target` when the block ends without error."""
    working = target.with_name(f".{target.name}.{uuid.uuid4().hex}.part")
    try:
        working.mkdir(parents=True)
        yield working
        sync_tree(working)
        _replace_folder(working, target)
    except OSError as error:
        raise WorkError(f"cannot save the model in {target}: {error}") from error
    finally:
        shutil.rmtree(working, ignore_errors=True)


def _replace_folder(working: Path, target: Path) -> None:
    if not target.exists():
        working.rename(target)
        return
    old = target.with_name(f".{target.name}.{uuid.uuid4().hex}.old")
    target.rename(old)
    try:
        working.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def write_json(path: Path, content: object) -> None:
    """A readable JSON file, for use inside `atomic_folder`; the folder of `path` is created."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def append(path: Path, at: int, data: bytes) -> int:
    """Write `data` at byte `at` of the growing file `path`, cut off what follows, sync; returns the new size.

    What is before `at` was synced earlier; what is behind it was written by a run that died before recording it.
    """
    growing = part(path)
    with growing.open("r+b" if growing.exists() else "xb") as file:
        _cut(file, at)
        file.seek(at)
        file.write(data)
        sync_open(file)
    if at == 0:
        sync(path.parent)
    return at + len(data)


def finish_part(path: Path, size: int, head: bytes) -> None:
    """Give a growing file its final length, its first bytes and its final name."""
    with part(path).open("r+b") as file:
        _cut(file, size)
        file.write(head)
        sync_open(file)
    part(path).replace(path)
    sync(path.parent)


def reopen_part(path: Path) -> None:
    """Undo `finish_part`, for a run that died between it and the end of the job."""
    if path.exists() and not part(path).exists():
        path.replace(part(path))


def part(path: Path) -> Path:
    """The name of a growing file until it is finished."""
    return path.with_name(path.name + ".part")


def _cut(file: BinaryIO, size: int) -> None:
    if os.fstat(file.fileno()).st_size < size:
        raise InputError(f"{file.name} is shorter than recorded: the folder is damaged. {START_AGAIN}")
    file.truncate(size)


def sync(path: Path) -> None:
    """Wait until the bytes of a file, or the names in a folder, are on disk."""
    if path.is_dir() and os.name == "nt":
        return  # Windows cannot open folders
    # Windows syncs only files that are open for writing.
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_open(file: IO[Any]) -> None:
    """Wait until everything written to an open file is on disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_tree(folder: Path) -> None:
    """Wait until a folder with all its files and folders is on disk."""
    for path in (*folder.rglob("*"), folder):
        sync(path)


def sha256_of(path: Path) -> str:
    """The SHA-256 of a file, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


LOCK = ".lock"


@contextmanager
def lock(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Exclusive use of the file `path`; yields False if another holder has it and `wait` is False."""
    import fcntl

    try:
        acquired = _Lock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666))
    except OSError as error:
        raise WorkError(
            f"cannot write to {path.parent}: {error.strerror}. Check rights and space", code="GEM-104"
        ) from error
    try:
        try:
            fcntl.flock(acquired.handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        acquired.release()


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
            acquired = _Lock(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644))
        except OSError as error:
            raise WorkError(
                f"cannot write to {folder}: {error.strerror or error}. Make room or fix the folder, then run the same "
                "again",
                code="GEM-104",
            ) from error
        try:
            _lock_now(acquired.handle, folder, busy)
            if not _same_file(acquired.handle, path):  # its holder removed it between our open and our lock
                continue
            try:
                yield
            finally:
                path.unlink(missing_ok=True)
            return
        finally:
            acquired.release()


def _lock_now(handle: int, folder: Path, busy: str) -> None:
    import fcntl  # not on Windows

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise InputError(busy, code="GEM-308") from error
    except OSError as error:
        raise WorkError(
            f"cannot lock {folder}: {error.strerror}. Choose a folder on a local disk", code="GEM-104"
        ) from error


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

        acquired = self._lock
        if acquired is None or acquired not in _all_locks:
            yield False
            return
        try:
            fcntl.flock(acquired.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(acquired.handle, fcntl.LOCK_SH)  # the attempt may have released the shared lock
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(acquired.handle, fcntl.LOCK_SH)


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
    for acquired in _all_locks:
        os.close(acquired.handle)
    _all_locks.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_of_the_parent)
