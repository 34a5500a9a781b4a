"""The average of a text's word vectors: the GloVe baseline of the Sentence-BERT paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.evaluation.baselines.word_vectors import WordVectors
from gemel.text.tokenizer import check_texts
from gemel.types import Vectors
from gemel.word_search.words import words_of


@dataclass(frozen=True, eq=False)
class AverageReport:
    """Vectors, and how many words they are made of."""

    vectors: Vectors
    """(n, dim)"""
    words: int
    skipped: int
    """Words without a vector."""
    empty: int
    """Texts without any word that has one; their vectors are zero."""


@dataclass(frozen=True, eq=False)
class AverageWords:
    """An encoder that knows neither order nor context. A word that occurs twice counts twice."""

    vectors: WordVectors
    stop_words: bool = True
    """False leaves out the words of `words.STOP_WORDS`."""

    @property
    def dim(self) -> int:
        return int(self.vectors.table.shape[1])

    @property
    def name(self) -> str:
        return f"average of {self.vectors.name}" + ("" if self.stop_words else " without stop words")

    def encode(self, texts: Sequence[str]) -> Vectors:
        """(n, dim); zeros for a text in which no word has a vector."""
        return self.encode_report(texts).vectors

    def encode_report(self, texts: Sequence[str]) -> AverageReport:
        """The vectors, and what was skipped on the way."""
        known, table = self.vectors.places, self.vectors.table
        out = np.zeros((len(texts), self.dim), dtype=np.float32)
        words = skipped = empty = 0
        for row, text in enumerate(check_texts(texts)):
            found = words_of(text, stop_words=self.stop_words)
            places = [known[word] for word in found if word in known]
            words, skipped = words + len(found), skipped + len(found) - len(places)
            if places:
                out[row] = table[places].mean(axis=0, dtype=np.float64)
            else:
                empty += 1
        return AverageReport(out, words, skipped, empty)
