"""The compiled scanner: packs left rows, streams right rows by, on any number of threads."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.scan.compare import Comparison, Side, Squares
from gemel.scan.found import Found, Nearest
from gemel.scan.kernel import BlockView, BoundsView, FoundView, HeapsView, RowsView, library
from gemel.scan.workers import in_threads
from gemel.types import Vectors

_KINDS = {"product": 0, "euclidean": 1, "manhattan": 2}
_FLOAT, _INT8, _GAPS = 0, 1, 2  # forms of sums, see tile.h
_BLOCK = {_FLOAT: 768, _INT8: 4608, _GAPS: 768}  # left rows: their panels stay in the cache
_ROOM = 1 << 16  # pairs that a call may find before it comes back
_STREAM = 8192  # right rows a task when searching
_SQUARES = 8192


@dataclass(frozen=True, eq=False)
class _Block:
    view: BlockView
    count: int
    arrays: dict[str, NDArray[Any]]
    """What the view points to."""


def has_int8(level: str) -> bool:
    """This level has instructions for products of 8-bit numbers."""
    return bool(library(level).gemel_has_int8())


def native_squares(level: str, threads: int) -> Squares:
    """Squared lengths by the compiled routine."""

    def squares(rows: Vectors, centre: NDArray[np.float64] | None) -> NDArray[np.float64]:
        out = np.empty(len(rows), dtype=np.float64)
        view = _rows_view(Side(rows, None, centre, 1.0))

        def work(begin: int) -> None:
            end = min(begin + _SQUARES, len(rows))
            library(level).gemel_squares(view, begin, end, out[begin:].ctypes.data)

        in_threads(work, range(0, len(rows), _SQUARES), threads)
        return out

    return squares


class NativeScanner:
    """`int8`: sums of 8-bit numbers with known errors rule pairs out, four times as many a step as float32."""

    def __init__(self, comparison: Comparison, level: str, *, int8: bool) -> None:
        self._comparison, self._library = comparison, library(level)
        form = _GAPS if comparison.kind == "manhattan" else _INT8 if int8 and has_int8(level) else _FLOAT
        self.block_rows = _BLOCK[form]
        self._form, self._step = form, int(self._library.gemel_lane_step())
        self._left, self._right = _rows_view(comparison.left), _rows_view(comparison.right)
        self._bounds = BoundsView(
            _KINDS[comparison.kind], form, comparison.scale, comparison.slack, comparison.relative
        )
        self._room = max(_ROOM, int(self._library.gemel_least_room()))
        self._own = threading.local()

    def block(self, begin: int, end: int, *, exact: bool = True) -> _Block:
        count = end - begin
        lanes = -(-count // self._step) * self._step
        dim = -(-self._comparison.left.rows.shape[1] // 16) * 16
        arrays = {
            "packed": np.empty(lanes * dim, dtype=np.int8 if self._form == _INT8 else np.float32),
            "own": np.empty(lanes, dtype=np.float32),
            "step": np.empty(lanes, dtype=np.float32),
            "start": np.empty(lanes, dtype=np.int32),
            "widest": np.empty(1, dtype=np.float32),
        }
        pointers = {name: array.ctypes.data for name, array in arrays.items()}
        view = BlockView(rows=ctypes.pointer(self._left), begin=begin, count=count, **pointers)
        self._library.gemel_pack(view, self._bounds, exact)
        return _Block(view, count, arrays)

    def pairs(
        self,
        block: _Block,
        begin: int,
        end: int,
        floor: Callable[[], float],
        take: Callable[[Found], None],
    ) -> None:
        score, left, right = self._buffers()
        room = FoundView(left.ctypes.data, right.ctypes.data, score.ctypes.data, self._room)
        state = np.array([begin, 0], dtype=np.int64)
        while state[0] < end:
            count = self._library.gemel_scan_pairs(
                block.view,
                self._right,
                self._bounds,
                end,
                floor(),
                self._comparison.same,
                room,
                state.ctypes.data,
            )
            if count:
                take(Found(score[:count].copy(), left[:count].copy(), right[:count].copy()))

    def nearest(self, block: _Block, k: int, threads: int, *, exact: bool = True) -> Nearest:
        if not exact:
            block = self.block(block.view.begin, block.view.begin + block.count, exact=False)
        heaps: list[tuple[Vectors, NDArray[np.int64]]] = []
        lock, own = threading.Lock(), threading.local()

        def work(begin: int) -> None:
            if not hasattr(own, "heaps"):
                own.heaps = _Heaps.empty(block, k, exact=exact)
                with lock:
                    heaps.append((own.heaps.score, own.heaps.index))
            end = min(begin + _STREAM, len(self._comparison.right))
            self._library.gemel_scan_nearest(
                block.view, self._right, self._bounds, begin, end, own.heaps.view
            )

        in_threads(work, range(0, len(self._comparison.right), _STREAM), threads)
        score = np.concatenate([scores for scores, _ in heaps], axis=1)
        index = np.concatenate([indices for _, indices in heaps], axis=1)
        order = np.lexsort((index, -score), axis=1)[:, :k]
        return Nearest(np.take_along_axis(score, order, 1), np.take_along_axis(index, order, 1))

    def exact(self, i: NDArray[np.int64], j: NDArray[np.int64], threads: int) -> Vectors:
        i, j = np.ascontiguousarray(i, dtype=np.int64), np.ascontiguousarray(j, dtype=np.int64)
        out = np.empty(len(i), dtype=np.float32)
        kind = _KINDS[self._comparison.kind]

        def work(at: int) -> None:
            count = min(_ROOM, len(i) - at)
            places = (array[at:].ctypes.data for array in (i, j))
            self._library.gemel_exact(kind, self._left, self._right, *places, count, out[at:].ctypes.data)

        in_threads(work, range(0, len(i), _ROOM), threads)
        return out

    def _buffers(self) -> tuple[Vectors, NDArray[np.int32], NDArray[np.int32]]:
        """This thread's room for pairs."""
        if not hasattr(self._own, "buffers"):
            left, right = (np.empty(self._room, dtype=np.int32) for _ in range(2))
            self._own.buffers = (np.empty(self._room, dtype=np.float32), left, right)
        buffers: tuple[Vectors, NDArray[np.int32], NDArray[np.int32]] = self._own.buffers
        return buffers


@dataclass(frozen=True, eq=False)
class _Heaps:
    view: HeapsView
    score: Vectors
    index: NDArray[np.int64]
    kept: tuple[NDArray[Any], ...]
    """What else the view points to."""

    @classmethod
    def empty(cls, block: _Block, k: int, *, exact: bool) -> _Heaps:
        score = np.full((block.count, k), -np.inf, dtype=np.float32)
        index = np.full((block.count, k), np.iinfo(np.int64).max, dtype=np.int64)  # after every real row
        filled = np.zeros(block.count, dtype=np.int64)
        bias = np.full(len(block.arrays["own"]), np.inf, dtype=np.float32)
        arrays = (score, index, filled, bias)
        view = HeapsView(*(array.ctypes.data for array in arrays), k, exact)
        return cls(view, score, index, (filled, bias))


def _rows_view(side: Side) -> RowsView:
    """Points to arrays that the comparison keeps."""
    return RowsView(
        values=side.rows.ctypes.data,
        chosen=None if side.chosen is None else side.chosen.ctypes.data,
        inverse=None if side.inverse is None else side.inverse.ctypes.data,
        centre=None if side.centre is None else side.centre.ctypes.data,
        factor=side.factor,
        dim=side.rows.shape[1],
    )
