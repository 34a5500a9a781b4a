"""What the file system is asked for: locks between processes, small files that are whole or absent, and fsync.

Forks wait for calls of Lance that other threads are in.

A child that is forked while a thread is inside Lance inherits the state of Lance as it is at that moment, half
changed, and dies or hangs at its next call. Between calls handles that were open are opened again in the child (see
`LanceTable`). Lance itself does not promise that: a program whose threads search should start its children by spawn.
"""

from __future__ import annotations

import json
import os
import threading
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from gemel.errors import WorkError


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[bool]:
    """Alone among all threads and processes that ask for the same file; yields False where it is held and not waited
    for. The system lets go of it when a process dies."""
    import fcntl

    try:
        handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError as error:
        raise WorkError(f"cannot write to {path.parent}: {error.strerror}. Check rights and space") from error
    held = _Held(handle)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError:
            yield False
            return
        yield True
    finally:
        held.release()


class _Held:
    """An open file with a lock. A forked child gets a copy of the file, which would keep the lock alive: it is closed
    there at once, and the parent unlocks explicitly."""

    def __init__(self, handle: int) -> None:
        self.handle = handle
        _all_held.add(self)

    def release(self) -> None:
        import fcntl

        if self in _all_held:
            _all_held.discard(self)
            fcntl.flock(self.handle, fcntl.LOCK_UN)
            os.close(self.handle)


_all_held: set[_Held] = set()


def _close_locks_of_the_parent() -> None:
    for held in _all_held:
        os.close(held.handle)
    _all_held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_close_locks_of_the_parent)


class Readers:
    """A shared lock on a file: as long as it is held, no other handle deletes what an older version needs.

    Let go by `close`, when the object is gone, or when the process dies. Where the file can neither be made nor
    opened (a folder that may not be written, of an index that has none yet) nothing is held.
    """

    def __init__(self, path: Path) -> None:
        import fcntl

        handle = _opened_to_share(path)
        self._held: _Held | None = None
        if handle is not None:
            fcntl.flock(handle, fcntl.LOCK_SH)
            self._held = _Held(handle)
            weakref.finalize(self, self._held.release)

    def close(self) -> None:
        if self._held is not None:
            self._held.release()

    @contextmanager
    def alone(self) -> Iterator[bool]:
        """True: no other handle is open, in this or another process, nor is one opened until the end of the block."""
        import fcntl

        held = self._held
        if held is None or held not in _all_held:
            yield False
            return
        try:
            fcntl.flock(held.handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            fcntl.flock(held.handle, fcntl.LOCK_SH)  # the attempt may have given up what was held
            yield False
            return
        try:
            yield True
        finally:
            fcntl.flock(held.handle, fcntl.LOCK_SH)


def _opened_to_share(path: Path) -> int | None:
    for flags in (os.O_RDWR | os.O_CREAT, os.O_RDONLY):
        try:
            return os.open(path, flags | os.O_CLOEXEC, 0o666)
        except OSError:
            continue
    return None


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """After a crash the file has its old content or the new, on disk when this returns."""
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with beside.open("w", encoding="utf-8") as file:
        json.dump(content, file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    sync(path.parent)


def sync(path: Path) -> None:
    """This file's bytes, or this folder's list of names, are on disk."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class Synced:
    """The files of one table that are known to be on disk. Lance writes a file once and never changes it, so each is
    synced once; those of other processes too, as a commit is worth as much as the commits below it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._done: set[str] = set()

    def catch_up(self) -> None:
        """Everything that is in the folder now is on disk when this returns."""
        for folder, _, names in os.walk(self._folder):
            # A .json is Lance's hint of the newest version: rewritten with each, and not needed.
            lasting = (f"{folder}/{name}" for name in names if not name.endswith(".json"))
            fresh = [path for path in lasting if path not in self._done]
            if not fresh and folder in self._done:
                continue
            for path in fresh:
                try:
                    sync(Path(path))
                except FileNotFoundError:  # cleaned up by another process meanwhile
                    continue
            sync(Path(folder))
            self._done.update(fresh)
            self._done.add(folder)


def bytes_below(folder: Path) -> int:
    """Of all files, those that vanish while we look left out."""
    total = 0
    for here, _, names in os.walk(folder):
        for name in names:
            try:
                total += Path(here, name).stat().st_size
            except FileNotFoundError:
                continue
    return total


_PATIENCE_S = (
    30.0  # then the fork takes place all the same: a call may be waiting for what the fork is to bring
)


class _Calls:
    """How many threads are inside, and whether one is about to fork."""

    def __init__(self, inside: int = 0) -> None:
        self.changed = threading.Condition()
        self.threads = inside
        self.forking = False


_calls = _Calls()

_mine = threading.local()


@contextmanager
def calling_lance() -> Iterator[None]:
    """No fork takes place meanwhile. May be entered again by the thread that is inside."""
    depth: int = getattr(_mine, "depth", 0)
    calls = _calls
    if not depth:
        with calls.changed:
            calls.changed.wait_for(lambda: not calls.forking, timeout=_PATIENCE_S)
            calls.threads += 1
    _mine.depth = depth + 1
    try:
        yield
    finally:
        _mine.depth = depth
        if not depth and calls is _calls:
            with calls.changed:
                calls.threads -= 1
                calls.changed.notify_all()


def _before_fork() -> None:
    own = 1 if getattr(_mine, "depth", 0) else 0
    with _calls.changed:
        _calls.forking = True
        _calls.changed.wait_for(lambda: _calls.threads <= own, timeout=_PATIENCE_S)


def _in_parent() -> None:
    with _calls.changed:
        _calls.forking = False
        _calls.changed.notify_all()


def _in_child() -> None:
    global _calls  # noqa: PLW0603 - its lock may be held by a thread that does not exist here
    _calls = _Calls(1 if getattr(_mine, "depth", 0) else 0)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_before_fork, after_in_parent=_in_parent, after_in_child=_in_child)
