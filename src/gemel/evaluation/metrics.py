"""Numbers out of arrays: correlations. Pure functions; what is not defined is None, never NaN."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


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


def ranks(values: ArrayLike) -> NDArray[np.float64]:
    """1 for the smallest; equal values get the mean of the ranks they take up."""
    values = np.asarray(values, dtype=np.float64)
    if len(values) == 0:
        return np.empty(0)
    _, group, sizes = np.unique(values, return_inverse=True, return_counts=True)
    ends = np.cumsum(sizes)
    means = ends - (sizes - 1) / 2
    return np.asarray(means[group])
