"""The scanner for two sets of rows: the best one compiled for this processor, else NumPy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors
from gemel.vectors.scan.compare import ScanInput, Scanner, compare
from gemel.vectors.scan.exact import PRODUCT, exact_scores
from gemel.vectors.scan.native_scanner import (
    NativeScanner,
    RowsView,
    chosen_level,
    has_int8,
    library,
    native_squares,
)
from gemel.vectors.scan.numpy_scanner import NumpyScanner, numpy_squares
from gemel.vectors.similarity import METRICS

# Of rows in int8: 127 times the 128 that is added to a number, summed over more dimensions, leaves 32 bits, and a sum
# that came round would rule out what belongs to the answer.
_WIDEST = 131_072


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
