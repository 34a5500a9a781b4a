"""Rows in an order of their own: sorted by content, equal ones once. What is computed from them cannot depend on the
order in which they were given."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.similarity import normalize
from gemel.types import Vectors

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Points:
    """The different directions among n rows."""

    rows: Vectors
    """(u, dim) of length 1, sorted by value, dimension by dimension. Rows of zeros are left out."""
    counts: NDArray[np.int64]
    """(u,) how often each came."""
    first: NDArray[np.int64]
    """(u,) the lowest position at which it came."""
    of_row: NDArray[np.int64]
    """(n,) which one each given row is; -1 for a row of zeros."""

    def __len__(self) -> int:
        return len(self.rows)

    def spread(self, labels: Labels) -> Labels:
        """(u,) labels to (n,): each given row gets that of its direction, a row of zeros gets -1."""
        return np.append(labels, -1)[self.of_row]


def points_of(vectors: Vectors) -> Points:
    """`vectors` are checked: finite, (n, dim)."""
    unit = normalize(vectors) + np.float32(0)  # -0 becomes 0: the same number, and now the same bytes
    present = np.flatnonzero(unit.any(axis=1))
    rows = np.ascontiguousarray(unit[present])
    of_row = np.full(len(unit), -1, dtype=np.int64)
    if not len(rows):
        nothing = np.empty(0, dtype=np.int64)
        return Points(rows, nothing, nothing, of_row)
    order = np.argsort(_sort_keys(rows), kind="stable")
    ordered = rows[order]
    new = np.append(True, (ordered[1:] != ordered[:-1]).any(axis=1))
    starts = np.flatnonzero(new)
    of_row[present[order]] = np.cumsum(new) - 1
    # The sort is stable, so the first of equal rows is the one that was given first.
    return Points(ordered[starts], np.diff(np.append(starts, len(order))), present[order[starts]], of_row)


def _sort_keys(rows: Vectors) -> NDArray[np.void]:
    """(n,) keys that compare as the rows do, dimension by dimension.

    By value rather than by raw bytes: processors differ in the last bits of a vector, which come first in memory, and
    those bits must not decide ties.
    """
    bits = rows.view(np.uint32)
    ascending = np.where(bits >> 31, ~bits, bits | np.uint32(1 << 31)).astype(">u4")
    return ascending.view(np.dtype((np.void, ascending.shape[1] * ascending.itemsize))).ravel()
