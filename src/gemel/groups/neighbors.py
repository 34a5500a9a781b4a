"""For each row, the rows that are as near as a threshold: all of them, in bounded memory, or a clear refusal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

_SAMPLE = 64  # rows that are compared with all others to foretell the number of pairs

_IN_MEMORY = 64  # bytes of a pair while `similar_pairs` keeps, sorts and returns it

_AS_LISTS = 48  # bytes of a pair while the lists are made: two keys of 8 bytes, sorted, and two positions

_PART = 4_000_000  # pairs read at once from disk

_EXACT = 2.0**20  # scores become whole numbers of this part of 1, whose sums do not depend on their order


@dataclass(frozen=True, eq=False)
class Neighbours:
    """Lists, one after the other: those of row i are `index[start[i] : start[i + 1]]`, ascending."""

    start: NDArray[np.int64]
    index: NDArray[np.int32]
    nearness: NDArray[np.float64]
    """(n,) the scores of a row's neighbours, added up in an order-free way."""

    def of(self, row: int) -> NDArray[np.int32]:
        return self.index[self.start[row] : self.start[row + 1]]


def neighbours_above(rows: Vectors, min_score: float, **work: Any) -> Neighbours:
    """Every row's neighbours by cosine; no row is its own. `work` is that of `pairs_above`."""
    with _found(rows, min_score, **work) as found:
        return neighbours_of(found, len(rows))


def pairs_above(rows: Vectors, min_score: float, **work: Any) -> Pairs:
    """All pairs, in no promised order. A threshold that joins more than fit into `memory` is refused, mostly before
    any work; `threads` and `progress` are those of `similar_pairs`."""
    with _found(rows, min_score, **work) as found:
        score, left, right = np.array(found.score), np.array(found.left), np.array(found.right)
        return replace(found, score=score, left=left, right=right)


@contextmanager
def _found(
    rows: Vectors,
    min_score: float,
    *,
    memory: int | str = "1GB",
    threads: int | None = None,
    progress: bool = False,
) -> Iterator[Pairs]:
    """In memory where they fit, else in a folder that is there inside only."""
    size = parse_bytes(memory)
    expected = _expected_pairs(rows, min_score, size)
    if expected * _AS_LISTS > 2 * size:
        raise _too_many(f"about {expected:,.0f}", len(rows), min_score, size)
    with TemporaryDirectory(prefix="gemel-") as folder:
        ask = partial(
            similar_pairs, rows, min_score=min_score, memory=memory, threads=threads, progress=progress
        )
        found = _in_memory(ask) if expected * _IN_MEMORY < size else None
        if found is None:
            found = ask(out=Path(folder) / "pairs")
        if len(found) * _AS_LISTS > size:
            raise _too_many(f"{len(found):,}", len(rows), min_score, size)
        yield found


def _in_memory(ask: Callable[[], Pairs]) -> Pairs | None:
    """None where the sample was wrong and the pairs do not fit after all; the rows are known to be good."""
    try:
        return ask()
    except InputError:
        return None


def neighbours_of(found: Pairs, rows: int) -> Neighbours:
    """Pairs of one set as lists of neighbours."""
    keys = np.empty(2 * len(found), dtype=np.int64)
    nearness = np.zeros(rows)
    for part in _parts(len(found)):
        left, right, score = found.left[part], found.right[part], found.score[part]
        keys[2 * part.start : 2 * part.start + len(left)] = (left << 32) | right
        keys[2 * part.start + len(left) : 2 * part.start + 2 * len(left)] = (right << 32) | left
        whole = np.rint(score.astype(np.float64) * _EXACT)
        nearness += np.bincount(left, whole, rows) + np.bincount(right, whole, rows)
    keys.sort()
    start = np.searchsorted(keys, np.arange(rows + 1, dtype=np.int64) << 32)
    return Neighbours(start, (keys & 0xFFFFFFFF).astype(np.int32), nearness)


def _parts(count: int) -> Iterator[slice]:
    for begin in range(0, count, _PART):
        yield slice(begin, min(begin + _PART, count))


def _expected_pairs(rows: Vectors, min_score: float, size: int) -> float:
    """How many pairs will be found, from a sample of unit rows; 0 where even all of them would fit."""
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
