"""Search by further kinds of vectors in a Lance table: an inverted file of weights, an index of token vectors.

A large table has such a structure in the cache, mapped into memory; as for the dense vectors, its passages are known by
their stamps, so it fits every version of the table as far as they share passages. Passages that came later are
compared one by one, deleted ones are masked, and it is built again when it has aged. A small table has none: all of its
values are in memory.
"""

from __future__ import annotations

import json
import os
import shutil
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError
from gemel.files.atomic import sync
from gemel.index.approximate import USUAL_RECALL
from gemel.index.kinds import Searched, built_structure, compared, loaded_structure
from gemel.index.lance import cache
from gemel.index.lance.columns import kind_column
from gemel.index.lance.search import passages_at
from gemel.index.lance.view import Positions, View
from gemel.index.port import KindHeader, Passages
from gemel.index.where import Condition
from gemel.types import Vectors

_FORMAT = 1  # of about.json; a structure of another format is built again

_STALE = 0.3  # part of the passages that may be new or deleted before a search builds the structure again

_WORN = 0.05  # and before `compact` does

_FEW = 2_000  # passages that meet a condition, up to which all of them are compared

_BLOCK = 4096  # values that are read at once

_TAIL = 4096  # passages that are sorted in again with each version

_DAMAGED = (OSError, ValueError, KeyError, TypeError, InputError)

Stamps = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class _Structure:
    """Passages that are searched together, by ascending id and part when it was built."""

    stamp: Stamps
    searched: Searched
    folder: Path | None = None
    """Where it is saved; None: in memory only."""
    _fragments: dict[tuple[int, str], NDArray[np.int64]] = field(default_factory=dict)
    """The rows here of each row of a fragment, -1 where there is none; a fragment never changes its rows."""

    @cached_property
    def _order(self) -> NDArray[np.int64]:
        return np.argsort(self.stamp, kind="stable")

    def rows_of(self, view: View) -> NDArray[np.int64]:
        """(positions,) where the passage at each position is here; -1: nowhere."""
        parts: dict[tuple[int, str], NDArray[np.int64]] = {}
        for fragment in view.fragments:
            key = fragment.number, fragment.files[0]
            rows = self._fragments.get(key)
            parts[key] = self._rows(fragment.stamp) if rows is None else rows
        self._fragments.clear()
        self._fragments.update(parts)
        return np.concatenate([np.empty(0, np.int64), *parts.values()])

    def _rows(self, stamps: Stamps) -> NDArray[np.int64]:
        if not len(self.stamp):
            return np.full(len(stamps), -1, dtype=np.int64)
        found = np.minimum(np.searchsorted(self.stamp, stamps, sorter=self._order), len(self.stamp) - 1)
        row = self._order[found]
        return np.where(self.stamp[row] == stamps, row, -1)

    def positions(self, view: View) -> Positions:
        """(rows,) of each passage in this version; -1: it is deleted."""
        out = np.full(len(self.stamp), -1, dtype=np.int64)
        rows = self.rows_of(view)
        there = np.flatnonzero(view.live & (rows >= 0))
        out[rows[there]] = there
        return out


@dataclass(frozen=True, eq=False)
class _Snapshot:
    """One kind of vectors of one version of the table: what was built, and what came later."""

    view: View
    base: _Structure | None
    later: tuple[_Structure, ...]
    """Passages that came after the base was built; the last one grows with each version."""
    values: Sequence[bytes]
    """Of the last one."""

    @cached_property
    def parts(self) -> list[tuple[_Structure, Positions]]:
        """Each structure with the position of each of its passages."""
        every = [each for each in (self.base, *self.later) if each is not None and len(each.stamp)]
        return [(each, each.positions(self.view)) for each in every]

    def aged(self, part: float) -> bool:
        """So much of the passages is new or deleted that a structure is worth building."""
        if self.base is None:
            return True
        count = len(self.base.stamp)
        shared = next((int(np.count_nonzero(at >= 0)) for each, at in self.parts if each is self.base), 0)
        return (self.view.passages - shared) + (count - shared) > part * count


