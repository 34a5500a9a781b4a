"""What `nearest` searches: a view of the table with vectors, texts and lists in memory; and that view saved on disk.

A snapshot never changes. When the table has changed, `SnapshotCache` makes the next one from the last: vectors that
are in memory already are not read again, and lists are rebuilt only when they have aged.

A saved view lets a process answer without Lance, whose import takes a quarter of a second. It is used only if the
newest manifest has the bytes it had when the view was saved, and every file of this version has the same size, time
and inode, and is not torn. The sha256 at its start covers the rest: a damaged file is ignored, and none needs fsync.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError
from gemel.index.lance import cache
from gemel.index.lance.ann import Lists
from gemel.index.lance.cache import Base, Copies, read
from gemel.index.lance.columns import column_of, header_of, matrix, numbers
from gemel.index.lance.recovery import READ_ERRORS, manifest_of, open_dataset, torn_files, versions_in
from gemel.index.lance.view import FragmentRows, View
from gemel.types import Vectors

if TYPE_CHECKING:
    import pyarrow as pa

LARGE = 20_000
"""Passages from which on lists are built; below, every search compares all."""

_TAIL = 4096  # slots outside the lists that are compared one by one before they are added to the lists

_STALE = 0.3  # part of the slots that may be new or deleted before a search rebuilds the lists

_BLOCK = 16_384  # slots that are copied at once

_CHECKED = 16  # vectors of a cache that are compared with the table when it is loaded

_WORN = 0.05  # and before `compact` does

_FEW_DELETED = 1024  # slots of deleted passages that are always kept


_FORMAT = 1  # of a saved view

_DIGEST = 32  # bytes of a sha256

_MOST_COPIES = 20_000  # passages outside the lists; of 384 numbers each they take 30 MB

_MOST_BYTES = 1 << 28

_DAMAGED = (*READ_ERRORS, TypeError, InputError)


@dataclass(frozen=True, eq=False)
class TableSnapshot:
    view: View
    copies: Copies
    lists: Lists | None
    slots: tuple[NDArray[np.int64], ...]
    """For each fragment of the view: the slots of its rows, -1 where a row was deleted before it was read."""
    position: NDArray[np.int64]
    """For each slot its position, -1 where the passage is deleted."""

    @property
    def count(self) -> int:
        return len(self.position)

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
    def complete(self) -> bool:
        """No slot is of a deleted passage."""
        return bool(self.alive.all())


class SnapshotCache:
    """The newest snapshot of one table; it decides when lists are built."""

    def __init__(
        self, folder: Path | None, table: str, *, large: int = LARGE, start: SavedView | None = None
    ) -> None:
        """`folder`: of the cache; None: none. `start`: vectors and texts that need not be read from the table."""
        self._folder, self._table, self._large = folder, table, large
        self._start = start
        self._unsaved = start is None
        self._lock = threading.Lock()
        self._building = threading.Lock()
        self._now: TableSnapshot | None = None

    def at(self, view: View, *, build: bool = True) -> TableSnapshot:
        """The snapshot of this view, or of a newer one; `build`: with lists if the table is large."""
        now = self._now
        if now is None or now.view.version < view.version:
            with self._lock:
                now = self._now
                if now is None or now.view.version < view.version:
                    now = self._now = self._moved(view, build=build)
        return self._kept_up(now) if build else now

    def to_save(self, snapshot: TableSnapshot) -> bool:
        """Whether to save it for later processes: at the first call, and at the first after lists were built."""
        if not self._unsaved or (snapshot.lists is None and snapshot.view.passages >= self._large):
            return False
        self._unsaved = False
        return True

    def peek(self, view: View) -> TableSnapshot | None:
        """The snapshot, if it costs little; None if vectors would have to be read first."""
        if self._now is None and view.passages >= self._large and self._loaded(view) is None:
            return None
        return self.at(view, build=False)

    def build(self, view: View) -> None:
        """Rebuild the lists of a large table if they have aged a little."""
        snapshot = self.at(view)
        if self._aged(snapshot, _WORN):
            with self._building:
                self._rebuild(snapshot)

    def _kept_up(self, snapshot: TableSnapshot) -> TableSnapshot:
        """The snapshot with fresh enough lists: one thread builds, the others use the old lists meanwhile."""
        if not self._aged(snapshot, _STALE):
            return snapshot
        if not self._building.acquire(blocking=snapshot.lists is None):
            return snapshot
        try:
            now = self._now or snapshot
            return self._rebuild(now) if self._aged(now, _STALE) else now
        finally:
            self._building.release()

    def _aged(self, snapshot: TableSnapshot, part: float) -> bool:
        alive = snapshot.view.passages
        if alive < self._large:
            return False
        if snapshot.lists is None:
            return True
        new = snapshot.count - snapshot.lists.trained
        gone = snapshot.count - alive
        return new + gone > part * snapshot.lists.trained

    def _rebuild(self, snapshot: TableSnapshot) -> TableSnapshot:
        built = self._built(snapshot.view, wait=snapshot.lists is None)
        if built is None:  # another process is building; until then there are the old lists
            return snapshot
        with self._lock:
            newest = self._now.view if self._now is not None else snapshot.view
            self._now = _snapshot_of(newest, _copies_of(built), built.lists, None)
            self._unsaved = True
            return self._now

    def _built(self, view: View, *, wait: bool) -> cache.BuiltCache | None:
        """Built now, or by the process that was building already; None: without waiting for it."""
        if self._folder is None:
            return cache.build_from(view, None, self._table)
        try:
            with cache.building(self._folder, wait=False) as alone:
                if alone:
                    return self._build_alone(view)
            if not wait:
                return None
            with cache.building(self._folder):
                built = self._loaded(view)  # built by the other process, unless it died
                return self._build_alone(view) if built is None else built
        except (OSError, WorkError):  # a folder without write access, a full disk: lists in memory only
            return cache.build_from(view, None, self._table)

    def _build_alone(self, view: View) -> cache.BuiltCache:
        assert self._folder is not None
        cache.drop_unfinished(self._folder, self._table)
        built = cache.build_from(view, self._folder, self._table)
        cache.drop_others(self._folder, self._table, built.folder)
        return built

    def _moved(self, view: View, *, build: bool) -> TableSnapshot:
        """The snapshot of a newer view."""
        if self._now is not None:
            return _renewed(_snapshot_of(view, self._now.copies, self._now.lists, self._now))
        if self._folder is not None:
            cache.sweep(self._folder, self._table)
        built = self._loaded(view)
        if built is None and build and view.passages >= self._large:
            built = self._built(view, wait=True)
        copies = Copies(_nothing(view)) if built is None else _copies_of(built)
        if self._start is not None:
            new = ~_among(self._start.stamp, copies.base.stamp)
            text = [self._start.text[n] for n in np.flatnonzero(new).tolist()]
            copies.add(self._start.stamp[new], self._start.vector[new], text)
            self._unsaved |= self._start.cache != copies.cache
            self._start = None
        return _snapshot_of(view, copies, None if built is None else built.lists, None)

    def _loaded(self, view: View) -> cache.BuiltCache | None:
        """The cache on disk, if most of its passages are still stored."""
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


def _renewed(snapshot: TableSnapshot) -> TableSnapshot:
    """Without the slots of deleted passages, if these are the majority: copies only ever grow.

    The lists are dropped with them; they would be rebuilt anyway.
    """
    alive = snapshot.view.passages
    if snapshot.count - alive <= max(_FEW_DELETED, alive):
        return snapshot
    copies = Copies(_nothing(snapshot.view))
    kept = np.flatnonzero(snapshot.alive)
    for start in range(0, len(kept), _BLOCK):
        old = kept[start : start + _BLOCK]
        stamp = snapshot.view.stamp[snapshot.position[old]]
        copies.add(stamp, snapshot.copies.vectors(old), snapshot.copies.texts(old))
    return _snapshot_of(snapshot.view, copies, None, None)


def _same_vectors(view: View, shared: NDArray[np.int64], base: Base) -> bool:
    """Compare some with the table: a file of the right size may have other bytes."""
    some = shared[np.linspace(0, len(shared) - 1, _CHECKED).astype(np.int64)]
    order = np.argsort(base.stamp, kind="stable")
    slots = order[np.searchsorted(base.stamp, view.stamp[some], sorter=order)]
    return np.array_equal(matrix(view.take(some, ["vector"])["vector"]), base.vector[slots])


def _among(stamps: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(stamps,) which of them are among the others. `np.isin` would import numpy.ma, which takes 20 ms."""
    if not len(others):
        return np.zeros(len(stamps), dtype=np.bool_)
    ordered = np.sort(others)
    found = np.minimum(np.searchsorted(ordered, stamps), len(ordered) - 1)
    return np.asarray(ordered[found] == stamps)


