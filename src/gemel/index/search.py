"""Queries to answers: the best passages grouped to documents, several rankings fused, reranked by another model.

Rankings are by dense vectors, by further kinds of vectors (`kinds.py`) and by words. `Index.search` makes a
`SearchQuery`; `answer` runs it on a table.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.index.approximate import joined
from gemel.index.binding import IndexState, unit
from gemel.index.ingest import checked_vectors
from gemel.index.kinds import (
    KINDS,
    IndexExplanation,
    Mode,
    tokens_of,
)
from gemel.index.port import FieldValue, Passages, documents_in, no_dense_vectors
from gemel.index.query import Answer, Hit, Reranker, SearchExamples, SearchQuery, compares_tokens
from gemel.index.where import Compare, Condition
from gemel.types import Vectors
from gemel.vectors.bm25 import RRF_K
from gemel.vectors.maxsim import maxsim
from gemel.vectors.scan.exact import PRODUCT, exact_scores

_NO_DIRECTION = 1e-5  # a difference of examples that is no longer is rounding alone

_SHORT_CHARACTERS = 60  # of a short query: one without spaces may be a sentence in Chinese

_GROUPED = 64  # passages that a search by groups begins with; the same for every k, so that pages agree

_WIDER = 4  # times the passages when these were of too few documents


def query_vector(state: IndexState, examples: SearchExamples) -> Vectors:
    """(1, dim): the mean of the examples minus the mean of the counterexamples, of length 1.

    The vector of a document is the mean of those of its passages, of length 1; that of a text is that of a query.
    """
    if not state.dim:
        raise no_dense_vectors(state.table.location)
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
    question = question.resolved(state.header, texts=queries is not None)
    run = _search_of(state, question, queries, given)
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
    count: int
    queries: Sequence[str] | None
    vectors: Vectors | None
    """None: dense vectors are not searched."""
    short: NDArray[np.bool_]
    """(queries,) of one or two words: they are unlike the stored texts and need a wider search for the same recall."""
    kinds: Mapping[str, Sequence[Any]]
    """The queries as each further kind of vectors that is searched."""


def _search_of(
    state: IndexState, question: SearchQuery, queries: Sequence[str] | None, given: ArrayLike | None
) -> _Search:
    """Encodes the queries by each model that the search needs."""
    used, vectors = question.rankings.weights, None
    if queries is None:
        vectors = checked_vectors(given, state.dim)
    elif "dense" in used:
        vectors = state.encoder.encode_queries(queries)
    count = len(queries) if queries is not None else len(vectors) if vectors is not None else 0
    kinds: dict[str, Sequence[Any]] = {
        kind: state.kinds[kind].get().encode_queries(queries or ()) for kind in KINDS if kind in used
    }
    return _Search(state, question, count, queries, vectors, _short(queries, count), kinds)


def _short(queries: Sequence[str] | None, count: int) -> NDArray[np.bool_]:
    if queries is None:
        return np.zeros(count, dtype=np.bool_)
    return np.array(
        [len(query) <= _SHORT_CHARACTERS and len(query.split()) <= 2 for query in queries], dtype=np.bool_
    )


def _find(run: _Search, width: int) -> list[_Found]:
    """The best `width` documents of each query by all steps: the rankings, their fusion, the reranker."""
    question, used = run.question, run.question.rankings.weights
    wide = width + len(question.excluded)
    each_ranking = {name: _ranking(run, name, wide) for name in used}
    if question.excluded:
        each_ranking = {
            name: [each.without(question.excluded, width) for each in found]
            for name, found in each_ranking.items()
        }
    found = next(iter(each_ranking.values()))
    if question.rankings.mode == "hybrid":
        fused = [
            _fused(dict(zip(used, each, strict=True)), used)
            for each in zip(*each_ranking.values(), strict=True)
        ]
        found = [replace(each, hits=question.limited(each.hits)[:width]) for each in fused]
    if question.rerank is not None and run.queries is not None:
        found = [
            replace(each, hits=sorted(each.hits, key=lambda hit: (-hit.score, hit.id))) for each in found
        ]
        found = _reranked(run, question.rerank, run.queries, found)
    return _chosen(run, found)


def _ranking(run: _Search, name: str, width: int) -> list[_Found]:
    """The best documents of each query by one ranking, by their best passage."""
    if run.question.group_by is not None:
        return [_by_group(run, name, position, width) for position in range(run.count)]
    if name == "dense":
        return _by_vectors(run, width)
    if name == "words":
        return [_by_words(run, position, width) for position in range(run.count)]
    return _by_kind(run, name, width)


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
    return question.limited(found[number].hits[position] for number, position in order)


@dataclass(frozen=True)
class _Found:
    hits: list[Hit]
    exact: bool

    def without(self, excluded: frozenset[str], width: int) -> _Found:
        return replace(self, hits=[hit for hit in self.hits if hit.id not in excluded][:width])


def _by_group(run: _Search, name: str, position: int, width: int) -> _Found:
    """The best `width` documents, no more of one value than allowed; with more passages until there are so many.

    What a wider search finds comes after the hits before it, and values that have enough hits are left out of it: so a
    value that most documents have costs no more than others.
    """
    question = run.question
    hits: list[Hit] = []
    k, where, exact = _GROUPED, question.where, True
    while True:
        passages = _passages(run, name, position, k, where)
        exact = exact and passages.exact
        known = question.excluded.union(hit.id for hit in hits)
        found = _grouped(passages, _cosines(run, position, passages))
        hits = question.limited([*hits, *(hit for hit in found if hit.id not in known)])
        if len(hits) >= width or len(passages) < k:
            return _Found(hits[:width], exact)
        k, where = k * _WIDER, question.outside(hits)


def _passages(run: _Search, name: str, position: int, k: int, where: Condition | None) -> Passages:
    """The best passages of one query by one ranking."""
    table, question = run.state.table, run.question
    if name == "words":
        return table.by_words((run.queries or ())[position], k, where=where)
    exact, recall = question.exact, question.recall
    if name != "dense":
        query = run.kinds[name][position]
        return table.by_kind(name, [query], k, where=where, exact=exact, recall=recall)[0]
    assert run.vectors is not None
    vector, far = run.vectors[position : position + 1], bool(run.short[position])
    return table.nearest(vector, k, where=where, exact=exact, recall=recall, far=far)[0]


def _by_vectors(run: _Search, width: int) -> list[_Found]:
    """The nearest documents of each query, by their best passage."""
    found = [_Found([], True) for _ in range(run.count)]
    for far in (False, True):
        positions = np.flatnonzero(run.short == far).tolist()
        if positions:
            _search_table(run, width, positions, found, far=far)
    return found


def _search_table(run: _Search, width: int, waiting: list[int], found: list[_Found], *, far: bool) -> None:
    """Fill `found` at the positions `waiting`, with more passages until there are `width` documents."""
    question, k = run.question, width
    assert run.vectors is not None
    while waiting:
        answers = run.state.table.nearest(
            run.vectors[waiting],
            k,
            where=question.where,
            exact=question.exact,
            recall=question.recall,
            far=far,
        )
        for position, passages in zip(waiting, answers, strict=True):
            found[position] = _Found(_grouped(passages, passages.score.tolist())[:width], passages.exact)
        waiting, k = _too_few(waiting, answers, found, width, k), k * _WIDER


def _too_few(
    waiting: list[int], answers: list[Passages], found: list[_Found], width: int, k: int
) -> list[int]:
    """Those of the positions with too few documents, of which more passages may be found."""
    every = zip(waiting, answers, strict=True)
    return [position for position, each in every if len(found[position].hits) < width and len(each) >= k]


def _by_kind(run: _Search, kind: str, width: int) -> list[_Found]:
    """The best documents by one kind of vectors."""
    question, k = run.question, width
    found = [_Found([], True) for _ in range(run.count)]
    waiting = list(range(run.count))
    while waiting:
        queries = [run.kinds[kind][position] for position in waiting]
        answers = run.state.table.by_kind(
            kind, queries, k, where=question.where, exact=question.exact, recall=question.recall
        )
        for position, passages in zip(waiting, answers, strict=True):
            hits = _grouped(passages, _cosines(run, position, passages))
            found[position] = _Found(hits[:width], passages.exact)
        waiting, k = _too_few(waiting, answers, found, width, k), k * _WIDER
    return found


def _by_words(run: _Search, position: int, width: int) -> _Found:
    """The best documents by words, by their best passage."""
    k, query = width, (run.queries or ())[position]
    while True:
        passages = run.state.table.by_words(query, k, where=run.question.where)
        hits = _grouped(passages, _cosines(run, position, passages))
        if len(hits) >= width or len(passages) < k:
            return _Found(hits[:width], True)
        k *= _WIDER


def _cosines(run: _Search, position: int, passages: Passages) -> list[float | None]:
    """Equal to those of `nearest` to the bit; None: the query has no dense vector."""
    if run.vectors is None:
        return [None] * len(passages)
    rows = np.arange(len(passages))
    exact = exact_scores(PRODUCT, run.vectors[position][None], passages.vector, np.zeros_like(rows), rows)
    return list(exact.tolist())


def _grouped(passages: Passages, cosines: Sequence[float | None]) -> list[Hit]:
    """The first passage of each document, in order."""
    scores = passages.score.tolist()
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


def _fused(rankings: Mapping[str, _Found], weights: Mapping[str, float]) -> _Found:
    """Reciprocal rank fusion, each ranking with its weight; the passage that is shown is the nearer one, or that of
    the first ranking where there are no cosines."""
    total: dict[str, float] = {}
    shown: dict[str, Hit] = {}
    for name, found in rankings.items():
        ranking = found.hits
        if name == "dense":  # of a table with lists: their pages are joined from several searches
            ranking = sorted(ranking, key=lambda hit: (-hit.score, hit.id))
        for rank, hit in enumerate(ranking, 1):
            total[hit.id] = total.get(hit.id, 0.0) + weights[name] / (RRF_K + rank)
            if hit.id not in shown or _nearer(hit, shown[hit.id]):
                shown[hit.id] = hit
    order = sorted(total, key=lambda id_: (-total[id_], id_))
    hits = [replace(shown[id_], score=total[id_]) for id_ in order]
    return _Found(hits, all(found.exact for found in rankings.values()))


def _nearer(one: Hit, other: Hit) -> bool:
    return one.cosine is not None and other.cosine is not None and one.cosine > other.cosine


def _reranked(run: _Search, model: Reranker, queries: Sequence[str], found: Sequence[_Found]) -> list[_Found]:
    """The same documents in the order of the model's scores of their passages; ties keep their order."""
    from gemel.options import CrossOptions

    pairs = [(query, hit) for query, each in zip(queries, found, strict=True) for hit in each.hits]
    if not pairs:
        return list(found)
    if _has_tokens_of(run.state, model):
        scores = iter(_stored_maxsim(run.state, queries, found))
    else:
        options = CrossOptions(on_long="truncate")
        scored = model.scores([query for query, _ in pairs], [hit.text for _, hit in pairs], options)
        scores = iter(scored.tolist())
    ranked = [[replace(hit, score=next(scores)) for hit in each.hits] for each in found]
    return [
        replace(each, hits=sorted(hits, key=lambda hit: -hit.score))
        for each, hits in zip(found, ranked, strict=True)
    ]