class KindSearch:
    """All kinds of vectors of one table; safe with several threads."""

    def __init__(self, folder: Path | None, table: str, large: int) -> None:
        """`folder`: of the caches; None: none. `large`: passages from which on structures are built."""
        self._folder, self._table, self._large = folder, table, large
        self._lock = threading.Lock()
        self._kinds: dict[str, _KindCache] = {}

    def find(
        self,
        view: View,
        kind: str,
        queries: Sequence[Any],
        k: int,
        where: Condition | None,
        *,
        exact: bool,
        recall: float | None,
    ) -> list[Passages]:
        """The k best passages of each query. See `Table.by_kind`."""
        snapshot = self._of(kind, view.header.kinds[kind]).at(view)
        meeting = None if where is None else snapshot.view.meeting(where)
        found = [_best(snapshot, query, k, meeting, exact=exact, recall=recall) for query in queries]
        return _passages(snapshot.view, found)

    def build(self, view: View) -> None:
        """Build the structures of a large table that have aged a little."""
        for kind, header in view.header.kinds.items():
            self._of(kind, header).build(view)

    def stats(self, view: View) -> dict[str, dict[str, Any]]:
        """Size, layout and measured recall of each kind."""
        if not view.header.kinds:
            return {}
        sizes = _sizes(view)
        return {
            kind: {**({"bytes": sizes[kind]} if kind in sizes else {}), **self._of(kind, header).stats(view)}
            for kind, header in view.header.kinds.items()
        }

    def folders(self) -> list[Path]:
        """Where structures of this table are saved."""
        if self._folder is None:
            return []
        return [path for path in self._folder.glob(f"{self._table}.*") if path.is_dir()]

    def faults(self) -> list[str]:
        """What is wrong with what is saved; every byte is read."""
        out = []
        for path in (each for folder in self.folders() for each in sorted(folder.glob("[!.]*"))):
            try:
                cache.check_files(path, _about(path))
            except _DAMAGED as error:
                out.append(f"cache/{path.parent.name}/{path.name} is damaged ({error})")
        return out

    def repair(self) -> list[str]:
        """Delete what is damaged; the next search builds it again."""
        wrong = self.faults()
        for folder in self.folders() if wrong else ():
            shutil.rmtree(folder, ignore_errors=True)
        return [f"dropped what was built for search: {each}" for each in wrong[:1]]

    def _of(self, kind: str, header: KindHeader) -> _KindCache:
        with self._lock:
            if kind not in self._kinds:
                folder = None if self._folder is None else self._folder / f"{self._table}.{kind}"
                self._kinds[kind] = _KindCache(kind, header, folder, self._large)
            return self._kinds[kind]


