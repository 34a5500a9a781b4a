"""BM25 as a system to evaluate: a retriever without vectors. The index itself is `word_search/bm25.py`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gemel.errors import InputError
from gemel.nearest import Hits
from gemel.types import Vectors
from gemel.word_search.bm25 import BM25Index

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
