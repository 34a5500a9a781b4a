"""`LanceTable`: passages in one Lance dataset, in a folder or a bucket. Every write is one commit."""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.files.atomic import SharedLock
from gemel.index.fields import new_fields, unknown_field
from gemel.index.lance import cache, search
from gemel.index.lance.columns import arrow_type, column_of, stored_columns, to_arrow, to_rows
from gemel.index.lance.kinds import KindSearch
from gemel.index.lance.recovery import (
    RecoveredWarning,
    bytes_below,
    last_commit,
    open_dataset,
    reading,
    refuse_fork,
    repeated,
    write_errors,
)
from gemel.index.lance.search import MANY, Words, create_word_index, word_faults, word_segments
from gemel.index.lance.snapshot import LARGE, SnapshotCache, TableSnapshot, load_view, save_view, saved_file
from gemel.index.lance.versions import Added, Versions, repair_rows
from gemel.index.lance.view import Positions, View
from gemel.index.port import (
    Count,
    DocumentPassages,
    FieldType,
    FieldValue,
    Header,
    PassageRows,
    Passages,
    TableStats,
    check_expected,
    documents_in,
    no_dense_vectors,
)
from gemel.index.where import Condition, IsNull, Not
from gemel.types import Vectors

_SMALL = 8_192  # rows; fragments below it are merged after a write when there are many
_MANY_SMALL = 64
_REWRITTEN = 4_096  # passages that are read at a time where digests change
_KEPT = timedelta(hours=1)  # versions that are younger stay, for readers in other processes


Result = TypeVar("Result")


