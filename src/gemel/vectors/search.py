"""The nearest rows of a corpus for each query: exact, filtered, or through int8 candidates. Arrays in, `Hits` out.

The answer of a search.

A filter on the corpus: a boolean for each row, or the positions of the rows that count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.options import parse_bytes
from gemel.terminal import Progress
from gemel.types import Vectors
from gemel.vectors.scan.compare import Nearest, thread_count
from gemel.vectors.scan.scanner import Scan, scan
from gemel.vectors.similarity import METRICS, check_same_dim, shaped

__all__ = ["Hits", "search"]

SearchPrecision: TypeAlias = Literal["float32", "int8"]

_QUERIES = 4608  # queries that the corpus streams past at once

_FEW = 64  # for fewer queries, making int8 of the corpus costs more than it saves

_SAMPLE = 50  # queries that are asked twice to measure the recall


def search(  # noqa: PLR0913 - one question, and how to work on it
    queries: ArrayLike,
    corpus: ArrayLike,
    k: int = 10,
    metric: str = "cosine",
    *,
    where: ArrayLike | None = None,
    precision: SearchPrecision = "float32",
    candidates: int | None = None,
    memory: int | str = "1GB",
    threads: int | None = None,
    prune: bool = True,
    progress: bool = False,
) -> Hits:
    """The `k` nearest corpus rows for each query. A corpus of n < k rows gives n columns.

    Every row is compared, and scores do not depend on the options below.

    where: only these corpus rows count: one boolean a row, or their positions. Hits keep the corpus' own positions.
    precision: int8 takes `candidates` rows a query (default 4 k) by an 8-bit estimate, scores those exactly, and says
    its recall. Where the processor has no 8-bit instructions, all rows are scored exactly.
    memory: for the hits being collected and the packed queries, besides the arrays given.
    prune: rule rows out by 8-bit bounds first, where the processor has them. The answer is the same.
    """
    _check(k, precision, candidates)
    METRICS[metric]
    asked, known = shaped(queries, "queries"), shaped(corpus, "corpus")
    check_same_dim(asked, known, "queries", "corpus rows")
    chosen = None if where is None else positions_of(where, len(known))
    plan = _Plan(metric, chosen, thread_count(threads), parse_bytes(memory), progress)
    columns = min(int(k), len(known) if chosen is None else len(chosen))
    if precision == "float32":
        return _exact(asked, known, columns, plan, int8=prune and len(asked) >= _FEW)
    return _by_candidates(asked, known, columns, plan, candidates or 4 * k)


@dataclass(frozen=True, eq=False)
class _Plan:
    metric: str
    chosen: NDArray[np.int64] | None
    threads: int
    memory: int
    progress: bool

    def scan(self, queries: Vectors, corpus: Vectors, *, int8: bool) -> Scan:
        names = ("queries", "corpus")
        return scan(
            queries,
            corpus,
            self.metric,
            threads=self.threads,
            int8=int8,
            names=names,
            chosen=self.chosen,
        )


def _exact(queries: Vectors, corpus: Vectors, k: int, plan: _Plan, *, int8: bool) -> Hits:
    return _collect(plan.scan(queries, corpus, int8=int8), k, plan)


def _by_candidates(queries: Vectors, corpus: Vectors, k: int, plan: _Plan, candidates: int) -> Hits:
    ready = plan.scan(queries, corpus, int8=True)
    if not ready.int8:
        return Hits(*_arrays(_collect(ready, k, plan)), recall=1.0)
    found = _collect(ready, k, plan, wide=min(max(candidates, k), len(ready.comparison.right)))
    return Hits(*_arrays(found), recall=_recall(queries, corpus, found.index, plan))


def _recall(queries: Vectors, corpus: Vectors, index: NDArray[np.int64], plan: _Plan) -> float | None:
    """Of the exact hits of some queries, the part that is in `index`."""
    if not index.size:
        return None
    sample = np.sort(np.random.default_rng(0).permutation(len(queries))[:_SAMPLE])
    truth = _exact(queries[sample], corpus, index.shape[1], plan, int8=True).index
    return float(np.mean([np.isin(row, index[at]).mean() for at, row in zip(sample, truth, strict=True)]))


def _collect(ready: Scan, k: int, plan: _Plan, *, wide: int | None = None) -> Hits:
    """Queries group by group, each past the whole corpus. `wide`: int8 candidates a query; None: no estimates."""
    count, dim = len(ready.comparison.left), ready.comparison.left.rows.shape[1]
    index = np.empty((count, k), dtype=np.int64)
    score = np.empty((count, k), dtype=np.float32)
    # Each thread keeps its own best; they are joined and sorted, and candidates once more with their exact scores.
    bytes_a_query = 5 * dim + 48 * (wide or k) * (plan.threads + (1 if wide is None else 2))
    group = max(1, min(_QUERIES, plan.memory // bytes_a_query))
    line = Progress(count, "queries", shown=plan.progress)
    for begin in range(0, count if k else 0, group):
        end = min(begin + group, count)
        block = ready.scanner.block(begin, end)
        found = ready.scanner.nearest(block, wide or k, plan.threads, exact=wide is None)
        if wide is not None:
            found = _scored(ready, begin, found.index, k, plan.threads)
        index[begin:end], score[begin:end] = found.index, found.score
        line.add(end - begin)
    line.close()
    return Hits(index, score)


def _scored(ready: Scan, begin: int, rough: NDArray[np.int64], k: int, threads: int) -> Nearest:
    """Of the candidates of the queries from `begin` on, the best `k` by their exact scores."""
    query = np.repeat(np.arange(begin, begin + len(rough)), rough.shape[1])
    score = ready.scanner.exact(query, rough.ravel(), threads).reshape(rough.shape)
    order = np.lexsort((rough, -score), axis=1)[:, :k]
    return Nearest(np.take_along_axis(score, order, 1), np.take_along_axis(rough, order, 1))


def _arrays(hits: Hits) -> tuple[NDArray[np.int64], Vectors]:
    return hits.index, hits.score


def _check(k: Any, precision: Any, candidates: Any) -> None:  # noqa: ANN401 - this is where types are checked
    for name, value in (("k", k), ("candidates", candidates)):
        if name == "candidates" and value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int | np.integer) or value < 1:
            raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
    if precision not in get_args(SearchPrecision):
        raise InputError(
            f"precision must be one of {', '.join(get_args(SearchPrecision))}, got {precision!r}"
        )
    if candidates is not None and (precision == "float32" or candidates < k):
        raise InputError(
            f"candidates must be at least k={k}, and go with precision='int8'; got {candidates!r}"
        )


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest corpus rows of each query, best first; ties break on the lower position."""

    index: NDArray[np.int64]
    """(q, k) positions in the corpus."""
    score: Vectors
    """(q, k), higher is nearer."""
    recall: float | None = None
    """Of a search through int8 candidates: the part of the right rows it found for a sample of queries; else None."""

    def __len__(self) -> int:
        return len(self.index)


def positions_of(where: ArrayLike, rows: int) -> NDArray[np.int64]:
    """The chosen positions, ascending, each once."""
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
