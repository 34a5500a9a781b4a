"""The most similar pairs of rows in one array: exact, upper triangle only, block by block."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.similarity import METRICS, checked
from gemel.types import Vectors

_BLOCK = 2048  # scores of a block: 2048 x 2048 x 4 bytes = 16 MB


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows, best first; ties break on the lower left, then the lower right position."""

    score: Vectors
    """(p,), higher is nearer."""
    left: NDArray[np.int64]
    """(p,) position of the earlier row."""
    right: NDArray[np.int64]
    """(p,) position of the later row; left < right."""
    compared: int
    """Pairs whose score was computed."""
    complete: bool
    """No pair that belongs here was missed."""

    def __len__(self) -> int:
        return len(self.score)


def similar_pairs(
    vectors: ArrayLike, *, k: int | None = None, min_score: float | None = None, metric: str = "cosine"
) -> Pairs:
    """The `k` best pairs, or all with a score of at least `min_score`, or the best `k` of those.

    Every pair is compared once and none with itself. Memory: the array (for cosine, a scaled copy), one block
    and the pairs found; with `min_score` alone the pairs found may be many.
    """
    _check(k, min_score)
    chosen = METRICS[metric]
    rows = chosen.prepare(checked(vectors, "vectors"))
    n = len(rows)
    floor = -np.inf if min_score is None else float(min_score)
    score, place = np.empty(0, dtype=np.float32), np.empty(0, dtype=np.int64)
    for i in range(0, n, _BLOCK):
        for j in range(i, n, _BLOCK):
            found = chosen.scores(rows[i : i + _BLOCK], rows[j : j + _BLOCK])
            keep = found >= floor  # not `>`: blocks do not come in the order that breaks ties
            left, right = np.nonzero(np.triu(keep, 1) if i == j else keep)
            score = np.concatenate([score, found[left, right]])
            place = np.concatenate([place, (left + i) * n + right + j])
            if k is not None and len(score) > k:
                score, place = _best(score, place, k)
                floor = max(floor, float(score.min()))
    order = np.lexsort((place, -score))
    left, right = np.divmod(place[order], max(n, 1))
    return Pairs(score[order], left, right, compared=n * (n - 1) // 2, complete=True)


def _best(score: Vectors, place: NDArray[np.int64], k: int) -> tuple[Vectors, NDArray[np.int64]]:
    """The `k` highest scores in any order; of those equal to the last one, the lowest places."""
    last = np.partition(score, -k)[-k]
    above, tied = score > last, place[score == last]
    room = k - int(np.count_nonzero(above))
    tied = np.partition(tied, room - 1)[:room]
    return (
        np.concatenate([score[above], np.full(room, last, dtype=np.float32)]),
        np.concatenate([place[above], tied]),
    )


def _check(k: int | None, min_score: float | None) -> None:
    if k is None and min_score is None:
        raise InputError("similar_pairs needs k (how many), min_score (how near), or both")
    if k is not None and (isinstance(k, bool) or not isinstance(k, int | np.integer) or k < 1):
        raise InputError(f"k must be a whole number of at least 1, got {k!r}")
    if min_score is not None and not np.isfinite(min_score):
        raise InputError(f"min_score must be a finite number, got {min_score!r}")
