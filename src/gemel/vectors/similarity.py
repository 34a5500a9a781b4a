"""How alike two vectors are: cosine, dot, euclidean, manhattan, for all pairs and row by row.

A higher score is always nearer, so the two distances are negative. Arrays in, arrays out; no model here.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.registry import Registry
from gemel.types import Vectors

_ROWS = 2048  # rows turned to float64 at once: 2048 x 1024 dimensions x 8 bytes = 16 MB

Score: TypeAlias = Callable[[Vectors, Vectors], Vectors]


@dataclass(frozen=True)
class Metric:
    """One way to compare. `prepare` is done once per array, the rest as often as there are blocks."""

    prepare: Callable[[Vectors], Vectors]
    scores: Score
    """Prepared (n, d) and (m, d) -> (n, m) float32."""
    rows: Score
    """Prepared (n, d) and (n, d) -> (n,) float32."""


METRICS: Registry[Metric] = Registry("metric")


def normalize(vectors: ArrayLike) -> Vectors:
    """Each row scaled to length 1; zeros stay zeros. A row's bits do not depend on the other rows."""
    return _unit(checked(vectors, "vectors"))


def scores(left: ArrayLike, right: ArrayLike, metric: str = "cosine") -> Vectors:
    """(n, m): how near each row of `left` is to each row of `right`. The whole table is held in memory."""
    chosen, one, other = _ready(left, right, metric)
    return chosen.scores(one, other)


def row_scores(left: ArrayLike, right: ArrayLike, metric: str = "cosine") -> Vectors:
    """(n,): how near row i of `left` is to row i of `right`."""
    chosen, one, other = _ready(left, right, metric)
    if len(one) != len(other):
        raise InputError(f"left has {len(one)} rows but right has {len(other)}; rows are compared one to one")
    return chosen.rows(one, other)


def checked(vectors: ArrayLike, name: str) -> Vectors:
    """`vectors` as a contiguous finite float32 (n, dim), or an error that calls them `name`."""
    ready = shaped(vectors, name)
    for start in range(0, len(ready), _ROWS):
        bad = ~np.isfinite(ready[start : start + _ROWS]).all(axis=1)
        if bad.any():
            raise InputError(
                f"{name} must be finite, but row {start + int(bad.argmax())} has NaN or infinity"
            )
    return ready


def shaped(vectors: ArrayLike, name: str) -> Vectors:
    """As `checked`, for a caller that looks at every number anyway: whether all are finite is left to it."""
    array: NDArray[Any] = np.asarray(vectors)  # any dtype comes in here; the next lines decide
    if array.dtype.kind not in "fiu":
        raise InputError(f"{name} must be numbers, got an array of {array.dtype}")
    if array.ndim != 2:
        hint = f". For one vector write {name}[None]" if array.ndim == 1 else ""
        raise InputError(f"{name} must have the shape (n, dim), got {array.shape}{hint}")
    return np.ascontiguousarray(array, dtype=np.float32)


def check_same_dim(left: Vectors, right: Vectors, left_name: str, right_name: str) -> None:
    """Refuse two arrays whose rows cannot be compared."""
    if left.shape[1] != right.shape[1]:
        raise InputError(
            f"{left_name} have {left.shape[1]} dimensions but {right_name} have {right.shape[1]}; "
            "encode both with the same model"
        )


def _ready(left: ArrayLike, right: ArrayLike, metric: str) -> tuple[Metric, Vectors, Vectors]:
    chosen = METRICS[metric]
    one, other = checked(left, "left"), checked(right, "right")
    check_same_dim(one, other, "rows of left", "rows of right")
    return chosen, chosen.prepare(one), chosen.prepare(other)


def _unit(vectors: Vectors) -> Vectors:
    out = np.empty_like(vectors)
    for start in range(0, len(vectors), _ROWS):
        # float64: the square of a large float32 overflows, the square of a small one vanishes.
        block = vectors[start : start + _ROWS].astype(np.float64)
        length = np.sqrt((block * block).sum(axis=1, keepdims=True))
        out[start : start + _ROWS] = block / np.where(length == 0, 1, length)
    return out


def _dot(left: Vectors, right: Vectors) -> Vectors:
    return left @ right.T


def _dot_rows(left: Vectors, right: Vectors) -> Vectors:
    return np.asarray((left.astype(np.float64) * right).sum(axis=1), dtype=np.float32)


def _euclidean(left: Vectors, right: Vectors) -> Vectors:
    # |a - b|² = |a|² + |b|² - 2 a·b cancels when a is near b; float64 leaves about 1e-8 of their length.
    a, b = left.astype(np.float64), right.astype(np.float64)
    squares = (a * a).sum(axis=1)[:, None] + (b * b).sum(axis=1)[None] - 2 * (a @ b.T)
    return np.asarray(-np.sqrt(np.maximum(squares, 0)), dtype=np.float32)


def _euclidean_rows(left: Vectors, right: Vectors) -> Vectors:
    gap = left.astype(np.float64) - right
    return np.asarray(-np.sqrt((gap * gap).sum(axis=1)), dtype=np.float32)


def _manhattan(left: Vectors, right: Vectors) -> Vectors:
    out = np.empty((len(left), len(right)), dtype=np.float32)
    for i, row in enumerate(left):  # one row at a time: (n, m, d) differences would not fit
        out[i] = -np.abs(right - row).sum(axis=1, dtype=np.float64)
    return out


def _manhattan_rows(left: Vectors, right: Vectors) -> Vectors:
    return np.asarray(-np.abs(left - right).sum(axis=1, dtype=np.float64), dtype=np.float32)


def _as_is(vectors: Vectors) -> Vectors:
    return vectors


METRICS.add("cosine")(Metric(_unit, _dot, _dot_rows))

METRICS.add("dot")(Metric(_as_is, _dot, _dot_rows))

METRICS.add("euclidean")(Metric(_as_is, _euclidean, _euclidean_rows))

METRICS.add("manhattan")(Metric(_as_is, _manhattan, _manhattan_rows))
