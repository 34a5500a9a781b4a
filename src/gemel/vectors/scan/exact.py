"""The score of a pair, defined to the bit; native/exact.h is its twin.

Number k goes to sum k mod 16, in the order of k, in float64; then halves are added to halves. Products and squares of
float32 are exact in float64, so a score depends on its two rows alone: not on tile, thread, processor or library.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors

Positions = NDArray[np.integer[Any]]

_SUMS = 16

_AT_ONCE = 4096  # pairs: 4096 x 384 dimensions x 8 bytes = 12 MB


def exact_scores(
    kind: str,
    left: Vectors,
    right: Vectors,
    i: Positions,
    j: Positions,
    weights: tuple[NDArray[np.float64] | None, NDArray[np.float64] | None] = (None, None),
) -> Vectors:
    """(p,) scores of the pairs (i, j). `weights`: for cosine the inverse lengths of both sides."""
    out = np.empty(len(i), dtype=np.float32)
    for start in range(0, len(i), _AT_ONCE):
        here = slice(start, start + _AT_ONCE)
        a, b = left[i[here]], right[j[here]]
        if kind == "product":
            total = _sum(a.astype(np.float64) * b)
            if weights[0] is not None and weights[1] is not None:
                total = total * (weights[0][i[here]] * weights[1][j[here]])
        else:
            with np.errstate(over="ignore"):  # a gap beyond float32 is an infinite distance
                gap = (a - b).astype(np.float64)
            total = -np.sqrt(_sum(gap * gap)) if kind == "euclidean" else -_sum(np.abs(gap))
        with np.errstate(over="ignore"):
            out[here] = total
    out += 0.0  # one zero: -0 becomes 0
    return out


def squares(rows: Vectors) -> NDArray[np.float64]:
    """(n,) each row's product with itself; not finite where a number is not."""
    out = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _AT_ONCE):
        block = rows[start : start + _AT_ONCE].astype(np.float64)
        with np.errstate(invalid="ignore"):
            out[start : start + _AT_ONCE] = _sum(block * block)
    return out


def _sum(terms: NDArray[np.float64]) -> NDArray[np.float64]:
    """(p, d) -> (p,), in the order that the docstring of this module gives."""
    total = np.zeros((len(terms), _SUMS))
    for start in range(0, terms.shape[1], _SUMS):
        part = terms[:, start : start + _SUMS]
        total[:, : part.shape[1]] += part
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]
