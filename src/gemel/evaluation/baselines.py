"""Baselines that a model should beat, opened by name: `bm25`, `glove:vectors.txt`, TF-IDF, plain BERT."""

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
"""From the text after the colon, which may be empty, to a baseline."""

BASELINES: Registry[Open] = Registry("baseline")


def is_baseline(name: str) -> bool:
    """True for a name that `open_baseline` takes: that of a baseline, alone or before a colon."""
    return name.partition(":")[0] in BASELINES


def open_baseline(name: str) -> Encoder:
    """`glove:PATH`, `glove-content:PATH`, `tfidf`, `tfidf:TEXTS`, `bm25`, `average-bert:MODEL` or `cls-bert:MODEL`.

    All but BM25 have vectors; it has `rank` instead, and its `encode` raises an InputError. `tfidf` without a file of
    texts is fitted on the corpus of the task, path the task has one.
    """
    kind, _, path = name.partition(":")
    return BASELINES[kind](path)


@BASELINES.add("glove")
def _glove(path: str) -> Encoder:
    return AverageWords(read_word_vectors(_needed("glove", path, "a file or folder of word vectors")))


@BASELINES.add("glove-content")
def _glove_content(path: str) -> Encoder:
    path = _needed("glove-content", path, "a file or folder of word vectors")
    return AverageWords(read_word_vectors(path), stop_words=False)


@BASELINES.add("tfidf")
def _tfidf(path: str) -> Encoder:
    return TfIdf().fitted([row.text for row in read_rows(path)]) if path else TfIdf()


@BASELINES.add("bm25")
def _bm25(path: str) -> Encoder:
    if path:
        raise InputError(f"bm25 takes no path, got {path!r}: it counts the words of the corpus that it ranks")
    return BM25()


@BASELINES.add("average-bert")
def _average_bert(path: str) -> Encoder:
    return load(_needed("average-bert", path, "a model"), pooling="mean")


@BASELINES.add("cls-bert")
def _cls_bert(path: str) -> Encoder:
    return load(_needed("cls-bert", path, "a model"), pooling="cls")


def _needed(kind: str, path: str, what: str) -> str:
    if not path:
        raise InputError(f"the baseline {kind!r} needs {what}. Write {kind}:PATH")
    return path


_NO_VECTORS = "bm25 ranks texts and has no vectors. Use it for retrieval, reranking or duplicates"


@dataclass(frozen=True)
class BM25:
    """A retriever without vectors, not an encoder. The index is `gemel.vectors.bm25`."""

    k1: float = 1.2
    """How much repeated occurrences of a word count."""
    b: float = 0.75
    """How much the score of a long document is reduced, from 0 to 1."""
    stop_words: bool = True

    @property
    def name(self) -> str:
        return "bm25"

    @property
    def dim(self) -> int:
        raise InputError(_NO_VECTORS)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Raises an InputError: BM25 has no vectors."""
        raise InputError(_NO_VECTORS)

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` documents; those that share no word with the query are not found."""
        return BM25Index(corpus, k1=self.k1, b=self.b, stop_words=self.stop_words).rank(queries, k)


@dataclass(frozen=True)
class TfIdf:
    """Becomes an encoder with `fitted`, which counts the words of texts. `rank` is fitted on its corpus."""

    words: int = 20_000
    """How many of the most frequent words are used, so that dense vectors are not too large."""

    @property
    def name(self) -> str:
        return "tfidf"

    @property
    def dim(self) -> int:
        raise InputError(_UNFITTED)

    def encode(self, texts: Sequence[str]) -> Vectors:
        """Raises an InputError: vectors of two calls could not be compared."""
        raise InputError(_UNFITTED)

    def fitted(self, texts: Sequence[str]) -> FittedTfIdf:
        """An encoder whose dimensions are the words of `texts`."""
        return FittedTfIdf(self._fit(texts))

    def rank(self, queries: Sequence[str], corpus: Sequence[str], k: int) -> Hits:
        """The best `k` of the corpus by cosine of sparse vectors, fitted on this corpus."""
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
            raise InputError(f"tf-idf found no words in {len(texts)} texts") from error


@dataclass(frozen=True, eq=False)
class FittedTfIdf:
    """A fitted encoder; other words are ignored. Vectors have length 1, or 0 without any of the words."""

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
    "tfidf must be fitted on texts before it can encode. Open it as tfidf:TEXTS with a file of texts, "
    "or call fitted(texts)"
)

_QUERIES = 256  # rows of queries per product


def rank_rows(queries: Any, corpus: Any, k: int) -> Hits:  # noqa: ANN401 - scipy's csr arrays; scipy has no stubs
    """The best `k` rows of `corpus` (n, words) for each row of `queries` (q, words), -1 path there are fewer.

    Only documents that share a word with the query are found. Ties go to the earlier document, as in exact search.
    """
    columns = min(k, corpus.shape[0])
    index = np.full((queries.shape[0], columns), -1, dtype=np.int64)
    score = np.zeros(index.shape, dtype=np.float32)
    transposed = corpus.T.tocsr()
    for start in range(0, queries.shape[0], _QUERIES):
        block = (queries[start : start + _QUERIES] @ transposed).tocsr()
        for row in range(block.shape[0]):
            inside = slice(block.indptr[row], block.indptr[row + 1])
            documents, values = block.indices[inside], block.data[inside]
            best = np.lexsort((documents, -values))[:columns]
            index[start + row, : len(best)] = documents[best]
            score[start + row, : len(best)] = values[best]
    return Hits(index, score)
