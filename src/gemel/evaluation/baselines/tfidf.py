"""TF-IDF: a text as the counts of its words, rare words heavier. scikit-learn counts and weighs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemel.errors import InputError, MissingExtra
from gemel.evaluation.baselines.sparse_ranks import rank_rows
from gemel.nearest import Hits
from gemel.types import Vectors


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