class Uses:
    """Counts the running reads of one handle. Files of old versions are deleted when there are none."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count, self._closed = 0, False

    @contextmanager
    def reading(self) -> Iterator[None]:
        with self._changed:
            self._changed.wait_for(lambda: not self._closed)
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1

    @contextmanager
    def none(self) -> Iterator[bool]:
        """True: no read is running, and none begins before the end of the block."""
        with self._changed:
            free = not self._count and not self._closed
            self._closed |= free
        try:
            yield free
        finally:
            if free:
                with self._changed:
                    self._closed = False
                    self._changed.notify_all()


@dataclass(eq=False)
class _Handles:
    """What one process has open."""

    versions: Versions
    snapshots: SnapshotCache
    words: Words
    kinds: KindSearch
    readers: SharedLock | None
    process: int = field(default_factory=os.getpid)
    uses: Uses = field(default_factory=Uses)


_of_parents: list[_Handles] = []
"""Of the process that this one was forked from; kept, so that nothing of it is torn down here."""


class LanceTable:
    """A `Table`. Readers see the newest version, whoever wrote it; writers wait for one another."""

    def __init__(  # noqa: PLR0913 - all that a store knows of its table
        self,
        uri: str,
        location: str,
        *,
        guard: Callable[[], AbstractContextManager[None]],
        cache: Path | None = None,
        durable: bool = True,
        read_only: bool = False,
        options: dict[str, str] | None = None,
        readers: Path | None = None,
        large: int = LARGE,
        many: int = MANY,
    ) -> None:
        """`guard`: a lock around every write; it raises if the table may not be written.

        `large`, `many`: passages from which on lists, and an index of words, are built. `read_only`: no row and no
        index of words is written; lists are still cached, or each process would build them again.
        `readers`: a file whose shared lock says that the table is open; None: unknown.
        """
        self._uri, self._location, self._guard, self._cache = uri, location, guard, cache
        self._read_only = read_only
        self._shared = "://" in uri
        """In a bucket: the cache is this machine's own, and no lock keeps other writers out."""

        def handles() -> _Handles:
            # First, so that nobody deletes what the version that is opened next needs.
            shared = SharedLock(readers) if readers is not None else None
            start = None if cache is None or self._shared else load_view(cache, uri, location)
            view = None if start is None else start.view
            return _Handles(
                readers=shared,
                versions=Versions(uri, location, durable=durable, options=options, start=view),
                snapshots=SnapshotCache(cache, Path(uri).stem, large=large, start=start),
                words=Words(many),
                kinds=KindSearch(cache, Path(uri).stem, many),
            )

        self._open_handles = handles
        self._handles = handles()

    @property
    def _now(self) -> _Handles:
        """What is open in this process. After a fork the child opens everything again, because locks of other threads
        stay locked there; if Lance was called before the fork, it cannot."""
        if self._handles.process != os.getpid():
            refuse_fork()
            _of_parents.append(self._handles)  # closing it would wait for what is not there
            self._handles = self._open_handles()
        return self._handles

    @property
    def _versions(self) -> Versions:
        return self._now.versions

    @property
    def location(self) -> str:
        return self._location

    @property
    def header(self) -> Header:
        return self._versions.newest().header

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        with self._guard():
            self._repeated(lambda view: self._add_fields(view.header, fields))

    def remove_field(self, field: str, changed: Callable[[DocumentPassages], DocumentPassages]) -> int:
        with self._guard():
            return self._repeated(lambda view: self._remove_field(view, field, changed))

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        with self._reading():
            view = self._versions.newest()
            return _digests(view, view.of_ids(ids))

    def write(self, rows: PassageRows, *, replace: bool, expected: Mapping[str, str] | None = None) -> None:
        if not len(rows):
            return
        with self._guard():
            added = Added(to_arrow(rows, self._versions.newest().header))
            try:
                view = self._repeated(
                    lambda view: self._write(view, rows, added, replace=replace, expected=expected)
                )
            except WorkError:
                # In a bucket the answer may get lost on the way; in a folder, what is there may not be on disk.
                if not self._shared or not added.arrived(view := self._versions.newest()):
                    raise
            self._merge_small(view)

    def delete(self, ids: Sequence[str]) -> int:
        if not len(ids):
            return 0
        with self._guard():
            return self._repeated(lambda view: self._without(view, view.of_ids(ids)))

    def delete_where(self, where: Condition) -> int:
        with self._guard():
            return self._repeated(lambda view: self._without(view, np.flatnonzero(view.meeting(where))))

    def get(self, ids: Sequence[str], *, kinds: bool = False) -> PassageRows:
        order = {name: n for n, name in enumerate(dict.fromkeys(ids))}
        with self._reading():
            view = self._versions.newest()
            position = view.of_ids(ids)
            names = np.array([order[name] for name in view.ids_at(position)], dtype=np.int64)
            return _rows(view, position[np.lexsort((view.part[position], names))], kinds=kinds)

    def count(self, where: Condition | None = None) -> Count:
        return self._versions.newest().count(where)

    def values(self, field: str, where: Condition | None = None) -> dict[FieldValue, int]:
        return self._versions.newest().values(field, where)

    def nearest(
        self,
        queries: Vectors,
        k: int,
        *,
        where: Condition | None = None,
        exact: bool = False,
        recall: float | None = None,
        far: bool = False,
    ) -> list[Passages]:
        with self._reading():
            if not self._versions.newest().header.dim:
                raise no_dense_vectors(self._location)
            snapshot = self._now.snapshots.at(self._versions.newest(), build=not exact)
            self._save_snapshot(snapshot)
        return search.nearest(snapshot, queries, k, where, exact=exact, recall=recall, far=far)

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        with self._reading():
            view = self._versions.newest()
            if self._now.words.wanted(view) and not self._read_only:
                view = self._with_words(view)
            try:
                with reading(self._location):
                    return self._now.words.find(view, query, k, where)
            except WorkError as error:
                if not self._now.words.uses_index(view):
                    raise
                view = self._without_broken_words(view, error)
            return self._now.words.find(view, query, k, where)

    def by_kind(
        self,
        kind: str,
        queries: Sequence[Any],
        k: int,
        *,
        where: Condition | None = None,
        exact: bool = False,
        recall: float | None = None,
    ) -> list[Passages]:
        with self._reading():
            return self._now.kinds.find(
                self._versions.newest(), kind, queries, k, where, exact=exact, recall=recall
            )

    def scan(
        self,
        *,
        after: str | None = None,
        block: int = 4096,
        where: Condition | None = None,
        kinds: bool = False,
    ) -> Iterator[PassageRows]:
        with self._now.uses.reading():
            view = self._versions.newest()
            yield from self._blocks(view, *view.by_id(after, where), block, kinds=kinds)

    @contextmanager
    def frozen(self, block: int = 4096) -> Iterator[tuple[Header, Iterator[PassageRows]]]:
        with self._now.uses.reading():
            view = self._versions.newest()
            yield view.header, self._blocks(view, *view.by_id(None), block, kinds=True)

    @property
    def in_folder(self) -> bool:
        """Its files are on the local disk."""
        return not self._shared

    def clone(self, uri: str) -> None:
        """Copy the files of the newest version to a new table in another folder, word index included."""
        with self._reading():
            version = self._versions.newest().version
            with write_errors(uri):  # of a dataset of its own: Lance locks the one that it copies
                open_dataset(self._uri, None, version).deep_clone(uri, version)

    def compact(self, *, now: bool = False) -> None:
        with self._guard():
            self._tend_words()
            self._change(lambda dataset: dataset.optimize.compact_files(num_threads=1))
            if not self._clean() and now:
                raise WorkError(
                    f"{self._location} was compacted, but files of old versions are kept for an hour: other handles or "
                    "processes have it open, or it is in a bucket. Close them, then try again"
                )
        view = self._versions.newest()
        if view.header.dim:
            self._now.snapshots.build(view)
        with self._reading():
            self._now.kinds.build(self._versions.newest())

    def faults(self) -> list[str]:
        with self._reading():
            view = self._versions.newest()
            words = word_faults(view)
        if self._cache is None:
            return words
        return words + cache.faults(self._cache, Path(self._uri).stem) + self._now.kinds.faults()

    def repair(self) -> list[str]:
        with self._guard():
            done = repair_rows(self._versions, self._uri, self._location)
            view = self._versions.newest()
            if wrong := word_faults(view):
                self._change(create_word_index)
                done.append(f"built the index of words again: {wrong[0]}")
            if self._cache is not None:
                done += cache.repair(self._cache, Path(self._uri).stem) + self._now.kinds.repair()
        return done

    def stats(self) -> TableStats:
        with self._reading():
            view = self._versions.newest()
            count = view.count(None)
            snapshot = self._now.snapshots.peek(view) if view.header.dim else None
            kinds = self._now.kinds.stats(view)
        lists = snapshot.lists if snapshot is not None else None
        return TableStats(
            documents=count.documents,
            passages=count.passages,
            bytes=self._bytes(view),
            layout="exact" if lists is None else lists.layout,
            unindexed=snapshot.count - lists.count if snapshot is not None and lists is not None else 0,
            recall=None if lists is None else lists.recall,
            version=str(view.version),
            details={
                "fragments": len(view.fragments),
                "deleted": len(view.live) - count.passages,
                "words": "index" if word_segments(view) else "memory",
                **({} if lists is None else {"recall": lists.measured}),
                **({"kinds": kinds} if kinds else {}),
            },
            modified=None if self._shared else last_commit(Path(self._uri)),
        )

    def close(self) -> None:
        """Others may delete files of old versions afterwards. Mapped memory is freed with its last user."""
        if self._handles.readers is not None:
            self._handles.readers.close()

    def _change(self, work: Callable[[Any], object]) -> View:
        return repeated(lambda: self._versions.change(work))

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """No file of an old version is deleted meanwhile; errors of files are WorkErrors."""
        with self._now.uses.reading(), reading(self._location):
            yield

    def _repeated(self, work: Callable[[View], Result]) -> Result:
        """Work on the newest view; repeated if another writer was faster, where no lock keeps it out."""
        return repeated(lambda: work(self._versions.newest()))

    def _write(
        self,
        view: View,
        rows: PassageRows,
        added: Added,
        *,
        replace: bool,
        expected: Mapping[str, str] | None,
    ) -> View:
        if added.arrived(view):
            return view
        there = view.of_ids(rows.id)
        if expected:
            check_expected(expected, _digests(view, view.of_ids(list(expected))))
        if len(there) and not replace:
            taken = set(view.ids_at(there))
            name = next(each for each in rows.id if each in taken)
            raise InputError(f"{name!r} is there already. Use existing='replace' or 'skip'")
        return self._versions.commit(view, there, added)

    def _add_fields(self, header: Header, fields: Mapping[str, FieldType]) -> None:
        import pyarrow as pa

        new = new_fields(header.fields, fields)
        columns = [pa.field(column_of(name), arrow_type(kind)) for name, kind in new.items()]
        if columns:
            self._versions.change(lambda dataset: dataset.add_columns(columns))

    def _remove_field(
        self, view: View, field: str, changed: Callable[[DocumentPassages], DocumentPassages]
    ) -> int:
        if field not in view.header.fields:
            raise unknown_field(field, view.header.fields)
        position, ends = view.by_id(None, Not(IsNull(field)))
        digests: list[str] = []
        for rows in self._blocks(view, position, ends, _REWRITTEN):
            for document in documents_in(rows):
                digests += [changed(document).digest] * len(document.parts)
        self._versions.drop_column(view, column_of(field), position, digests)
        return len(ends)

    def _blocks(
        self, view: View, position: Positions, ends: Positions, block: int, *, kinds: bool = False
    ) -> Iterator[PassageRows]:
        """The passages of `View.by_id`, whole documents."""
        start = 0
        while start < len(position):
            # As many whole documents as fit, at least one.
            fitting = int(np.searchsorted(ends, start + block, side="right"))
            end = int(ends[max(fitting - 1, int(np.searchsorted(ends, start, side="right")))])
            with reading(self._location):
                rows = _rows(view, position[start:end], kinds=kinds)
            yield rows
            start = end

    def _without(self, view: View, position: Positions) -> int:
        if len(position):
            self._versions.commit(view, position, None)
        return int(np.count_nonzero(view.part[position] == 0))

    def _merge_small(self, view: View) -> None:
        """Merge small fragments: many small files slow every reader down."""
        if sum(fragment.rows < _SMALL for fragment in view.fragments) <= _MANY_SMALL:
            return
        with suppress(WorkError):  # the write itself is done; on a full disk this is for another time
            self._versions.change(
                lambda dataset: dataset.optimize.compact_files(target_rows_per_fragment=_SMALL, num_threads=1)
            )
            self._clean()

    def _clean(self) -> bool:
        """Delete files that only old versions need. True: of all versions, as none is being read; else versions of
        the last hour stay, for readers in other processes. The caller has the guard: nothing is being written."""
        handles = self._now
        if handles.readers is None:
            self._change(lambda dataset: dataset.cleanup_old_versions(older_than=_KEPT))
            return False
        with handles.uses.none() as idle, handles.readers.alone() as only:
            kept = timedelta(0) if idle and only else _KEPT
            # "Unverified": files that no version names, as in a copied folder, where their times say nothing.
            self._change(lambda each: each.cleanup_old_versions(older_than=kept, delete_unverified=True))
            return idle and only

    def _save_snapshot(self, snapshot: TableSnapshot) -> None:
        """For later processes, at the first search of a handle and after lists were built; after every write it would
        cost more than it saves."""
        if self._cache is not None and not self._shared and self._now.snapshots.to_save(snapshot):
            save_view(self._cache, self._uri, snapshot)

    def _tend_words(self) -> None:
        """Build or extend the index of words if the table is large enough for one, and repair it."""
        view = self._versions.recovered()
        if self._now.words.wanted(view) or word_faults(view):
            self._change(create_word_index)
            return
        try:
            self._change(lambda dataset: dataset.optimize.optimize_indices())
        except WorkError:
            if not word_segments(view):
                raise
            self._change(create_word_index)

    def _with_words(self, view: View) -> View:
        try:
            with self._guard():
                if self._now.words.wanted(self._versions.newest()):
                    return self._versions.change(create_word_index)
        except WorkError:  # a folder that may not be written: words are counted in memory
            return view
        return self._versions.newest()

    def _without_broken_words(self, view: View, error: WorkError) -> View:
        """A view whose words can be searched: the index built again, or left out if that fails."""
        if not self._read_only:
            try:
                with self._guard():
                    return self._versions.change(create_word_index)
            except WorkError:
                pass
        self._now.words.leave_out_index(view)
        warnings.warn(
            f"the index of words of {self._location} cannot be read, words are counted in memory instead ({error}). "
            f"Build it again: gemel index compact {self._location}",
            RecoveredWarning,
            stacklevel=3,
        )
        return view

    def _bytes(self, view: View) -> int:
        if self._shared:  # what the newest version names; to list a bucket costs time and money
            files = (file for each in view.dataset.get_fragments() for file in each.metadata.files)
            return sum(file.file_size_bytes or 0 for file in files)
        here = bytes_below(Path(self._uri))
        if self._cache is None:
            return here
        caches = (*self._cache.glob(f"{Path(self._uri).stem}-*"), *self._now.kinds.folders())
        saved = saved_file(self._cache, Path(self._uri).stem)
        here += saved.stat().st_size if saved.exists() else 0
        return here + sum(bytes_below(folder) for folder in caches)


def _digests(view: View, position: Positions) -> dict[str, str]:
    table = view.take(position[view.part[position] == 0], ["id", "digest"])
    return dict(zip(table["id"].to_pylist(), table["digest"].to_pylist(), strict=True))


def _rows(view: View, position: Positions, *, kinds: bool) -> PassageRows:
    columns = stored_columns(view.header, kinds=kinds)
    return to_rows(view.take(position, columns), view.header, kinds=kinds)
