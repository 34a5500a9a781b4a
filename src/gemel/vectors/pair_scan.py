"""All pairs of two sets of rows: the request, the walk over blocks, the collectors, and the result `Pairs`.

Blocks of left rows are packed, right rows stream past them on all threads. A collector takes the pairs that reach its
floor: the best k of all, or every pair of a block.
"""

from __future__ import annotations

import hashlib
import math
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, MissingExtra
from gemel.options import check_count, parse_bytes
from gemel.terminal import Progress, counted
from gemel.types import ShownResult, Vectors
from gemel.vectors.scan.compare import Scanner, ScanResult, in_threads
from gemel.vectors.scan.scanner import Scan
from gemel.vectors.similarity import METRICS, shaped

if TYPE_CHECKING:
    import pandas
    import pyarrow

BYTES_PER_PAIR = 64  # while it is collected, sorted and returned

_MOST_ROWS = 2**31 - 1

_RIGHT = 2048  # right rows per task: some ten milliseconds

_LEAST = 16  # left rows per block, however little memory there is

_SPARE = 16_384  # pairs beyond k that are collected before the best are picked


@dataclass(frozen=True, eq=False)
class PairRequest:
    """The checked arguments of `similar_pairs`."""

    left: Vectors
    right: Vectors | None
    """None: the left rows with one another."""
    k: int | None
    min_score: float | None
    metric: str
    memory: int
    """Bytes."""
    threads: int
    prune: bool
    progress: bool
    out: Path | None

    @classmethod
    def of(  # noqa: PLR0913 - the arguments of similar_pairs
        cls,
        vectors: ArrayLike,
        other: ArrayLike | None,
        *,
        k: int | None,
        min_score: float | None,
        metric: str,
        memory: int | str,
        threads: int,
        prune: bool,
        progress: bool,
        out: str | Path | None,
    ) -> PairRequest:
        """The arguments, or an error that names the wrong one."""
        _check_limits(k, min_score)
        METRICS[metric]
        left = shaped(vectors, "vectors")
        right = None if other is None else shaped(other, "other")
        most = None if k is None else min(int(k), max(pair_count(left, right), 1))
        return cls(
            left=left,
            right=right,
            k=most,
            min_score=None if min_score is None else float(min_score),
            metric=metric,
            memory=_check_memory(memory, max(len(left), 0 if right is None else len(right)), most),
            threads=threads,
            prune=prune,
            progress=progress,
            out=None if out is None else Path(out),
        )

    @property
    def total(self) -> int:
        """Pairs to compare."""
        return pair_count(self.left, self.right)

    @property
    def plan(self) -> dict[str, Any]:
        """All that the pairs depend on, as JSON: the plan of a `PairFolder`."""
        limits = {"metric": self.metric, "k": self.k, "min_score": self.min_score}
        return {**limits, "vectors": content_hash(self.left, self.right)}

    @property
    def floor(self) -> float:
        return -math.inf if self.min_score is None else self.min_score

    @property
    def most_pairs(self) -> int:
        """Pairs that may be in memory at once."""
        return max(1, self.memory // BYTES_PER_PAIR)


def _check_limits(k: int | None, min_score: float | None) -> None:
    """Raise unless k or min_score is given and valid."""
    if k is None and min_score is None:
        raise InputError("similar_pairs needs k (how many), min_score (how near), or both")
    if k is not None:
        check_count("k", k.item() if isinstance(k, np.integer) else k)
    if min_score is not None and not _is_number(min_score):
        raise InputError(f"min_score must be a finite number, got {min_score!r}")


def _is_number(value: object) -> bool:
    """Whether it is one finite number, of Python or NumPy."""
    given = np.asarray(value)
    return given.ndim == 0 and given.dtype.kind in "fiu" and bool(np.isfinite(given))


def _check_memory(memory: int | str, rows: int, k: int | None) -> int:
    """`memory` in bytes; raises if `k` pairs do not fit or there are too many rows."""
    size = parse_bytes(memory)
    if rows > _MOST_ROWS:
        raise InputError(f"at most {_MOST_ROWS:,} rows can be compared, got {rows:,}")
    if k is not None and k * BYTES_PER_PAIR > size:
        need = -(-k * BYTES_PER_PAIR // 10**6)
        raise InputError(
            f"{k:,} pairs need about {need:,} MB; memory is {memory!r}. Ask for fewer, or give more memory",
            code="GEM-307",
        )
    return size


def pair_count(left: Vectors, right: Vectors | None) -> int:
    """The number of pairs of `left` and `right`, or within `left`."""
    return len(left) * (len(left) - 1) // 2 if right is None else len(left) * len(right)


def content_hash(*arrays: NDArray[Any] | None) -> str:
    """SHA-256 of the shapes and bytes of the arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(repr(None if array is None else (array.shape, array.dtype.str)).encode())
        if array is not None:
            for start in range(0, len(array), 65_536):
                digest.update(np.ascontiguousarray(array[start : start + 65_536]).data)
    return digest.hexdigest()


def too_many(request: PairRequest) -> InputError:
    """The error for a threshold that matches more pairs than fit."""
    return InputError(
        f"more than {request.most_pairs:,} pairs reach min_score={request.min_score!r}: too many for "
        f"memory={request.memory:,} bytes. Give a folder, out='pairs', to stream them to disk; "
        "or a higher min_score; or k, for the best of them",
        code="GEM-307",
    )


@dataclass(frozen=True, eq=False)
class Pairs(ShownResult):
    """Pairs of rows, best first; ties go to the lower left, then the lower right position.

    Pairs that were streamed to a folder without a `k` are sorted by position instead.
    """

    score: Vectors
    """(p,), higher is nearer."""
    left: NDArray[np.int64]
    """(p,) position in the first set."""
    right: NDArray[np.int64]
    """(p,) position in the second set; within one set left < right."""
    compared: int
    """Pairs that were compared, including those that bounds ruled out; not those that a student never proposed."""
    complete: bool
    """Every pair was compared."""
    recall: float | None = None
    """The share of the true pairs that an approximate search finds, measured on a sample; None: it was exact."""

    def __len__(self) -> int:
        return len(self.score)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        rows = zip(self.score, self.left, self.right, strict=True)
        return ({"score": score, "left": left, "right": right} for score, left, right in rows)

    def summary(self) -> str:
        """A description in one line."""
        parts = [counted(len(self), "pair"), f"{self.compared:,} compared"]
        if self.complete:
            parts.append("complete")
        else:
            recall = "unknown" if self.recall is None else f"about {self.recall:.1%} (measured on a sample)"
            parts.append(f"not complete, recall {recall}")
        return ", ".join(parts)

    def to_pandas(self) -> pandas.DataFrame:
        """A table with the columns score, left and right."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas") from error
        return pandas.DataFrame(self._columns(), copy=False)

    def to_arrow(self) -> pyarrow.Table:
        """A table with the columns score, left and right."""
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtra("to_arrow", "pyarrow", "parquet") from error
        return pyarrow.table(self._columns())

    def _columns(self) -> dict[str, NDArray[Any]]:
        return {name: np.asarray(getattr(self, name)) for name in ("score", "left", "right")}


class Walk:
    """Goes over all pairs block by block, and counts them for the progress line."""

    def __init__(self, scan: Scan, request: PairRequest) -> None:
        self._comparison, self._threads = scan.comparison, request.threads
        self._scanner: Scanner = scan.scanner
        self.lefts, self.rights = len(scan.comparison.left), len(scan.comparison.right)
        dim = max(1, scan.comparison.left.rows.shape[1])
        self.block_rows = max(_LEAST, min(self._scanner.block_rows, request.memory // (8 * dim)))
        self._progress = Progress(self.total, "pairs", shown=request.progress)

    @property
    def total(self) -> int:
        """The number of pairs."""
        return self.pairs_of(0, self.lefts)

    def pairs_of(self, begin: int, end: int) -> int:
        """Pairs whose left row is in `begin` .. `end`."""
        if not self._comparison.same:
            return (end - begin) * self.rights
        return (end - begin) * (2 * self.lefts - begin - end - 1) // 2

    def block(self, begin: int, end: int, collector: Collector) -> None:
        """Give all pairs whose left row is in `begin` .. `end` to the collector."""
        first = begin if self._comparison.same else 0
        if self._settled(collector, begin, first):
            return
        packed = self._scanner.block(begin, end)

        def work(start: int) -> None:
            if self._settled(collector, begin, start):
                return
            stop = min(start + _RIGHT, self.rights)
            self._scanner.pairs(packed, start, stop, collector.floor, collector.add)

        in_threads(work, range(first, self.rights, _RIGHT), self._threads)

    def done(self, begin: int, end: int) -> None:
        """Count the block as finished."""
        self._progress.add(self.pairs_of(begin, end))

    def close(self) -> None:
        """End the progress line."""
        self._progress.close()

    def _settled(self, collector: Collector, left: int, right: int) -> bool:
        """Whether no pair from this one on can enter: the k best have the highest possible score and precede it.

        Without this, many equal rows would be many equal pairs, each scored in vain.
        """
        if not isinstance(collector, Best) or collector.floor() < self._comparison.metric.highest:
            return False
        return 0 <= collector.last_number() < left * self.rights + right


class Collector(Protocol):
    """Takes pairs from several threads."""

    def floor(self) -> float:
        """The lowest score that it takes."""

    def add(self, pairs: ScanResult) -> None: ...


class _Collected:
    """What collectors share: parts of the result, from several threads."""

    def __init__(self, floor: float) -> None:
        self._floor = float(np.float32(floor))
        self._parts: list[ScanResult] = []
        self._count = 0
        self._lock = threading.Lock()

    def floor(self) -> float:
        return self._floor


class Best(_Collected):
    """The best `k` pairs so far. The k-th score is the floor for those that follow, so most pairs are never scored."""

    def __init__(self, k: int, floor: float, width: int, *, kept: ScanResult | None = None) -> None:
        """`width`: rows of the right set. `kept`: the pairs of an earlier run."""
        super().__init__(floor)
        self._k, self._width = k, width
        if kept is not None:
            self.add(kept)

    def add(self, pairs: ScanResult) -> None:
        with self._lock:
            self._parts.append(pairs)
            self._count += len(pairs)
            # Late in a run pairs come one by one: picking the best again and again would cost more than it saves.
            spare = self._count - self._k
            if spare >= (max(self._k, _SPARE) if np.isfinite(self._floor) else 0):
                self._pick()

    def result(self) -> ScanResult:
        """At most k pairs, best first."""
        with self._lock:
            self._pick()
            return in_order(self._parts[0], self._width)

    def last_number(self) -> int:
        """The highest of the k `pair_numbers`; -1 while there are fewer."""
        with self._lock:
            self._pick()
            pairs = self._parts[0]
            return int(pair_numbers(pairs, self._width).max()) if len(pairs) == self._k else -1

    def _pick(self) -> None:
        pairs = joined(self._parts)
        if len(pairs) >= self._k:
            pairs = _best(pairs, self._k, self._width)
            self._floor = max(self._floor, float(pairs.score.min()))
        self._parts, self._count = [pairs], len(pairs)


class Every(_Collected):
    """All pairs that reach the floor; `full` is called if they are more than `most`."""

    def __init__(self, floor: float, most: int, full: Callable[[], None]) -> None:
        super().__init__(floor)
        self._most, self._full = most, full

    def add(self, pairs: ScanResult) -> None:
        with self._lock:
            self._parts.append(pairs)
            self._count += len(pairs)
            if self._count > self._most:
                self._full()

    def result(self) -> ScanResult:
        """In no order."""
        with self._lock:
            return joined(self._parts)


def pair_numbers(pairs: ScanResult, width: int) -> NDArray[np.int64]:
    """One number per pair that sorts as (left, right) does."""
    return pairs.left.astype(np.int64) * width + pairs.right


def in_order(pairs: ScanResult, width: int) -> ScanResult:
    """Sorted best first; ties by position."""
    return _taken(pairs, np.lexsort((pair_numbers(pairs, width), -pairs.score)))


def by_position(pairs: ScanResult, width: int) -> ScanResult:
    """Sorted by left, then right position."""
    return _taken(pairs, np.argsort(pair_numbers(pairs, width)))


def joined(parts: list[ScanResult]) -> ScanResult:
    """All parts as one."""
    if len(parts) == 1:
        return parts[0]
    return ScanResult(
        np.concatenate([part.score for part in parts] or [np.empty(0, np.float32)]),
        np.concatenate([part.left for part in parts] or [np.empty(0, np.int32)]),
        np.concatenate([part.right for part in parts] or [np.empty(0, np.int32)]),
    )


def _taken(pairs: ScanResult, which: NDArray[np.int64]) -> ScanResult:
    return ScanResult(pairs.score[which], pairs.left[which], pairs.right[which])


def _best(pairs: ScanResult, k: int, width: int) -> ScanResult:
    """The `k` highest scores in any order; of those equal to the lowest, the first by position."""
    last: Vectors = np.partition(pairs.score, -k)[-k]
    above, tied = np.flatnonzero(pairs.score > last), np.flatnonzero(pairs.score == last)
    room = k - len(above)
    order = np.argpartition(pair_numbers(_taken(pairs, tied), width), room - 1)[:room]
    return _taken(pairs, np.concatenate([above, tied[order]]))
