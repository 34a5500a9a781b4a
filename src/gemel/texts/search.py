"""Search, from texts: encode both sides with their prompts, find, fuse with words, rerank."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from gemel.cross_model import CrossModel
from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.model import Model, WithOptions
from gemel.options import CrossOptions, EncodeOptions
from gemel.texts.cascade import FastHits, SomeVectors, fast_search, scores_of
from gemel.texts.pairs import Relations, relations_of
from gemel.types import Encoder, Vectors
from gemel.vectors.bm25 import BM25Index, fuse
from gemel.vectors.quantize import search_by_bits
from gemel.vectors.search import Hits, search

Coarse: TypeAlias = Literal["int8", "binary"]

ScoredBy: TypeAlias = Literal["cosine", "fusion", "cross"]

_CANDIDATES = 50  # texts a query that fusion and reranking look at


@dataclass(frozen=True, kw_only=True)
class SearchQuestion:
    """How many answers, and by which steps."""

    k: int = 10
    """Answers a query."""
    hybrid: bool = False
    """Fuse the ranking by vectors with one by words (BM25)."""
    candidates: int | None = None
    """Texts a query that fusion and reranking look at. None: 50, or k if that is more."""
    coarse: Coarse | None = None
    """Find by 8-bit or one-bit vectors first, score those exactly. None: every text is scored exactly."""
    dial: int | None = None
    """Two speeds: candidates of the student for each answer that is asked for."""

    def __post_init__(self) -> None:
        for name in ("k", "candidates"):
            value = getattr(self, name)
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 1):
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.coarse not in (None, *get_args(Coarse)):
            raise InputError(f"coarse must be one of {', '.join(get_args(Coarse))}, got {self.coarse!r}")
        if self.candidates is not None and self.candidates < self.k:
            raise InputError(f"candidates must be at least k={self.k}, got {self.candidates}")
        if self.dial is not None and self.coarse is not None:
            raise InputError("two speeds and coarse vectors are two ways to find candidates. Choose one")

    def width(self, rerank: CrossModel | None) -> int:
        """Answers a query before the last step."""
        return (self.candidates or max(self.k, _CANDIDATES)) if self.hybrid or rerank is not None else self.k


@dataclass(frozen=True, eq=False)
class TextHits:
    """Answers with their texts, best first."""

    hits: Hits
    """Places of -1: fewer answers than asked for."""
    cosine: Vectors
    """(q, k) of the model's vectors, whatever ordered the answers."""
    scored_by: ScoredBy
    queries: Sequence[str]
    corpus: Sequence[str]
    relations: Relations | None
    """How query relates to answer, row after row, when the model keeps its relation head."""
    encoded: int
    """Texts of the corpus that the model encoded."""

    def rows(self, ids: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """One dictionary an answer: query, rank, score, cosine where it is another number, labels, id and text."""
        width = self.hits.index.shape[1]
        for place, found in enumerate(self.hits.index.ravel().tolist()):
            if found < 0:
                continue
            at = divmod(place, width)
            row: dict[str, Any] = {"query": self.queries[at[0]], "rank": at[1] + 1}
            row["score"] = float(self.hits.score[at])
            if self.scored_by != "cosine":
                row["cosine"] = float(self.cosine[at])
            if self.relations is not None:
                row |= self.relations.row(place)
            yield {**row, "id": found if ids is None else ids[found], "text": self.corpus[found]}

    def summary(self) -> str:
        """One line for a person."""
        asked = "1 query" if len(self.queries) == 1 else f"{len(self.queries):,} queries"
        parts = [f"{asked}, {len(self.corpus):,} texts, scored by {self.scored_by}"]
        if self.hits.recall is None:
            parts.append("every text compared")
        else:
            parts.append(f"recall about {self.hits.recall:.1%} (measured on a sample)")
        if self.encoded < len(set(self.corpus)):
            parts.append(f"{self.encoded:,} texts encoded")
        return ", ".join(parts)


def search_texts(
    model: Model,
    queries: Sequence[str],
    corpus: Sequence[str],
    question: SearchQuestion | None = None,
    *,
    options: EncodeOptions | None = None,
    rerank: CrossModel | None = None,
    student: Encoder | None = None,
    find: Callable[..., Hits] = search,
) -> TextHits:
    """The best texts of `corpus` for each query.

    rerank: a cross-encoder that orders the candidates anew. student: with a `dial`, the fast encoder that proposes
    them. A checkpoint's prompts for queries and documents are used unless `options` name one. find: what compares every
    query with every text, with the arguments of `gemel.search`.
    """
    question, settings = question or SearchQuestion(), options or EncodeOptions()
    if settings.output not in ("float32", "float16"):
        raise InputError(f"search scores float32 vectors; output {settings.output!r} is for storing")
    if (question.dial is None) != (student is None):
        raise InputError("two speeds need both a dial and a student")
    asked, known = check_texts(queries, "queries"), check_texts(corpus, "corpus")
    for name, texts in (("queries", asked), ("corpus", known)):
        if not texts:
            raise InputError(f"{name} is empty: there is nothing to search")
    sides = _Sides(WithOptions(model, settings, "query"), WithOptions(model, settings, "document"), student)
    width = min(question.width(rerank), len(known))
    found = _found(sides, asked, known, question, width, find)
    hits = found.hits
    if question.hybrid:
        hits = fuse([hits, BM25Index(known).rank(asked, width)], width)
    if rerank is not None:
        hits = _reranked(rerank, asked, known, hits, settings)
    hits = Hits(hits.index[:, : question.k], hits.score[:, : question.k], recall=found.hits.recall)
    # Words may have found texts that were no candidates of the student.
    vectors = found.corpus.plus(sides.documents, known, hits.index[hits.index >= 0])
    rows = np.repeat(np.arange(len(asked)), hits.index.shape[1])
    columns = np.maximum(hits.index.ravel(), 0)  # what stands at places of -1 is never shown
    return TextHits(
        hits=hits,
        cosine=scores_of(found.queries, rows, vectors, columns).reshape(hits.index.shape),
        scored_by="cross" if rerank is not None else "fusion" if question.hybrid else "cosine",
        queries=asked,
        corpus=known,
        relations=relations_of(model, settings, found.queries, rows, vectors, columns),
        encoded=len(vectors.vectors),
    )


@dataclass(frozen=True)
class _Sides:
    queries: WithOptions
    documents: WithOptions
    student: Encoder | None


def _found(
    sides: _Sides,
    asked: list[str],
    known: list[str],
    question: SearchQuestion,
    width: int,
    find: Callable[..., Hits],
) -> FastHits:
    """The best by vectors, and the vectors themselves."""
    threads = sides.queries.options.threads
    if question.dial is not None and sides.student is not None:
        return fast_search(sides, asked, known, k=width, dial=question.dial, threads=threads)
    queries, corpus = sides.queries.encode(asked), sides.documents.encode(known)
    if question.coarse == "binary":
        hits = search_by_bits(queries, corpus, width, threads=threads)
    elif question.coarse == "int8":
        hits = search(queries, corpus, width, precision="int8", threads=threads)
    else:
        hits = find(queries, corpus, width, threads=threads)
    return FastHits(hits, queries, SomeVectors.all(corpus))


def _reranked(
    cross: CrossModel, queries: list[str], corpus: list[str], hits: Hits, settings: EncodeOptions
) -> Hits:
    """The same texts in the order of the cross-encoder; ties keep their order."""
    rows, columns = np.nonzero(hits.index >= 0)
    texts = [corpus[place] for place in hits.index[rows, columns]]
    options = CrossOptions(on_long="truncate", threads=settings.threads, progress=settings.progress)
    score = np.full(hits.index.shape, -np.inf, dtype=np.float32)
    score[rows, columns] = cross.scores([queries[row] for row in rows], texts, options)
    order = np.argsort(-score, axis=1, kind="stable")
    return Hits(np.take_along_axis(hits.index, order, 1), np.take_along_axis(score, order, 1))
