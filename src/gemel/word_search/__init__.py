"""Search by words, and its fusion with search by vectors. numpy only."""

from gemel.word_search.bm25 import BM25Index
from gemel.word_search.fusion import fuse

__all__ = ["BM25Index", "fuse"]