class _KindCache:
    """The newest snapshot of one kind; it decides when the structure is built."""

    def __init__(self, kind: str, header: KindHeader, folder: Path | None, large: int) -> None:
        self._kind, self._header, self._folder, self._large = kind, header, folder, large
        self._lock, self._building = threading.Lock(), threading.Lock()
        self._now: _Snapshot | None = None

    def at(self, view: View) -> _Snapshot:
        """The snapshot of this version or a newer one, with a structure that is fresh enough."""
        now = self._moved(view)
        if view.passages < self._large or not now.aged(_STALE):
            return now
        # One thread builds; the others use the old structure meanwhile, if there is one.
        if not self._building.acquire(blocking=now.base is None):
            return now
        try:
            now = self._moved(view)
            return self._rebuilt(now) if now.aged(_STALE) else now
        finally:
            self._building.release()

    def build(self, view: View) -> None:
        if view.passages < self._large:
            return
        with self._building:
            now = self._moved(view)
            if now.aged(_WORN):
                self._rebuilt(now)

    def stats(self, view: View) -> dict[str, Any]:
        now = self._now
        base = now.base if now is not None else None
        if base is None and view.passages >= self._large:
            base = self._loaded(view)
        if base is None:
            return {"layout": "exact"}
        shared = int(np.count_nonzero(base.positions(view) >= 0))
        recall = base.searched.recall
        return {
            "layout": type(base.searched).__name__,
            "unindexed": view.passages - shared,
            **({} if recall is None else {"recall": recall}),
        }

    def _moved(self, view: View) -> _Snapshot:
        now = self._now
        if now is not None and now.view.version >= view.version:
            return now
        with self._lock:
            now = self._now
            if now is None or now.view.version < view.version:
                base = self._loaded(view) if now is None else now.base
                now = self._now = self._snapshot(view, base, now)
            return now

    def _snapshot(self, view: View, base: _Structure | None, before: _Snapshot | None) -> _Snapshot:
        """Passages that no structure has are read and put into the last one, until that is large enough to stay."""
        if before is not None and before.base is base:
            whole, last, known = before.later[:-1], before.later[-1], before.values
        else:
            whole, last, known = (), None, ()
        missing = view.live.copy()
        for each in (base, *whole):
            if each is not None:
                missing &= each.rows_of(view) < 0
        position = np.flatnonzero(missing)
        ids = view.ids_at(position)
        position = position[sorted(range(len(ids)), key=lambda n: (ids[n], view.part[position[n]]))]
        rows = np.full(len(position), -1) if last is None else last.rows_of(view)[position]
        values: list[bytes] = [known[row] if row >= 0 else b"" for row in rows.tolist()]
        new = np.flatnonzero(rows < 0)
        for n, value in zip(new.tolist(), _read(view, position[new], self._kind), strict=True):
            values[n] = value
        last = _Structure(view.stamp[position], compared(self._kind, self._header, values))
        if len(values) <= _TAIL:
            return _Snapshot(view, base, (*whole, last), values)
        empty = _Structure(np.empty(0, np.int64), compared(self._kind, self._header, []))
        return _Snapshot(view, base, (*whole, last, empty), ())

    def _rebuilt(self, now: _Snapshot) -> _Snapshot:
        base = self._built(now.view, wait=now.base is None)
        if base is None:  # another process is building
            return now
        with self._lock:
            newest = self._now or now
            self._now = self._snapshot(newest.view, base, newest)
            return self._now

    def _built(self, view: View, *, wait: bool) -> _Structure | None:
        """Built now, or by the process that was building already; None: without waiting for it."""
        if self._folder is None:
            return self._make(view)
        try:
            with cache.building(self._folder, wait=False) as alone:
                if alone:
                    return self._saved(view)
            if not wait:
                return None
            with cache.building(self._folder):
                found = self._loaded(view)  # built by the other process, unless it died
                return self._saved(view) if found is None else found
        except (OSError, WorkError):  # a folder without write access, a full disk: in memory only
            return self._make(view)

    def _make(self, view: View, folder: Path | None = None) -> _Structure:
        positions, _ = view.by_id(None)
        blocks = _read_blocks(view, positions, self._kind)
        return _Structure(view.stamp[positions], built_structure(self._kind, self._header, blocks, folder))

    def _saved(self, view: View) -> _Structure:
        """Built and saved, then mapped from its folder; others of this kind are deleted."""
        assert self._folder is not None
        self._folder.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".", dir=self._folder) as working:
            made = self._make(view, Path(working))
            here = save_structure(self._folder, self._header, made.stamp, made.searched)
        return replace(made, searched=loaded_structure(self._kind, here / "structure"), folder=here)

    def _loaded(self, view: View) -> _Structure | None:
        """The newest undamaged one on disk, if most of its passages are still stored."""
        if self._folder is None or view.passages < self._large:
            return None
        for path, stamp, searched in saved_structures(self._folder, self._kind, self._header):
            base = _Structure(stamp, searched, path)
            if 2 * int(np.count_nonzero(base.positions(view) >= 0)) > len(stamp):
                return base
        return None


def save_structure(folder: Path, header: KindHeader, stamp: Stamps, searched: Searched) -> Path:
    """Save what was built for these passages in a new folder below `folder`; all others there are deleted."""
    name = os.urandom(4).hex()
    beside, here = folder / f".{name}", folder / name
    try:
        beside.mkdir(parents=True)
        searched.save(beside / "structure")
        np.save(beside / "stamps.npy", stamp)
        files = sorted(str(path.relative_to(beside)) for path in beside.rglob("*") if path.is_file())
        about = {
            "format": _FORMAT,
            "dim": header.dim,
            "form": header.form,
            "rows": len(stamp),
            "sha256": {file: cache.sha256(beside / file) for file in files},
        }
        (beside / "about.json").write_text(json.dumps(about), encoding="utf-8")
        for file in (*files, "about.json"):
            sync(beside / file)
        cache.note_checked(beside, about)
        beside.rename(here)
    except BaseException:
        shutil.rmtree(beside, ignore_errors=True)
        raise
    for other in folder.glob("*"):  # and what a process that died left
        if other != here:
            shutil.rmtree(other, ignore_errors=True)
    return here


