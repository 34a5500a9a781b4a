"""The port of an index: what it needs of a store (folder, bucket, server, memory). A `Table` knows no model.

A document has one id and is stored as one passage or several, `part` counting from 0. Every write is one atomic
commit. Vectors have length 1, so a dot product is the cosine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any, Literal, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError
from gemel.index.where import Condition
from gemel.types import ShownResult, Vectors
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
FORMAT = 3
"""The highest that is read; a table of a higher one is refused with the advice to upgrade. 2 added `Header.words`, 3
`Header.kinds`, `Header.mode` and late chunks: it is written where an index has one of them, so that older versions read
the rest."""
PLAIN_FORMAT = 2
"""Of what is written where an index has none of them."""
Splitting: TypeAlias = int | str | None
"""How documents become passages with vectors: tokens of a passage, None for as many as the model reads, or "late 128"
for late chunks of that size."""
KindName: TypeAlias = Literal["sparse", "late"]
"""Kinds of vectors that a passage may have besides its dense vector: weights of words, or a vector of each token."""


class AlreadyThere(InputError):
    """There is an index already where one was to be created."""


class NoWordSearch(InputError):
    """The table cannot be searched by words."""


class DocumentsChanged(WorkError):
    """Another writer was faster: a document is not what it was when it was read, and nothing was written."""


@dataclass(frozen=True)
class KindHeader:
    """One kind of vectors of a table."""

    dim: int
    """Columns of a sparse vector, or numbers in the vector of a token."""
    form: str
    """How they are stored; see `kinds.py`."""
    bound: Mapping[str, Any]
    """What they depend on, as JSON; opaque to the table."""


@dataclass(frozen=True)
class Header:
    """The description of a table that is stored with its rows and read first."""

    dim: int
    """Numbers in a dense vector; 0: the passages have none."""
    fields: Mapping[str, FieldType]
    """The user's columns, in order; any may be null in a row."""
    bound: Mapping[str, Any]
    """What the vectors depend on, as JSON (see `binding.py`); opaque to the table."""
    format: int = 0
    """0: the lowest that holds all of the header."""
    words: WordRules = field(default_factory=WordRules)
    """How texts and queries are divided into words; a table of format 1 has version 1 of them."""
    kinds: Mapping[str, KindHeader] = field(default_factory=dict)
    """Further kinds of vectors, by name."""
    mode: str | None = None
    """How the index is searched unless a search says otherwise; None: as it follows from the kinds of vectors."""

    def __post_init__(self) -> None:
        if not self.format:
            newer = self.kinds or self.mode or self.bound.get("late_chunks")
            object.__setattr__(self, "format", FORMAT if newer else PLAIN_FORMAT)

    def extras(self) -> dict[str, Any]:
        """Kinds and mode as JSON, for a header that is stored as JSON; empty if it has neither."""
        kinds = {name: {**vars(each), "bound": dict(each.bound)} for name, each in self.kinds.items()}
        return {**({"kinds": kinds} if kinds else {}), **({"mode": self.mode} if self.mode else {})}

    def same_vectors(self, other: Header) -> bool:
        """Whether rows of a table with one header can be rows of a table with the other, apart from their fields."""

        def facts(header: Header) -> Any:  # noqa: ANN401 - JSON
            about = {"dim": header.dim, "bound": dict(header.bound), "words": header.words.to_json()}
            return json.loads(json.dumps(about | header.extras()))

        return bool(facts(self) == facts(other))


def kinds_of(about: Mapping[str, Any]) -> dict[str, KindHeader]:
    """The kinds that `Header.extras` wrote."""
    return {name: KindHeader(**each) for name, each in about.get("kinds", {}).items()}


@dataclass(frozen=True, eq=False)
class PassageRows:
    """Passages, column by column. The passages of a document are adjacent, parts ascending from 0."""

    id: Sequence[str]
    part: NDArray[np.int32]
    text: Sequence[str]
    """The passage; those of a document, joined, are its text. "" where only vectors were given."""
    digest: Sequence[str]
    """Of the whole document, the same for all of its passages; see `digest_of`."""
    vector: Vectors
    """(n, dim), each of length 1."""
    fields: Mapping[str, Sequence[FieldValue]] = field(default_factory=dict)
    """Every field of the header, n values each."""
    kinds: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """Every kind of the header, n each, as `kinds.py` packs them; empty where they were not requested."""

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
    """(n,) cosine of exact vectors from `nearest`; BM25 from `by_words`; dot product or MaxSim from `by_kind`."""
    vector: Vectors
    """(n, dim)"""
    exact: bool = True
    """Every passage that meets the condition was compared; False: candidates came from lists or a graph."""

    def __len__(self) -> int:
        return len(self.id)


@dataclass(frozen=True)
class Count(ShownResult):
    documents: int
    passages: int


