"""BM25, the classic of word search: rare words count more, repeated ones less and less, long documents less.

The variant of Lucene (idf never below zero). `WordRules` say what a word is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemel.nearest import Hits
from gemel.types import Vectors
from gemel.word_search.words import STOP_WORDS, WordRules


class BM25Index:
    """For each word, the documents that hold it and what it adds to their scores."""

    def __init__(
        self,
        corpus: Sequence[str],
        *,
        k1: float = 1.2,
        b: float = 0.75,
        stop_words: bool = True,
        rules: WordRules | None = None,
    ) -> None:
        """`k1`: how slowly further occurrences of a word stop to count. `b`: how much a long document has to pay.

        `stop_words`: count them as words. `rules`: None: the newest, without stemming.
        """
        self._rules, self._stop_words = rules or WordRules(), stop_words
        self._documents = len(corpus)
        self._vocabulary: dict[str, int] = {}
        words: list[int] = []
        documents: list[int] = []
        counts: list[int] = []
        lengths = np.zeros(len(corpus))
        for document, text in enumerate(corpus):
            for word, count in self._counts(self._rules.document(text)).items():
                words.append(self._vocabulary.setdefault(word, len(self._vocabulary)))
                documents.append(document)
                counts.append(count)
                lengths[document] += count
        order = np.argsort(np.asarray(words, dtype=np.int64), kind="stable")
        having = np.bincount(np.asarray(words, dtype=np.int64), minlength=len(self._vocabulary))
        self._ends = np.concatenate([[0], np.cumsum(having)]).astype(np.int64)
        self._postings = np.asarray(documents, dtype=np.int64)[order]
        idf = np.log(1 + (len(corpus) - having + 0.5) / (having + 0.5))
        mean = (lengths.mean() if len(corpus) else 0) or 1.0  # no document has a word: nothing will be found
        allowance = k1 * (1 - b + b * lengths / mean)
        often = np.asarray(counts, dtype=np.float64)[order]
        self._adds = np.repeat(idf, having) * often / (often + allowance[self._postings])

    def rank(self, queries: Sequence[str], k: int, where: NDArray[np.bool_] | None = None) -> Hits:
        """The best `k` documents a query, of those where `where` is true; ties go to the earlier one.

        Documents that share no word with the query are not found: such places are -1, with a score of 0.
        """
        columns = min(k, self._documents)
        index = np.full((len(queries), columns), -1, dtype=np.int64)
        score: Vectors = np.zeros(index.shape, dtype=np.float32)
        for row, query in enumerate(queries):
            values = self._scores(query)
            if where is not None:
                values[~where] = 0
            found = np.flatnonzero(values)
            best = found[np.lexsort((found, -values[found]))[:columns]]
            index[row, : len(best)] = best
            score[row, : len(best)] = values[best]
        return Hits(index, score)

    def _scores(self, query: str) -> NDArray[np.float64]:
        """(documents,) what the words of the query add up to."""
        total = np.zeros(self._documents)
        for word, count in self._counts(self._rules.query(query)).items():
            place = self._vocabulary.get(word)
            if place is not None:
                inside = slice(self._ends[place], self._ends[place + 1])
                total[self._postings[inside]] += count * self._adds[inside]  # a document is there once
        return total

    def _counts(self, words: list[str]) -> Counter[str]:
        return Counter(words if self._stop_words else [word for word in words if word not in STOP_WORDS])
