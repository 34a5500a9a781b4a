"""BM25, the classic of word search: rare words count more, repeated ones less and less, long documents less.

The variant of Lucene (idf never below zero); words are lower-cased and not stemmed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.baselines.sparse_ranks import rank_rows
from gemel.evaluation.baselines.words import words_of
from gemel.nearest import Hits
from gemel.types import Vectors

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
        vocabulary: dict[str, int] = {}
        counts = self._counts(corpus, vocabulary, grow=True)
        asked = self._counts(queries, vocabulary, grow=False)
        return rank_rows(asked, self._weighted(counts), k)

    def _counts(self, texts: Sequence[str], vocabulary: dict[str, int], *, grow: bool) -> Any:  # noqa: ANN401
        """(n, words): how often each word of the vocabulary is in each text, as scipy's csr array."""
        try:
            from scipy.sparse import csr_array
        except ImportError as error:
            raise MissingExtra("BM25", "scipy", "evaluate") from error
        places: list[int] = []
        values: list[int] = []
        ends = [0]
        for text in texts:
            for word, count in Counter(words_of(text, stop_words=self.stop_words)).items():
                place = vocabulary.setdefault(word, len(vocabulary)) if grow else vocabulary.get(word)
                if place is not None:
                    places.append(place)
                    values.append(count)
            ends.append(len(places))
        return csr_array(
            (np.array(values, dtype=np.float64), places, ends), shape=(len(texts), len(vocabulary))
        )

    def _weighted(self, counts: Any) -> Any:  # noqa: ANN401
        """What each word of each document adds to the score of a query that holds it once."""
        documents = counts.shape[0]
        having = np.bincount(counts.indices, minlength=counts.shape[1])
        idf = np.log(1 + (documents - having + 0.5) / (having + 0.5))
        length = counts.sum(axis=1)
        mean = length.mean() or 1.0  # documents without any word: nothing will be found anyway
        allowance = self.k1 * (1 - self.b + self.b * length / mean)
        row = np.repeat(np.arange(documents), np.diff(counts.indptr))
        weighted = counts.copy()
        weighted.data = idf[counts.indices] * counts.data / (counts.data + allowance[row])
        return weighted