@dataclass(frozen=True)
class TableStats(ShownResult):
    """Size, layout and measured recall of a table."""

    documents: int
    passages: int
    bytes: int
    """On disk, all that belongs to the table; caches included."""
    layout: str
    """For a person: "exact", "IVF1024,PQ192x4fs (64 lists visited)", "HNSW m=16"."""
    unindexed: int
    """Passages added after the last build of lists or graph; they are compared one by one."""
    recall: float | None
    """Part of the 10 exact neighbors that `nearest` finds, of queries like the stored texts; None: all are compared.
    `details["recall"]` has it by the kind of query, where it was measured."""
    version: str
    details: Mapping[str, Any] = field(default_factory=dict)
    modified: str | None = None
    """Time of the last commit, ISO 8601 in UTC; None: the store does not say."""


class Table(Protocol):
    """Passages with their vectors; safe with several threads and several processes."""

    @property
    def location(self) -> str:
        """Where it is, without secrets."""
        ...

    @property
    def header(self) -> Header:
        """The current one, with fields that another handle or process added."""
        ...

    def add_fields(self, fields: Mapping[str, FieldType]) -> None:
        """Add columns, null in every stored row; one commit.

        A field that exists with the same type is left alone; with another type it is an InputError, nothing changed.
        """
        ...

    def remove_field(self, field: str, changed: Callable[[DocumentPassages], DocumentPassages]) -> int:
        """Remove a column in one commit; how many documents had a value in it. An unknown field is an InputError.

        `changed`: gives a document that has a value as it is without it; its digest is stored.
        """
        ...

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        """The digests of those of the ids that are stored."""
        ...

    def write(self, rows: PassageRows, *, replace: bool, expected: Mapping[str, str] | None = None) -> None:
        """Store the documents of `rows` in one commit, on disk when this returns; old parts of an id are removed.

        `replace` False: an id that is stored already is an InputError and nothing is written. `expected`: digests that
        stored documents must have at that moment, else it is DocumentsChanged and nothing is written.
        """
        ...

    def delete(self, ids: Sequence[str]) -> int:
        """Delete documents in one commit; how many there were."""
        ...

    def delete_where(self, where: Condition) -> int:
        """Delete the documents that meet the condition; how many there were."""
        ...

    def get(self, ids: Sequence[str], *, kinds: bool = False) -> PassageRows:
        """The passages of these documents, in the order of `ids`; ids that are not stored are left out.

        `kinds`: with all kinds of vectors, so that the rows can be written again.
        """
        ...

    def count(self, where: Condition | None = None) -> Count: ...

    def values(self, field: str, where: Condition | None = None) -> dict[FieldValue, int]:
        """How many documents have each value of the field, None for null; of a list, each value that it contains."""
        ...

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
        """The k best passages for each query, of those that meet `where`; the latest writes are included.

        `exact`: every passage is compared. Else at least 0.98 of the right ones are found, filtered or not, and the
        first j of the answer for k are the answer for j; what a wider search finds comes after the first 10, 50, 250
        (see `approximate.py`). `recall`: so many at least. `far`: the queries are unlike the stored texts, as single
        words are, and need a wider search for the same recall; a table may recognize further ones by their vectors.
        """
        ...

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        """The k best passages by BM25, of those that share a word with the query."""
        ...

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
        """The k best passages for each query by one kind of vectors, of those that meet `where`; the latest writes are
        included.

        `queries`: a `SparseRow` each, or (tokens, dim). Passages that share no word with the query, or have no tokens,
        are left out. `exact`: every passage is compared. `recall`: at least so much of the right ones is found.
        """
        ...

    def scan(
        self,
        *,
        after: str | None = None,
        block: int = 4096,
        where: Condition | None = None,
        kinds: bool = False,
    ) -> Iterator[PassageRows]:
        """All passages, whole documents, ids ascending by code points; `after`: those of greater ids only.

        `where`: those that meet the condition. `block`: passages at a time, but always whole documents. `kinds`: as in
        `get`.
        """
        ...

    def frozen(self, block: int = 4096) -> AbstractContextManager[tuple[Header, Iterator[PassageRows]]]:
        """The header and all passages, in the order of `scan`, with all kinds of vectors, as they are at one moment,
        whatever is written then."""
        ...

    def compact(self, *, now: bool = False) -> None:
        """Merge small fragments, drop what is deleted, rebuild what speeds up search. May be killed at any moment.

        `now`: WorkError if the space of old versions cannot be freed because others are reading them.
        """
        ...

    def faults(self) -> list[str]:
        """Damage in what search reads besides the rows (an index of words, a cache); all of it is read."""
        ...

    def stats(self) -> TableStats: ...

    def close(self) -> None: ...


