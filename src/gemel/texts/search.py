"""Search from texts: encode queries and documents with their prompts, find the nearest, fuse with words, rerank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Any, Unpack

import numpy as np

from gemel.cross_model import CrossModel
from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.index.query import Answer, Hit, ScoredBy
from gemel.model import Model
from gemel.options import CrossOptions, EncodeKeywords, EncodeOptions, check_count
from gemel.texts.cascade import Cascade, CascadeHits, SomeVectors, scores_of
from gemel.texts.pairs import Relations, relations_of
from gemel.types import Encoder, Vectors
from gemel.vectors.bm25 import BM25Index, fuse
from gemel.vectors.calibration import Calibration, calibrate
from gemel.vectors.search import Hits, search

_CANDIDATES = 50  # texts per query that fusion and reranking look at


def search_texts(  # noqa: PLR0913 - one question, and how to answer it
    model: Model,
    queries: Sequence[str],
    texts: Sequence[str],
    k: int = 10,
    *,
    ids: Sequence[str] | None = None,
    hybrid: bool = False,
    rerank: CrossModel | None = None,
    candidates: int | None = None,
    calibrated: bool = False,
    student: Encoder | None = None,
    student_candidates: int = 10,
    options: EncodeOptions | None = None,
    find: Callable[..., Hits] = search,
    **keywords: Unpack[EncodeKeywords],
) -> TextHits:
    """The `k` best of `texts` for each query; every text is compared unless there is a `student`.

    Keywords are the fields of `EncodeOptions`, as for `encode`. The prompts of the checkpoint for queries and documents
    are used unless the options name one.

    ids: names of the texts in the results; None: their positions.
    hybrid: fuse the ranking by vectors with one by words (BM25).
    rerank: a cross-encoder that sorts the candidates.
    candidates: texts per query that fusion and reranking look at; None: 50, or k if that is more.
    calibrated: give each result the percentile of its cosine among random pairs of the texts.
    student: a fast encoder that proposes `student_candidates` texts for each result; the model encodes only those, and
    the recall is measured.
    find: compares queries with texts, called as `gemel.search`.
    """
    started = perf_counter()
    settings = EncodeOptions.of(options, keywords)
    _check(k, candidates, settings)
    query_texts, documents = check_texts(queries, "queries"), check_texts(texts, "texts")
    for name, given in (("queries", query_texts), ("texts", documents)):
        if not given:
            raise InputError(f"{name} is empty: there is nothing to search")
    if ids is not None and len(ids) != len(documents):
        raise InputError(f"there are {len(documents)} texts but {len(ids)} ids")
    width = (candidates or max(k, _CANDIDATES)) if hybrid or rerank is not None else k
    width = min(width, len(documents))
    query_model = model.with_options(model.options_for("query", settings))
    document_model = model.with_options(model.options_for("document", settings))
    if student is None:
        vectors = np.asarray(query_model.encode(query_texts), np.float32)
        corpus = np.asarray(document_model.encode(documents), np.float32)
        hits = find(vectors, corpus, width, threads=settings.threads)
        first = CascadeHits(hits, vectors, SomeVectors.all(corpus))
    else:
        cascade = Cascade(document_model, student, student_candidates, query_model, settings.threads)
        first = cascade.search(query_texts, documents, width)
    hits = first.hits
    if hybrid:
        hits = fuse([hits, BM25Index(documents).rank(query_texts, width)], width)
    if rerank is not None:
        hits = _reranked(rerank, query_texts, documents, hits, settings)
    hits = Hits(hits.index[:, :k], hits.score[:, :k], recall=first.hits.recall)
    # Words may have found texts that were no candidates of the student.
    encoded = first.corpus.plus(document_model, documents, hits.index[hits.index >= 0])
    rows = np.repeat(np.arange(len(query_texts)), hits.index.shape[1])
    columns = np.maximum(hits.index.ravel(), 0)  # the scores at -1 are never shown
    return TextHits(
        hits=hits,
        cosine=scores_of(first.queries, rows, encoded, columns).reshape(hits.index.shape),
        scored_by="cross" if rerank is not None else "fusion" if hybrid else "cosine",
        queries=query_texts,
        texts=documents,
        ids=ids,
        relations=relations_of(model, settings, first.queries, rows, encoded, columns),
        calibration=calibrate(encoded.vectors) if calibrated else None,
        encoded=len(encoded.vectors),
        seconds=perf_counter() - started,
    )


@dataclass(frozen=True, eq=False)
class TextHits:
    """The results of `search_texts`: an `Answer` per query, of the same `Hit`s that an index gives."""

    hits: Hits
    """Positions and scores as arrays."""
    cosine: Vectors
    """(q, k) of the model's vectors, whatever the results were sorted by."""
    scored_by: ScoredBy
    queries: Sequence[str]
    texts: Sequence[str]
    ids: Sequence[str] | None
    relations: Relations | None
    """How query relates to text, row after row, when the model has a classification head."""
    calibration: Calibration | None
    encoded: int
    """Texts that the model encoded."""
    seconds: float

    def __len__(self) -> int:
        return len(self.queries)

    def __iter__(self) -> Iterator[Answer]:
        return (self[query] for query in range(len(self)))

    def __getitem__(self, query: int) -> Answer:
        """The results of one query, best first."""
        found = tuple(
            Hit(
                id=str(position) if self.ids is None else self.ids[position],
                score=float(self.hits.score[query, rank]),
                cosine=float(self.cosine[query, rank]),
                text=self.texts[position],
                part=0,
                fields={},
            )
            for rank, position in enumerate(self.hits.index[query].tolist())
            if position >= 0
        )
        return Answer(found, self.scored_by, exact=self.hits.recall is None, seconds=self.seconds)

    def rows(self) -> Iterator[dict[str, Any]]:
        """One dictionary per result: query, rank, score, cosine and percentile where known, labels, id, text."""
        width = self.hits.index.shape[1]
        for entry, position in enumerate(self.hits.index.ravel().tolist()):
            if position < 0:
                continue
            query, rank = divmod(entry, width)
            row: dict[str, Any] = {"query": self.queries[query], "rank": rank + 1}
            row["score"] = float(self.hits.score[query, rank])
            if self.scored_by != "cosine":
                row["cosine"] = float(self.cosine[query, rank])
            if self.calibration is not None:
                row["percentile"] = self.calibration.percentile(float(self.cosine[query, rank]))
            if self.relations is not None:
                row |= self.relations.row(entry)
            row["id"] = position if self.ids is None else self.ids[position]
            yield {**row, "text": self.texts[position]}

    def summary(self) -> str:
        """A description in one line."""
        queries = "1 query" if len(self) == 1 else f"{len(self):,} queries"
        parts = [f"{queries}, {len(self.texts):,} texts, scored by {self.scored_by}"]
        if self.hits.recall is None:
            parts.append("every text compared")
        else:
            parts.append(f"recall about {self.hits.recall:.1%} (measured on a sample)")
        if self.encoded < len(set(self.texts)):
            parts.append(f"{self.encoded:,} texts encoded")
        return ", ".join(parts)


def _check(k: int, candidates: int | None, options: EncodeOptions) -> None:
    check_count("k", k)
    if candidates is not None:
        check_count("candidates", candidates)
        if candidates < k:
            raise InputError(f"candidates must be at least k={k}, got {candidates}")
    if options.output not in ("float32", "float16"):
        raise InputError(f"search scores float32 vectors; output {options.output!r} is for storing")


def _reranked(
    cross: CrossModel, queries: list[str], texts: list[str], hits: Hits, settings: EncodeOptions
) -> Hits:
    """The same texts sorted by the cross-encoder; ties keep their order."""
    rows, columns = np.nonzero(hits.index >= 0)
    pairs = [queries[row] for row in rows], [texts[position] for position in hits.index[rows, columns]]
    options = CrossOptions(on_long="truncate", threads=settings.threads, progress=settings.progress)
    score = np.full(hits.index.shape, -np.inf, dtype=np.float32)
    score[rows, columns] = cross.scores(*pairs, options)
    order = np.argsort(-score, axis=1, kind="stable")
    return Hits(np.take_along_axis(hits.index, order, 1), np.take_along_axis(score, order, 1))
