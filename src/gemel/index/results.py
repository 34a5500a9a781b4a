"""What an index answers.

Rows of a table, document by document.

The digest of a document: equal digests, nothing to encode and nothing to write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Literal, TypeAlias

import numpy as np

from gemel.index.port import FieldType, FieldValue, PassageRows, TableStats
from gemel.types import Vectors

Existing: TypeAlias = Literal["error", "replace", "skip"]

ScoredBy: TypeAlias = Literal["cosine", "fusion", "cross"]


@dataclass(frozen=True)
class WriteResult:
    """What became of the documents of one call."""

    added: int
    replaced: int
    unchanged: int
    """There already with the same text and fields, so neither encoded nor written; or left alone by "skip"."""
    encoded: int
    """Passages that the model encoded."""
    truncated: int = 0
    """Passages that lost tokens; 0 unless passages are longer than the model reads."""

    def summary(self) -> str:
        """One line for a person."""
        parts = [f"{self.added:,} added", f"{self.replaced:,} replaced", f"{self.unchanged:,} unchanged"]
        parts.append(f"{self.encoded:,} passages encoded")
        if self.truncated:
            parts.append(f"{self.truncated:,} cut")
        return ", ".join(parts)

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(
            added=self.added + other.added,
            replaced=self.replaced + other.replaced,
            unchanged=self.unchanged + other.unchanged,
            encoded=self.encoded + other.encoded,
            truncated=self.truncated + other.truncated,
        )


@dataclass(frozen=True)
class StoredDocument:
    """One document as it is stored."""

    id: str
    text: str
    fields: Mapping[str, FieldValue]
    passages: int


@dataclass(frozen=True)
class Hit:
    """One document with its best passage."""

    id: str
    score: float
    """What ordered the answers: see `Answer.scored_by`."""
    cosine: float
    """Of the query and the passage, from exact vectors."""
    text: str
    """The best passage."""
    part: int
    """Which passage of the document it is, from 0."""
    fields: Mapping[str, FieldValue]

    def row(self) -> dict[str, Any]:
        """As a flat dictionary, for tables and JSON: id, score, cosine, text, part and `fields`."""
        return {
            "id": self.id,
            "score": self.score,
            "cosine": self.cosine,
            "text": self.text,
            "part": self.part,
            "fields": dict(self.fields),
        }


@dataclass(frozen=True)
class Answer:
    """The documents found for one query, best first."""

    hits: tuple[Hit, ...]
    scored_by: ScoredBy
    exact: bool
    """Every passage was compared."""
    seconds: float

    def __iter__(self) -> Iterator[Hit]:
        return iter(self.hits)

    def __len__(self) -> int:
        return len(self.hits)

    def __getitem__(self, place: int) -> Hit:
        return self.hits[place]


@dataclass(frozen=True, kw_only=True)
class IndexStats(TableStats):
    """What an index holds, how it is laid out, and whose vectors they are."""

    place: str
    model: str | None
    """None: vectors only, bound to no model."""
    fingerprint: str | None
    """16 hex digits that stand for all that the vectors depend on."""
    dim: int
    fields: Mapping[str, FieldType]
    passage_tokens: int | None
    """None: as many as the model reads."""
    words: str
    """How texts are cut into words for hybrid search."""
    format: int
    made_by: str
    """The version of gemel that made it."""

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        return asdict(self)


@dataclass(frozen=True, eq=False)
class Stored:
    """One document as its passages."""

    id: str
    passages: Sequence[str]
    parts: Sequence[int]
    vectors: Vectors
    digest: str
    fields: Mapping[str, FieldValue]

    @property
    def text(self) -> str:
        return "".join(self.passages)

    def made_by_model(self, passage_tokens: int | None) -> bool:
        """The vectors were encoded from the text; False: the caller gave one."""
        return self.digest == digest_of(self.text, self.fields, passage_tokens)


def stored_documents(rows: PassageRows) -> Iterator[Stored]:
    """The documents of the rows, in their order."""
    start = 0
    while start < len(rows):
        end = start + 1
        while end < len(rows) and rows.id[end] == rows.id[start]:
            end += 1
        yield Stored(
            id=rows.id[start],
            passages=rows.text[start:end],
            parts=[int(part) for part in rows.part[start:end]],
            vectors=rows.vector[start:end],
            digest=rows.digest[start],
            fields={name: values[start] for name, values in rows.fields.items()},
        )
        start = end


def rows_of(documents: Sequence[Stored], fields: Sequence[str]) -> PassageRows:
    """The other way: the rows of these documents, with these fields."""
    owners = [document for document in documents for _ in document.parts]
    return PassageRows(
        id=[document.id for document in owners],
        part=np.array([part for document in documents for part in document.parts], dtype=np.int32),
        text=[passage for document in documents for passage in document.passages],
        digest=[document.digest for document in owners],
        vector=np.concatenate([document.vectors for document in documents]),
        fields={name: [document.fields.get(name) for document in owners] for name in fields},
    )


def digest_of(
    text: str, fields: Mapping[str, FieldValue], passage_tokens: int | None, vector: Vectors | None = None
) -> str:
    """sha256 (hex) of all that is stored of a document.

    Fields that are null do not count, so a new column changes no digest. `vector`: one that the caller gave, at
    length 1; None: the model made it from the text.
    """
    said = [text, {name: value for name, value in fields.items() if value is not None}, passage_tokens]
    hashed = hashlib.sha256(
        json.dumps(said, sort_keys=True, separators=(",", ":"), default=_iso).encode("ascii")
    )
    if vector is not None:
        hashed.update(vector.astype("<f4").tobytes())
    return hashed.hexdigest()


def _iso(value: date) -> str:
    return value.isoformat()
