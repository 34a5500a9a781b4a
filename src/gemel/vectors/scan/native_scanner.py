"""The compiled scanner: packs left rows and streams right rows past them, on any number of threads.

The structures and functions of native/scan.cpp are loaded with ctypes, one library per processor level.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.options import from_environment
from gemel.types import Vectors
from gemel.vectors.scan.compare import Nearest, ScanInput, ScanResult, ScanSide, Squares, in_threads

LEVELS = {3: "avx512vnni", 2: "avx512", 1: "avx2", 0: "baseline"}

VARIABLE = "GEMEL_SCAN"  # forces a level, or numpy

FLOAT, INT8, GAPS = 0, 1, 2  # forms of sums, see tile.h

_BLOCK = {FLOAT: 768, INT8: 4608, GAPS: 768}  # left rows: their panels stay in the cache

_ROOM = 1 << 16  # pairs that one call can return

_STREAM = 8192  # right rows per task when searching

_SQUARES = 8192

# A bound saves some 5 ns per pair, an exact score costs some 50: int8 ends when 1 in 16 pairs is scored in vain.
_PATIENCE = 16

_ENDLESS = 1 << 62

_pointer, _number = ctypes.c_void_p, ctypes.c_int64


class NativeScanner:
    """See `Scanner`. `int8`: sums of 8-bit numbers with bounded errors rule pairs out, four times as many per step.

    Where rows are so similar that these bounds rule out too little, the scanner continues in float32.
    """

    def __init__(self, comparison: ScanInput, level: str, *, int8: bool) -> None:
        self._comparison, self._library = comparison, library(level)
        kernel = comparison.metric.kernel
        assert kernel is not None, "a metric without a kernel is scanned by NumPy"
        self._code = kernel.code
        self._form = GAPS if not kernel.int8 else INT8 if int8 and has_int8(level) else FLOAT
        self.block_rows = _BLOCK[self._form]
        self._left, self._right = rows_view(comparison.left), rows_view(comparison.right)
        self._room = max(_ROOM, int(self._library.gemel_least_room()))
        self._thread = threading.local()

    def block(self, begin: int, end: int) -> _Block:
        return _Block(begin, end, self._pack)

    def pairs(
        self,
        block: _Block,
        begin: int,
        end: int,
        floor: Callable[[], float],
        take: Callable[[ScanResult], None],
    ) -> None:
        score, left, right = self._buffers()
        room = PairsView(left.ctypes.data, right.ctypes.data, score.ctypes.data, self._room)
        state = np.array([begin, 0, self._patience(block, end - begin)], dtype=np.int64)
        while state[0] < end:
            packed = block.packed(self._form)
            least, same = floor(), self._comparison.same
            count = self._library.gemel_pairs(
                packed.view, self._right, packed.bounds, end, least, same, room, state.ctypes.data
            )
            if count:
                take(ScanResult(score[:count].copy(), left[:count].copy(), right[:count].copy()))
            if state[2] < 0:
                self._end_int8()
                state[2] = _ENDLESS

    def nearest(self, block: _Block, k: int, threads: int) -> Nearest:
        heaps: list[Heaps] = []
        lock, own = threading.Lock(), threading.local()

        def work(begin: int) -> None:
            packed = block.packed(self._form)
            if not hasattr(own, "heaps"):
                own.heaps, own.packed = Heaps.empty(packed, k), packed
                with lock:
                    heaps.append(own.heaps)
            end = min(begin + _STREAM, len(self._comparison.right))
            state = np.array([begin, self._patience(block, end - begin)], dtype=np.int64)
            while state[0] < end:
                if own.packed is not packed:
                    own.heaps.move_to(packed, self._comparison)
                    own.packed = packed
                self._library.gemel_nearest(
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

    def _pack(self, begin: int, end: int) -> Packed:
        return pack(self._library, self._comparison, begin, end, form=self._form, code=self._code)

    def _patience(self, block: _Block, rows: int) -> int:
        """Pairs that may be scored in vain before int8 is given up."""
        return (block.end - block.begin) * rows // _PATIENCE if self._form == INT8 else _ENDLESS

    def _end_int8(self) -> None:
        """For the rest of this block and all later ones."""
        self._form = FLOAT

    def _buffers(self) -> tuple[Vectors, NDArray[np.int32], NDArray[np.int32]]:
        """Buffers for the pairs of this thread."""
        if not hasattr(self._thread, "buffers"):
            left, right = (np.empty(self._room, dtype=np.int32) for _ in range(2))
            self._thread.buffers = (np.empty(self._room, dtype=np.float32), left, right)
        buffers: tuple[Vectors, NDArray[np.int32], NDArray[np.int32]] = self._thread.buffers
        return buffers


class _Block:
    """Left rows, packed in the form that is used, and again in float32 if int8 does not pay."""

    def __init__(self, begin: int, end: int, make: Callable[[int, int], Packed]) -> None:
        self.begin, self.end = begin, end
        self._make, self._packed = make, make(begin, end)
        self._lock = threading.Lock()

    def packed(self, form: int) -> Packed:
        with self._lock:
            if self._packed.bounds.form != form:
                self._packed = self._make(self.begin, self.end)
            return self._packed


def native_squares(level: str, threads: int) -> Squares:
    """Squared lengths by the compiled routine."""

    def squares(rows: Vectors, center: NDArray[np.float64] | None) -> NDArray[np.float64]:
        out = np.empty(len(rows), dtype=np.float64)
        view = rows_view(ScanSide(rows, None, center, 1.0))

        def work(begin: int) -> None:
            end = min(begin + _SQUARES, len(rows))
            library(level).gemel_squares(view, begin, end, out[begin:].ctypes.data)

        in_threads(work, range(0, len(rows), _SQUARES), threads)
        return out

    return squares


def levels() -> list[str]:
    """The levels of this processor that were compiled, best first; `numpy` is always the last."""
    compiled: list[str] = []
    if _path("baseline"):
        most = _processor_level()
        compiled = [name for rank, name in LEVELS.items() if rank <= most and _path(name)]
    return [*compiled, "numpy"]


def chosen_level() -> str:
    """The best level, or the one that the environment variable GEMEL_SCAN names."""
    return from_environment(VARIABLE, levels())


def has_int8(level: str) -> bool:
    """Whether this level has instructions for products of 8-bit numbers."""
    return bool(library(level).gemel_has_int8())


@cache
def _processor_level() -> int:
    return int(library("baseline").gemel_processor_level())


@cache
def library(level: str) -> ctypes.CDLL:
    """The compiled tiles of one level."""
    loaded = ctypes.CDLL(str(_path(level)))
    rows, bounds = ctypes.POINTER(RowsView), ctypes.POINTER(BoundsView)
    block, pairs, heaps = (ctypes.POINTER(view) for view in (BlockView, PairsView, HeapsView))
    loaded.gemel_lane_step.restype = loaded.gemel_least_room.restype = _number
    loaded.gemel_pack_rows.argtypes = (block, bounds)
    loaded.gemel_squares.argtypes = (rows, _number, _number, _pointer)
    loaded.gemel_exact.argtypes = (ctypes.c_int, rows, rows, _pointer, _pointer, _number, _pointer)
    loaded.gemel_pairs.restype = _number
    loaded.gemel_pairs.argtypes = (
        *(block, rows, bounds, _number, ctypes.c_float, ctypes.c_int, pairs),
        _pointer,
    )
    loaded.gemel_nearest.argtypes = (block, rows, bounds, _number, heaps, _pointer)
    return loaded


@cache
def late_library(level: str) -> ctypes.CDLL:
    """The same library, ready for the functions of late interaction."""
    loaded, rest = library(level), (_pointer, _number, ctypes.c_int, _pointer)
    loaded.gemel_maxsim.argtypes = (_pointer, _number, ctypes.POINTER(TokensView), *rest)
    loaded.gemel_centroid_scores.argtypes = (_pointer, _number, ctypes.POINTER(CentroidCodesView), *rest)
    loaded.gemel_nearest_centroids.argtypes = (
        *(ctypes.POINTER(CentroidGroupsView), _pointer, _number),
        *(_number, ctypes.c_int, _pointer),
    )
    return loaded


@cache  # every search needs it
def _path(level: str) -> Path | None:
    folder = Path(__file__).parent / "native"
    path = folder / f"_{level}.so"
    return path if path.exists() else None


class RowsView(ctypes.Structure):
    """A set of rows; see rows.h."""

    _fields_ = (
        *((name, _pointer) for name in ("values", "chosen", "inverse", "center")),
        ("factor", ctypes.c_double),
        ("dim", _number),
    )


class BoundsView(ctypes.Structure):
    """How a floor becomes a limit for sums; see block.h."""

    _fields_ = (
        ("kind", _number),
        ("form", _number),
        *((name, ctypes.c_double) for name in ("scale", "slack", "relative")),
    )


class BlockView(ctypes.Structure):
    """Packed rows; see block.h."""

    _fields_ = (
        ("rows", ctypes.POINTER(RowsView)),
        ("begin", _number),
        ("count", _number),
        *((name, _pointer) for name in ("packed", "own", "step", "start", "widest")),
    )


class PairsView(ctypes.Structure):
    """Buffers for pairs; see scan.cpp."""

    _fields_ = (("left", _pointer), ("right", _pointer), ("score", _pointer), ("room", _number))


class HeapsView(ctypes.Structure):
    """The best so far of every lane; see scan.cpp."""

    _fields_ = (
        *((name, _pointer) for name in ("score", "index", "filled", "bias")),
        ("k", _number),
    )


class TokensView(ctypes.Structure):
    """Stored token vectors; see maxsim.h."""

    _fields_ = (
        *((name, _pointer) for name in ("values", "offsets", "scales", "nearest", "centroids", "weights")),
        ("form", _number),
        ("dim", _number),
    )


class CentroidGroupsView(ctypes.Structure):
    """Centroids in groups; see maxsim.h."""

    _fields_ = (
        *((name, _pointer) for name in ("heads", "centroids", "offsets", "numbers")),
        ("groups", _number),
        ("dim", _number),
    )


class CentroidCodesView(ctypes.Structure):
    """Documents by the centroids of their tokens; see maxsim.h."""

    _fields_ = (
        *((name, _pointer) for name in ("centroids", "offsets", "codes")),
        ("count", _number),
        ("dim", _number),
    )


@dataclass(frozen=True, eq=False)
class Packed:
    """Left rows in one form."""

    view: BlockView
    bounds: BoundsView
    count: int
    arrays: dict[str, NDArray[Any]]
    """What the view points to."""


def pack(
    compiled: ctypes.CDLL, comparison: ScanInput, begin: int, end: int, *, form: int, code: int
) -> Packed:
    """Left rows `begin` .. `end`."""
    count, step = end - begin, int(compiled.gemel_lane_step())
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
    bounds = BoundsView(code, form, *numbers)
    compiled.gemel_pack_rows(view, bounds)
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
    def empty(cls, packed: Packed, k: int) -> Heaps:
        score = np.full((packed.count, k), -np.inf, dtype=np.float32)
        index = np.full((packed.count, k), np.iinfo(np.int64).max, dtype=np.int64)  # after every real row
        filled = np.zeros(packed.count, dtype=np.int64)
        bias = np.full(len(packed.arrays["own"]), np.inf, dtype=np.float32)
        view = HeapsView(*(array.ctypes.data for array in (score, index, filled, bias)), k)
        return cls(view, score, index, filled, bias)

    def move_to(self, packed: Packed, comparison: ScanInput) -> None:
        """Continue with sums in the form of `packed`: the biases change, the best rows stay."""
        full = np.flatnonzero(self.filled == self.score.shape[1])
        limit = comparison.limit(self.score[full, 0])  # the worst of a heap is its first
        self.bias[full] = packed.arrays["own"][full] - limit


def rows_view(side: ScanSide) -> RowsView:
    """A view of the arrays of `side`, which must outlive it."""
    return RowsView(
        values=side.rows.ctypes.data,
        chosen=None if side.chosen is None else side.chosen.ctypes.data,
        inverse=None if side.inverse is None else side.inverse.ctypes.data,
        center=None if side.center is None else side.center.ctypes.data,
        factor=side.factor,
        dim=side.rows.shape[1],
    )
