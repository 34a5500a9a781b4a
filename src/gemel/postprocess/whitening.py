"""Whitening: every direction gets the same spread, and the widest ones can be kept alone (arXiv 2103.15316)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gemel.errors import InputError
from gemel.postprocess.linear_map import LinearMap, linear_map, principal_axes

FLOOR = 1e-8
"""Of the largest variance. What is below is the rounding of float32, not a direction of the texts."""


def fit_whitening(vectors: ArrayLike, dim: int | None = None, *, floor: float = FLOOR) -> LinearMap:
    """A map after which the vectors have mean 0 and covariance 1; `dim` keeps the widest directions.

    Outputs are ordered by the variance they had, so the first `d` of them are the whitening to `d`. A direction
    whose variance is under `floor` times the largest is set to 0 instead of being blown up; `note` counts them.
    """
    axes = principal_axes(vectors)
    most = len(axes.mean)
    if dim is not None and not 1 <= dim <= most:
        raise InputError(f"dim must be from 1 to {most}, the vectors' own, got {dim}")
    keep = dim or most
    spread = axes.spread[:keep]
    wide = spread > floor * axes.spread[0]
    if not wide.any():
        raise InputError("all vectors are equal: there is no spread to whiten. Give different texts")
    scale = np.where(wide, 1 / np.sqrt(np.where(wide, spread, 1.0)), 0.0)
    flat = int((~wide).sum())
    note = f"{flat} of {keep} directions have no spread and are 0 after the map" if flat else ""
    return linear_map(axes.directions[:keep] * scale[:, None], axes.mean, note)
