"""The query of a search and its answer: `SearchQuery`, `Answer` and `Hit`. `search.py` runs it on a table."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias

import numpy as np

from gemel.errors import InputError
from gemel.index.approximate import depths
from gemel.index.kinds import Mode, Rankings, check_mode, rankings_for, recorded_mode
from gemel.index.port import FieldValue, Header
from gemel.index.where import Both, Condition, Either, IsNull, Literals, Not, OneOf
from gemel.types import ShownResult, Vectors

if TYPE_CHECKING:
    from gemel.options import CrossOptions

ScoredBy: TypeAlias = Literal["cosine", "sparse", "late", "words", "fusion", "cross"]
"""cosine; the dot product of weights of words; MaxSim; BM25; reciprocal ranks; a cross-encoder's score."""

_CANDIDATES = 50  # documents per query for fusion and reranking


class Reranker(Protocol):
    """A `CrossModel` or a `LateModel`."""

    def scores(
        self, queries: Sequence[str], documents: Sequence[str], options: CrossOptions | None = None, /
    ) -> Vectors: ...


def compares_tokens(model: Reranker) -> bool:
    """It is a model for late interaction."""
    return getattr(model, "score_kind", None) == "maxsim"


@dataclass(frozen=True)
class Hit(ShownResult):
    """One document with its best passage."""

    id: str
    score: float
    """What orders the hits: see `Answer.scored_by`."""
    cosine: float | None
    """Of the query and the passage, from exact dense vectors; None: the search did not use them."""
    text: str
    """The best passage."""
    part: int
    """Which passage of the document it is, from 0."""
    fields: Mapping[str, FieldValue]

    def row(self) -> dict[str, Any]:
        """As a flat dictionary, for tables and JSON: id, score, cosine, text, part and `fields`."""
        return vars(self) | {"fields": dict(self.fields)}


@dataclass(frozen=True)
class Answer(ShownResult):
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

    def __getitem__(self, position: int) -> Hit:
        return self.hits[position]

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for rank, hit in enumerate(self.hits):
            yield {"rank": rank + 1, "score": hit.score, "id": hit.id, "text": hit.text, **hit.fields}


