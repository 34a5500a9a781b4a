"""Baselines by the names that users type: `bm25`, `glove:vectors.txt`.

BM25 as a system to evaluate: a retriever without vectors. The index itself is `word_search/bm25.py`.

TF-IDF: a text as the counts of its words, rare words heavier. scikit-learn counts and weighs.

Ranking by products of sparse rows: only documents that share a word with the query are found.

Simple systems that a model should beat, opened by name: word vectors, word counts, plain transformers.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.word_vectors import AverageWords, read_word_vectors
from gemel.files.rows import read_rows
from gemel.model import load
from gemel.registry import Registry
from gemel.types import Encoder, Vectors
from gemel.vectors.bm25 import BM25Index
from gemel.vectors.search import Hits

Open: TypeAlias = Callable[[str], Encoder]
"""What follows the colon, empty if nothing does, to a baseline."""

BASELINES: Registry[Open] = Registry("baseline")


def is_baseline(name: str) -> bool:
    """True where `open_baseline` is meant: a known name, alone or before a colon."""
    return name.partition(":")[0] in BASELINES


def open_baseline(name: str) -> Encoder:
    """`glove:PATH`, `glove-content:PATH`, `tfidf`, `tfidf:TEXTS`, `bm25`, `average-bert:MODEL` or `cls-bert:MODEL`.

    All but BM25 give vectors; it has `rank` instead, and refuses to encode. `tfidf` without a file of texts learns from
    the corpus of the task, where the task has one.
    """
    kind, _, where = name.partition(":")
    return BASELINES[kind](where)


@BASELINES.add("glove")
def _glove(where: str) -> Encoder:
    return AverageWords(read_word_vectors(_needed("glove", where, "a file or folder of word vectors")))


@BASELINES.add("glove-content")
def _glove_content(where: str) -> Encoder:
    path = _needed("glove-content", where, "a file or folder of word vectors")
    return AverageWords(read_word_vectors(path), stop_words=False)


@BASELINES.add("tfidf")
def _tfidf(where: str) -> Encoder:
    return TfIdf().fitted([row.text for row in read_rows(where)]) if where else TfIdf()


@BASELINES.add("bm25")
def _bm25(where: str) -> Encoder:
    if where:
        raise InputError(f"bm25 takes no path, got {where!r}: it counts the words of the corpus it ranks")
    return BM25()


@BASELINES.add("average-bert")
def _average_bert(where: str) -> Encoder:
    return load(_needed("average-bert", where, "a model"), pooling="mean")


@BASELINES.add("cls-bert")
def _cls_bert(where: str) -> Encoder:
    return load(_needed("cls-bert", where, "a model"), pooling="cls")


def _needed(kind: str, where: str, what: str) -> str:
    if not where:
        raise InputError(f"the baseline {kind!r} needs {what}. Write {kind}:PATH")
    return where


_NO_VECTORS = "bm25 ranks texts and has no vectors. Use it for retrieval, reranking or duplicates"


@dataclass(frozen=True)
class BM25:
    """A retriever, not an encoder: a query and a document have no vectors of their own."""

    k1: float = 1.2
    """How slowly further occurrences of a word stop to count."""
    b: float = 0.75
    """How much a long document has to pay, from 0 to 1."""
    stop_words: bool = True

    @property
    def name(self) -> str:
        return "bm25"

    @property
    def dim(self) -> int:
        raise InputError(_NO_VECTORS)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Refused: a task that compares vectors learns here that it cannot use BM25."""
        raise InputError(_NO_VECTORS)

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` documents; those that share no word with the query are not found."""
        return BM25Index(corpus, k1=self.k1, b=self.b, stop_words=self.stop_words).rank(queries, k)


@dataclass(frozen=True)
class TfIdf:
    """Not yet an encoder: which words are rare must be learnt from texts first. Ranks without that, by its corpus."""

    words: int = 20_000
    """The most frequent words that count, so that dense vectors stay of a size to work with."""

    @property
    def name(self) -> str:
        return "tfidf"

    @property
    def dim(self) -> int:
        raise InputError(_UNFITTED)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Refused: two calls would give vectors that cannot be compared."""
        raise InputError(_UNFITTED)

    def fitted(self, texts: Sequence[str]) -> FittedTfIdf:
        """An encoder whose dimensions are the words of `texts`."""
        return FittedTfIdf(self._fit(texts))

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` of the corpus by cosine, learnt from this corpus; stays sparse."""
        vectorizer = self._fit(corpus)
        return rank_rows(vectorizer.transform(list(queries)), vectorizer.transform(list(corpus)), k)

    def _fit(self, texts: Sequence[str]) -> Any:  # noqa: ANN401 - scikit-learn has no stubs
        try:
            from sklearn.feature_extraction.text import TfidfVectorizer
        except ImportError as error:
            raise MissingExtra("TF-IDF", "scikit-learn", "evaluate") from error
        try:
            return TfidfVectorizer(max_features=self.words).fit(list(texts))
        except ValueError as error:  # "empty vocabulary"
            raise InputError(f"tf-idf found no words in {len(texts)} texts to learn from") from error


@dataclass(frozen=True, eq=False)
class FittedTfIdf:
    """The encoder; words that were not learnt do not count. Vectors have length 1, or 0 without a known word."""

    vectorizer: Any  # a fitted TfidfVectorizer of scikit-learn, which has no stubs

    @property
    def name(self) -> str:
        return "tfidf"

    @property
    def dim(self) -> int:
        return len(self.vectorizer.vocabulary_)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, words) dense float32."""
        if not texts:
            return np.zeros((0, self.dim), dtype=np.float32)
        return np.asarray(self.vectorizer.transform(list(texts)).toarray(), dtype=np.float32)


_UNFITTED = (
    "tfidf must learn from texts before it can encode. Open it as tfidf:TEXTS with a file of texts, "
    "or call fitted(texts)"
)

_QUERIES = 256  # products held at once


def rank_rows(queries: Any, corpus: Any, k: int) -> Hits:  # noqa: ANN401 - scipy's csr arrays; scipy has no stubs
    """The best `k` rows of `corpus` (n, words) for each row of `queries` (q, words); places beyond are -1.

    Ties go to the earlier document, as in exact search.
    """
    columns = min(k, corpus.shape[0])
    index = np.full((queries.shape[0], columns), -1, dtype=np.int64)
    score = np.zeros(index.shape, dtype=np.float32)
    turned = corpus.T.tocsr()
    for start in range(0, queries.shape[0], _QUERIES):
        block = (queries[start : start + _QUERIES] @ turned).tocsr()
        for row in range(block.shape[0]):
            inside = slice(block.indptr[row], block.indptr[row + 1])
            found, values = block.indices[inside], block.data[inside]
            best = np.lexsort((found, -values))[:columns]
            index[start + row, : len(best)] = found[best]
            score[start + row, : len(best)] = values[best]
    return Hits(index, score)


__all__ = ["BASELINES", "is_baseline", "open_baseline"]
