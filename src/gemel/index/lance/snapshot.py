"""What `nearest` looks at: a view of the table, with vectors, texts and lists brought up to it. Made anew when the
table has changed, from what was there; whoever searches holds one `Sight`, which never changes.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gemel.errors import WorkError
from gemel.index.lance import cache
from gemel.index.lance.ann import Lists
from gemel.index.lance.cache import Base, Copies, read
from gemel.index.lance.columns import matrix
from gemel.index.lance.view import FragmentRows, View
from gemel.types import Vectors

if TYPE_CHECKING:
    import pyarrow as pa

    from gemel.index.lance.saved_view import SavedView

LARGE = 20_000
"""Passages from which on lists are built; below it every search compares all."""

_TAIL = 4096  # slots outside the lists that are compared one by one before they are put in

_STALE = 0.3  # part of the slots that may be new or gone before a search builds all anew

_BLOCK = 16_384  # slots that are copied at once

_SPOTS = 16  # vectors of a cache that are compared with the table when it is loaded

_WORN = 0.05  # and before `compact` does

_KEPT = 1024  # slots of passages that are gone, up to which they are always kept


@dataclass(frozen=True, eq=False)
class Snapshot:
    view: View
    copies: Copies
    lists: Lists | None
    slots: tuple[NDArray[np.int64], ...]
    """For each piece of the view: the slots of its rows, -1 where a row was gone before it was looked at."""
    position: NDArray[np.int64]
    """For each slot its position, -1 where the passage is gone."""

    @property
    def count(self) -> int:
        return len(self.position)

    @property
    def listed(self) -> int:
        return self.lists.count if self.lists is not None else 0

    def chosen(self, meeting: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """(slots,) from (positions,)"""
        if not len(meeting):
            return np.zeros(self.count, dtype=np.bool_)
        return meeting[self.position] & self.alive

    @cached_property
    def alive(self) -> NDArray[np.bool_]:
        """(slots,)"""
        return self.position >= 0

    @cached_property
    def whole(self) -> bool:
        """No slot is of a passage that is gone."""
        return bool(self.alive.all())


class Snapshots:
    """Keeps the newest sight of one table, and decides when lists are built."""

    def __init__(
        self, folder: Path | None, table: str, *, large: int = LARGE, start: SavedView | None = None
    ) -> None:
        """`folder`: where the cache is; None: nowhere. `start`: copies that need not be read from the table."""
        self._folder, self._table, self._large = folder, table, large
        self._start = start
        self._unsaved = start is None
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._now: Snapshot | None = None

    def at(self, view: View, *, build: bool = True) -> Snapshot:
        """Of this view, or a newer one; `build`: with lists if the table is large."""
        now = self._now
        if now is None or now.view.version < view.version:
            with self._lock:
                now = self._now
                if now is None or now.view.version < view.version:
                    now = self._now = self._moved(view, build=build)
        return self._kept_up(now) if build else now

    def to_save(self, sight: Snapshot) -> bool:
        """A snapshot of it is due: asked for the first time, and for the first time after lists were built."""
        if not self._unsaved or (sight.lists is None and sight.view.passages >= self._large):
            return False
        self._unsaved = False
        return True

    def peek(self, view: View) -> Snapshot | None:
        """Without reading the vectors of a table for which nothing is built: None for that."""
        if self._now is None and view.passages >= self._large and self._loaded(view) is None:
            return None
        return self.at(view, build=False)

    def build(self, view: View) -> None:
        """Lists anew where the table is large and what there is has aged a little; else nothing."""
        sight = self.at(view)
        if self._aged(sight, _WORN):
            with self._building:
                self._rebuild(sight)

    def _kept_up(self, sight: Snapshot) -> Snapshot:
        """One thread builds; the others go on with what there is, if there is something."""
        if not self._aged(sight, _STALE):
            return sight
        if not self._building.acquire(blocking=sight.lists is None):
            return sight
        try:
            now = self._now or sight
            return self._rebuild(now) if self._aged(now, _STALE) else now
        finally:
            self._building.release()

    def _aged(self, sight: Snapshot, part: float) -> bool:
        alive = sight.view.passages
        if alive < self._large:
            return False
        if sight.lists is None:
            return True
        new = sight.count - sight.lists.trained
        gone = sight.count - alive
        return new + gone > part * sight.lists.trained

    def _rebuild(self, sight: Snapshot) -> Snapshot:
        built = self._built(sight.view, wait=sight.lists is None)
        if built is None:  # another process is at it; until it is done there are the old lists
            return sight
        with self._lock:
            newest = self._now.view if self._now is not None else sight.view
            self._now = _sighted(newest, _copies_of(built), built.lists, None)
            self._unsaved = True
            return self._now

    def _built(self, view: View, *, wait: bool) -> cache.BuiltCache | None:
        """Built now, or by the process that was at it, if it can be waited for: one of several builds."""
        if self._folder is None:
            return cache.build_from(view, None, self._table)
        try:
            with cache.building(self._folder, wait=False) as alone:
                if alone:
                    return self._build_alone(view)
            if not wait:
                return None
            with cache.building(self._folder):
                built = self._loaded(view)  # by whom we waited for; it may have died instead
                return self._build_alone(view) if built is None else built
        except (
            OSError,
            WorkError,
        ):  # a folder that may not be written, a full disk: search goes on from memory
            return cache.build_from(view, None, self._table)

    def _build_alone(self, view: View) -> cache.BuiltCache:
        assert self._folder is not None
        cache.drop_unfinished(self._folder, self._table)
        built = cache.build_from(view, self._folder, self._table)
        cache.drop_others(self._folder, self._table, built.folder)
        return built

    def _moved(self, view: View, *, build: bool) -> Snapshot:
        """The sight of a view that is newer than what there is."""
        if self._now is not None:
            return _renewed(_sighted(view, self._now.copies, self._now.lists, self._now))
        if self._folder is not None:
            cache.sweep(self._folder, self._table)
        built = self._loaded(view)
        if built is None and build and view.passages >= self._large:
            built = self._built(view, wait=True)
        copies = Copies(_nothing(view)) if built is None else _copies_of(built)
        if self._start is not None:
            new = ~_among(self._start.stamp, copies.base.stamp)
            text = [self._start.text[place] for place in np.flatnonzero(new).tolist()]
            copies.add(self._start.stamp[new], self._start.vector[new], text)
            self._unsaved |= self._start.cache != copies.cache
            self._start = None
        return _sighted(view, copies, None if built is None else built.lists, None)

    def _loaded(self, view: View) -> cache.BuiltCache | None:
        """From disk, if it is for the most part of passages that are still there."""
        if self._folder is None or view.passages < self._large:
            return None
        built = cache.load(self._folder, self._table, view.header.dim)
        if built is None:
            return None
        live = np.flatnonzero(view.live)
        shared = live[_among(view.stamp[live], built.base.stamp)]
        if 2 * len(shared) <= len(built.base.stamp):
            return None
        compared = (
            self._start is not None and built.folder is not None and self._start.cache == built.folder.name
        )
        return built if compared or _same_vectors(view, shared, built.base) else None


def _renewed(sight: Snapshot) -> Snapshot:
    """Without the slots of passages that are gone, where they are most of all: copies only ever grow.

    Lists go with them. Such a table is far beyond what lists are built anew for.
    """
    alive = sight.view.passages
    if sight.count - alive <= max(_KEPT, alive):
        return sight
    copies = Copies(_nothing(sight.view))
    kept = np.flatnonzero(sight.alive)
    for start in range(0, len(kept), _BLOCK):
        old = kept[start : start + _BLOCK]
        stamp = sight.view.stamp[sight.position[old]]
        copies.add(stamp, sight.copies.vectors(old), sight.copies.texts(old))
    return _sighted(sight.view, copies, None, None)


def _same_vectors(view: View, shared: NDArray[np.int64], base: Base) -> bool:
    """Some of them, against the table: a file of the right size may hold other bytes."""
    some = shared[np.linspace(0, len(shared) - 1, _SPOTS).astype(np.int64)]
    order = np.argsort(base.stamp, kind="stable")
    slots = order[np.searchsorted(base.stamp, view.stamp[some], sorter=order)]
    return np.array_equal(matrix(view.take(some, ["vector"])["vector"]), base.vector[slots])


def _among(stamps: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(stamps,) which of them are among the others. `np.isin` would import numpy.ma, for 20 ms."""
    if not len(others):
        return np.zeros(len(stamps), dtype=np.bool_)
    ordered = np.sort(others)
    place = np.minimum(np.searchsorted(ordered, stamps), len(ordered) - 1)
    return np.asarray(ordered[place] == stamps)


