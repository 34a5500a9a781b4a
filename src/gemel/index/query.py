"""Queries to answers: nearest passages grouped to documents, fused with search by words, reranked by a cross-encoder.

`Index.search` makes a `SearchQuery`; `answer` runs it on a table. Here too: the checks of ids and queries.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.index.approximate import depths, joined
from gemel.index.binding import IndexState, unit
from gemel.index.fields import check_characters
from gemel.index.ingest import checked_id, checked_vectors
from gemel.index.port import FieldValue, Passages, documents_in
from gemel.index.where import Condition
from gemel.types import ShownResult, Vectors
from gemel.vectors.bm25 import RRF_K
from gemel.vectors.scan.exact import PRODUCT, exact_scores

if TYPE_CHECKING:
    from gemel.cross_model import CrossModel

ScoredBy: TypeAlias = Literal["cosine", "fusion", "cross", "late"]

_NO_DIRECTION = 1e-5  # a difference of examples that is no longer is rounding alone

_CANDIDATES = 50  # documents per query for fusion and reranking

_SHORT_CHARACTERS = 60  # of a short query: one without spaces may be a sentence in Chinese

_WIDER = 4  # times the passages when these were of too few documents


@dataclass(frozen=True)
class Hit(ShownResult):
    """One document with its best passage."""

    id: str
    score: float
    """What orders the hits: see `Answer.scored_by`."""
    cosine: float
    """Of the query and the passage, from exact vectors."""
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
    hybrid: bool = False
    rerank: CrossModel | None = None
    candidates: int | None = None
    exact: bool = False
    recall: float | None = None
    min_score: float | None = None
    """Hits of lower scores are left out."""
    diversity: float | None = None
    """0 to 1: how much a hit loses for its similarity to the hits before it; see `_diverse`."""
    excluded: frozenset[str] = frozenset()
    """Ids of documents that are no answers."""

    def __post_init__(self) -> None:
        for name, least in (("k", 1), ("offset", 0), ("candidates", 1)):
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
        if not self.hybrid and self.rerank is None and not self.diversity:
            return [self.last]  # the pages of a table agree already
        return [self.candidates] if self.candidates is not None else depths(self.last, _CANDIDATES)

    @property
    def scored_by(self) -> ScoredBy:
        return "cross" if self.rerank is not None else "fusion" if self.hybrid else "cosine"


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


def query_vector(state: IndexState, examples: SearchExamples) -> Vectors:
    """(1, dim): the mean of the examples minus the mean of the counterexamples, of length 1.

    The vector of a document is the mean of those of its passages, of length 1; that of a text is that of a query.
    """
    documents: dict[str, Vectors] = {}
    for each in documents_in(state.table.get(list(examples.documents))):
        documents[each.id] = unit(each.vectors.mean(axis=0, keepdims=True))[0]
    texts = [*examples.texts, *examples.unlike_texts]
    encoded = dict(zip(texts, state.encoder.encode_queries(texts), strict=True)) if texts else {}

    def mean(ids: Sequence[str], given: Sequence[str]) -> Vectors:
        for id_ in ids:
            if id_ not in documents:
                raise InputError(
                    f"the document {id_!r} is not in the index, so nothing can be compared with it"
                )
        sides = [*(documents[id_] for id_ in ids), *(encoded[text] for text in given)]
        return np.mean(sides, axis=0, dtype=np.float32) if sides else np.zeros(state.dim, np.float32)

    vector = mean(examples.ids, examples.texts) - mean(examples.unlike, examples.unlike_texts)
    if float(np.linalg.norm(vector)) < _NO_DIRECTION:
        raise InputError(
            "the examples cancel one another out, so nothing is nearer than anything else. Choose others"
        )
    return unit(vector[None])


def answer(
    state: IndexState, queries: Sequence[str] | None, given: ArrayLike | None, question: SearchQuery
) -> list[Answer]:
    """The answer for each query: texts, or `given` as vectors."""
    started = perf_counter()
    if queries is None and (question.hybrid or question.rerank is not None):
        step = "hybrid search" if question.hybrid else "reranking"
        raise InputError(f"{step} needs the words of the query, got a vector. Search by a text")
    vectors = checked_vectors(given, state.dim) if queries is None else state.encoder.encode_queries(queries)
    run = _Search(state, question, queries, vectors, _short(queries, len(vectors)))
    found = [_find(run, width) for width in question.widths]
    rankings = [_join_widths(each, question) for each in zip(*found, strict=True)]
    seconds = (perf_counter() - started) / max(1, len(rankings))
    return [
        Answer(
            hits=_page(hits, question),
            scored_by=question.scored_by,
            exact=all(width[n].exact for width in found),
            seconds=seconds,
        )
        for n, hits in enumerate(rankings)
    ]


def _page(ranking: list[Hit], question: SearchQuery) -> tuple[Hit, ...]:
    """Best first; ties by id, those of a cross-encoder as they were. Hits that were made diverse keep their order."""
    page = ranking[question.offset : question.last]
    if question.diversity:
        return tuple(page)
    if question.rerank is None:
        page.sort(key=lambda hit: (-hit.score, hit.id))
    else:
        page.sort(key=lambda hit: -hit.score)
    return tuple(page)


@dataclass(frozen=True, eq=False)
class _Search:
    """The queries of one call and how they are searched."""

    state: IndexState
    question: SearchQuery
    queries: Sequence[str] | None
    vectors: Vectors
    short: NDArray[np.bool_]
    """(queries,) of one or two words: they are unlike the stored texts and need a wider search for the same recall."""


def _short(queries: Sequence[str] | None, count: int) -> NDArray[np.bool_]:
    if queries is None:
        return np.zeros(count, dtype=np.bool_)
    return np.array(
        [len(query) <= _SHORT_CHARACTERS and len(query.split()) <= 2 for query in queries], dtype=np.bool_
    )


def _find(run: _Search, width: int) -> list[_Found]:
    """The best `width` documents of each query by all steps: vectors, words, cross-encoder."""
    question, queries = run.question, run.queries
    near = _by_vectors(run, width + len(question.excluded))
    if question.excluded:
        kept = [[hit for hit in each.hits if hit.id not in question.excluded][:width] for each in near]
        near = [_Found(hits, each.exact) for hits, each in zip(kept, near, strict=True)]
    if queries is None or (not question.hybrid and question.rerank is None):
        return _chosen(run, near)
    rankings = [sorted(each.hits, key=lambda hit: (-hit.score, hit.id)) for each in near]
    if question.hybrid:
        words = [
            _by_words(run.state, query, vector, question, width)
            for query, vector in zip(queries, run.vectors, strict=True)
        ]
        rankings = [_fused(*each, width) for each in zip(rankings, words, strict=True)]
    if question.rerank is not None:
        rankings = _reranked(question.rerank, queries, rankings)
    return _chosen(run, [_Found(hits, each.exact) for hits, each in zip(rankings, near, strict=True)])


def _chosen(run: _Search, found: list[_Found]) -> list[_Found]:
    """Without hits of low scores; then in an order that avoids hits that are like those before them."""
    least, diversity = run.question.min_score, run.question.diversity
    if least is not None:
        found = [replace(each, hits=[hit for hit in each.hits if hit.score >= least]) for each in found]
    if not diversity:
        return found
    ids = list(dict.fromkeys(hit.id for each in found for hit in each.hits))
    rows = run.state.table.get(ids)
    stored = {(rows.id[n], int(rows.part[n])): rows.vector[n] for n in range(len(rows))}
    return [replace(each, hits=_diverse(each.hits, stored, run.question)) for each in found]


def _diverse(hits: list[Hit], stored: Mapping[tuple[str, int], Vectors], question: SearchQuery) -> list[Hit]:
    """Maximal marginal relevance: each time the hit of the greatest (1 - diversity) x relevance - diversity x its
    greatest cosine to a hit that was chosen before. Relevance is the cosine, or another score scaled to 0 to 1."""
    hits = [hit for hit in hits if (hit.id, hit.part) in stored]  # others were deleted meanwhile
    if not hits:
        return hits
    diversity = float(question.diversity or 0)
    vectors = np.stack([stored[hit.id, hit.part] for hit in hits])
    relevance = np.array([hit.score for hit in hits])
    if question.scored_by != "cosine":
        spread = float(np.ptp(relevance))
        relevance = (relevance - relevance.min()) / spread if spread else np.ones_like(relevance)
    chosen = [int(np.argmax(relevance))]
    nearest = np.full(len(hits), -np.inf)
    while len(chosen) < min(len(hits), question.last):
        nearest = np.maximum(nearest, vectors @ vectors[chosen[-1]])
        value = (1 - diversity) * relevance - diversity * nearest
        value[chosen] = -np.inf
        chosen.append(int(np.argmax(value)))
    return [hits[n] for n in chosen]


def _join_widths(found: tuple[_Found, ...], question: SearchQuery) -> list[Hit]:
    if len(found) == 1:  # its documents are distinct
        return found[0].hits[: question.widths[0]]
    order = joined([[hit.id for hit in each.hits] for each in found], question.widths)
    return [found[number].hits[position] for number, position in order]


@dataclass(frozen=True)
class _Found:
    hits: list[Hit]
    exact: bool


def _by_vectors(run: _Search, width: int) -> list[_Found]:
    """The nearest documents of each query, by their best passage."""
    found = [_Found([], True) for _ in run.vectors]
    for far in (False, True):
        positions = np.flatnonzero(run.short == far).tolist()
        if positions:
            _search_table(run, width, positions, found, far=far)
    return found


def _search_table(run: _Search, width: int, waiting: list[int], found: list[_Found], *, far: bool) -> None:
    """Fill `found` at the positions `waiting`, with more passages until there are `width` documents."""
    question, k = run.question, width
    while waiting:
        answers = run.state.table.nearest(
            run.vectors[waiting],
            k,
            where=question.where,
            exact=question.exact,
            recall=question.recall,
            far=far,
        )
        too_few = []
        for position, passages in zip(waiting, answers, strict=True):
            hits = _grouped(passages, passages.score)[:width]
            found[position] = _Found(hits, passages.exact)
            if len(hits) < width and len(passages) >= k:
                too_few.append(position)
        waiting, k = too_few, k * _WIDER


def _by_words(state: IndexState, query: str, vector: Vectors, question: SearchQuery, width: int) -> list[Hit]:
    """The best documents by words, by their best passage."""
    k = width
    while True:
        passages = state.table.by_words(query, k, where=question.where)
        hits = _grouped(passages, _cosines(passages, vector))
        if len(hits) >= width or len(passages) < k:
            return hits[:width]
        k *= _WIDER


def _cosines(passages: Passages, vector: Vectors) -> Vectors:
    """Equal to those of `nearest` to the bit."""
    rows = np.arange(len(passages))
    return exact_scores(PRODUCT, vector[None], passages.vector, np.zeros_like(rows), rows)


def _grouped(passages: Passages, cosine: Vectors) -> list[Hit]:
    """The first passage of each document, in order."""
    scores = passages.score.tolist()
    cosines = scores if cosine is passages.score else cosine.tolist()
    rows = _rows(passages.fields, len(passages))
    hits = list(map(Hit, passages.id, scores, cosines, passages.text, passages.part.tolist(), rows))
    if len(set(passages.id)) == len(hits):
        return hits
    best: dict[str, Hit] = {}
    for hit in hits:
        best.setdefault(hit.id, hit)
    return list(best.values())


def _rows(columns: Mapping[str, Sequence[FieldValue]], count: int) -> Iterable[dict[str, FieldValue]]:
    if not columns:
        return [{} for _ in range(count)]
    names = tuple(columns)
    return [dict(zip(names, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _fused(near: list[Hit], words: list[Hit], width: int) -> list[Hit]:
    """Reciprocal rank fusion of both lists; the passage that is shown is the nearer one."""
    total: dict[str, float] = {}
    shown: dict[str, Hit] = {}
    for ranking in (near, words):
        for rank, hit in enumerate(ranking, 1):
            total[hit.id] = total.get(hit.id, 0.0) + 1 / (RRF_K + rank)
            if hit.id not in shown or hit.cosine > shown[hit.id].cosine:
                shown[hit.id] = hit
    order = sorted(total, key=lambda id_: (-total[id_], id_))[:width]
    return [replace(shown[id_], score=total[id_]) for id_ in order]


def _reranked(cross: CrossModel, queries: Sequence[str], rankings: list[list[Hit]]) -> list[list[Hit]]:
    """The same documents in the order of the cross-encoder's scores of their passages; ties keep their order."""
    from gemel.options import CrossOptions

    pairs = [(query, hit.text) for query, hits in zip(queries, rankings, strict=True) for hit in hits]
    if not pairs:
        return rankings
    options = CrossOptions(on_long="truncate")
    scores = iter(cross.scores([pair[0] for pair in pairs], [pair[1] for pair in pairs], options).tolist())
    scored = [[replace(hit, score=next(scores)) for hit in hits] for hits in rankings]
    return [sorted(hits, key=lambda hit: -hit.score) for hits in scored]


