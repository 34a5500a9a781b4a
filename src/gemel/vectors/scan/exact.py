"""The score of a pair, defined to the bit, and the kernels that compute it; native/exact.h does the same in C++.

Term k goes to partial sum k mod 16, in the order of k, in float64; then halves are added to halves. Products and
squares of float32 are exact in float64, so a score depends on its two rows alone: not on tile, thread, processor or
library.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors

Floats = NDArray[np.float64]

Positions = NDArray[np.integer[Any]]

_SUMS = 16

_BLOCK = 4096  # pairs at once: 4096 x 384 dimensions x 8 bytes = 12 MB


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """How the scans compute one kind of score: exactly for a pair, and roughly for many pairs to rule most out."""

    code: int
    """Its number in native/exact.h."""
    terms: Callable[[Vectors, Vectors], Floats]
    """(p, d), (p, d) -> (p, d): what is summed for each pair."""
    score: Callable[[Floats], Floats]
    """The sums of the terms -> the scores."""
    sums: Callable[[Vectors, Vectors], Vectors]
    """(n, d), (m, d) -> (n, m) float32: grows with the score; rounding is allowed for by `ScanInput.limit`."""
    bound: Callable[[Floats], Floats]
    """A score of scaled rows -> the value of `sums` that belongs to it."""
    distance: bool = True
    """No score is above 0, and both sides are scaled by the same factor."""
    centered: bool = False
    """The mean is subtracted before bounds are computed: scores do not change, and the sums get smaller."""
    int8: bool = True
    """The compiled scan can bound it with 8-bit products."""
    wide_sums: bool = False
    """Sums of rows of length 1 grow with the dimensions, and their rounding with them."""


def exact_scores(
    kernel: Kernel,
    left: Vectors,
    right: Vectors,
    i: Positions,
    j: Positions,
    weights: tuple[Floats | None, Floats | None] = (None, None),
) -> Vectors:
    """(p,) scores of the pairs (i, j). `weights`: for normalized rows the inverse lengths of both sides."""
    out = np.empty(len(i), dtype=np.float32)
    for start in range(0, len(i), _BLOCK):
        block = slice(start, start + _BLOCK)
        total = kernel.score(_sum(kernel.terms(left[i[block]], right[j[block]])))
        if weights[0] is not None and weights[1] is not None:
            total = total * (weights[0][i[block]] * weights[1][j[block]])
        with np.errstate(over="ignore"):
            out[block] = total
    out += 0.0  # one zero: -0 becomes 0
    return out


def squares(rows: Vectors) -> Floats:
    """(n,) each row's product with itself; not finite where a number is not."""
    out = np.empty(len(rows), dtype=np.float64)
    for start in range(0, len(rows), _BLOCK):
        block = rows[start : start + _BLOCK].astype(np.float64)
        with np.errstate(invalid="ignore"):
            out[start : start + _BLOCK] = _sum(block * block)
    return out


def _sum(terms: Floats) -> Floats:
    """(p, d) -> (p,), in the order that the docstring of this module gives."""
    total = np.zeros((len(terms), _SUMS))
    for start in range(0, terms.shape[1], _SUMS):
        part = terms[:, start : start + _SUMS]
        total[:, : part.shape[1]] += part
    while total.shape[1] > 1:
        half = total.shape[1] // 2
        total = total[:, :half] + total[:, half:]
    return total[:, 0]


def _differences(left: Vectors, right: Vectors) -> Floats:
    with np.errstate(over="ignore"):  # a difference beyond float32 is an infinite distance
        return (left - right).astype(np.float64)


def _squared_differences(left: Vectors, right: Vectors) -> Floats:
    difference = _differences(left, right)
    return difference * difference


def _products(left: Vectors, right: Vectors) -> Vectors:
    return left @ right.T


def _minus_half_squared_distances(left: Vectors, right: Vectors) -> Vectors:
    """a·b - |a|²/2 - |b|²/2"""
    sums = _products(left, right)
    sums += _minus_half_squares(left)[:, None] + _minus_half_squares(right)
    return sums


def _minus_half_squares(rows: Vectors) -> Vectors:
    return np.asarray(-0.5 * np.square(rows, dtype=np.float64).sum(axis=1), dtype=np.float32)


def _minus_absolute_distances(left: Vectors, right: Vectors) -> Vectors:
    sums = np.empty((len(left), len(right)), dtype=np.float32)
    for at, row in enumerate(left):  # one row at a time: (n, m, d) differences would not fit
        sums[at] = -np.abs(right - row).sum(axis=1, dtype=np.float64)
    return sums


PRODUCT = Kernel(
    code=0,
    terms=lambda left, right: left.astype(np.float64) * right,
    score=lambda total: total,
    sums=_products,
    bound=lambda score: score,
    distance=False,
)

EUCLIDEAN = Kernel(
    code=1,
    terms=_squared_differences,
    score=lambda total: -np.sqrt(total),
    sums=_minus_half_squared_distances,
    bound=lambda score: -score * score / 2,
    centered=True,
)

MANHATTAN = Kernel(
    code=2,
    terms=lambda left, right: np.abs(_differences(left, right)),
    score=lambda total: -total,
    sums=_minus_absolute_distances,
    bound=lambda score: score,
    int8=False,
    wide_sums=True,
)