class Store(Protocol):
    """Where one index lives: its current table and, while it is migrated, the next one beside it.

    A table that `switch` has replaced is never written to again: every write of a handle that is still open to it, in
    any process, is a WorkError that says to open the index again. Its reads may work or fail the same way.
    """

    @property
    def name(self) -> str:
        """For messages, without secrets."""
        ...

    def exists(self) -> bool:
        """Whether there is an index. Anything else there (a foreign folder, no rights, no server) is an error."""
        ...

    def open(self) -> Table:
        """The current table; an InputError if there is none."""
        ...

    def create(self, header: Header) -> Table:
        """An empty current table, on disk when this returns; AlreadyThere if there is one."""
        ...

    def begin(self, header: Header) -> Table:
        """The next table, invisible to `open`. One left by a process that died is resumed if its header has the
        `same_vectors` (fields may have been added), else dropped and begun again.

        WorkError while another process is building it. Locked until `switch`, `abandon` or `close`.
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

    def drop(self) -> None:
        """Delete the index with all of its documents; an InputError if there is none.

        WorkError, with nothing deleted, while another process migrates it. Killed on the way, it can be called again.
        """
        ...

    def repair(self, table: str | None = None, header: Header | None = None) -> list[str]:
        """Make a damaged index usable again; what was done, one line each. No readable row is lost.

        table: the one to keep, if the pointer to it is lost. header: for a table that has lost its own.
        """
        ...

    def writing(self) -> AbstractContextManager[None]:
        """A lock: inside it no other thread and no other process writes to the current table.

        The owner may read the current table and read and write the next one.
        """
        ...

    def close(self) -> None:
        """Release locks and connections; tables are closed by their owners."""
        ...


@dataclass(frozen=True, eq=False)
class DocumentPassages:
    """One document as its passages."""

    id: str
    passages: Sequence[str]
    parts: Sequence[int]
    vectors: Vectors
    digest: str
    fields: Mapping[str, FieldValue]
    kinds: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    """As in `PassageRows`, one per passage."""

    @property
    def text(self) -> str:
        return "".join(self.passages)

    def made_by_model(self, splitting: Splitting) -> bool:
        """True: the vectors were encoded from the text; False: the caller gave the vector."""
        return self.digest == digest_of(self.text, self.fields, splitting)


def documents_in(rows: PassageRows) -> Iterator[DocumentPassages]:
    """The documents of the rows, in their order."""
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and rows.id[end] == rows.id[start]:
            end += 1
        yield DocumentPassages(
            id=rows.id[start],
            passages=rows.text[start:end],
            parts=[int(part) for part in rows.part[start:end]],
            vectors=rows.vector[start:end],
            digest=rows.digest[start],
            fields={name: values[start] for name, values in rows.fields.items()},
            kinds={name: values[start:end] for name, values in rows.kinds.items()},
        )
        start = end


def rows_of(documents: Sequence[DocumentPassages], header: Header) -> PassageRows:
    """The rows of these documents in a table with this header: the inverse of `documents_in`."""
    owners = [document for document in documents for _ in document.parts]
    vectors = [document.vectors for document in documents]
    return PassageRows(
        id=[document.id for document in owners],
        part=np.array([part for document in documents for part in document.parts], dtype=np.int32),
        text=[passage for document in documents for passage in document.passages],
        digest=[document.digest for document in owners],
        vector=np.concatenate([np.empty((0, header.dim), np.float32), *vectors]),
        fields={name: [document.fields.get(name) for document in owners] for name in header.fields},
        kinds={
            name: [each for document in documents for each in document.kinds[name]] for name in header.kinds
        },
    )


def check_expected(expected: Mapping[str, str] | None, stored: Mapping[str, str]) -> None:
    """For `Table.write`; `stored`: the digests at the moment of the commit."""
    for id_, digest in (expected or {}).items():
        if stored.get(id_) != digest:
            raise DocumentsChanged(
                f"the document {id_!r} was changed meanwhile, nothing was written. Try again"
            )


def check_kinds(rows: PassageRows, header: Header) -> None:
    """For `Table.write`: rows have all kinds of vectors of the table, or none of them is written."""
    if set(rows.kinds) != set(header.kinds):
        there, given = (", ".join(sorted(each)) or "none" for each in (header.kinds, rows.kinds))
        raise InputError(f"a table with the kinds of vectors {there} was given rows with {given}")


def no_dense_vectors(location: str) -> InputError:
    """The error of what needs the dense vectors that an index does not have."""
    return InputError(
        f"the index {location} has no dense vectors. Search it by a text, or add them with index.migrate(model)"
    )


def digest_of(
    text: str, fields: Mapping[str, FieldValue], splitting: Splitting, vector: Vectors | None = None
) -> str:
    """sha256 (hex) of all that is stored of a document: where it is equal, nothing is encoded or written again.

    Null fields are left out, so a new column changes no digest. `vector`: given by the caller, of length 1; None: made
    from the text by the model.
    """
    content = [text, {name: value for name, value in fields.items() if value is not None}, splitting]
    hashed = hashlib.sha256(
        json.dumps(content, sort_keys=True, separators=(",", ":"), default=_iso).encode("ascii")
    )
    if vector is not None:
        hashed.update(vector.astype("<f4").tobytes())
    return hashed.hexdigest()


def _iso(value: date) -> str:
    return value.isoformat()
