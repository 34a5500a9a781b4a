"""`LanceTable`: passages in one Lance dataset, a folder or a bucket. Every write is one commit of Lance's."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.index.field_types import new_fields
from gemel.index.lance import finding
from gemel.index.lance import words as by_words
from gemel.index.lance.columns import arrow_type, column_of, stored_columns, to_arrow, to_rows
from gemel.index.lance.disk import bytes_below
from gemel.index.lance.optimistic import Added
from gemel.index.lance.seal import repeated
from gemel.index.lance.sight import LARGE, Sights
from gemel.index.lance.versions import Versions, reading
from gemel.index.lance.view import Positions, View
from gemel.index.lance.words import MANY, Words
from gemel.index.port import Count, FieldType, Header, Passages, Rows, TableStats
from gemel.index.where import Condition
from gemel.types import Vectors

_SMALL = 8_192  # rows; fragments below it are merged after a write when there are many
_MANY_SMALL = 64
_KEPT = timedelta(hours=1)  # versions that are younger stay, for readers in other processes


Result = TypeVar("Result")


class LanceTable:
    """A `Table`. Readers see the newest version, whoever wrote it; writers wait for one another."""

    def __init__(
        self,
        uri: str,
        place: str,
        *,
        guard: Callable[[], AbstractContextManager[None]],
        cache: Path | None = None,
        durable: bool = True,
        read_only: bool = False,
        options: dict[str, str] | None = None,
        large: int = LARGE,
        many: int = MANY,
    ) -> None:
        """`guard` is held around every write: no other writer is at work then; it may refuse.

        `large`, `many`: passages from which on lists, and an index of words, are built. `read_only`: no row and no
        index of words is written; lists are kept in the cache all the same, or each process would build them anew.
        """
        self._uri, self._place, self._guard, self._cache = uri, place, guard, cache
        self._read_only = read_only
        self._versions = Versions(uri, place, durable=durable, options=options)
        self._shared = "://" in uri
        """In a bucket: the cache is this machine's own, and no lock keeps other writers out."""
        self._sights = Sights(cache, Path(uri).stem, large=large)
        self._words = Words(many)

    @property
    def place(self) -> str:
        return self._place

    @property
    def header(self) -> Header:
        return self._versions.newest().header

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        with self._guard():
            self._repeated(lambda view: self._add_fields(view.header, fields))

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        view = self._versions.newest()
        position = view.of_ids(ids)
        position = position[view.part[position] == 0]
        with reading(self._place):
            table = view.take(position, ["id", "digest"])
        return dict(zip(table["id"].to_pylist(), table["digest"].to_pylist(), strict=True))

    def write(self, rows: Rows, *, replace: bool) -> None:
        if not len(rows):
            return
        with self._guard():
            added = Added(to_arrow(rows, self._versions.newest().header))
            try:
                view = self._repeated(lambda view: self._write(view, rows, added, replace=replace))
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

    def get(self, ids: Sequence[str]) -> Rows:
        view = self._versions.newest()
        order = {name: place for place, name in enumerate(dict.fromkeys(ids))}
        position = view.of_ids(ids)
        names = [order[name] for name in view.ids_at(position)]
        return self._rows(view, position[np.lexsort((view.part[position], np.array(names, dtype=np.int64)))])

    def count(self, where: Condition | None = None) -> Count:
        return self._versions.newest().count(where)

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
        view = self._versions.newest()
        with reading(self._place):
            sight = self._sights.at(view, build=not exact)
        return finding.nearest(sight, queries, k, where, exact=exact, recall=recall, far=far)

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        view = self._versions.newest()
        if self._words.wanted(view) and not self._read_only:
            view = self._with_words(view)
        with reading(self._place):
            return self._words.find(view, query, k, where)

    def scan(self, *, after: str | None = None, block: int = 4096) -> Iterator[Rows]:
        view = self._versions.newest()
        position, ends = view.by_id(after)
        start = 0
        while start < len(position):
            # As many whole documents as fit, at least one.
            fitting = int(np.searchsorted(ends, start + block, side="right"))
            end = int(ends[max(fitting - 1, int(np.searchsorted(ends, start, side="right")))])
            yield self._rows(view, position[start:end])
            start = end

    def compact(self) -> None:
        with self._guard():
            if self._words.wanted(self._versions.recovered()):
                self._change(by_words.create)
            self._change(lambda dataset: dataset.optimize.optimize_indices())
            self._change(lambda dataset: dataset.optimize.compact_files(num_threads=1))
            self._change(lambda dataset: dataset.cleanup_old_versions(older_than=_KEPT))
        self._sights.build(self._versions.newest())

    def stats(self) -> TableStats:
        view = self._versions.newest()
        count = view.count(None)
        sight = self._sights.peek(view)
        lists = sight.lists if sight is not None else None
        return TableStats(
            documents=count.documents,
            passages=count.passages,
            bytes=self._bytes(view),
            layout="exact" if lists is None else lists.layout,
            unindexed=sight.count - lists.count if sight is not None and lists is not None else 0,
            recall=None if lists is None else lists.recall,
            version=str(view.version),
            details={
                "fragments": len(view.pieces),
                "deleted": len(view.live) - count.passages,
                "words": "index" if by_words.indexed(view) else "memory",
                **({} if lists is None else {"recall": lists.measured}),
            },
        )

    def close(self) -> None:
        """Memory that is mapped goes with the last who uses it."""

    def _change(self, work: Callable[[Any], object]) -> View:
        return repeated(lambda: self._versions.change(work))

    def _rows(self, view: View, position: Positions) -> Rows:
        with reading(self._place):
            return to_rows(view.take(position, stored_columns(view.header.fields)), view.header.fields)

    def _repeated(self, work: Callable[[View], Result]) -> Result:
        """On the newest view; anew where no lock keeps other writers out and one of them was faster."""
        return repeated(lambda: work(self._versions.newest()))

    def _write(self, view: View, rows: Rows, added: Added, *, replace: bool) -> View:
        if added.arrived(view):
            return view
        there = view.of_ids(rows.id)
        if len(there) and not replace:
            taken = set(view.ids_at(there))
            name = next(each for each in rows.id if each in taken)
            raise InputError(f"{name!r} is there already. Use existing='replace' or 'skip'")
        return self._versions.commit(view, there, added)

    def _add_fields(self, header: Header, fields: Mapping[str, FieldType]) -> None:
        new = {column_of(n): arrow_type(kind) for n, kind in new_fields(header.fields, fields).items()}
        if new:
            self._versions.add_columns(new)

    def _without(self, view: View, position: Positions) -> int:
        if len(position):
            self._versions.commit(view, position, None)
        return int(np.count_nonzero(view.part[position] == 0))

    def _merge_small(self, view: View) -> None:
        """Many small writes leave many small files, which slow every reader down."""
        if sum(piece.rows < _SMALL for piece in view.pieces) <= _MANY_SMALL:
            return
        with suppress(WorkError):  # the write itself is done; on a full disk this is for another time
            self._versions.change(
                lambda dataset: dataset.optimize.compact_files(target_rows_per_fragment=_SMALL, num_threads=1)
            )
            self._versions.change(lambda dataset: dataset.cleanup_old_versions(older_than=_KEPT))

    def _with_words(self, view: View) -> View:
        try:
            with self._guard():
                if self._words.wanted(self._versions.newest()):
                    return self._versions.change(by_words.create)
        except WorkError:  # a folder that may not be written: words are counted in memory
            return view
        return self._versions.newest()

    def _bytes(self, view: View) -> int:
        if self._shared:  # what the newest version names; to list a bucket costs time and money
            files = (file for each in view.dataset.get_fragments() for file in each.metadata.files)
            return sum(file.file_size_bytes or 0 for file in files)
        here = bytes_below(Path(self._uri))
        if self._cache is None:
            return here
        caches = self._cache.glob(f"{Path(self._uri).stem}-*")
        return here + sum(bytes_below(folder) for folder in caches)
