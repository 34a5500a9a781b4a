"""What a scan works on and gives: two sets of rows ready to be compared, pairs with exact scores, the scanner protocol.

Tasks run on threads: compiled code and NumPy release the interpreter while they work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.files.machine import usable_cores
from gemel.options import check_count
from gemel.types import Vectors
from gemel.vectors.similarity import Metric, check_same_dim

Squares = Callable[[Vectors, NDArray[np.float64] | None], NDArray[np.float64]]

Task = TypeVar("Task")

_ROUNDING = 2.0**-24  # of float32, relative

_SMALLEST = 2.0**-149  # of float32: scores below it round by as much

_BLOCK = 4096  # rows summed at once for the mean


@dataclass(frozen=True, eq=False)
class ScanSide:
    """One set of rows. They are never copied: scans scale what they read."""

    rows: Vectors
    inverse: NDArray[np.float64] | None
    """(n,) 1 / length when rows are normalized; 0 for a row of zeros."""
    center: NDArray[np.float64] | None
    """(dim,) subtracted before bounds are computed; None: nothing."""
    factor: float
    """Scales the longest row to length 1, where there is no `inverse`."""
    chosen: NDArray[np.int64] | None = None
    """Positions of the rows to compare; None: all."""

    def __len__(self) -> int:
        return len(self.rows) if self.chosen is None else len(self.chosen)

    def positions(self, begin: int, end: int) -> NDArray[np.int64]:
        """Row numbers of the entries `begin` .. `end`."""
        if self.chosen is None:
            return np.arange(begin, min(end, len(self.rows)), dtype=np.int64)
        return self.chosen[begin:end]

    def scaled(self, begin: int, end: int) -> Vectors:
        """The same rows, scaled so that none is longer than 1."""
        rows = self.rows[begin:end] if self.chosen is None else self.rows[self.chosen[begin:end]]
        wide = rows if self.center is None else rows - self.center
        if self.inverse is None:
            return (wide * np.float64(self.factor)).astype(np.float32)
        return (wide * self.inverse[self.positions(begin, end)][:, None]).astype(np.float32)


@dataclass(frozen=True, eq=False)
class ScanInput:
    """Two sides, how their scores are computed, and which sums may reach a score."""

    metric: Metric
    left: ScanSide
    right: ScanSide
    same: bool
    """One set with itself: pairs with left < right only."""
    scale: float
    slack: float
    relative: float

    def limit(self, floor: NDArray[np.float32]) -> NDArray[np.float64]:
        """What the kernel's sum of scaled rows must reach for a score to reach `floor`; errs on the low side."""
        kernel = self.metric.kernel
        if kernel is None:
            return np.full(floor.shape, -np.inf)
        scaled = (floor.astype(np.float64) - _SMALLEST) * self.scale
        limit = np.where(floor > 0, np.inf, kernel.bound(scaled)) if kernel.distance else kernel.bound(scaled)
        with np.errstate(invalid="ignore"):
            return np.where(np.isinf(limit), limit, limit - np.abs(limit) * self.relative - self.slack)


def compare(
    left: Vectors,
    right: Vectors | None,
    metric: Metric,
    squares: Squares,
    *,
    names: tuple[str, str] = ("vectors", "other"),
    chosen: NDArray[np.int64] | None = None,
) -> ScanInput:
    """Both sides, checked and scaled. `right` None: the left set with itself; `chosen`: its rows to compare."""
    kernel, other = metric.kernel, left if right is None else right
    check_same_dim(left, other, names[0], names[1])
    sets = [(left, names[0])] + ([] if right is None else [(right, names[1])])
    lengths = [_lengths(rows, name, squares, None) for rows, name in sets]
    center = _mean(left) if kernel is not None and kernel.centered and len(left) else None
    if center is not None:
        lengths = [_lengths(rows, name, squares, center) for rows, name in sets]
    if metric.normalized:
        with np.errstate(divide="ignore"):
            inverses = [np.where(length > 0, 1 / length, 0.0) for length in lengths]
        sides = [
            ScanSide(rows, inverse, None, 1.0) for (rows, _), inverse in zip(sets, inverses, strict=True)
        ]
    else:
        longest = [float(length.max(initial=0.0)) for length in lengths]
        if kernel is not None and kernel.distance:
            longest = [max(longest)] * len(longest)
        sides = [
            ScanSide(rows, None, center, 1 / length if length > 0 else 1.0)
            for (rows, _), length in zip(sets, longest, strict=True)
        ]
    one, two = sides[0], sides[-1]
    rounding = (2 * left.shape[1] + 64) * _ROUNDING
    return ScanInput(
        metric=metric,
        left=one,
        right=two if chosen is None else replace(two, chosen=chosen),
        same=right is None,
        scale=one.factor if kernel is None or kernel.distance else one.factor * two.factor,
        slack=rounding,
        relative=rounding if kernel is not None and kernel.wide_sums else 1e-6,
    )


def _lengths(
    rows: Vectors, name: str, squares: Squares, center: NDArray[np.float64] | None
) -> NDArray[np.float64]:
    squared = squares(rows, center)
    if not np.isfinite(squared).all():
        row = int(np.argmin(np.isfinite(squared)))
        raise InputError(f"{name} must be finite, but row {row} has NaN or infinity")
    lengths: NDArray[np.float64] = np.sqrt(squared)
    return lengths


def _mean(rows: Vectors) -> NDArray[np.float64]:
    total = np.zeros(rows.shape[1])
    for start in range(0, len(rows), _BLOCK):
        total += rows[start : start + _BLOCK].sum(axis=0, dtype=np.float64)
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
        """Give all pairs of the block with right rows `begin` .. `end` that reach the floor to `take`, part by part.

        `floor` is called again before every part: it may rise.
        """

    def nearest(self, block: Any, k: int, threads: int) -> Nearest:  # noqa: ANN401
        """The `k` best right rows of each row of the block."""


def thread_count(threads: int | None) -> int:
    """`threads`, checked; None: as many cores as this process may use."""
    if threads is None:
        return usable_cores()
    check_count("threads", threads)
    return threads


def in_threads(work: Callable[[Task], None], tasks: Iterable[Task], threads: int) -> None:
    """Run `work` on all tasks; the first error cancels the rest and is raised."""
    waiting = list(tasks)
    if threads == 1 or len(waiting) < 2:
        for task in waiting:
            work(task)
        return
    with ThreadPoolExecutor(min(threads, len(waiting))) as pool:
        for _ in pool.map(work, waiting):  # cancels what has not begun when a result is an error
            pass
