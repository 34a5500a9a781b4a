"""Scores of chosen pairs, compiled where that is possible, the same bits as `exact_scores`."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemel.scan.exact import exact_scores
from gemel.scan.kernel import RowsView, chosen_level, library
from gemel.scan.packed import KINDS
from gemel.types import Vectors


def dot_scores(left: Vectors, right: Vectors, i: NDArray[np.int64], j: NDArray[np.int64]) -> Vectors:
    """(p,) dot products of left[i] and right[j]. Rows are read where they are, also in a mapped file."""
    level = chosen_level()
    whole = all(side.dtype == np.float32 and side.flags.c_contiguous for side in (left, right))
    if level == "numpy" or not whole:
        return exact_scores("product", left, right, i, j)
    i, j = np.ascontiguousarray(i, dtype=np.int64), np.ascontiguousarray(j, dtype=np.int64)
    out = np.empty(len(i), dtype=np.float32)
    views = (RowsView(values=side.ctypes.data, factor=1.0, dim=side.shape[1]) for side in (left, right))
    library(level).gemel_exact(
        KINDS["product"], *views, i.ctypes.data, j.ctypes.data, len(i), out.ctypes.data
    )
    return out
