"""Lance and the operating system: which files are synced, how large they are, and forks.

A child that is forked while a thread is inside Lance inherits the state of Lance as it is at that moment, half
changed, and dies or hangs at its next call. Between calls handles that were open are opened again in the child (see
`LanceTable`). Lance itself does not promise that: a program whose threads search should start its children by spawn.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from gemel.files.atomic import sync


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
