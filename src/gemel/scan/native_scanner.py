"""The compiled scanner: packs left rows, streams right rows by, on any number of threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from gemel.scan.compare import Comparison, Side, Squares
from gemel.scan.found import Found, Nearest
from gemel.scan.kernel import FoundView, library
from gemel.scan.packed import FLOAT, GAPS, INT8, KINDS, Heaps, Packed, pack, rows_view
from gemel.scan.workers import in_threads
from gemel.types import Vectors

_BLOCK = {FLOAT: 768, INT8: 4608, GAPS: 768}  # left rows: their panels stay in the cache
_ROOM = 1 << 16  # pairs that a call may find before it comes back
_STREAM = 8192  # right rows a task when searching
_SQUARES = 8192
# A bound saves some 5 ns a pair, an exact look costs some 50: int8 ends when 1 in 16 pairs is looked at for nothing.
_PATIENCE = 16
_ENDLESS = 1 << 62


def has_int8(level: str) -> bool:
    """This level has instructions for products of 8-bit numbers."""
    return bool(library(level).gemel_has_int8())


def native_squares(level: str, threads: int) -> Squares:
    """Squared lengths by the compiled routine."""

    def squares(rows: Vectors, centre: NDArray[np.float64] | None) -> NDArray[np.float64]:
        out = np.empty(len(rows), dtype=np.float64)
        view = rows_view(Side(rows, None, centre, 1.0))

        def work(begin: int) -> None:
            end = min(begin + _SQUARES, len(rows))
            library(level).gemel_squares(view, begin, end, out[begin:].ctypes.data)

        in_threads(work, range(0, len(rows), _SQUARES), threads)
        return out

    return squares


class _Block:
    """Left rows, packed in the form that is used, and once more in float32 when int8 does not pay."""

    def __init__(self, begin: int, end: int, make: Callable[[int, int], Packed]) -> None:
        self.begin, self.end = begin, end
        self._make, self._packed = make, make(begin, end)
        self._lock = threading.Lock()

    def packed(self, form: int) -> Packed:
        with self._lock:
            if self._packed.bounds.form != form:
                self._packed = self._make(self.begin, self.end)
            return self._packed


class NativeScanner:
    """`int8`: sums of 8-bit numbers with known errors rule pairs out, four times as many a step as float32.

    Where rows are so alike that these bounds rule out too little, the scanner goes on in float32.
    """

    def __init__(self, comparison: Comparison, level: str, *, int8: bool) -> None:
        self._comparison, self._library = comparison, library(level)
        self._form = GAPS if comparison.kind == "manhattan" else INT8 if int8 and has_int8(level) else FLOAT
        self.block_rows = _BLOCK[self._form]
        self._left, self._right = rows_view(comparison.left), rows_view(comparison.right)
        self._room = max(_ROOM, int(self._library.gemel_least_room()))
        self._own = threading.local()

    def block(self, begin: int, end: int) -> _Block:
        return _Block(begin, end, lambda b, e: pack(self._library, self._comparison, b, e, form=self._form))

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
        state = np.array([begin, 0, self._patience(block, end - begin)], dtype=np.int64)
        while state[0] < end:
            packed = block.packed(self._form)
            least, same = floor(), self._comparison.same
            count = self._library.gemel_scan_pairs(
                packed.view, self._right, packed.bounds, end, least, same, room, state.ctypes.data
            )
            if count:
                take(Found(score[:count].copy(), left[:count].copy(), right[:count].copy()))
            if state[2] < 0:
                self._end_int8()
                state[2] = _ENDLESS

    def nearest(self, block: _Block, k: int, threads: int, *, exact: bool = True) -> Nearest:
        estimates = None
        if not exact:
            estimates = pack(
                self._library, self._comparison, block.begin, block.end, form=self._form, exact=False
            )
        heaps: list[Heaps] = []
        lock, own = threading.Lock(), threading.local()

        def work(begin: int) -> None:
            packed = estimates or block.packed(self._form)
            if not hasattr(own, "heaps"):
                own.heaps, own.packed = Heaps.empty(packed, k, exact=exact), packed
                with lock:
                    heaps.append(own.heaps)
            end = min(begin + _STREAM, len(self._comparison.right))
            patience = self._patience(block, end - begin) if exact else _ENDLESS
            state = np.array([begin, patience], dtype=np.int64)
            while state[0] < end:
                if own.packed is not packed:
                    own.heaps.move_to(packed, self._comparison)
                    own.packed = packed
                self._library.gemel_scan_nearest(
                    packed.view, self._right, packed.bounds, end, own.heaps.view, state.ctypes.data
                )
                if state[1] < 0:
                    self._end_int8()
                    packed, state[1] = block.packed(self._form), _ENDLESS

        in_threads(work, range(0, len(self._comparison.right), _STREAM), threads)
        score = np.concatenate([heap.score for heap in heaps], axis=1)
        index = np.concatenate([heap.index for heap in heaps], axis=1)
        order = np.lexsort((index, -score), axis=1)[:, :k]
        return Nearest(np.take_along_axis(score, order, 1), np.take_along_axis(index, order, 1))

    def exact(self, i: NDArray[np.int64], j: NDArray[np.int64], threads: int) -> Vectors:
        i, j = np.ascontiguousarray(i, dtype=np.int64), np.ascontiguousarray(j, dtype=np.int64)
        out = np.empty(len(i), dtype=np.float32)
        kind = KINDS[self._comparison.kind]

        def work(at: int) -> None:
            count = min(_ROOM, len(i) - at)
            places = (array[at:].ctypes.data for array in (i, j))
            self._library.gemel_exact(kind, self._left, self._right, *places, count, out[at:].ctypes.data)

        in_threads(work, range(0, len(i), _ROOM), threads)
        return out

    def _patience(self, block: _Block, rows: int) -> int:
        """Candidates that may turn out to be none before int8 is given up."""
        return (block.end - block.begin) * rows // _PATIENCE if self._form == INT8 else _ENDLESS

    def _end_int8(self) -> None:
        """For the rest of this block and all later ones."""
        self._form = FLOAT

    def _buffers(self) -> tuple[Vectors, NDArray[np.int32], NDArray[np.int32]]:
        """This thread's room for pairs."""
        if not hasattr(self._own, "buffers"):
            left, right = (np.empty(self._room, dtype=np.int32) for _ in range(2))
            self._own.buffers = (np.empty(self._room, dtype=np.float32), left, right)
        buffers: tuple[Vectors, NDArray[np.int32], NDArray[np.int32]] = self._own.buffers
        return buffers
