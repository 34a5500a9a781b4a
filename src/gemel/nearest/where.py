"""A filter on the corpus: a boolean for each row, or the positions of the rows that count."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError


def positions_of(where: ArrayLike, rows: int) -> NDArray[np.int64]:
    """The chosen positions, ascending, each once."""
    given: NDArray[Any] = np.asarray(where)
    if given.ndim != 1:
        raise InputError(f"where must be a list of booleans or positions, got the shape {given.shape}")
    if given.dtype == np.bool_:
        if len(given) != rows:
            raise InputError(f"where has {len(given)} booleans but the corpus has {rows} rows")
        return np.flatnonzero(given)
    if given.size == 0:
        return np.empty(0, dtype=np.int64)
    if given.dtype.kind not in "iu":
        raise InputError(f"where must be booleans or positions, got an array of {given.dtype}")
    wrong = (given < 0) | (given >= rows)
    if wrong.any():
        raise InputError(f"where asks for row {int(given[wrong][0])}, but the corpus has {rows} rows")
    return np.unique(given).astype(np.int64)