def _copies_of(built: cache.BuiltCache) -> Copies:
    return Copies(built.base, None if built.folder is None else built.folder.name)


def _nothing(view: View) -> Base:
    return Base(np.empty(0, np.int64), np.empty((0, view.header.dim), np.float32), ())


def _sighted(view: View, copies: Copies, lists: Lists | None, before: Snapshot | None) -> Snapshot:
    """Slots for every live row: those it had, those its stamp had, new ones for the rest."""
    slots = _carried(view, copies, before)
    missing = np.flatnonzero(view.live & (np.concatenate([np.empty(0, np.int64), *slots]) < 0))
    flat = np.concatenate([np.empty(0, np.int64), *slots])
    if len(missing):
        fresh: list[NDArray[np.int64]] = []
        stamp = view.stamp[missing]

        def keep(place: slice, vector: Vectors, text: pa.ChunkedArray) -> None:
            fresh.append(copies.add(stamp[place], vector, text.to_pylist()))

        read(view, missing, keep)
        flat[missing] = np.concatenate(fresh)
    position = np.full(len(copies), -1, dtype=np.int64)
    live = np.flatnonzero(view.live)
    position[flat[live]] = live
    if lists is not None and len(copies) - lists.count > _TAIL:
        lists = lists.extended(copies.run(lists.count, len(copies)))
    pieces = tuple(flat[start:end] for start, end in zip(view.starts[:-1], view.starts[1:], strict=True))
    return Snapshot(view, copies, lists, pieces, position)


