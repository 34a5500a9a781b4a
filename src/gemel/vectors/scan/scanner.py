"""The scanner for two sets of rows: the best one compiled for this processor, else the one in NumPy.

The NumPy scanner gives the same results where nothing was compiled, and is used for metrics without a kernel.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors
from gemel.vectors.scan.compare import Nearest, ScanInput, Scanner, ScanResult, compare
from gemel.vectors.scan.exact import PRODUCT, exact_scores, squares
from gemel.vectors.scan.native_scanner import (
    NativeScanner,
    RowsView,
    chosen_level,
    has_int8,
    library,
    native_squares,
)
from gemel.vectors.similarity import METRICS

# Of rows in int8: 127 times the 128 that is added to a number, summed over more dimensions, leaves 32 bits, and a sum
# that came round would rule out what belongs to the answer.
_WIDEST = 131_072

_RIGHT = 2048  # right rows at once: with a block of 1024, 8 MB of sums

_FIRST = 64  # right rows while there is no floor yet

_QUERIES = 256

_PAIRS = 4096  # scored at once by a metric without a kernel


@dataclass(frozen=True, eq=False)
class Scan:
    comparison: ScanInput
    scanner: Scanner
    int8: bool
    """Sums are of 8-bit numbers."""


def scan(
    left: Vectors,
    right: Vectors | None,
    metric: str,
    *,
    threads: int,
    int8: bool,
    names: tuple[str, str],
    chosen: NDArray[np.int64] | None = None,
) -> Scan:
    """A scan of `left` and `right`; None: of the left set with itself.

    `int8` is used where the processor has it, the metric can be bounded so and the sums fit.
    """
    record, level = METRICS[metric], chosen_level()
    if level == "numpy" or record.kernel is None:
        comparison = compare(left, right, record, numpy_squares, names=names, chosen=chosen)
        return Scan(comparison, NumpyScanner(comparison), int8=False)
    comparison = compare(left, right, record, native_squares(level, threads), names=names, chosen=chosen)
    int8 = int8 and record.kernel.int8 and left.shape[1] <= _WIDEST and has_int8(level)
    return Scan(comparison, NativeScanner(comparison, level, int8=int8), int8=int8)


def dot_scores(left: Vectors, right: Vectors, i: NDArray[np.int64], j: NDArray[np.int64]) -> Vectors:
    """(p,) dot products of left[i] and right[j], the bits of `exact_scores`; rows may be in a memory-mapped file."""
    level = chosen_level()
    whole = all(side.dtype == np.float32 and side.flags.c_contiguous for side in (left, right))
    if level == "numpy" or not whole:
        return exact_scores(PRODUCT, left, right, i, j)
    i, j = np.ascontiguousarray(i, dtype=np.int64), np.ascontiguousarray(j, dtype=np.int64)
    out = np.empty(len(i), dtype=np.float32)
    views = (RowsView(values=side.ctypes.data, factor=1.0, dim=side.shape[1]) for side in (left, right))
    library(level).gemel_exact(PRODUCT.code, *views, i.ctypes.data, j.ctypes.data, len(i), out.ctypes.data)
    return out


def numpy_squares(rows: Vectors, center: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Squared lengths, as the compiled routine gives them."""
    if center is None:
        return squares(rows)
    out = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _RIGHT):
        part = rows[start : start + _RIGHT] - center
        out[start : start + _RIGHT] = (part * part).sum(axis=1)
    return out


@dataclass(frozen=True, eq=False)
class _NumpyBlock:
    begin: int
    scaled: Vectors


