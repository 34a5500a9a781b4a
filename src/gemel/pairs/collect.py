"""Where found pairs go: the best k of all, or every one of a block of rows."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.scan.found import Found
from gemel.types import Vectors

_SPARE = 16_384  # pairs beyond k that may wait before the best are picked


class Collector(Protocol):
    def floor(self) -> float:
        """Pairs below this are not wanted."""

    def add(self, found: Found) -> None: ...


class Best:
    """The best `k` pairs so far. The k-th score is the floor for all that follow, so most pairs are never looked at."""

    def __init__(self, k: int, floor: float, width: int, *, kept: Found | None = None) -> None:
        """`width`: rows of the right set. `kept`: what an earlier run had found."""
        self._k, self._width = k, width
        self._floor = float(np.float32(floor))
        self._parts: list[Found] = []
        self._count = 0
        self._lock = threading.Lock()
        if kept is not None:
            self.add(kept)

    def floor(self) -> float:
        return self._floor

    def add(self, found: Found) -> None:
        with self._lock:
            self._parts.append(found)
            self._count += len(found)
            # Late in a run pairs come one by one: picking the best again and again would cost more than it saves.
            waiting = self._count - self._k
            if waiting >= (max(self._k, _SPARE) if np.isfinite(self._floor) else 0):
                self._pick()

    def found(self) -> Found:
        """At most k, best first."""
        with self._lock:
            self._pick()
            return in_order(self._parts[0], self._width)

    def last_place(self) -> int:
        """The place (see `places`) of the last of the k pairs; -1 while there are fewer."""
        with self._lock:
            self._pick()
            found = self._parts[0]
            return int(places(found, self._width).max()) if len(found) == self._k else -1

    def _pick(self) -> None:
        found = joined(self._parts)
        if len(found) >= self._k:
            found = _best(found, self._k, self._width)
            self._floor = max(self._floor, float(found.score.min()))
        self._parts, self._count = [found], len(found)


class Every:
    """All pairs that reach the floor; `full` is called when they are more than `most`."""

    def __init__(self, floor: float, most: int, full: Callable[[], None]) -> None:
        self._floor = float(np.float32(floor))
        self._most, self._full = most, full
        self._parts: list[Found] = []
        self._count = 0
        self._lock = threading.Lock()

    def floor(self) -> float:
        return self._floor

    def add(self, found: Found) -> None:
        with self._lock:
            self._parts.append(found)
            self._count += len(found)
            if self._count > self._most:
                self._full()

    def found(self) -> Found:
        """In no order."""
        with self._lock:
            return joined(self._parts)


def places(found: Found, width: int) -> NDArray[np.int64]:
    """One number a pair that sorts as (left, right) does."""
    return found.left.astype(np.int64) * width + found.right


def in_order(found: Found, width: int) -> Found:
    """Best first; ties by position."""
    return _taken(found, np.lexsort((places(found, width), -found.score)))


def by_position(found: Found, width: int) -> Found:
    """By left, then right."""
    return _taken(found, np.argsort(places(found, width)))


def joined(parts: list[Found]) -> Found:
    """All parts as one."""
    if len(parts) == 1:
        return parts[0]
    return Found(
        np.concatenate([part.score for part in parts] or [np.empty(0, np.float32)]),
        np.concatenate([part.left for part in parts] or [np.empty(0, np.int32)]),
        np.concatenate([part.right for part in parts] or [np.empty(0, np.int32)]),
    )


def _taken(found: Found, which: NDArray[np.int64]) -> Found:
    return Found(found.score[which], found.left[which], found.right[which])


def _best(found: Found, k: int, width: int) -> Found:
    """The `k` highest scores in any order; of those equal to the last one, the lowest places."""
    last: Vectors = np.partition(found.score, -k)[-k]
    above, tied = np.flatnonzero(found.score > last), np.flatnonzero(found.score == last)
    room = k - len(above)
    order = np.argpartition(places(_taken(found, tied), width), room - 1)[:room]
    return _taken(found, np.concatenate([above, tied[order]]))
