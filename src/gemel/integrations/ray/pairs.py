"""Similar pairs and exact search on a Ray cluster, with the same results as `similar_pairs` and `search`.

The matrix of all pairs (of one set, its upper triangle) is divided into tiles, which are the tasks. Pairs of finished
tiles are collected in memory, or on disk until all tiles of a stripe of left rows are finished. For search, groups of
queries are the tasks.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import WorkError
from gemel.files.atomic import atomic_file
from gemel.integrations.ray.cluster import RayCluster
from gemel.terminal import Progress
from gemel.types import Vectors
from gemel.vectors.pair_scan import (
    Best,
    Collector,
    Every,
    PairRequest,
    Pairs,
    by_position,
    in_order,
    joined,
    too_many,
)
from gemel.vectors.pairs import PairFolder, as_pairs, similar_pairs
from gemel.vectors.scan.compare import ScanResult, in_threads
from gemel.vectors.scan.scanner import Scan, scan
from gemel.vectors.search import Hits, search
from gemel.vectors.similarity import METRICS, check_same_dim, shaped


def pairs_on_ray(  # noqa: PLR0913 - one question, and how to work on it
    cluster: RayCluster,
    vectors: ArrayLike,
    *,
    k: int | None = None,
    min_score: float | None = None,
    other: ArrayLike | None = None,
    metric: str = "cosine",
    memory: int | str = "1GB",
    threads: int | None = None,
    out: str | Path | None = None,
    prune: bool = True,
    progress: bool = False,
) -> Pairs:
    """`similar_pairs` on the cluster, with the same arguments.

    memory: of this process; each machine also has one copy of the arrays. threads: of a worker; None: those of the
    cluster. out: finished tiles are stored in the folder, so that a stopped run is resumed by the same call.
    """
    request = PairRequest.of(
        vectors,
        other,
        k=k,
        min_score=min_score,
        metric=metric,
        memory=memory,
        threads=threads or cluster.threads,
        prune=prune,
        progress=progress,
        out=out,
    )
    left, right = request.left, request.right
    check_same_dim(left, left if right is None else right, "vectors", "other")
    if request.total == 0:
        return similar_pairs(left, k=k, min_score=min_score, other=right, metric=metric, out=out)
    if request.out is None:
        return _compare(cluster, request, None)
    with PairFolder(request.out, request.plan) as folder:
        return folder.result() if folder.finished else _compare(cluster, request, folder)


def _compare(cluster: RayCluster, request: PairRequest, folder: PairFolder | None) -> Pairs:
    left, right, total = request.left, request.right, request.total
    width, same = len(left if right is None else right), right is None
    side = tile_side(max(len(left), width), request.most_pairs if request.k is None else None)
    begin = 0 if folder is None else folder.next_row
    tiles = stripes(len(left), width, side, same=same, begin=begin)
    collected: InMemory | InFolder = InMemory(request, width)
    if folder is not None and request.out is not None:
        collected = InFolder(request, width, folder, TileStore(request.out), tiles)
    settings = {"metric": request.metric, "int8": request.prune, "threads": request.threads}
    pool = cluster.pool(TileWorker, cluster.put(left), cluster.put(right), settings, key=object())
    line = Progress(total, "pairs", shown=request.progress)
    line.add(total - sum(tile.pairs(same=same) for stripe in tiles for tile in stripe))

    def calls() -> Iterator[tuple[Any, ...]]:
        for tile in (tile for stripe in tiles for tile in stripe):
            if collected.load(tile):
                line.add(tile.pairs(same=same))
            else:
                yield tile, request.k, collected.floor()  # which rises while the job runs

    for (tile, *_), result in pool.as_done(calls()):
        collected.add(tile, result)
        line.add(tile.pairs(same=same))
    line.close()
    cluster.end_pool()
    return collected.pairs(total)


_LEAST, _USUAL = 512, 8192  # rows of a tile's side: 8192 x 8192 pairs take about a second on one core

_FEW, _MANY = 16, 128  # stripes: enough tiles for all workers, not too many to track

_RIGHT = 2048  # right rows per step


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
        """The number of pairs; of one set those with left < right."""
        all_pairs = (self.bottom - self.top) * (self.last - self.first)
        if not same or self.bottom <= self.first:
            return all_pairs
        # Tiles of the triangle start at the diagonal or are above it.
        return sum(self.last - max(self.first, left + 1) for left in range(self.top, self.bottom))


def tile_side(rows: int, most_pairs: int | None) -> int:
    """Rows of a tile's side. `most_pairs`: the limit for the pairs of a tile."""
    side = max(_LEAST, min(_USUAL, -(-rows // _FEW)), -(-rows // _MANY))
    return side if most_pairs is None else max(1, min(side, math.isqrt(most_pairs)))


def stripes(lefts: int, rights: int, side: int, *, same: bool, begin: int = 0) -> list[list[Tile]]:
    """Tiles from left row `begin` on, one list per range of left rows."""
    tiles = []
    for top in range(begin, lefts, side):
        bottom = min(top + side, lefts)
        columns = range(top if same else 0, rights, side)
        tiles.append([Tile(top, bottom, first, min(first + side, rights)) for first in columns])
    return tiles


class TileWorker:
    """A worker with the vectors, which compares the rows of tiles."""

    def __init__(self, left: Vectors, right: Vectors | None, settings: dict[str, Any]) -> None:
        """`settings`: metric, int8 and threads of a scan. All workers of a node share the arrays."""
        self._left, self._right, self._settings = left, right, settings

    def ready(self) -> None:
        self._scan = scan(self._left, self._right, names=("vectors", "other"), **self._settings)

    def work(self, tile: Tile, k: int | None, floor: float) -> ScanResult:
        """The pairs of the tile with a score of at least `floor`, or the best `k` of them, by position."""
        width = len(self._scan.comparison.right)
        collector: Best | Every = (
            Every(floor, np.iinfo(np.int64).max, _never) if k is None else Best(k, floor, width)
        )
        scan_tile(self._scan, tile, collector, self._settings["threads"])
        return by_position(collector.result(), width)


def scan_tile(ready: Scan, tile: Tile, collector: Collector, threads: int) -> None:
    """Pass all pairs of the tile to the collector."""
    scanner, same = ready.scanner, ready.comparison.same
    for begin in range(tile.top, tile.bottom, scanner.block_rows):
        end = min(begin + scanner.block_rows, tile.bottom)
        first = max(tile.first, begin) if same else tile.first
        packed = scanner.block(begin, end)

        def work(start: int, packed: Any = packed) -> None:  # noqa: ANN401 - each scanner's own
            scanner.pairs(packed, start, min(start + _RIGHT, tile.last), collector.floor, collector.add)

        in_threads(work, range(first, tile.last, _RIGHT), threads)


def _never() -> None:
    raise WorkError("a scan returned more pairs than the tile has")


_FOLDER = "tiles"

_PAIR = np.dtype([("score", "<f4"), ("left", "<i4"), ("right", "<i4")])


class TileStore:
    """Finished tiles on disk, one file each, with pairs ordered by position. Files are written atomically."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._folder.mkdir(exist_ok=True)

    def save(self, tile: Tile, result: ScanResult) -> None:
        """Write the pairs of a tile."""
        rows = np.empty(len(result), dtype=_PAIR)
        rows["score"], rows["left"], rows["right"] = result.score, result.left, result.right
        path = self._folder / tile.name
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            np.save(file, rows)

    def has(self, tile: Tile) -> bool:
        return (self._folder / tile.name).exists()

    def count(self, tile: Tile, top: int, bottom: int) -> int:
        """The number of its pairs with left rows `top` .. `bottom`."""
        return len(self._rows(tile, top, bottom))

    def load(self, tile: Tile, top: int, bottom: int) -> ScanResult:
        """The pairs of these left rows."""
        rows = self._rows(tile, top, bottom)
        return ScanResult(rows["score"].copy(), rows["left"].copy(), rows["right"].copy())

    def _rows(self, tile: Tile, top: int, bottom: int) -> NDArray[Any]:
        """A memory map, closed with the array: a stripe may have more tiles than a process may open files."""
        rows: NDArray[Any] = np.load(self._folder / tile.name, mmap_mode="r")
        left = rows["left"]  # ascending; np.searchsorted would copy the array, bisect reads about 25 numbers
        return rows[bisect_left(left, top) : bisect_left(left, bottom)]

    def drop(self, tiles: list[Tile]) -> None:
        """Delete tiles whose pairs are now in the folder."""
        for tile in tiles:
            (self._folder / tile.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Delete all files, including those of runs with other tiles."""
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()


class InMemory:
    """The pairs of finished tiles, which are added in any order, in memory; the result is ordered by score."""

    def __init__(self, request: PairRequest, width: int) -> None:
        def full() -> None:
            raise too_many(request)

        self._width = width
        self._into: Best | Every = (
            Every(request.floor, request.most_pairs, full)
            if request.k is None
            else Best(request.k, request.floor, width)
        )

    def floor(self) -> float:
        """The lowest score that is needed; it may rise."""
        return self._into.floor()

    def load(self, tile: Tile) -> bool:
        """Add the pairs of a tile that an earlier run finished; False if there is none."""
        return False

    def add(self, tile: Tile, result: ScanResult) -> None:
        self._into.add(result)

    def pairs(self, compared: int) -> Pairs:
        """The result, after all tiles."""
        return as_pairs(in_order(self._into.result(), self._width), compared)


class InFolder:
    """Tiles are stored on disk until all of their stripe are finished; then the stripe is added to the folder.

    The folder has the same bytes as one written on one machine, and each can resume the other's.
    """

    def __init__(
        self,
        request: PairRequest,
        width: int,
        folder: PairFolder,
        store: TileStore,
        stripes: list[list[Tile]],
    ) -> None:
        self._request, self._width = request, width
        self._folder, self._store = folder, store
        self._best = None if request.k is None else Best(request.k, request.floor, width, kept=folder.kept())
        self._stripes = stripes
        self._missing = [set(tiles) for tiles in stripes]
        self._stripe = {tile: number for number, tiles in enumerate(stripes) for tile in tiles}
        self._closed = 0

    def floor(self) -> float:
        return float(np.float32(self._request.floor)) if self._best is None else self._best.floor()

    def load(self, tile: Tile) -> bool:
        if not self._store.has(tile):
            return False
        if self._best is not None:
            self._best.add(self._store.load(tile, tile.top, tile.bottom))
        self._count(tile)
        return True

    def add(self, tile: Tile, result: ScanResult) -> None:
        self._store.save(tile, result)  # before the floor rises: a resumed run must have the same floor
        if self._best is not None:
            self._best.add(result)
        self._count(tile)

    def pairs(self, compared: int) -> Pairs:
        if self._best is not None:
            lefts = self._stripes[-1][0].bottom if self._stripes else self._folder.next_row
            self._folder.append(self._best.result(), lefts)
        self._store.close()
        self._folder.finish(compared)
        return self._folder.result()

    def _count(self, tile: Tile) -> None:
        self._missing[self._stripe[tile]].discard(tile)
        while self._closed < len(self._stripes) and not self._missing[self._closed]:
            self._close(self._stripes[self._closed])
            self._closed += 1

    def _close(self, tiles: list[Tile]) -> None:
        top, bottom = tiles[0].top, tiles[0].bottom
        if self._best is None:
            self._append(tiles, top, bottom)
        elif bottom < self._stripes[-1][0].bottom:  # not for the last stripe
            best = self._best.result()
            before = best.left < bottom  # a resumed run finds pairs of later rows again
            self._folder.keep(ScanResult(best.score[before], best.left[before], best.right[before]), bottom)
        self._store.drop(tiles)

    def _append(self, tiles: list[Tile], top: int, bottom: int) -> None:
        """Ordered by position, as many rows at a time as can be sorted in memory."""
        pairs = sum(self._store.count(tile, top, bottom) for tile in tiles)
        if bottom - top > 1 and pairs > self._request.most_pairs:
            middle = (top + bottom) // 2
            self._append(tiles, top, middle)
            self._append(tiles, middle, bottom)
            return
        parts = [self._store.load(tile, top, bottom) for tile in tiles]
        self._folder.append(by_position(joined(parts), self._width), bottom)


_FEWEST_QUERIES, _MOST_QUERIES = 64, 4608  # per task

_GROUPS = 8  # tasks per worker, so that all end at about the same time


class SearchWorker:
    """A worker with the corpus, which searches groups of queries."""

    def __init__(self, corpus: Vectors, settings: dict[str, Any]) -> None:
        """`settings`: further arguments of `search`."""
        self._corpus, self._settings = corpus, settings

    def ready(self) -> None:
        pass

    def work(self, queries: Vectors, k: int) -> Hits:
        return search(queries, self._corpus, k, **self._settings)


def search_on_ray(
    cluster: RayCluster,
    queries: ArrayLike,
    corpus: ArrayLike,
    k: int = 10,
    metric: str = "cosine",
    *,
    threads: int | None = None,
    progress: bool = False,
) -> Hits:
    """`search` on the cluster: the same hits, scores and order. Few queries are searched in this process."""
    METRICS[metric]
    rows, documents = shaped(queries, "queries"), shaped(corpus, "corpus")
    check_same_dim(rows, documents, "queries", "corpus rows")
    group = max(_FEWEST_QUERIES, min(_MOST_QUERIES, len(rows) // (_GROUPS * cluster.workers)))
    if len(rows) <= group or not len(documents):
        return search(rows, documents, k, metric, progress=progress)
    settings = {"metric": metric, "threads": threads or cluster.threads}
    pool = cluster.pool(SearchWorker, cluster.put(documents), settings, key=object())
    line = Progress(len(rows), "queries", shown=progress)
    parts = []
    calls = ((rows[begin : begin + group], k) for begin in range(0, len(rows), group))
    for hits in pool.in_order(calls):
        parts.append(hits)
        line.add(len(hits))
    line.close()
    cluster.end_pool()
    return Hits(
        np.concatenate([part.index for part in parts]), np.concatenate([part.score for part in parts])
    )
