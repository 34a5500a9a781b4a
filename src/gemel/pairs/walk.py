"""The walk over all pairs: blocks of left rows, and right rows that stream past them on all threads."""

from __future__ import annotations

from gemel.pairs.collect import Best, Collector
from gemel.pairs.request import Request
from gemel.progress import Progress
from gemel.scan.found import Scanner
from gemel.scan.scanner import Scan
from gemel.scan.workers import in_threads

_RIGHT = 2048  # right rows a task: some ten milliseconds
_LEAST = 16  # left rows a block, however little memory there is


class Walk:
    """Knows the size of a block and counts what is done."""

    def __init__(self, scan: Scan, request: Request) -> None:
        self._comparison, self._threads = scan.comparison, request.threads
        self._scanner: Scanner = scan.scanner
        self.lefts, self.rights = len(scan.comparison.left), len(scan.comparison.right)
        dim = max(1, scan.comparison.left.rows.shape[1])
        self.block_rows = max(_LEAST, min(self._scanner.block_rows, request.memory // (8 * dim)))
        self._progress = Progress(self.total, "pairs", shown=request.progress)

    @property
    def total(self) -> int:
        """Pairs there are."""
        return self.pairs_of(0, self.lefts)

    def pairs_of(self, begin: int, end: int) -> int:
        """Pairs whose left row is in `begin` .. `end`."""
        if not self._comparison.same:
            return (end - begin) * self.rights
        return (end - begin) * (2 * self.lefts - begin - end - 1) // 2

    def block(self, begin: int, end: int, collector: Collector) -> None:
        """All pairs whose left row is in `begin` .. `end` are offered to the collector."""
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
        """The block counts as finished."""
        self._progress.add(self.pairs_of(begin, end))

    def close(self) -> None:
        """No more will come."""
        self._progress.close()

    def _settled(self, collector: Collector, left: int, right: int) -> bool:
        """Nothing from this pair on can enter: the k kept ones have the highest score there is, and come before it.

        Many equal rows would else be many equal pairs, each looked at for nothing.
        """
        if not isinstance(collector, Best) or collector.floor() < self._comparison.ceiling:
            return False
        return 0 <= collector.last_place() < left * self.rights + right