def _copies_of(built: cache.BuiltCache) -> Copies:
    return Copies(built.base, None if built.folder is None else built.folder.name)


def _nothing(view: View) -> Base:
    return Base(np.empty(0, np.int64), np.empty((0, view.header.dim), np.float32), ())


def _snapshot_of(
    view: View, copies: Copies, lists: Lists | None, before: TableSnapshot | None
) -> TableSnapshot:
    """A slot for every live row: the one it had before, the one of its stamp, or a new one."""
    flat = np.concatenate([np.empty(0, np.int64), *_carried(view, copies, before)])
    missing = np.flatnonzero(view.live & (flat < 0))
    if len(missing):
        fresh: list[NDArray[np.int64]] = []
        stamp = view.stamp[missing]

        def keep(rows: slice, vector: Vectors, text: pa.ChunkedArray) -> None:
            fresh.append(copies.add(stamp[rows], vector, text.to_pylist()))

        read(view, missing, keep)
        flat[missing] = np.concatenate(fresh)
    position = np.full(len(copies), -1, dtype=np.int64)
    live = np.flatnonzero(view.live)
    position[flat[live]] = live
    if lists is not None and len(copies) - lists.count > _TAIL:
        lists = lists.extended(copies.run(lists.count, len(copies)))
    fragments = tuple(flat[start:end] for start, end in zip(view.starts[:-1], view.starts[1:], strict=True))
    return TableSnapshot(view, copies, lists, fragments, position)


