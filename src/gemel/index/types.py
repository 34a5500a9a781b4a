"""What an index answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias

from gemel.index.port import FieldType, FieldValue, TableStats

Existing: TypeAlias = Literal["error", "replace", "skip"]
ScoredBy: TypeAlias = Literal["cosine", "fusion", "cross"]


@dataclass(frozen=True)
class Written:
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

    def __add__(self, other: Written) -> Written:
        return Written(
            added=self.added + other.added,
            replaced=self.replaced + other.replaced,
            unchanged=self.unchanged + other.unchanged,
            encoded=self.encoded + other.encoded,
            truncated=self.truncated + other.truncated,
        )


@dataclass(frozen=True)
class Document:
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
    bridged: bool = False
    """The query was encoded by another model than the documents, and carried over by a fitted map."""

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