class NumpyScanner:
    """See `Scanner`. It has no int8."""

    block_rows = 1024

    def __init__(self, comparison: ScanInput) -> None:
        self._comparison = comparison

    def block(self, begin: int, end: int) -> _NumpyBlock:
        return _NumpyBlock(begin, self._comparison.left.scaled(begin, end))

    def pairs(
        self,
        block: _NumpyBlock,
        begin: int,
        end: int,
        floor: Callable[[], float],
        take: Callable[[ScanResult], None],
    ) -> None:
        stop = begin
        while stop < end:
            start, least = stop, np.float32(floor())
            # Without a floor yet every pair is a candidate: a few rows are enough to find one.
            stop = min(start + (_RIGHT if np.isfinite(least) else _FIRST), end)
            keep = self._sums(block, start, stop) >= self._comparison.limit(np.asarray(least))
            left, right = np.nonzero(keep)
            left, right = left + block.begin, right + start
            if self._comparison.same:
                upper = left < right
                left, right = left[upper], right[upper]
            score = self._exact(left, right)
            good = score >= least
            if good.any():
                positions = left[good].astype(np.int32), right[good].astype(np.int32)
                take(ScanResult(score[good], *positions))

    def nearest(self, block: _NumpyBlock, k: int, threads: int) -> Nearest:
        parts = [
            self._nearest(_NumpyBlock(block.begin + at, block.scaled[at : at + _QUERIES]), k)
            for at in range(0, len(block.scaled), _QUERIES)
        ]
        return Nearest(
            np.concatenate([part.score for part in parts]), np.concatenate([part.index for part in parts])
        )

    def _nearest(self, block: _NumpyBlock, k: int) -> Nearest:
        count, right = len(block.scaled), self._comparison.right
        score = np.full((count, k), -np.inf, dtype=np.float32)
        index = np.full((count, k), np.iinfo(np.int64).max, dtype=np.int64)
        for start in range(0, len(right), _RIGHT):
            stop = min(start + _RIGHT, len(right))
            sums = self._sums(block, start, stop)
            least = self._comparison.limit(score[:, -1:])
            if stop - start > k:  # the k-th best of these is a floor too; both may be off by the slack
                own = np.partition(sums, -k, axis=1)[:, -k, None].astype(np.float64)
                slack = 2 * self._comparison.slack + 2 * np.abs(own) * self._comparison.relative
                least = np.maximum(least, own - slack)
            query, column = np.nonzero(sums >= least)
            position = right.positions(start, stop)[column]
            scored = self._exact(query + block.begin, position)
            score, index = _merge(score, index, query, position, scored)
        return Nearest(score, index)

    def _exact(self, i: NDArray[np.int64], j: NDArray[np.int64]) -> Vectors:
        """(p,) scores of left rows `i` with right rows `j`."""
        metric, left, right = self._comparison.metric, self._comparison.left, self._comparison.right
        if metric.kernel is not None:
            weights = (left.inverse, right.inverse)
            return exact_scores(metric.kernel, left.rows, right.rows, i, j, weights)
        out = np.empty(len(i), dtype=np.float32)
        for start in range(0, len(i), _PAIRS):
            block = slice(start, start + _PAIRS)
            out[block] = metric.rows(
                metric.prepare(left.rows[i[block]]), metric.prepare(right.rows[j[block]])
            )
        return out

    def _sums(self, block: _NumpyBlock, begin: int, end: int) -> Vectors:
        """(block, right rows): what `ScanInput.limit` is about."""
        kernel, rows = self._comparison.metric.kernel, self._comparison.right.scaled(begin, end)
        if kernel is None:  # no bound is known: every pair is a candidate
            return np.zeros((len(block.scaled), len(rows)), dtype=np.float32)
        return kernel.sums(block.scaled, rows)


def _merge(
    score: Vectors,
    index: NDArray[np.int64],
    query: NDArray[np.int64],
    position: NDArray[np.int64],
    scored: Vectors,
) -> tuple[Vectors, NDArray[np.int64]]:
    """The best k of each query, from those it has and those scored."""
    count, k = score.shape
    every = np.concatenate([np.repeat(np.arange(count), k), query])
    scores, indices = np.concatenate([score.ravel(), scored]), np.concatenate([index.ravel(), position])
    order = np.lexsort((indices, -scores, every))
    rank = np.arange(len(order)) - np.searchsorted(every[order], every[order])  # within its query
    best = order[rank < k]
    return scores[best].reshape(count, k), indices[best].reshape(count, k)
