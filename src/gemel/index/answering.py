"""Queries to answers: passages grouped to documents, fused with search by words, ordered anew by a cross-encoder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.index.depths import depths, joined
from gemel.index.port import FieldValue, Passages
from gemel.index.state import State
from gemel.index.types import Answer, Hit, ScoredBy
from gemel.index.where import Condition
from gemel.scan.exact import exact_scores
from gemel.types import Vectors
from gemel.word_search.fusion import STEADY

if TYPE_CHECKING:
    from gemel.cross_model import CrossModel

_CANDIDATES = 50  # documents a query that fusion and reranking look at
_FEW_LETTERS = 60  # of a short query: one without spaces may be a sentence in Chinese
_WIDER = 4  # how many times more passages are asked for when too few documents came


@dataclass(frozen=True, kw_only=True)
class Question:
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
    state: State, queries: Sequence[str] | None, vectors: Vectors | None, question: Question
) -> list[Answer]:
    """The answer of each query; `vectors` are encoded from the texts unless they are given."""
    started = perf_counter()
    if queries is None and (question.hybrid or question.rerank is not None):
        step = "hybrid search" if question.hybrid else "reranking"
        raise InputError(f"{step} needs the words of the query, got a vector. Search by a text")
    if vectors is None:
        vectors = state.coder.queries(queries or ())
    asked = _Asked(state, question, queries, vectors, _short(queries, len(vectors)))
    found = [_found(asked, width) for width in question.widths]
    rankings = [_one_ranking(each, question) for each in zip(*found, strict=True)]
    seconds = (perf_counter() - started) / max(1, len(rankings))
    return [
        Answer(
            hits=_page(hits, question),
            scored_by=question.scored_by,
            exact=all(width[place].exact for width in found),
            seconds=seconds,
            bridged=state.coder.bridged,
        )
        for place, hits in enumerate(rankings)
    ]


def _page(ranking: list[Hit], question: Question) -> tuple[Hit, ...]:
    """Best first; ties by id, those of a cross-encoder as they were."""
    page = ranking[question.offset : question.last]
    if question.rerank is None:
        page.sort(key=lambda hit: (-hit.score, hit.id))
    else:
        page.sort(key=lambda hit: -hit.score)
    return tuple(page)


@dataclass(frozen=True, eq=False)
class _Asked:
    state: State
    question: Question
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


def _found(asked: _Asked, width: int) -> list[_Near]:
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


def _one_ranking(found: tuple[_Near, ...], question: Question) -> list[Hit]:
    if len(found) == 1:  # whose documents are distinct
        return found[0].hits[: question.widths[0]]
    order = joined([[hit.id for hit in each.hits] for each in found], question.widths)
    return [found[number].hits[place] for number, place in order]


@dataclass(frozen=True)
class _Near:
    hits: list[Hit]
    exact: bool


def _by_vectors(asked: _Asked, width: int) -> list[_Near]:
    """The nearest documents of each query, by their best passage."""
    found = [_Near([], True) for _ in asked.vectors]
    for far in (False, True):
        places = np.flatnonzero(asked.short == far).tolist()
        if places:
            _fill(found, asked, width, places, far=far)
    return found


def _fill(found: list[_Near], asked: _Asked, width: int, waiting: list[int], *, far: bool) -> None:
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


def _by_words(state: State, query: str, vector: Vectors, question: Question, width: int) -> list[Hit]:
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
    return exact_scores("product", vector[None], passages.vector, np.zeros_like(places), places)


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
            total[hit.id] = total.get(hit.id, 0.0) + 1 / (STEADY + place)
            if hit.id not in shown or hit.cosine > shown[hit.id].cosine:
                shown[hit.id] = hit
    order = sorted(total, key=lambda id_: (-total[id_], id_))[:width]
    return [replace(shown[id_], score=total[id_]) for id_ in order]


def _reranked(cross: CrossModel, queries: Sequence[str], found: list[list[Hit]]) -> list[list[Hit]]:
    """The same documents in the order of the cross-encoder's scores of their passages; ties keep their order."""
    from gemel.cross_options import CrossOptions

    pairs = [(query, hit.text) for query, hits in zip(queries, found, strict=True) for hit in hits]
    if not pairs:
        return found
    options = CrossOptions(on_long="truncate")
    scores = iter(cross.scores([pair[0] for pair in pairs], [pair[1] for pair in pairs], options).tolist())
    scored = [[replace(hit, score=next(scores)) for hit in hits] for hits in found]

    return [sorted(hits, key=lambda hit: -hit.score) for hits in scored]