def _carried(view: View, copies: Copies, before: Snapshot | None) -> list[NDArray[np.int64]]:
    """For each piece the slots that are known."""
    old: dict[tuple[int, str], NDArray[np.int64]] = {}
    if before is not None and before.slots:
        old = dict(zip(map(_key, before.view.pieces), before.slots, strict=True))
    gone = before is None or not old.keys() <= {_key(piece) for piece in view.pieces}
    # Rows of a new piece have new stamps, unless pieces were merged: only then is it worth to look for them.
    stamps = copies.stamps() if gone else np.empty(0, np.int64)
    order = np.argsort(stamps, kind="stable")
    out = []
    for piece in view.pieces:
        known = old.get(_key(piece))
        out.append(known if known is not None else _by_stamp(piece, stamps, order))
    return out


def _key(piece: FragmentRows) -> tuple[int, str]:
    """A piece that got a column, or lost rows, has the same rows in the same places."""
    return piece.fragment, piece.files[0]


def _by_stamp(piece: FragmentRows, stamps: NDArray[np.int64], order: NDArray[np.int64]) -> NDArray[np.int64]:
    out = np.full(piece.rows, -1, dtype=np.int64)
    if len(stamps):
        place = np.minimum(np.searchsorted(stamps, piece.stamp, sorter=order), len(stamps) - 1)
        slot = order[place]
        known = stamps[slot] == piece.stamp
        out[known] = slot[known]
    return out
