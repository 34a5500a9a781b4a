"""All pairs of rows whose similarity is at least a threshold, and lists of neighbors, in bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.options import parse_bytes
from gemel.types import Vectors
from gemel.vectors.pair_scan import Pairs
from gemel.vectors.pairs import similar_pairs

_SAMPLE = 64  # rows that are compared with all others to estimate the number of pairs

_IN_MEMORY = 64  # bytes of a pair while `similar_pairs` keeps, sorts and returns it

_AS_LISTS = 48  # bytes of a pair while the lists are made: two keys of 8 bytes, sorted, and two positions

_PART = 4_000_000  # pairs read at once from disk

_EXACT = 2.0**20  # scores become whole numbers of this part of 1, whose sums do not depend on their order


@dataclass(frozen=True, eq=False)
class Neighbors:
    """Concatenated lists: the neighbors of row i are `index[start[i] : start[i + 1]]`, ascending."""

    start: NDArray[np.int64]
    index: NDArray[np.int32]
    nearness: NDArray[np.float64]
    """(n,) the sum of the scores of a row's neighbors, independent of their order."""

    def of(self, row: int) -> NDArray[np.int32]:
        return self.index[self.start[row] : self.start[row + 1]]


def neighbors_above(rows: Vectors, min_score: float, **work: Any) -> Neighbors:
    """The neighbors of every row by cosine, without the row itself. `work` is that of `pairs_above`."""
    with _pairs(rows, min_score, **work) as pairs:
        return neighbors_of(pairs, len(rows))


def pairs_above(rows: Vectors, min_score: float, **work: Any) -> Pairs:
    """All pairs, in any order. More pairs than fit into `memory` raise an InputError, in most cases before any work.

    `threads` and `progress` are those of `similar_pairs`.
    """
    with _pairs(rows, min_score, **work) as pairs:
        score, left, right = np.array(pairs.score), np.array(pairs.left), np.array(pairs.right)
        return replace(pairs, score=score, left=left, right=right)


@contextmanager
def _pairs(
    rows: Vectors,
    min_score: float,
    *,
    memory: int | str = "1GB",
    threads: int | None = None,
    progress: bool = False,
) -> Iterator[Pairs]:
    """In memory where they fit, else in a temporary folder."""
    size = parse_bytes(memory)
    expected = _expected_pairs(rows, min_score, size)
    if expected * _AS_LISTS > 2 * size:
        raise _too_many(f"about {expected:,.0f}", len(rows), min_score, size)
    with TemporaryDirectory(prefix="gemel-") as folder:
        scan = partial(
            similar_pairs, rows, min_score=min_score, memory=memory, threads=threads, progress=progress
        )
        pairs = None
        if expected * _IN_MEMORY < size:
            with suppress(InputError):  # the estimate was too low: the pairs do not fit after all
                pairs = scan()
        if pairs is None:
            pairs = scan(out=Path(folder) / "pairs")
        if len(pairs) * _AS_LISTS > size:
            raise _too_many(f"{len(pairs):,}", len(rows), min_score, size)
        yield pairs


def neighbors_of(pairs: Pairs, rows: int) -> Neighbors:
    """Pairs within one set of rows as lists of neighbors."""
    keys = np.empty(2 * len(pairs), dtype=np.int64)
    nearness = np.zeros(rows)
    for begin in range(0, len(pairs), _PART):
        part = slice(begin, min(begin + _PART, len(pairs)))
        left, right, score = pairs.left[part], pairs.right[part], pairs.score[part]
        keys[2 * part.start : 2 * part.start + len(left)] = (left << 32) | right
        keys[2 * part.start + len(left) : 2 * part.start + 2 * len(left)] = (right << 32) | left
        whole = np.rint(score.astype(np.float64) * _EXACT)
        nearness += np.bincount(left, whole, rows) + np.bincount(right, whole, rows)
    keys.sort()
    start = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) << 32)
    return Neighbors(start, (keys & 0xFFFFFFFF).astype(np.int32), nearness)


def _expected_pairs(rows: Vectors, min_score: float, size: int) -> float:
    """The number of pairs, estimated from a sample of unit rows; 0 where even all pairs would fit."""
    total = len(rows) * (len(rows) - 1) / 2
    if total * _IN_MEMORY * 2 < size:
        return 0.0
    sample = np.random.default_rng(0).permutation(len(rows))[:_SAMPLE]
    near = sum(
        int((rows[sample] @ rows[begin : begin + 16384].T >= min_score).sum())
        for begin in range(0, len(rows), 16384)
    )
    return max(0.0, (near - len(sample)) / (len(sample) * (len(rows) - 1))) * total


def _too_many(pairs: str, rows: int, min_score: float, size: int) -> InputError:
    return InputError(
        f"{pairs} pairs of {rows:,} texts are as similar as min_score={min_score:g}: too many for "
        f"memory={size:,} bytes. Raise min_score, or give more memory"
    )
