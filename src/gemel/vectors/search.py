"""The nearest rows of a corpus for each query, exact: `search`, arrays in, `Hits` out.

For approximate answers over vectors stored in fewer bytes see `quantize.rescore`, from texts see `texts/cascade.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.options import parse_bytes
from gemel.terminal import Progress
from gemel.types import Vectors
from gemel.vectors.scan.compare import thread_count
from gemel.vectors.scan.scanner import scan
from gemel.vectors.similarity import METRICS, check_same_dim, shaped

__all__ = ["Hits", "search"]

_QUERIES = 4608  # queries that the corpus streams past at once

_FEW = 64  # for fewer queries, converting the corpus to int8 costs more than it saves


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest corpus rows of each query, best first; ties go to the lower position."""

    index: NDArray[np.int64]
    """(q, k) positions in the corpus; -1 where there are fewer results."""
    score: Vectors
    """(q, k), higher is nearer."""
    recall: float | None = None
    """The share of the true results that an approximate search finds, measured on a sample; None: it was exact."""

    def __len__(self) -> int:
        return len(self.index)


def search(
    queries: ArrayLike,
    corpus: ArrayLike,
    k: int = 10,
    metric: str = "cosine",
    *,
    where: ArrayLike | None = None,
    memory: int | str = "1GB",
    threads: int | None = None,
    prune: bool = True,
    progress: bool = False,
) -> Hits:
    """The `k` nearest corpus rows for each query. A corpus of n < k rows gives n columns.

    Every row is compared, and scores do not depend on the options below.

    where: compare with these corpus rows only: one boolean per row, or their positions. Hits keep the positions of the
    whole corpus.
    memory: for the hits being collected and the packed queries, besides the arrays given.
    prune: rule rows out by 8-bit bounds first, where the processor supports them. The result is the same.
    """
    if isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1:
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    METRICS[metric]
    left, right = shaped(queries, "queries"), shaped(corpus, "corpus")
    check_same_dim(left, right, "queries", "corpus rows")
    chosen = None if where is None else _positions(where, len(right))
    columns = min(int(k), len(right) if chosen is None else len(chosen))
    threads, memory = thread_count(threads), parse_bytes(memory)
    ready = scan(
        left,
        right,
        metric,
        threads=threads,
        int8=prune and len(left) >= _FEW,
        names=("queries", "corpus"),
        chosen=chosen,
    )
    index = np.empty((len(left), columns), dtype=np.int64)
    score = np.empty((len(left), columns), dtype=np.float32)
    # Each thread keeps its own best; they are joined and sorted.
    bytes_per_query = 5 * left.shape[1] + 48 * columns * (threads + 1)
    group = max(1, min(_QUERIES, memory // bytes_per_query)) if columns else 1
    line = Progress(len(left), "queries", shown=progress)
    for begin in range(0, len(left) if columns else 0, group):
        end = min(begin + group, len(left))
        best = ready.scanner.nearest(ready.scanner.block(begin, end), columns, threads)
        index[begin:end], score[begin:end] = best.index, best.score
        line.add(end - begin)
    line.close()
    return Hits(index, score)


def _positions(where: ArrayLike, rows: int) -> NDArray[np.int64]:
    """The positions of a filter, ascending, each once."""
    given: NDArray[Any] = np.asarray(where)
    if given.ndim != 1:
        raise InputError(f"where must be a list of booleans or positions, got the shape {given.shape}")
    if given.dtype == np.bool_:
        if len(given) != rows:
            raise InputError(f"where has {len(given)} booleans but the corpus has {rows} rows")
        return np.flatnonzero(given)
    if given.size == 0:
        return np.empty(0, dtype=np.int64)
    if given.dtype.kind not in "iu":
        raise InputError(f"where must be booleans or positions, got an array of {given.dtype}")
    wrong = (given < 0) | (given >= rows)
    if wrong.any():
        raise InputError(f"where asks for row {int(given[wrong][0])}, but the corpus has {rows} rows")
    return np.unique(given).astype(np.int64)
