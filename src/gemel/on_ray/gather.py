"""Where the pairs of tiles come together, in whatever order tiles end: in memory, or stripe by stripe in a folder."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from gemel.on_ray.tile_store import TileStore
from gemel.on_ray.tiles import Tile
from gemel.pairs.collect import Best, Every, by_position, in_order, joined
from gemel.pairs.exact import as_pairs
from gemel.pairs.folder import PairFolder
from gemel.pairs.request import Request, too_many
from gemel.pairs.result import Pairs
from gemel.scan.found import Found


class Gather(Protocol):
    def floor(self) -> float:
        """Pairs below it are not wanted; it may rise."""

    def there(self, tile: Tile) -> bool:
        """An earlier run finished it; its pairs count now."""

    def take(self, tile: Tile, found: Found) -> None: ...

    def pairs(self, compared: int) -> Pairs:
        """All tiles were taken."""


class InMemory:
    """Best first."""

    def __init__(self, request: Request, width: int) -> None:
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

    def take(self, tile: Tile, found: Found) -> None:
        self._into.add(found)

    def pairs(self, compared: int) -> Pairs:
        return as_pairs(in_order(self._into.found(), self._width), compared)


class InFolder:
    """Tiles are kept on disk until all of their stripe are there; then the folder takes the stripe, in order.

    The folder ends as the same bytes as that of one machine, and either can go on with the other's.
    """

    def __init__(
        self, request: Request, width: int, folder: PairFolder, store: TileStore, stripes: list[list[Tile]]
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

    def take(self, tile: Tile, found: Found) -> None:
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
            self._folder.keep(Found(best.score[before], best.left[before], best.right[before]), bottom)
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