def _carried(view: View, copies: Copies, before: TableSnapshot | None) -> list[NDArray[np.int64]]:
    """For each fragment the slots that its rows have already, else -1."""
    old: dict[tuple[int, str], NDArray[np.int64]] = {}
    if before is not None and before.slots:
        old = dict(zip(map(_key, before.view.fragments), before.slots, strict=True))
    merged = before is None or not old.keys() <= {_key(fragment) for fragment in view.fragments}
    # Rows of a new fragment have new stamps, unless fragments were merged: only then stamps are compared.
    stamps = copies.stamps() if merged else np.empty(0, np.int64)
    order = np.argsort(stamps, kind="stable")
    out = []
    for fragment in view.fragments:
        slots = old.get(_key(fragment))
        out.append(slots if slots is not None else _by_stamp(fragment, stamps, order))
    return out


def _key(fragment: FragmentRows) -> tuple[int, str]:
    """A fragment that got a column, or lost rows, has the same rows at the same positions."""
    return fragment.number, fragment.files[0]


def _by_stamp(
    fragment: FragmentRows, stamps: NDArray[np.int64], order: NDArray[np.int64]
) -> NDArray[np.int64]:
    out = np.full(fragment.rows, -1, dtype=np.int64)
    if len(stamps):
        found = np.minimum(np.searchsorted(stamps, fragment.stamp, sorter=order), len(stamps) - 1)
        slot = order[found]
        equal = stamps[slot] == fragment.stamp
        out[equal] = slot[equal]
    return out


@dataclass(frozen=True, eq=False)
class SavedView:
    view: View
    stamp: NDArray[np.int64]
    """Of the passages whose vectors and texts follow."""
    vector: Vectors
    text: list[str]
    cache: str | None
    """Name of the list cache whose vectors were compared with the table."""


def saved_file(folder: Path, table: str) -> Path:
    """The file, in the folder of the caches."""
    return folder / f"{table}.snapshot"


def load_view(folder: Path, uri: str, location: str) -> SavedView | None:
    """The saved view; None: there is none of the newest version, or a file has changed."""
    try:
        raw = memoryview(saved_file(folder, Path(uri).stem).read_bytes())
        if hashlib.sha256(raw[_DIGEST:]).digest() != raw[:_DIGEST]:
            return None
        return _parse(raw[_DIGEST:], uri, location)
    except _DAMAGED:
        return None


def save_view(folder: Path, uri: str, snapshot: TableSnapshot) -> None:
    """Save it, unless it would be too large, a newer version exists, or the folder cannot be written."""
    view, base = snapshot.view, snapshot.copies.base
    grown = len(base.stamp) + np.flatnonzero(snapshot.alive[len(base.stamp) :])
    if len(grown) > _MOST_COPIES or not view.fragments or _size(view) > _MOST_BYTES:
        return
    if len(base.stamp) and snapshot.copies.cache is None:  # lists that are in memory only
        return
    with suppress(*READ_ERRORS):
        if versions_in(Path(uri))[:1] != [view.version]:
            return
        body = _body(view, uri, snapshot, grown)
        path = saved_file(folder, Path(uri).stem)
        folder.mkdir(parents=True, exist_ok=True)
        for left in folder.glob(f"{path.name}.*"):  # of a process that died; a living one does not save then
            left.unlink(missing_ok=True)
        beside = path.with_name(f"{path.name}.{os.urandom(4).hex()}")
        try:
            with beside.open("wb") as file:
                file.write(hashlib.sha256(body).digest())
                file.write(body)
            beside.replace(path)
        finally:
            beside.unlink(missing_ok=True)


def drop_view(folder: Path, table: str) -> None:
    path = saved_file(folder, table)
    for each in (path, *folder.glob(f"{path.name}.*")):
        each.unlink(missing_ok=True)