def checked_ids(ids: Iterable[str | int]) -> list[str]:
    """Ids as strings."""
    if isinstance(ids, str | bytes | int):
        raise InputError(f"ids takes a list, got one. Write [{ids!r}]")
    return [checked_id(id_, f"ids[{n}]") for n, id_ in enumerate(ids)]


def one_query(query: str | ArrayLike) -> Sequence[str] | ArrayLike:
    """The query of `search` as `search_many` takes it."""
    if isinstance(query, str):
        return [query]
    try:
        vector = np.asarray(query, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"a query is a text or a vector, got {type(query).__name__}") from None
    if vector.ndim != 1:
        raise InputError(f"search takes one query, got an array of shape {vector.shape}. Use search_many")
    return vector[None]


def query_texts(queries: Sequence[str] | ArrayLike) -> list[str] | None:
    """The queries, if they are texts; None: they should be vectors."""
    if isinstance(queries, str | bytes):
        raise InputError("search_many takes a list of queries, got one string. Use search")
    listed = queries if isinstance(queries, np.ndarray) else list(queries)  # type: ignore[arg-type]
    if isinstance(listed, np.ndarray) and listed.dtype.kind not in "OU":
        return None
    if len(listed) and not any(isinstance(query, str) for query in listed):
        return None
    texts = check_texts(listed, "queries")
    for n, text in enumerate(texts):
        check_characters(f"queries[{n}]", text)
    return texts
