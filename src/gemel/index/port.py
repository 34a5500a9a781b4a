"""What an index asks of the place its passages live in. A `Table` knows vectors and columns, never a model.

A document is one id; it is stored as one passage or several, `part` counting from 0. Every writing call is one commit:
after a crash all of it is there or nothing. Vectors have length 1, so a dot product is the cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.index.where import Condition
from gemel.types import Vectors
from gemel.vectors.bm25 import WordRules

FieldValue: TypeAlias = str | int | float | bool | date | datetime | list[Any] | None
"""As Python has it: a datetime is aware and in UTC, a list holds values of one type and no None."""
FieldType: TypeAlias = Literal[
    "text",
    "int",
    "float",
    "bool",
    "date",
    "datetime",
    "texts",
    "ints",
    "floats",
    "bools",
    "dates",
    "datetimes",
]
LISTS: Mapping[FieldType, FieldType] = {
    "texts": "text",
    "ints": "int",
    "floats": "float",
    "bools": "bool",
    "dates": "date",
    "datetimes": "datetime",
}
"""Fields that hold a list, and the type of what is in it."""
FORMAT = 2
"""Of what is written; a table of a higher number is refused with the advice to upgrade. 2 brought `Header.words`."""


class AlreadyThere(InputError):
    """An index cannot be made where there is one."""


@dataclass(frozen=True)
class Header:
    """What a table says of itself: kept with the rows, read before anything else is done."""

    dim: int
    fields: Mapping[str, FieldType]
    """Columns of the user, in order; any may be null in a row."""
    bound: Mapping[str, Any]
    """What the vectors depend on, as JSON (see `binding.py`); the table keeps it and does not look inside."""
    format: int = FORMAT
    words: WordRules = field(default_factory=WordRules)
    """How texts and queries are cut into words; a table of format 1 has version 1 of them."""


@dataclass(frozen=True, eq=False)
class PassageRows:
    """Passages, column by column. The passages of a document stand together, parts ascending from 0."""

    id: Sequence[str]
    part: NDArray[np.int32]
    text: Sequence[str]
    """The passage; those of a document, joined, are its text. "" where only vectors were given."""
    digest: Sequence[str]
    """Of the whole document, the same for all of its passages: equal digest, nothing to encode again."""
    vector: Vectors
    """(n, dim), each of length 1."""
    fields: Mapping[str, Sequence[FieldValue]] = field(default_factory=dict)
    """Every field of the header, n values each."""

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, eq=False)
class Passages:
    """Passages found for one query, best first; ties go to the lower id, then the lower part."""

    id: Sequence[str]
    part: NDArray[np.int32]
    text: Sequence[str]
    fields: Mapping[str, Sequence[FieldValue]]
    score: Vectors
    """(n,) cosine of exact vectors from `nearest`; BM25 from `by_words`."""
    vector: Vectors
    """(n, dim)"""
    exact: bool = True
    """Every passage that meets the condition was compared, none left out by a list or a graph."""

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Count:
    documents: int
    passages: int


@dataclass(frozen=True)
class TableStats:
    """How the table is laid out and how well it finds."""

    documents: int
    passages: int
    bytes: int
    """On disk, all that belongs to the table; caches included."""
    layout: str
    """For a person: "exact", "IVF1024,SQ8 (64 lists asked)", "HNSW m=16"."""
    unindexed: int
    """Passages that are compared one by one as they came after the last build."""
    recall: float | None
    """Part of the 10 exact neighbours that `nearest` finds, of questions like the stored texts; None: all are compared.
    `details["recall"]` has it by the kind of question, where it was measured."""
    version: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Table(Protocol):
    """One place of passages, safe to use from several threads, and from several processes on one place."""

    @property
    def place(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def header(self) -> Header:
        """As it is now: fields that another handle or process added are in it."""
        ...

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        """New columns after those that are there, null in every stored row; one commit.

        A field that is there with the same type is left alone; with another type it is an InputError, nothing changed.
        """
        ...

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        """Of the asked ids those that are there, with their digests."""
        ...

    def write(self, rows: PassageRows, *, replace: bool) -> None:
        """One commit, on disk when this returns. Each document of `rows` becomes what `rows` says, old parts gone.

        `replace` False: an id that is there already is an InputError and nothing is written.
        """
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Documents that were there and are gone now, in one commit."""
        ...

    def delete_where(self, where: Condition) -> int:
        """Documents with a passage that meets the condition (all passages of a document have the same fields)."""
        ...

    def get(self, ids: Sequence[str]) -> PassageRows:
        """The passages of these documents; ids that are not there are left out. In the order asked."""
        ...

    def count(self, where: Condition | None = None) -> Count: ...

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
        """The k best passages for each query, of those that meet `where`. What was written a moment ago is found.

        `exact`: every passage is compared. Else at least 0.98 of the right ones are found, filtered or not, and the
        first j of the answer for k are the answer for j; what a wider search finds comes after the first 10, 50, 250
        (see `depths.py`). `recall`: so many at least. `far`: the queries are unlike the stored texts, as single words
        are, and need a wider search for the same recall; a table may recognize further ones by their vectors.
        """
        ...

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        """The k best passages by BM25; none that shares no word with the query."""
        ...

    def scan(self, *, after: str | None = None, block: int = 4096) -> Iterator[PassageRows]:
        """All passages, whole documents, ids ascending; `after`: those of greater ids only."""
        ...

    def compact(self, *, now: bool = False) -> None:
        """Merge small pieces, drop what is deleted, build anew what speeds up search. May be killed at any moment.

        `now`: WorkError where the room that old versions take cannot be freed, as others are reading them.
        """
        ...

    def faults(self) -> list[str]:
        """What is wrong with what search reads besides the rows (an index of words, a cache), all of it read."""
        ...

    def stats(self) -> TableStats: ...

    def close(self) -> None: ...


class Store(Protocol):
    """Where one index lives: its current table and, while it is migrated, the next one beside it.

    A table that `switch` has replaced is not written to again: every writing call of a handle that is still open
    to it, in any process, is a WorkError that says to open the index again. Its reads may go on or fail the same way.
    """

    @property
    def name(self) -> str:
        """For messages, without secrets."""
        ...

    def exists(self) -> bool:
        """Is there an index? Whatever is there and is none (a foreign folder, no rights, no server) is an error."""
        ...

    def open(self) -> Table:
        """The current table; an InputError where there is none."""
        ...

    def create(self, header: Header) -> Table:
        """An empty current table, on disk when this returns; AlreadyThere where there is one."""
        ...

    def begin(self, header: Header) -> Table:
        """The next table, invisible to `open`. One left by a process that died is gone on with if its header is equal
        in `dim` and `bound` (fields may have been added), else dropped and begun anew.

        WorkError while another process is building it. Held until `switch`, `abandon` or `close`.
        """
        ...

    def switch(self) -> Table:
        """The next table becomes the current one, atomically and on disk, and is returned; the old one is dropped.

        Called inside `writing`.
        """
        ...

    def abandon(self) -> None:
        """Drop the next table, if there is one."""
        ...

    def repair(self, table: str | None = None, header: Header | None = None) -> list[str]:
        """Make what is damaged usable again; what was done, one line each. No row that can be read is lost.

        table: the one to keep, where nothing says which of several counts. header: where the table has lost its own.
        """
        ...

    def writing(self) -> AbstractContextManager[None]:
        """While this is held no other thread and no other process writes to the current table.

        The holder may read the current table and read and write the next one.
        """
        ...

    def close(self) -> None:
        """Release what is held; tables that were opened are closed by their owners."""
        ...
