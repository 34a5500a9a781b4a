"""Queries to answers: passages grouped to documents, fused with search by words, ordered anew by a cross-encoder.

What callers hand to an index as ids and queries, checked once at the door.

Pages of an approximate search: one ranking for a query, however it is cut into pages.

A wider search may find what a narrower one missed, and would push documents of the first page on to the second. So a
ranking is made of fixed depths: the first 10 are those of the narrowest search, the next 40 come from the next wider
one without these, and so on. Any first part of it is the same whatever was asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.index.binding import IndexState
from gemel.index.fields import check_characters
from gemel.index.ingest import checked_id, checked_vectors
from gemel.index.port import FieldValue, Passages
from gemel.index.results import Answer, Hit, ScoredBy
from gemel.index.where import Condition
from gemel.types import Vectors
from gemel.vectors.bm25 import RRF_K
from gemel.vectors.scan.exact import PRODUCT, exact_scores

if TYPE_CHECKING:
    from gemel.cross_model import CrossModel

_CANDIDATES = 50  # documents a query that fusion and reranking look at

_FEW_LETTERS = 60  # of a short query: one without spaces may be a sentence in Chinese

_WIDER = 4  # how many times more passages are asked for when too few documents came


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
        if self.candidates is not None and self.candidates < self.last:
            raise InputError(f"candidates must be at least k + offset = {self.last}, got {self.candidates}")

    @property
    def last(self) -> int:
        """Place of the last answer that is asked for, from 1."""
        return self.k + self.offset

    @property
    def widths(self) -> list[int]:
        """Documents a query that are looked at; of several, each fills the ranking up to its number (`depths.py`)."""
        if not self.hybrid and self.rerank is None:
            return [self.last]  # the table sees to it that pages fit together
        return [self.candidates] if self.candidates is not None else depths(self.last, _CANDIDATES)

    @property
    def scored_by(self) -> ScoredBy:
        return "cross" if self.rerank is not None else "fusion" if self.hybrid else "cosine"


def answer(
    state: IndexState, queries: Sequence[str] | None, vectors: Vectors | None, question: SearchQuery
) -> list[Answer]:
    """The answer of each query; `vectors` are encoded from the texts unless they are given."""
    started = perf_counter()
    if queries is None and (question.hybrid or question.rerank is not None):
        step = "hybrid search" if question.hybrid else "reranking"
        raise InputError(f"{step} needs the words of the query, got a vector. Search by a text")
    if vectors is None:
        vectors = state.coder.queries(queries or ())
    asked = _SearchArguments(state, question, queries, vectors, _short(queries, len(vectors)))
    found = [_found(asked, width) for width in question.widths]
    rankings = [_one_ranking(each, question) for each in zip(*found, strict=True)]
    seconds = (perf_counter() - started) / max(1, len(rankings))
    return [
        Answer(
            hits=_page(hits, question),
            scored_by=question.scored_by,
            exact=all(width[place].exact for width in found),
            seconds=seconds,
        )
        for place, hits in enumerate(rankings)
    ]


def _page(ranking: list[Hit], question: SearchQuery) -> tuple[Hit, ...]:
    """Best first; ties by id, those of a cross-encoder as they were."""
    page = ranking[question.offset : question.last]
    if question.rerank is None:
        page.sort(key=lambda hit: (-hit.score, hit.id))
    else:
        page.sort(key=lambda hit: -hit.score)
    return tuple(page)


@dataclass(frozen=True, eq=False)
class _SearchArguments:
    state: IndexState
    question: SearchQuery
    queries: Sequence[str] | None
    vectors: Vectors
    short: NDArray[np.bool_]
    """(queries,) of one word or two: they are unlike the stored texts, and it takes a wider search to find as many."""


def _short(queries: Sequence[str] | None, count: int) -> NDArray[np.bool_]:
    if queries is None:
        return np.zeros(count, dtype=np.bool_)
    return np.array(
        [len(query) <= _FEW_LETTERS and len(query.split()) <= 2 for query in queries], dtype=np.bool_
    )


def _found(asked: _SearchArguments, width: int) -> list[_Near]:
    """The best `width` documents of each query by all steps."""
    question, queries = asked.question, asked.queries
    near = _by_vectors(asked, width)
    if queries is None or (not question.hybrid and question.rerank is None):
        return near
    found = [sorted(each.hits, key=lambda hit: (-hit.score, hit.id)) for each in near]
    if question.hybrid:
        words = [
            _by_words(asked.state, query, vector, question, width)
            for query, vector in zip(queries, asked.vectors, strict=True)
        ]
        found = [_fused(*each, width) for each in zip(found, words, strict=True)]
    if question.rerank is not None:
        found = _reranked(question.rerank, queries, found)
    return [_Near(hits, each.exact) for hits, each in zip(found, near, strict=True)]


def _one_ranking(found: tuple[_Near, ...], question: SearchQuery) -> list[Hit]:
    if len(found) == 1:  # whose documents are distinct
        return found[0].hits[: question.widths[0]]
    order = joined([[hit.id for hit in each.hits] for each in found], question.widths)
    return [found[number].hits[place] for number, place in order]


@dataclass(frozen=True)
class _Near:
    hits: list[Hit]
    exact: bool


def _by_vectors(asked: _SearchArguments, width: int) -> list[_Near]:
    """The nearest documents of each query, by their best passage."""
    found = [_Near([], True) for _ in asked.vectors]
    for far in (False, True):
        places = np.flatnonzero(asked.short == far).tolist()
        if places:
            _fill(found, asked, width, places, far=far)
    return found


def _fill(found: list[_Near], asked: _SearchArguments, width: int, waiting: list[int], *, far: bool) -> None:
    question, ask = asked.question, width
    while waiting:
        answers = asked.state.table.nearest(
            asked.vectors[waiting],
            ask,
            where=question.where,
            exact=question.exact,
            recall=question.recall,
            far=far,
        )
        short = []
        for place, passages in zip(waiting, answers, strict=True):
            hits = _grouped(passages, passages.score)[:width]
            found[place] = _Near(hits, passages.exact)
            if len(hits) < width and len(passages) >= ask:
                short.append(place)
        waiting, ask = short, ask * _WIDER


def _by_words(state: IndexState, query: str, vector: Vectors, question: SearchQuery, width: int) -> list[Hit]:
    """The best documents by words, by their best passage."""
    ask = width
    while True:
        passages = state.table.by_words(query, ask, where=question.where)
        found = _grouped(passages, _cosines(passages, vector))
        if len(found) >= width or len(passages) < ask:
            return found[:width]
        ask *= _WIDER


def _cosines(passages: Passages, vector: Vectors) -> Vectors:
    """To the same bits as `nearest` has them."""
    places = np.arange(len(passages))
    return exact_scores(PRODUCT, vector[None], passages.vector, np.zeros_like(places), places)


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
    """Reciprocal ranks of both lists added up; the passage that is shown is the nearer one."""
    total: dict[str, float] = {}
    shown: dict[str, Hit] = {}
    for ranking in (near, words):
        for place, hit in enumerate(ranking, 1):
            total[hit.id] = total.get(hit.id, 0.0) + 1 / (RRF_K + place)
            if hit.id not in shown or hit.cosine > shown[hit.id].cosine:
                shown[hit.id] = hit
    order = sorted(total, key=lambda id_: (-total[id_], id_))[:width]
    return [replace(shown[id_], score=total[id_]) for id_ in order]


def _reranked(cross: CrossModel, queries: Sequence[str], found: list[list[Hit]]) -> list[list[Hit]]:
    """The same documents in the order of the cross-encoder's scores of their passages; ties keep their order."""
    from gemel.options import CrossOptions

    pairs = [(query, hit.text) for query, hits in zip(queries, found, strict=True) for hit in hits]
    if not pairs:
        return found
    options = CrossOptions(on_long="truncate")
    scores = iter(cross.scores([pair[0] for pair in pairs], [pair[1] for pair in pairs], options).tolist())
    scored = [[replace(hit, score=next(scores)) for hit in hits] for hits in found]

    return [sorted(hits, key=lambda hit: -hit.score) for hits in scored]


