"""Ranking by products of sparse rows: only documents that share a word with the query are found."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemel.nearest import Hits

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
