"""What an index asks of the place its passages live in. A `Table` knows vectors and columns, never a model.

A document is one id; it is stored as one passage or several, `part` counting from 0. Every writing call is one commit:
after a crash all of it is there or nothing. Vectors have length 1, so a dot product is the cosine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.index.where import Condition
from gemel.types import Vectors

Scalar: TypeAlias = str | int | float | bool | None
FieldType: TypeAlias = Literal["text", "int", "float", "bool"]
FORMAT = 1
"""Of what is written; a table of a higher number is refused with the advice to upgrade."""


@dataclass(frozen=True)
class Header:
    """What a table says of itself: kept with the rows, read before anything else is done."""

    dim: int
    fields: Mapping[str, FieldType]
    """Columns of the user, in order; any may be null in a row."""
    bound: Mapping[str, Any]
    """What the vectors depend on, as JSON (see `binding.py`); the table keeps it and does not look inside."""
    format: int = FORMAT


@dataclass(frozen=True, eq=False)
class Rows:
    """Passages, column by column. The passages of a document stand together, parts ascending from 0."""

    id: Sequence[str]
    part: NDArray[np.int32]
    text: Sequence[str]
    """The passage; those of a document, joined, are its text. "" where only vectors were given."""
    digest: Sequence[str]
    """Of the whole document, the same for all of its passages: equal digest, nothing to encode again."""
    vector: Vectors
    """(n, dim), each of length 1."""
    fields: Mapping[str, Sequence[Scalar]] = field(default_factory=dict)
    """Every field of the header, n values each."""

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True, eq=False)
class Passages:
    """Passages found for one query, best first; ties go to the lower id, then the lower part."""

    id: Sequence[str]
    part: NDArray[np.int32]
    text: Sequence[str]
    fields: Mapping[str, Sequence[Scalar]]
    score: Vectors
    """(n,) cosine of exact vectors from `nearest`; BM25 from `by_words`."""
    vector: Vectors
    """(n, dim)"""

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
    """Part of the 10 exact neighbours that `nearest` finds, on a sample of stored vectors; None: all are compared."""
    version: str
    details: Mapping[str, Any] = field(default_factory=dict)


class Table(Protocol):
    """One place of passages, safe to use from several threads, and from several processes on one place."""

    @property
    def place(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def header(self) -> Header: ...

    def known(self, ids: Sequence[str]) -> dict[str, str]:
        """Of the asked ids those that are there, with their digests."""
        ...

    def write(self, rows: Rows, *, replace: bool) -> None:
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

    def get(self, ids: Sequence[str]) -> Rows:
        """The passages of these documents; ids that are not there are left out. In the order asked."""
        ...

    def count(self, where: Condition | None = None) -> Count: ...

    def nearest(
        self, queries: Vectors, k: int, *, where: Condition | None = None, exact: bool = False
    ) -> list[Passages]:
        """The k best passages for each query, of those that meet `where`. What was written a moment ago is found.

        `exact`: every passage is compared. Else at least 0.98 of the right ones are found, filtered or not.
        """
        ...

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        """The k best passages by BM25; none that shares no word with the query."""
        ...

    def scan(self, *, after: str | None = None, block: int = 4096) -> Iterator[Rows]:
        """All passages, whole documents, ids ascending; `after`: those of greater ids only."""
        ...

    def compact(self) -> None:
        """Merge small pieces, drop what is deleted, build anew what speeds up search. May be killed at any moment."""
        ...

    def stats(self) -> TableStats: ...

    def close(self) -> None: ...