def _size(view: View) -> int:
    return sum(
        each.ids.nbytes + sum(values.nbytes for values in each.fields.values()) for each in view.fragments
    )


def _body(view: View, uri: str, snapshot: TableSnapshot, grown: NDArray[np.int64]) -> memoryview:
    import pyarrow as pa

    pieces = []
    for fragment in view.dataset.get_fragments():
        files = [[str(file.path), file.file_size_bytes] for file in fragment.metadata.files]
        pieces.append(
            {"fragment": fragment.fragment_id, "files": files, "deletions": fragment.deletion_file()}
        )
    manifest = manifest_of(uri, view.version)
    about = {
        "format": _FORMAT,
        "version": view.version,
        "manifest": hashlib.sha256(manifest.read_bytes()).hexdigest(),
        "schema": base64.b64encode(view.dataset.schema.serialize()).decode("ascii"),
        "pieces": pieces,
        "files": _file_states(uri, manifest, pieces),
        "cache": snapshot.copies.cache,
    }
    dim = view.header.dim
    vectors = np.ascontiguousarray(snapshot.copies.vectors(grown)).reshape(-1)
    copies = pa.record_batch(
        {
            "stamp": pa.array(snapshot.copies.stamps()[grown]),
            "vector": pa.FixedSizeListArray.from_arrays(pa.array(vectors, pa.float32()), dim),
            "text": pa.array(snapshot.copies.texts(grown), pa.large_string()),
        }
    )
    out = pa.BufferOutputStream()
    rows = [_rows_batch(fragment, view) for fragment in view.fragments]
    with pa.ipc.new_stream(out, rows[0].schema.with_metadata({"about": json.dumps(about)})) as stream:
        for batch in rows:
            stream.write_batch(batch)
    with pa.ipc.new_stream(out, copies.schema) as stream:
        stream.write_batch(copies)
    return memoryview(out.getvalue())


def _rows_batch(fragment: FragmentRows, view: View) -> pa.RecordBatch:
    import pyarrow as pa

    columns = {
        "id": fragment.ids,
        "part": pa.array(fragment.part),
        "stamp": pa.array(fragment.stamp),
        "live": pa.array(fragment.live.view(np.uint8)),
    }
    return pa.record_batch(columns | {column_of(name): fragment.fields[name] for name in view.header.fields})


def _parse(body: memoryview, uri: str, location: str) -> SavedView | None:
    import pyarrow as pa

    source = pa.BufferReader(pa.py_buffer(body))
    stream = pa.ipc.open_stream(source)
    about = json.loads(stream.schema.metadata[b"about"])
    if about["format"] != _FORMAT or not _is_current(about, uri):
        return None
    version = int(about["version"])
    header = header_of(pa.ipc.read_schema(pa.py_buffer(base64.b64decode(about["schema"]))), location)
    fragments = tuple(
        FragmentRows(
            number=piece["fragment"],
            files=tuple(path for path, _ in piece["files"]),
            deletions=piece["deletions"],
            rows=batch.num_rows,
            ids=batch["id"],
            part=numbers(batch["part"], np.int32),
            stamp=numbers(batch["stamp"], np.int64),
            fields={name: batch[column_of(name)] for name in header.fields},
            live=numbers(batch["live"], np.uint8).view(np.bool_),
        )
        for piece, batch in zip(about["pieces"], stream, strict=True)
    )
    copies = pa.ipc.open_stream(source).read_next_batch()
    return SavedView(
        view=View(version, header, fragments, lambda: open_dataset(uri, None, version)),
        stamp=numbers(copies["stamp"], np.int64),
        vector=numbers(copies["vector"].flatten(), np.float32).reshape(-1, header.dim),
        text=copies["text"].to_pylist(),
        cache=about["cache"],
    )


def _is_current(about: dict[str, Any], uri: str) -> bool:
    """Whether the version is the newest, and its files are unchanged and not torn."""
    version, pieces = int(about["version"]), about["pieces"]
    if versions_in(Path(uri))[:1] != [version]:
        return False
    manifest = manifest_of(uri, version)
    if hashlib.sha256(manifest.read_bytes()).hexdigest() != about["manifest"]:
        return False
    if _file_states(uri, manifest, pieces) != about["files"]:
        return False
    return not any(torn_files(uri, piece["files"], piece["deletions"]) for piece in pieces)


def _file_states(uri: str, manifest: Path, pieces: list[dict[str, Any]]) -> list[list[int]]:
    """Size, time and inode of each file: they change when it is written again or copied."""
    table = Path(uri)
    paths = [manifest]
    for piece in pieces:
        paths += [table / "data" / path for path, _ in piece["files"]]
        if piece["deletions"] is not None:
            paths.append(table / "_deletions" / Path(piece["deletions"]).name)
    return [cache.file_state(path) for path in paths]