@dataclass(frozen=True, kw_only=True)
class SearchQuery:
    """How many answers, of which documents, and by which steps."""

    k: int = 10
    where: Condition | None = None
    offset: int = 0
    mode: Mode | None = None
    """None: that of the index; of a vector, "dense"."""
    weights: Mapping[str, float] | None = None
    """Of the rankings that hybrid search fuses."""
    rerank: Reranker | None = None
    candidates: int | None = None
    exact: bool = False
    recall: float | None = None
    min_score: float | None = None
    """Hits of lower scores are left out."""
    diversity: float | None = None
    """0 to 1: how much a hit loses for its similarity to the hits before it; see `_diverse`."""
    excluded: frozenset[str] = frozenset()
    """Ids of documents that are no answers."""
    group_by: str | None = None
    """A field: at most `per_group` hits have the same value of it."""
    per_group: int = 1
    rankings: Rankings = field(default_factory=lambda: Rankings("dense", {"dense": 1.0}))
    """Set by `answer`."""

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("offset", 0), ("candidates", 1), ("per_group", 1)):
            value = getattr(self, name)
            if name == "candidates" and value is None:
                continue
            if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least:
                raise InputError(f"{name} must be a whole number of at least {least}, got {value!r}")
        if self.recall is not None and (
            isinstance(self.recall, bool)
            or not isinstance(self.recall, int | float)
            or not 0 < self.recall <= 1
        ):
            raise InputError(f"recall is a number above 0 and at most 1, like 0.99; got {self.recall!r}")
        if self.min_score is not None and not _is_number(self.min_score):
            raise InputError(f"min_score is a number, like 0.5; got {self.min_score!r}")
        if self.diversity is not None and not (_is_number(self.diversity) and 0 <= self.diversity <= 1):
            raise InputError(f"diversity is a number from 0 to 1, like 0.3; got {self.diversity!r}")
        if self.candidates is not None and self.candidates < self.last:
            raise InputError(f"candidates must be at least k + offset = {self.last}, got {self.candidates}")

    @property
    def last(self) -> int:
        """Position of the last requested hit, from 1."""
        return self.k + self.offset

    @property
    def widths(self) -> list[int]:
        """Documents to find per query; of several widths, each fills the ranking up to its number (`depths`)."""
        if self.rankings.mode in ("dense", "words") and self.rerank is None and not self.diversity:
            return [self.last]  # the pages of a table agree already
        return [self.candidates] if self.candidates is not None else depths(self.last, _CANDIDATES)

    def limited(self, hits: Iterable[Hit]) -> list[Hit]:
        """The hits without those of a value that enough hits before them have; hits without a value all stay."""
        if self.group_by is None:
            return list(hits)
        counts: Counter[FieldValue] = Counter()
        kept = []
        for hit in hits:
            value = hit.fields.get(self.group_by)
            counts[value] += 1
            if value is None or counts[value] <= self.per_group:
                kept.append(hit)
        return kept

    def outside(self, hits: Iterable[Hit]) -> Condition | None:
        """The condition `where`, without the documents of values that enough of these hits have."""
        assert self.group_by is not None
        counts = Counter(hit.fields.get(self.group_by) for hit in hits)
        full: list[Literals] = [
            value
            for value, count in counts.items()
            if value is not None and not isinstance(value, list) and count >= self.per_group
        ]
        if not full:
            return self.where
        other = Either(IsNull(self.group_by), Not(OneOf(self.group_by, tuple(full))))
        return other if self.where is None else Both(self.where, other)

    @property
    def scored_by(self) -> ScoredBy:
        if self.rerank is not None:
            return "late" if compares_tokens(self.rerank) else "cross"
        return _SCORED[self.rankings.mode]

    def resolved(self, header: Header, *, texts: bool) -> SearchQuery:
        """With the rankings of an index; `texts`: queries are texts, not vectors."""
        mode = check_mode(self.mode or (recorded_mode(header) if texts else "dense"), header)
        if not texts and (mode != "dense" or self.rerank is not None):
            step = f"{mode} search" if mode != "dense" else "reranking"
            raise InputError(f"{step} needs the words of the query, got a vector. Search by a text")
        if self.diversity and not header.dim:
            raise InputError("diversity compares dense vectors, which the index does not have. Leave it out")
        return replace(self, rankings=rankings_for(mode, self.weights, header))


_SCORED: Mapping[Mode, ScoredBy] = {
    "dense": "cosine",
    "sparse": "sparse",
    "late": "late",
    "words": "words",
    "hybrid": "fusion",
}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float | np.integer | np.floating) and not (
        isinstance(value, bool) or np.isnan(value)
    )


@dataclass(frozen=True, kw_only=True)
class SearchExamples:
    """Documents, by id, and texts that answers should be like or unlike."""

    ids: Sequence[str] = ()
    texts: Sequence[str] = ()
    unlike: Sequence[str] = ()
    unlike_texts: Sequence[str] = ()

    def __post_init__(self) -> None:
        if not self.ids and not self.texts:
            raise InputError("no example to search with. Give the id of a document, or a text")
        both = set(self.ids) & set(self.unlike)
        if both:
            raise InputError(f"the document {min(both)!r} is an example of both sides. Choose one")

    @property
    def documents(self) -> frozenset[str]:
        return frozenset((*self.ids, *self.unlike))


def hybrid_mode(mode: Mode | None, *, hybrid: bool) -> Mode | None:
    """The mode, of which `hybrid` is a short form."""
    if hybrid and mode not in (None, "hybrid"):
        raise InputError(f"hybrid=True is mode='hybrid', but mode is {mode!r}. Give one of the two")
    return "hybrid" if hybrid else mode
