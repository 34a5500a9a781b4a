"""Centring: the mean is taken away; all-but-the-top: the widest directions too (arXiv 1702.01417)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gemel.errors import InputError
from gemel.postprocess.linear_map import LinearMap, linear_map, principal_axes
from gemel.similarity import checked


def fit_centring(vectors: ArrayLike) -> LinearMap:
    """A map that takes the mean of `vectors` away."""
    ready = checked(vectors, "vectors")
    if not len(ready):
        raise InputError("a mean needs at least 1 vector, got 0")
    return linear_map(np.eye(ready.shape[1]), ready.mean(axis=0, dtype=np.float64))


def fit_all_but_the_top(vectors: ArrayLike, remove: int | None = None) -> LinearMap:
    """A map that takes the mean and the `remove` widest directions away; None: a hundredth of the dimensions.

    The vectors keep their length: the directions are 0, not gone.
    """
    axes = principal_axes(vectors)
    most = len(axes.mean)
    count = max(1, round(most / 100)) if remove is None else remove
    if not 0 <= count < most:
        raise InputError(f"remove must be from 0 to {most - 1}, one less than the dimensions, got {count}")
    top = axes.directions[:count]
    return linear_map(np.eye(most) - top.T @ top, axes.mean)
