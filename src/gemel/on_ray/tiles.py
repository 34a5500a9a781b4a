"""The triangle of all pairs (or the rectangle of two sets) cut into tiles, and what a worker does with one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from gemel.errors import WorkError
from gemel.pairs.collect import Best, Collector, Every, by_position
from gemel.scan.found import Found
from gemel.scan.scanner import Scan, scan
from gemel.scan.workers import in_threads
from gemel.types import Vectors

_LEAST, _USUAL = 512, 8192  # rows of a tile's side: 8192 x 8192 pairs are about a second of a core
_FEW, _MANY = 16, 128  # stripes: enough to share out, not too many to keep account of
_RIGHT = 2048  # right rows a step


@dataclass(frozen=True, order=True)
class Tile:
    """Left rows `top` .. `bottom` against right rows `first` .. `last`."""

    top: int
    bottom: int
    first: int
    last: int

    @property
    def name(self) -> str:
        return f"tile-{self.top}-{self.bottom}-{self.first}-{self.last}.npy"

    def pairs(self, *, same: bool) -> int:
        """How many it holds; of one set those with left < right."""
        whole = (self.bottom - self.top) * (self.last - self.first)
        if not same or self.bottom <= self.first:
            return whole
        # Tiles of a triangle begin at the diagonal or lie beyond it.
        return sum(self.last - max(self.first, left + 1) for left in range(self.top, self.bottom))


def side_of(rows: int, most_pairs: int | None) -> int:
    """Rows of a tile's side. `most_pairs`: all pairs of a tile must fit."""
    side = max(_LEAST, min(_USUAL, -(-rows // _FEW)), -(-rows // _MANY))
    return side if most_pairs is None else max(1, min(side, math.isqrt(most_pairs)))


def stripes(lefts: int, rights: int, side: int, *, same: bool, begin: int = 0) -> list[list[Tile]]:
    """Tiles from left row `begin` on, one list for each range of left rows."""
    found = []
    for top in range(begin, lefts, side):
        bottom = min(top + side, lefts)
        columns = range(top if same else 0, rights, side)
        found.append([Tile(top, bottom, first, min(first + side, rights)) for first in columns])
    return found


class TileWorker:
    """Holds the vectors, compares tiles."""

    def __init__(self, left: Vectors, right: Vectors | None, how: dict[str, Any]) -> None:
        """`how`: metric, int8 and threads of a scan. The arrays are the node's one copy."""
        self._left, self._right, self._how = left, right, how

    def ready(self) -> None:
        self._scan = scan(self._left, self._right, names=("vectors", "other"), **self._how)

    def work(self, tile: Tile, k: int | None, floor: float) -> Found:
        """The pairs of the tile that reach the floor, or the best `k` of them, by position."""
        width = len(self._scan.comparison.right)
        collector: Best | Every = (
            Every(floor, np.iinfo(np.int64).max, _never) if k is None else Best(k, floor, width)
        )
        scan_tile(self._scan, tile, collector, self._how["threads"])
        return by_position(collector.found(), width)


def scan_tile(ready: Scan, tile: Tile, collector: Collector, threads: int) -> None:
    """Offers all pairs of the tile to the collector."""
    scanner, same = ready.scanner, ready.comparison.same
    for begin in range(tile.top, tile.bottom, scanner.block_rows):
        end = min(begin + scanner.block_rows, tile.bottom)
        first = max(tile.first, begin) if same else tile.first
        packed = scanner.block(begin, end)

        def work(start: int, packed: Any = packed) -> None:  # noqa: ANN401 - each scanner's own
            scanner.pairs(packed, start, min(start + _RIGHT, tile.last), collector.floor, collector.add)

        in_threads(work, range(first, tile.last, _RIGHT), threads)


def _never() -> None:
    raise WorkError("a tile found more pairs than it has")