def saved_structures(folder: Path, kind: str, header: KindHeader) -> Iterator[tuple[Path, Stamps, Searched]]:
    """What `save_structure` wrote and is undamaged, the newest first."""
    found: list[Path] = []
    with suppress(OSError):
        found = sorted(folder.glob("[!.]*"), key=lambda path: path.stat().st_mtime, reverse=True)
    for path in found:
        try:
            about = _about(path)
            if [about[name] for name in ("format", "dim", "form")] != [_FORMAT, header.dim, header.form]:
                continue
            cache.check_files_once(path, about)
            stamp = np.load(path / "stamps.npy", allow_pickle=False)
            searched = loaded_structure(kind, path / "structure")
        except _DAMAGED:
            continue
        yield path, stamp, searched


def _about(here: Path) -> dict[str, Any]:
    about: dict[str, Any] = json.loads((here / "about.json").read_text(encoding="utf-8"))
    return about


def _read(view: View, positions: Positions, kind: str) -> list[bytes]:
    """The stored values of these rows, in their order."""
    return [value for block in _read_blocks(view, positions, kind) for value in block]


def _read_blocks(view: View, positions: Positions, kind: str) -> Iterator[list[bytes]]:
    column = kind_column(kind)
    for start in range(0, len(positions), _BLOCK):
        yield view.take(positions[start : start + _BLOCK], [column])[column].to_pylist()


def _sizes(view: View) -> dict[str, int]:
    """Bytes of the columns on disk, as Lance counts them; empty where it cannot."""
    with suppress(Exception):  # of an interface of Lance that may change; a size is for people
        dataset = view.dataset
        numbers = {field.name(): field.id() for field in dataset.lance_schema.fields()}
        on_disk = {each.id: int(each.bytes_on_disk) for each in dataset.stats.data_stats().fields}
        return {kind: on_disk[numbers[kind_column(kind)]] for kind in view.header.kinds}
    return {}


@dataclass(frozen=True, eq=False)
class _Best:
    position: Positions
    score: Vectors
    exact: bool


def _best(
    snapshot: _Snapshot,
    query: Any,  # noqa: ANN401 - SparseRow or (tokens, dim)
    k: int,
    meeting: NDArray[np.bool_] | None,
    *,
    exact: bool,
    recall: float | None,
) -> _Best:
    """By score, then id and part."""
    view, compares_all = snapshot.view, True
    positions, scores = [np.empty(0, np.int64)], [np.empty(0, np.float32)]
    for structure, position in snapshot.parts:
        inside = position >= 0 if meeting is None else (position >= 0) & meeting[position]
        count = int(np.count_nonzero(inside))
        if not count:
            continue
        measured = structure.searched.recall
        whole = exact or measured is None or count <= _FEW or measured < (recall or USUAL_RECALL)
        chosen = None if count == len(inside) else inside
        rows, score = structure.searched.search(query, k, inside=chosen, exact=whole)
        positions.append(position[rows])
        scores.append(score)
        compares_all &= whole
    position, score = np.concatenate(positions), np.concatenate(scores)
    ids, parts = view.ids_at(position), view.part[position]
    order = sorted(range(len(ids)), key=lambda n: (-score[n], ids[n], parts[n]))[:k]
    return _Best(position[order], score[order].astype(np.float32), compares_all)


def _passages(view: View, found: Sequence[_Best]) -> list[Passages]:
    """The rows of the passages, read for all queries at once."""
    every = np.concatenate([np.empty(0, np.int64), *(each.position for each in found)])
    distinct, at = np.unique(every, return_inverse=True)
    rows = passages_at(view, distinct, np.zeros(len(distinct), np.float32))
    out, start = [], 0
    for each in found:
        chosen = at[start : start + len(each.position)]
        start += len(each.position)
        out.append(
            Passages(
                id=[rows.id[n] for n in chosen],
                part=rows.part[chosen],
                text=[rows.text[n] for n in chosen],
                fields={name: [values[n] for n in chosen] for name, values in rows.fields.items()},
                score=each.score,
                vector=rows.vector[chosen],
                exact=each.exact,
            )
        )
    return out
