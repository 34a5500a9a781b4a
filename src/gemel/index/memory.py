"""An index in this process's memory: every answer exact, lost when the process ends. Tests compare others with it."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError
from gemel.index.fields import count_values, new_fields, unknown_field
from gemel.index.kinds import Searched, compared
from gemel.index.port import (
    AlreadyThere,
    Count,
    DocumentPassages,
    FieldType,
    FieldValue,
    Header,
    PassageRows,
    Passages,
    TableStats,
    check_expected,
    check_kinds,
    documents_in,
    no_dense_vectors,
    rows_of,
)
from gemel.index.where import Condition, matches
from gemel.types import Vectors
from gemel.vectors.bm25 import BM25Index
from gemel.vectors.search import search


@dataclass(frozen=True, eq=False)
class _Version:
    """All documents at one moment; never changed, so whoever reads it needs no lock."""

    header: Header
    documents: Mapping[str, DocumentPassages] = field(default_factory=dict)
    number: int = 0

    @cached_property
    def rows(self) -> PassageRows:
        """Ascending by id and part, so that a tie between positions is a tie as the port settles it."""
        return self.rows_of(sorted(self.documents))

    @cached_property
    def words(self) -> BM25Index:
        return BM25Index(self.rows.text, rules=self.header.words)

    @cached_property
    def _searched(self) -> dict[str, Searched]:
        kinds = self.header.kinds
        return {name: compared(name, each, self.rows.kinds[name]) for name, each in kinds.items()}

    @property
    def sizes(self) -> dict[str, dict[str, Any]]:
        """Bytes and layout of each kind of vectors."""
        kinds = self.rows.kinds.items()
        return {name: {"bytes": sum(map(len, values)), "layout": "exact"} for name, values in kinds}

    def by_kind(self, kind: str, query: Any, k: int, where: Condition | None) -> Passages:  # noqa: ANN401
        return self.passages(*self._searched[kind].search(query, k, inside=self.mask(where), exact=True))

    def rows_of(self, ids: Iterable[str]) -> PassageRows:
        return rows_of([self.documents[each] for each in ids if each in self.documents], self.header)

    def blocks(self, ids: Iterable[str], size: int) -> Iterator[PassageRows]:
        """Whole documents, of so many passages if none has more."""
        waiting: list[str] = []
        passages = 0
        for each in ids:
            parts = len(self.documents[each].parts)
            if waiting and passages + parts > size:
                yield self.rows_of(waiting)
                waiting, passages = [], 0
            waiting.append(each)
            passages += parts
        if waiting:
            yield self.rows_of(waiting)

    def meeting(self, where: Condition) -> list[str]:
        """The documents of which the condition is true."""
        nulls = dict.fromkeys(self.header.fields)
        return [
            each
            for each, document in self.documents.items()
            if matches(where, {**nulls, **document.fields, "id": each})
        ]

    def mask(self, where: Condition | None) -> NDArray[np.bool_] | None:
        """(passages,) which rows count; None: all."""
        if where is None:
            return None
        inside = set(self.meeting(where))
        return np.array([each in inside for each in self.rows.id], dtype=np.bool_)

    def passages(self, positions: NDArray[np.int64], score: Vectors) -> Passages:
        rows, chosen = self.rows, positions.tolist()
        return Passages(
            id=[rows.id[n] for n in chosen],
            part=rows.part[positions],
            text=[rows.text[n] for n in chosen],
            fields={name: [values[n] for n in chosen] for name, values in rows.fields.items()},
            score=score,
            vector=rows.vector[positions],
        )


class MemoryTable:
    """A `Table` of plain Python and numpy: each write makes a new version, each read works on one."""

    def __init__(
        self, header: Header, guard: Callable[[], AbstractContextManager[None]] = nullcontext
    ) -> None:
        """`guard`: a context around every write; it raises if the table was replaced."""
        self._now = _Version(dataclasses.replace(header, fields=dict(header.fields)))
        self._guard = guard
        self._writing = threading.Lock()

    @property
    def location(self) -> str:
        return ":memory:"

    @property
    def header(self) -> Header:
        return self._now.header

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        with self._guard(), self._writing:
            header = self._now.header
            new = new_fields(header.fields, fields)
            if not new:
                return
            header = dataclasses.replace(header, fields={**header.fields, **new})
            self._now = _Version(header, self._now.documents, self._now.number + 1)

    def remove_field(self, field: str, changed: Callable[[DocumentPassages], DocumentPassages]) -> int:
        with self._guard(), self._writing:
            header, documents = self._now.header, dict(self._now.documents)
            if field not in header.fields:
                raise unknown_field(field, header.fields)
            having = [each for each in documents.values() if each.fields.get(field) is not None]
            documents |= {each.id: changed(each) for each in having}
            left = {name: kind for name, kind in header.fields.items() if name != field}
            stored = {
                id_: dataclasses.replace(
                    each, fields={name: value for name, value in each.fields.items() if name != field}
                )
                for id_, each in documents.items()
            }
            self._now = _Version(dataclasses.replace(header, fields=left), stored, self._now.number + 1)
            return len(having)

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        now = self._now.documents
        return {each: now[each].digest for each in ids if each in now}

    def write(self, rows: PassageRows, *, replace: bool, expected: Mapping[str, str] | None = None) -> None:
        with self._guard(), self._writing:
            check_expected(expected, self.digests(list(expected or ())))
            check_kinds(rows, self._now.header)
            # Copied, so that the caller's array may change.
            written = {
                each.id: dataclasses.replace(each, vectors=np.array(each.vectors, dtype=np.float32))
                for each in documents_in(rows)
            }
            there = [each for each in written if each in self._now.documents]
            if there and not replace:
                raise InputError(f"{there[0]!r} is there already. Use existing='replace' or 'skip'")
            self._commit({**self._now.documents, **written})

    def delete(self, ids: Sequence[str]) -> int:
        with self._guard(), self._writing:
            return self._without(ids)

    def delete_where(self, where: Condition) -> int:
        with self._guard(), self._writing:
            return self._without(self._now.meeting(where))

    def get(self, ids: Sequence[str], *, kinds: bool = False) -> PassageRows:
        return self._now.rows_of(dict.fromkeys(ids))

    def count(self, where: Condition | None = None) -> Count:
        now = self._now
        inside = list(now.documents) if where is None else now.meeting(where)
        return Count(len(inside), sum(len(now.documents[each].parts) for each in inside))

    def values(self, field: str, where: Condition | None = None) -> dict[FieldValue, int]:
        now = self._now
        inside = now.documents if where is None else now.meeting(where)
        return count_values(now.documents[each].fields.get(field) for each in inside)

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
        now = self._now
        if not now.header.dim:
            raise no_dense_vectors(self.location)
        hits = search(queries, now.rows.vector, k, "dot", where=now.mask(where), threads=1)
        return [now.passages(*row) for row in zip(hits.index, hits.score, strict=True)]

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        now = self._now
        hits = now.words.rank([query], k, now.mask(where))
        found = hits.index[0] >= 0
        return now.passages(hits.index[0][found], hits.score[0][found])

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
        now = self._now
        return [now.by_kind(kind, query, k, where) for query in queries]

    def scan(
        self,
        *,
        after: str | None = None,
        block: int = 4096,
        where: Condition | None = None,
        kinds: bool = False,
    ) -> Iterator[PassageRows]:
        now = self._now
        chosen = sorted(now.documents if where is None else now.meeting(where))
        return now.blocks((each for each in chosen if after is None or each > after), block)

    @contextmanager
    def frozen(self, block: int = 4096) -> Iterator[tuple[Header, Iterator[PassageRows]]]:
        now = self._now
        yield now.header, now.blocks(sorted(now.documents), block)

    def faults(self) -> list[str]:
        return []

    def compact(self, *, now: bool = False) -> None:
        """Nothing to compact."""

    def stats(self) -> TableStats:
        now = self._now
        count = self.count()
        return TableStats(
            documents=count.documents,
            passages=count.passages,
            bytes=0,
            layout="exact",
            unindexed=0,
            recall=None,
            version=str(now.number),
            details={} if not now.header.kinds else {"kinds": now.sizes},
        )

    def close(self) -> None:
        """Nothing to release."""

    def _without(self, ids: Sequence[str]) -> int:
        gone = set(ids) & self._now.documents.keys()
        if gone:
            self._commit({k: v for k, v in self._now.documents.items() if k not in gone})
        return len(gone)

    def _commit(self, documents: Mapping[str, DocumentPassages]) -> None:
        self._now = _Version(self._now.header, documents, self._now.number + 1)


class MemoryStore:
    """A `Store` without files: handles that share the object share the index."""

    name = ":memory:"

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._current: MemoryTable | None = None
        self._next: MemoryTable | None = None

    def exists(self) -> bool:
        return self._current is not None

    def open(self) -> MemoryTable:
        if self._current is None:
            raise InputError("no index is in this memory yet. Create one first")
        return self._current

    def create(self, header: Header) -> MemoryTable:
        with self._lock:
            if self._current is not None:
                raise AlreadyThere("an index is in this memory already. Open it instead")
            self._current = self._table(header)
            return self._current

    def begin(self, header: Header) -> MemoryTable:
        with self._lock:
            begun = self._next
            if begun is None or not begun.header.same_vectors(header):
                self._next = self._table(header)
            assert self._next is not None
            return self._next

    def switch(self) -> MemoryTable:
        with self._lock:
            if self._next is None:
                raise InputError("no next table was begun, so there is none to switch to")
            self._current, self._next = self._next, None
            return self._current

    def abandon(self) -> None:
        with self._lock:
            self._next = None

    def drop(self) -> None:
        with self._lock:
            self.open()
            self._current = self._next = None

    def repair(self, table: str | None = None, header: Header | None = None) -> list[str]:
        """Nothing can be damaged."""
        return []

    @contextmanager
    def writing(self) -> Iterator[None]:
        with self._lock:
            yield

    def close(self) -> None:
        """Nothing to release; the index lives as long as this object."""

    def _table(self, header: Header) -> MemoryTable:
        """A table that cannot be written to once it was replaced or dropped."""

        @contextmanager
        def guard() -> Iterator[None]:
            with self._lock:
                if table is not self._current and table is not self._next:
                    raise WorkError("the index was migrated meanwhile, nothing was written. Open it again")
                yield

        table = MemoryTable(header, guard)
        return table
