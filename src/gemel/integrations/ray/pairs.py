"""Similar pairs on a cluster: tiles as tasks; the same pairs, scores and order as `similar_pairs` gives.

The triangle of all pairs (or the rectangle of two sets) cut into tiles, and what a worker does with one.

Finished tiles on disk, beside the folder's own files, until their stripe is done.

Where the pairs of tiles come together, in whatever order tiles end: in memory, or stripe by stripe in a folder.

Exact search on a cluster: groups of queries as tasks, the corpus once on every machine.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import WorkError
from gemel.files.atomic import atomic_file
from gemel.integrations.ray.cluster import RayCluster
from gemel.terminal import Progress
from gemel.types import Vectors
from gemel.vectors.pair_folder import PairFolder, content_hash
from gemel.vectors.pair_scan import (
    Best,
    Collector,
    Every,
    PairRequest,
    Pairs,
    by_position,
    checked_limits,
    checked_memory,
    in_order,
    joined,
    too_many,
)
from gemel.vectors.pairs import as_pairs, similar_pairs
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
    """`similar_pairs` on the cluster; see there.

    memory: of this process; the arrays are once in the memory of each machine besides. threads: of a worker; None: as
    many as the cluster was opened with. out: finished tiles are kept in the folder, so that a run that was stopped
    goes on when asked again.
    """
    checked_limits(k, min_score)
    METRICS[metric]
    left = shaped(vectors, "vectors")
    right = None if other is None else shaped(other, "other")
    check_same_dim(left, left if right is None else right, "vectors", "other")
    total = _total(left, right)
    if total == 0:
        return similar_pairs(left, k=k, min_score=min_score, other=right, metric=metric, out=out)
    asked = None if k is None else min(int(k), total)
    request = PairRequest(
        k=asked,
        min_score=None if min_score is None else float(min_score),
        metric=metric,
        memory=checked_memory(memory, max(len(left), 0 if right is None else len(right)), asked),
        threads=threads or cluster.threads,
        prune=prune,
        progress=progress,
        out=None if out is None else Path(out),
    )
    return _found(cluster, left, right, request, total)


def _total(left: Vectors, right: Vectors | None) -> int:
    return len(left) * (len(left) - 1) // 2 if right is None else len(left) * len(right)


def _found(
    cluster: RayCluster, left: Vectors, right: Vectors | None, request: PairRequest, total: int
) -> Pairs:
    if request.out is None:
        return _compared(cluster, left, right, request, total, None)
    plan = {"metric": request.metric, "k": request.k, "min_score": request.min_score}
    with PairFolder(request.out, {**plan, "vectors": content_hash(left, right)}) as folder:
        if folder.finished:
            return folder.result()
        return _compared(cluster, left, right, request, total, folder)


def _compared(
    cluster: RayCluster,
    left: Vectors,
    right: Vectors | None,
    request: PairRequest,
    total: int,
    folder: PairFolder | None,
) -> Pairs:
    width, same = len(left if right is None else right), right is None
    side = side_of(max(len(left), width), request.most_pairs if request.k is None else None)
    begin = 0 if folder is None else folder.next_row
    tiles = stripes(len(left), width, side, same=same, begin=begin)
    gather: Gather = InMemory(request, width)
    if folder is not None and request.out is not None:
        gather = InFolder(request, width, folder, TileStore(request.out), tiles)
    how = {"metric": request.metric, "int8": request.prune, "threads": request.threads}
    pool = cluster.pool(TileWorker, cluster.put(left), cluster.put(right), how, key=object())
    line = Progress(total, "pairs", shown=request.progress)
    line.add(total - sum(tile.pairs(same=same) for stripe in tiles for tile in stripe))

    def calls() -> Iterator[tuple[Any, ...]]:
        for tile in (tile for stripe in tiles for tile in stripe):
            if gather.there(tile):
                line.add(tile.pairs(same=same))
            else:
                yield tile, request.k, gather.floor()  # the floor of now, not of when the job began

    for (tile, *_), found in pool.as_done(calls()):
        gather.take(tile, found)
        line.add(tile.pairs(same=same))
    line.close()
    cluster.end_pool()
    return gather.pairs(total)


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

    def work(self, tile: Tile, k: int | None, floor: float) -> ScanResult:
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


_FOLDER = "tiles"

_PAIR = np.dtype([("score", "<f4"), ("left", "<i4"), ("right", "<i4")])


class TileStore:
    """Tiles by name; a file with a tile's name is whole, its pairs by position."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._folder.mkdir(exist_ok=True)

    def save(self, tile: Tile, found: ScanResult) -> None:
        """On disk when it returns."""
        rows = np.empty(len(found), dtype=_PAIR)
        rows["score"], rows["left"], rows["right"] = found.score, found.left, found.right
        path = self._folder / tile.name
        with atomic_file(path) as temporary, temporary.open("wb") as file:
            np.save(file, rows)

    def has(self, tile: Tile) -> bool:
        return (self._folder / tile.name).exists()

    def count(self, tile: Tile, top: int, bottom: int) -> int:
        """Pairs of the left rows `top` .. `bottom` in it."""
        return len(self._rows(tile, top, bottom))

    def load(self, tile: Tile, top: int, bottom: int) -> ScanResult:
        """The pairs of those rows, and no others, in memory."""
        rows = self._rows(tile, top, bottom)
        return ScanResult(rows["score"].copy(), rows["left"].copy(), rows["right"].copy())

    def _rows(self, tile: Tile, top: int, bottom: int) -> NDArray[Any]:
        """A map of the file, gone with the array: a stripe may have more tiles than a process may open files."""
        rows: NDArray[Any] = np.load(self._folder / tile.name, mmap_mode="r")
        left = rows["left"]  # ascending. numpy's search would copy it all, this one looks at some 25 numbers
        return rows[bisect_left(left, top) : bisect_left(left, bottom)]

    def drop(self, tiles: list[Tile]) -> None:
        """Their pairs are kept elsewhere now."""
        for tile in tiles:
            (self._folder / tile.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing of it stays, not even what runs with other tiles left."""
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()


class Gather(Protocol):
    def floor(self) -> float:
        """Pairs below it are not wanted; it may rise."""

    def there(self, tile: Tile) -> bool:
        """An earlier run finished it; its pairs count now."""

    def take(self, tile: Tile, found: ScanResult) -> None: ...

    def pairs(self, compared: int) -> Pairs:
        """All tiles were taken."""


class InMemory:
    """Best first."""

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
        return self._into.floor()

    def there(self, tile: Tile) -> bool:
        return False

    def take(self, tile: Tile, found: ScanResult) -> None:
        self._into.add(found)

    def pairs(self, compared: int) -> Pairs:
        return as_pairs(in_order(self._into.found(), self._width), compared)


class InFolder:
    """Tiles are kept on disk until all of their stripe are there; then the folder takes the stripe, in order.

    The folder ends as the same bytes as that of one machine, and either can go on with the other's.
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

    def there(self, tile: Tile) -> bool:
        if not self._store.has(tile):
            return False
        if self._best is not None:
            self._best.add(self._store.load(tile, tile.top, tile.bottom))
        self._count(tile)
        return True

    def take(self, tile: Tile, found: ScanResult) -> None:
        self._store.save(tile, found)  # before the floor rises by it: a later run has to find the same floor
        if self._best is not None:
            self._best.add(found)
        self._count(tile)

    def pairs(self, compared: int) -> Pairs:
        if self._best is not None:
            lefts = self._stripes[-1][0].bottom if self._stripes else self._folder.next_row
            self._folder.append(self._best.found(), lefts)
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
        elif bottom < self._stripes[-1][0].bottom:  # the last stripe's end is the end
            best = self._best.found()
            before = best.left < bottom  # pairs of later rows are found again by a run that goes on from here
            self._folder.keep(ScanResult(best.score[before], best.left[before], best.right[before]), bottom)
        self._store.drop(tiles)

    def _append(self, tiles: list[Tile], top: int, bottom: int) -> None:
        """By position, as many rows at a time as fit into memory while they are sorted."""
        pairs = sum(self._store.count(tile, top, bottom) for tile in tiles)
        if bottom - top > 1 and pairs > self._request.most_pairs:
            middle = (top + bottom) // 2
            self._append(tiles, top, middle)
            self._append(tiles, middle, bottom)
            return
        parts = [self._store.load(tile, top, bottom) for tile in tiles]
        self._folder.append(by_position(joined(parts), self._width), bottom)


_LEAST_queries, _MOST = 64, 4608  # queries a task

_GROUPS = 8  # tasks a worker, so that all end at about the same time


class SearchWorker:
    """Holds the corpus, answers groups of queries."""

    def __init__(self, corpus: Vectors, how: dict[str, Any]) -> None:
        """`how`: further arguments of `search`."""
        self._corpus, self._how = corpus, how

    def ready(self) -> None:
        pass

    def work(self, queries: Vectors, k: int) -> Hits:
        return search(queries, self._corpus, k, **self._how)


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
    """`search` on the cluster; the same hits, scores and order. Few queries are answered here."""
    METRICS[metric]
    asked, known = shaped(queries, "queries"), shaped(corpus, "corpus")
    check_same_dim(asked, known, "queries", "corpus rows")
    group = max(_LEAST_queries, min(_MOST, len(asked) // (_GROUPS * cluster.workers)))
    if len(asked) <= group or not len(known):
        return search(asked, known, k, metric, progress=progress)
    how = {"metric": metric, "threads": threads or cluster.threads}
    pool = cluster.pool(SearchWorker, cluster.put(known), how, key=object())
    line = Progress(len(asked), "queries", shown=progress)
    parts = []

    def calls() -> Iterator[tuple[Any, ...]]:
        yield from ((asked[at : at + group], k) for at in range(0, len(asked), group))

    for hits in pool.in_order(calls()):
        parts.append(hits)
        line.add(len(hits))
    line.close()
    cluster.end_pool()
    return Hits(
        np.concatenate([part.index for part in parts]), np.concatenate([part.score for part in parts])
    )
