"""Numbers out of arrays: correlations. Pure functions; what is not defined is None, never NaN."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Codes = NDArray[np.int64]


def pearson(left: ArrayLike, right: ArrayLike) -> float | None:
    """The linear correlation of two rows of numbers; None for fewer than two, or where one side is constant."""
    x, y = (np.asarray(side, dtype=np.float64) for side in (left, right))
    if len(x) < 2:
        return None
    x, y = x - x.mean(), y - y.mean()
    length = np.sqrt((x @ x) * (y @ y))
    # A constant row is left with rounding errors of its mean, not always with exact zeros.
    if length <= 1e-30 or np.ptp(x) == 0 or np.ptp(y) == 0:
        return None
    return float(np.clip(x @ y / length, -1.0, 1.0))


def spearman(left: ArrayLike, right: ArrayLike) -> float | None:
    """The correlation of ranks; equal numbers share the mean of their ranks."""
    return pearson(ranks(left), ranks(right))


def ranks(values: ArrayLike) -> Floats:
    """1 for the smallest; equal values get the mean of the ranks they take up."""
    return ranks_of_codes(value_codes(values))


def value_codes(values: ArrayLike) -> Codes:
    """0 for the smallest value, 1 for the next: equal values share a code, and codes can be ranked without sorting."""
    _, codes = np.unique(np.asarray(values, dtype=np.float64), return_inverse=True)
    return np.asarray(codes, dtype=np.int64)


def ranks_of_codes(codes: Codes) -> Floats:
    """The same as `ranks`, for codes: counting instead of sorting, for a bootstrap does it thousands of times."""
    if len(codes) == 0:
        return np.empty(0)
    sizes = np.bincount(codes)
    means = np.cumsum(sizes) - (sizes - 1) / 2  # the mean of the ranks that each code takes up
    return np.asarray(means[codes], dtype=np.float64)
