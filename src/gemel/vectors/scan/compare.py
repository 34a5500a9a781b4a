"""Two sets of rows made ready to be compared: lengths, a common scale, and the slack of sums in float32.

What a scan gives: pairs with their exact scores; and what a scanner is.

Tasks on threads: compiled code and numpy let go of the interpreter while they work.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.types import Vectors
from gemel.vectors.similarity import METRICS, check_same_dim

KINDS = {"cosine": "product", "dot": "product", "euclidean": "euclidean", "manhattan": "manhattan"}

CEILINGS = {"cosine": 1.0, "dot": math.inf, "euclidean": 0.0, "manhattan": 0.0}  # no score is higher

Squares = Callable[[Vectors, NDArray[np.float64] | None], NDArray[np.float64]]

_ROUNDING = 2.0**-24  # of float32, relative

_LEAST = 2.0**-149  # of float32: scores below it round by as much

_AT_ONCE = 4096


@dataclass(frozen=True, eq=False)
class ScanSide:
    """One set. Its rows are never copied: scans scale what they read."""

    rows: Vectors
    inverse: NDArray[np.float64] | None
    """(n,) 1 / length for cosine; 0 for a row of zeros."""
    centre: NDArray[np.float64] | None
    """(dim,) taken off before distances are bounded: they do not change, and the sums get smaller."""
    factor: float
    """Brings the longest row to length 1, where there is no `inverse`."""
    chosen: NDArray[np.int64] | None = None
    """Positions that count; None: all."""

    def __len__(self) -> int:
        return len(self.rows) if self.chosen is None else len(self.chosen)

    def positions(self, begin: int, end: int) -> NDArray[np.int64]:
        """Row numbers of the places `begin` .. `end`."""
        if self.chosen is None:
            return np.arange(begin, min(end, len(self.rows)), dtype=np.int64)
        return self.chosen[begin:end]

    def scaled(self, begin: int, end: int) -> Vectors:
        """Those rows, none longer than 1."""
        rows = self.rows[begin:end] if self.chosen is None else self.rows[self.chosen[begin:end]]
        wide = rows if self.centre is None else rows - self.centre
        if self.inverse is None:
            return (wide * np.float64(self.factor)).astype(np.float32)
        return (wide * self.inverse[self.positions(begin, end)][:, None]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ScanInput:
    """How a score is computed, and which sums may reach it."""

    kind: str
    """product, euclidean or manhattan."""
    ceiling: float
    left: ScanSide
    right: ScanSide
    same: bool
    """One set with itself: pairs with left < right only."""
    scale: float
    slack: float
    relative: float

    def limit(self, floor: NDArray[np.float32]) -> NDArray[np.float64]:
        """What a sum of scaled rows must reach for its score to reach `floor`; errs on the low side."""
        wide = (floor.astype(np.float64) - _LEAST) * self.scale
        if self.kind != "product":
            wide = np.where(floor > 0, np.inf, -wide * wide / 2 if self.kind == "euclidean" else wide)
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(wide), wide, wide - np.abs(wide) * self.relative - self.slack)


def compare(
    left: Vectors,
    right: Vectors | None,
    metric: str,
    squares: Squares,
    *,
    names: tuple[str, str] = ("vectors", "other"),
    chosen: NDArray[np.int64] | None = None,
) -> ScanInput:
    """`right` None: the left set with itself. `chosen`: the positions of `right` that count."""
    METRICS[metric]  # an unknown name is answered with the known ones
    kind, other = KINDS[metric], left if right is None else right
    check_same_dim(left, other, names[0], names[1])
    sets = [(left, names[0])] + ([] if right is None else [(right, names[1])])
    lengths = [_lengths(rows, name, squares, None) for rows, name in sets]
    centre = _mean(left) if kind == "euclidean" and len(left) else None
    if centre is not None:
        lengths = [_lengths(rows, name, squares, centre) for rows, name in sets]
    if metric == "cosine":
        with np.errstate(divide="ignore"):
            inverses = [np.where(length > 0, 1 / length, 0.0) for length in lengths]
        sides = [
            ScanSide(rows, inverse, None, 1.0) for (rows, _), inverse in zip(sets, inverses, strict=True)
        ]
    else:
        most = [float(length.max(initial=0.0)) for length in lengths]
        if kind != "product":  # a distance needs both sides in one unit
            most = [max(most)] * len(most)
        sides = [
            ScanSide(rows, None, centre, 1 / top if top > 0 else 1.0)
            for (rows, _), top in zip(sets, most, strict=True)
        ]
    one, two = sides[0], sides[-1]
    if chosen is not None:
        two = ScanSide(two.rows, two.inverse, two.centre, two.factor, chosen)
    rounding = (2 * left.shape[1] + 64) * _ROUNDING
    return ScanInput(
        kind=kind,
        ceiling=CEILINGS[metric],
        left=one,
        right=two,
        same=right is None,
        scale=one.factor * two.factor if kind == "product" else one.factor,
        slack=rounding,
        relative=rounding if kind == "manhattan" else 1e-6,
    )


def _lengths(
    rows: Vectors, name: str, squares: Squares, centre: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    found = squares(rows, centre)
    if not np.isfinite(found).all():
        row = int(np.argmin(np.isfinite(found)))
        raise InputError(f"{name} must be finite, but row {row} has NaN or infinity")
    lengths: NDArray[np.float64] = np.sqrt(found)
    return lengths


def _mean(rows: Vectors) -> NDArray[np.float64]:
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _AT_ONCE):
        total += rows[start : start + _AT_ONCE].sum(axis=0, dtype=np.float64)
    mean: NDArray[np.float64] = total / len(rows)
    return mean


@dataclass(frozen=True, eq=False)
class ScanResult:
    """Pairs in no order."""

    score: Vectors
    left: NDArray[np.int32]
    right: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True, eq=False)
class Nearest:
    """For some queries their best rows, best first; ties by position. `index` is -1 where there are no more rows."""

    score: Vectors
    index: NDArray[np.int64]


class Scanner(Protocol):
    """Scans one comparison. All methods may be called from several threads at once."""

    block_rows: int
    """Left rows that are best packed together."""

    def block(self, begin: int, end: int) -> Any:  # noqa: ANN401 - each scanner's own
        """Left rows `begin` .. `end`, packed."""

    def pairs(
        self,
        block: Any,  # noqa: ANN401
        begin: int,
        end: int,
        floor: Callable[[], float],
        take: Callable[[ScanResult], None],
    ) -> None:
        """All pairs of the block with right rows `begin` .. `end` that reach the floor, in as many parts as needed.

        The floor is asked for again before every part: it may rise.
        """

    def nearest(self, block: Any, k: int, threads: int, *, exact: bool) -> Nearest:  # noqa: ANN401
        """The `k` best right rows of each row of the block. Not `exact`: int8 estimates instead of scores."""

    def exact(self, i: NDArray[np.int64], j: NDArray[np.int64], threads: int) -> Vectors:
        """(p,) scores of left rows `i` with right rows `j`."""


Task = TypeVar("Task")


def thread_count(threads: int | None) -> int:
    """None: as many as this process may use."""
    if threads is None:
        available = getattr(os, "sched_getaffinity", None)
        return len(available(0)) if available else os.cpu_count() or 1
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads must be a whole number of at least 1, or None for all, got {threads!r}")
    return threads


def in_threads(work: Callable[[Task], None], tasks: Iterable[Task], threads: int) -> None:
    """Does all tasks; the first error ends the rest and is raised."""
    todo = list(tasks)
    if threads == 1 or len(todo) < 2:
        for task in todo:
            work(task)
        return
    with ThreadPoolExecutor(min(threads, len(todo))) as pool:
        futures = [pool.submit(work, task) for task in todo]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
