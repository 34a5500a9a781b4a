"""The scanner for a machine where nothing was compiled: numpy's matrix product, the same answers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors
from gemel.vectors.scan.compare import Nearest, ScanInput, ScanResult
from gemel.vectors.scan.exact import exact_scores, squares

_RIGHT = 2048  # right rows at once: with a block of 1024, 8 MB of sums

_FIRST = 64

_QUERIES = 256


def numpy_squares(rows: Vectors, centre: NDArray[np.float64] | None) -> NDArray[np.float64]:
    """Squared lengths, as the compiled routine gives them."""
    if centre is None:
        return squares(rows)
    out = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _RIGHT):
        part = rows[start : start + _RIGHT] - centre
        out[start : start + _RIGHT] = (part * part).sum(axis=1)
    return out


@dataclass(frozen=True, eq=False)
class _NumpyBlock:
    begin: int
    scaled: Vectors
    bias: Vectors


class NumpyScanner:
    """See `Scanner`. There is no int8 here: estimates are exact scores."""

    block_rows = 1024

    def __init__(self, comparison: ScanInput) -> None:
        self._comparison = comparison

    def block(self, begin: int, end: int) -> _NumpyBlock:
        scaled = self._comparison.left.scaled(begin, end)
        return _NumpyBlock(begin, scaled, self._bias(scaled))

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
            score = self.exact(left, right)
            good = score >= least
            if good.any():
                take(
                    ScanResult(
                        score[good], left[good].astype(np.int32, copy=False), right[good].astype(np.int32)
                    )
                )

    def nearest(self, block: _NumpyBlock, k: int, threads: int, *, exact: bool = True) -> Nearest:
        parts = [
            self._nearest(
                _NumpyBlock(
                    block.begin + at, block.scaled[at : at + _QUERIES], block.bias[at : at + _QUERIES]
                ),
                k,
            )
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
            if (
                stop - start > k
            ):  # the k-th best of these is a floor too; both it and the other may be off by the slack
                own = np.partition(sums, -k, axis=1)[:, -k, None].astype(np.float64)
                slack = 2 * self._comparison.slack + 2 * np.abs(own) * self._comparison.relative
                least = np.maximum(least, own - slack)
            query, place = np.nonzero(sums >= least)
            position = right.positions(start, stop)[place]
            found = self.exact(query + block.begin, position)
            score, index = _merge(score, index, query, position, found)
        return Nearest(score, index)

    def exact(self, i: NDArray[np.int64], j: NDArray[np.int64], threads: int = 1) -> Vectors:
        left, right = self._comparison.left, self._comparison.right
        weights = (left.inverse, right.inverse)
        return exact_scores(self._comparison.kind, left.rows, right.rows, i, j, weights)

    def _bias(self, scaled: Vectors) -> Vectors:
        if self._comparison.kind != "euclidean":
            return np.zeros(len(scaled), dtype=np.float32)
        return np.asarray(-0.5 * np.square(scaled, dtype=np.float64).sum(axis=1), dtype=np.float32)

    def _sums(self, block: _NumpyBlock, begin: int, end: int) -> Vectors:
        """(block, right rows): what `Comparison.limit` is about."""
        rows = self._comparison.right.scaled(begin, end)
        if self._comparison.kind != "manhattan":
            sums: Vectors = block.scaled @ rows.T
            if self._comparison.kind == "euclidean":
                sums += block.bias[:, None] + self._bias(rows)
            return sums
        sums = np.empty((len(block.scaled), len(rows)), dtype=np.float32)
        for at, row in enumerate(block.scaled):  # one row at a time: (n, m, d) gaps would not fit
            sums[at] = -np.abs(rows - row).sum(axis=1, dtype=np.float64)
        return sums


def _merge(
    score: Vectors,
    index: NDArray[np.int64],
    query: NDArray[np.int64],
    position: NDArray[np.int64],
    found: Vectors,
) -> tuple[Vectors, NDArray[np.int64]]:
    """The best k of each query, from those it has and those found."""
    count, k = score.shape
    every = np.concatenate([np.repeat(np.arange(count), k), query])
    scores, indices = np.concatenate([score.ravel(), found]), np.concatenate([index.ravel(), position])
    order = np.lexsort((indices, -scores, every))
    rank = np.arange(len(order)) - np.searchsorted(every[order], every[order])  # within its query
    best = order[rank < k]
    return scores[best].reshape(count, k), indices[best].reshape(count, k)
