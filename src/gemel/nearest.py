"""Exact nearest rows of a corpus for each query, block by block. Arrays in, `Hits` out; no model here."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.similarity import METRICS, Metric, check_same_dim, checked
from gemel.types import Vectors

_QUERIES = 1024
_CORPUS = 4096  # scores of a block: 1024 queries x 4096 rows x 4 bytes = 16 MB


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest corpus rows of each query, best first; ties break on the lower position."""

    index: NDArray[np.int64]
    """(q, k) positions in the corpus."""
    score: Vectors
    """(q, k), higher is nearer."""

    def __len__(self) -> int:
        return len(self.index)


def search(queries: ArrayLike, corpus: ArrayLike, k: int = 10, metric: str = "cosine") -> Hits:
    """The `k` nearest corpus rows for each query. A corpus of n < k rows gives n columns.

    Every row is compared. Memory: both arrays (for cosine, scaled copies of them), the hits and one block.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    chosen = METRICS[metric]
    asked, known = checked(queries, "queries"), checked(corpus, "corpus")
    check_same_dim(asked, known, "queries", "corpus rows")
    asked, known = chosen.prepare(asked), chosen.prepare(known)
    columns = min(int(k), len(known))
    index = np.empty((len(asked), columns), dtype=np.int64)
    score = np.empty((len(asked), columns), dtype=np.float32)
    if columns:
        for start in range(0, len(asked), _QUERIES):
            block = slice(start, start + _QUERIES)
            index[block], score[block] = _nearest(asked[block], known, columns, chosen)
    return Hits(index, score)


def _nearest(queries: Vectors, corpus: Vectors, k: int, metric: Metric) -> tuple[NDArray[np.int64], Vectors]:
    """The running best of all queries at once: a block adds only what beats a query's k-th best so far."""
    query = index = np.empty(0, dtype=np.int64)
    score = np.empty(0, dtype=np.float32)
    floor: Vectors | None = None  # (q, 1), known once every query has k candidates
    for start in range(0, len(corpus), _CORPUS):
        found = metric.scores(queries, corpus[start : start + _CORPUS])  # (q, b)
        rows, columns = np.nonzero(_may_enter(found, floor, k))
        query = np.concatenate([query, rows])
        index = np.concatenate([index, columns + start])
        score = np.concatenate([score, found[rows, columns]])
        order = np.lexsort((index, -score, query))
        place = np.arange(len(order)) - np.searchsorted(query[order], query[order])  # rank within its query
        best = order[place < k]
        query, index, score = query[best], index[best], score[best]
        if len(query) == len(queries) * k:
            floor = score.reshape(-1, k)[:, -1:]
    return index.reshape(-1, k), score.reshape(-1, k)


def _may_enter(found: Vectors, floor: Vectors | None, k: int) -> NDArray[np.bool_]:
    """Which scores of a block can still be among the best `k`.

    Strictly above the floor: an equal score at a later position loses the tie.
    """
    mask = np.ones(found.shape, dtype=np.bool_) if floor is None else found > floor
    # Sorting many candidates is slow; the k-th best of the block itself is a floor too, ties included.
    if found.shape[1] > k and np.count_nonzero(mask) > 4 * k * len(found):
        mask &= found >= np.partition(found, -k, axis=1)[:, -k, None]
    return mask
