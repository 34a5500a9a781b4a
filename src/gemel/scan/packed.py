"""Rows packed for the compiled tiles, and the best rows so far of each: arrays, and the views that C++ reads."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.scan.compare import Comparison, Side
from gemel.scan.kernel import BlockView, BoundsView, HeapsView, RowsView
from gemel.types import Vectors

FLOAT, INT8, GAPS = 0, 1, 2  # forms of sums, see tile.h
KINDS = {"product": 0, "euclidean": 1, "manhattan": 2}


@dataclass(frozen=True, eq=False)
class Packed:
    """Left rows in one form."""

    view: BlockView
    bounds: BoundsView
    count: int
    arrays: dict[str, NDArray[Any]]
    """What the view points to."""


def pack(
    kernel: ctypes.CDLL, comparison: Comparison, begin: int, end: int, *, form: int, exact: bool = True
) -> Packed:
    """Left rows `begin` .. `end`. Not `exact`: int8 sums are estimates, not upper bounds."""
    count, step = end - begin, int(kernel.gemel_lane_step())
    lanes = -(-count // step) * step
    dim = -(-comparison.left.rows.shape[1] // 16) * 16
    arrays: dict[str, NDArray[Any]] = {
        "packed": np.empty(lanes * dim, dtype=np.int8 if form == INT8 else np.float32),
        "own": np.empty(lanes, dtype=np.float32),
        "step": np.empty(lanes, dtype=np.float32),
        "start": np.empty(lanes, dtype=np.int32),
        "widest": np.empty(1, dtype=np.float32),
    }
    pointers = {name: array.ctypes.data for name, array in arrays.items()}
    rows = rows_view(comparison.left)
    view = BlockView(rows=ctypes.pointer(rows), begin=begin, count=count, **pointers)
    numbers = (comparison.scale, comparison.slack, comparison.relative)
    bounds = BoundsView(KINDS[comparison.kind], form, *numbers)
    kernel.gemel_pack(view, bounds, exact)
    return Packed(view, bounds, count, arrays)


@dataclass(frozen=True, eq=False)
class Heaps:
    """The best k rows so far of each packed row, in one thread."""

    view: HeapsView
    score: Vectors
    index: NDArray[np.int64]
    filled: NDArray[np.int64]
    bias: Vectors

    @classmethod
    def empty(cls, packed: Packed, k: int, *, exact: bool) -> Heaps:
        score = np.full((packed.count, k), -np.inf, dtype=np.float32)
        index = np.full((packed.count, k), np.iinfo(np.int64).max, dtype=np.int64)  # after every real row
        filled = np.zeros(packed.count, dtype=np.int64)
        bias = np.full(len(packed.arrays["own"]), np.inf, dtype=np.float32)
        view = HeapsView(*(array.ctypes.data for array in (score, index, filled, bias)), k, exact)
        return cls(view, score, index, filled, bias)

    def move_to(self, packed: Packed, comparison: Comparison) -> None:
        """From now on sums are in the form of `packed`: the biases change, what was found stays."""
        full = np.flatnonzero(self.filled == self.score.shape[1])
        limit = comparison.limit(self.score[full, 0])  # the worst of a heap is its first
        self.bias[full] = packed.arrays["own"][full] - limit


def rows_view(side: Side) -> RowsView:
    """Points to arrays that the comparison keeps."""
    return RowsView(
        values=side.rows.ctypes.data,
        chosen=None if side.chosen is None else side.chosen.ctypes.data,
        inverse=None if side.inverse is None else side.inverse.ctypes.data,
        centre=None if side.centre is None else side.centre.ctypes.data,
        factor=side.factor,
        dim=side.rows.shape[1],
    )