def checked_ids(ids: Iterable[str | int]) -> list[str]:
    """Ids as strings."""
    if isinstance(ids, str | bytes | int):
        raise InputError(f"ids takes a list, got one. Write [{ids!r}]")
    return [checked_id(id_, f"ids[{place}]") for place, id_ in enumerate(ids)]


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
    for place, text in enumerate(texts):
        check_characters(f"queries[{place}]", text)
    return texts


def query_vectors(state: IndexState, queries: ArrayLike) -> Vectors:
    """Queries that came as vectors, checked and at length 1."""
    return checked_vectors(queries, state.dim)


FIRST = 10

_TIMES = 5

Key = TypeVar("Key", bound=Hashable)


def depths(last: int, first: int = FIRST) -> list[int]:
    """The depths to search at for the best `last`: 10, 50, 250 ... until it is reached."""
    found = [first]
    while found[-1] < last:
        found.append(found[-1] * _TIMES)
    return found


def joined(rankings: Sequence[Sequence[Key]], sizes: Sequence[int]) -> list[tuple[int, int]]:
    """(which ranking, place in it) of each entry of the one ranking; ranking n fills it up to `sizes[n]` entries."""
    seen: set[Key] = set()
    order: list[tuple[int, int]] = []
    for number, (ranking, size) in enumerate(zip(rankings, sizes, strict=True)):
        for place, key in enumerate(ranking):
            if len(order) >= size:
                break
            if key not in seen:
                seen.add(key)
                order.append((number, place))
    return order