def _has_tokens_of(state: IndexState, model: Reranker) -> bool:
    """The index stores the vectors of tokens that this model makes."""
    header = state.header.kinds.get("late")
    if header is None or not compares_tokens(model):
        return False
    return bool(header.bound["weights"] == getattr(model, "weights_hash", None))


def _stored_maxsim(state: IndexState, queries: Sequence[str], found: Sequence[_Found]) -> list[float]:
    """MaxSim of each query and the stored vectors of its hits, in their order."""
    header, encoder = state.header.kinds["late"], state.kinds["late"].get()
    rows = state.table.get(list({hit.id for each in found for hit in each.hits}), kinds=True)
    positions = {(rows.id[n], int(rows.part[n])): n for n in range(len(rows))}
    scores: list[float] = []
    for query, each in zip(encoder.encode_queries(queries), found, strict=True):
        there = [positions.get((hit.id, hit.part)) for hit in each.hits]  # None: deleted meanwhile
        values = [b"" if n is None else rows.kinds["late"][n] for n in there]
        scores += maxsim(query, tokens_of(values, header)).tolist()
    return scores


def explained(state: IndexState, query: str, id_: str, mode: Mode | None) -> IndexExplanation:
    """See `Index.explain`; what is compared is encoded again."""
    rows = state.table.get([id_])
    if not len(rows):
        raise InputError(f"the document {id_!r} is not in the index")
    question = SearchQuery(k=1, where=Compare("id", "=", id_), mode=mode)
    hits = answer(state, [query], None, question)[0].hits
    part, text = (hits[0].part, hits[0].text) if hits else (0, rows.text[0])
    cosine = None
    if state.binding is not None:
        cosine = float(rows.vector[list(rows.part).index(part)] @ state.encoder.encode_queries([query])[0])
    models: dict[str, Any] = {kind: lazy.get().model for kind, lazy in state.kinds.items()}
    sparse = models["sparse"].explain(query, text, on_long="truncate") if "sparse" in models else None
    late = models["late"].explain(query, text, on_long="truncate") if "late" in models else None
    return IndexExplanation(id_, part, text, cosine, sparse, late)
