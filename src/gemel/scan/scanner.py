"""Picks the scanner for two sets: the best that was compiled for this processor, else numpy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.scan.compare import Comparison, compare
from gemel.scan.found import Scanner
from gemel.scan.kernel import chosen_level
from gemel.scan.native_scanner import NativeScanner, has_int8, native_squares
from gemel.scan.numpy_scanner import NumpyScanner, numpy_squares
from gemel.types import Vectors

# Of rows in int8: 127 times the 128 that is added to a number, summed over more dimensions, leaves 32 bits, and a sum
# that came round would rule out what belongs to the answer.
_WIDEST = 131_072


@dataclass(frozen=True, eq=False)
class Scan:
    comparison: Comparison
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
    """`right` None: the left set with itself. `int8` is taken where the processor has it and the sums fit."""
    level = chosen_level()
    if level == "numpy":
        comparison = compare(left, right, metric, numpy_squares, names=names, chosen=chosen)
        return Scan(comparison, NumpyScanner(comparison), int8=False)
    comparison = compare(left, right, metric, native_squares(level, threads), names=names, chosen=chosen)
    small = int8 and metric != "manhattan" and left.shape[1] <= _WIDEST and has_int8(level)
    return Scan(comparison, NativeScanner(comparison, level, int8=small), int8=small)
