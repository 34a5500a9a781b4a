"""Finished tiles on disk, beside the folder's own files, until their stripe is done."""

from __future__ import annotations

import os
from bisect import bisect_left
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.on_ray.tiles import Tile
from gemel.scan.found import Found

_FOLDER, _FRESH = "tiles", ".new"
_PAIR = np.dtype([("score", "<f4"), ("left", "<i4"), ("right", "<i4")])


class TileStore:
    """Tiles by name; a file with a tile's name is whole, its pairs by position."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder / _FOLDER
        self._folder.mkdir(exist_ok=True)

    def save(self, tile: Tile, found: Found) -> None:
        """On disk when it returns."""
        rows = np.empty(len(found), dtype=_PAIR)
        rows["score"], rows["left"], rows["right"] = found.score, found.left, found.right
        path = self._folder / tile.name
        fresh = path.with_name(path.name + _FRESH)
        with fresh.open("wb") as file:
            np.save(file, rows)
            file.flush()
            os.fsync(file.fileno())
        fresh.replace(path)

    def has(self, tile: Tile) -> bool:
        return (self._folder / tile.name).exists()

    def count(self, tile: Tile, top: int, bottom: int) -> int:
        """Pairs of the left rows `top` .. `bottom` in it."""
        return len(self._rows(tile, top, bottom))

    def load(self, tile: Tile, top: int, bottom: int) -> Found:
        """The pairs of those rows, and no others, in memory."""
        rows = self._rows(tile, top, bottom)
        return Found(rows["score"].copy(), rows["left"].copy(), rows["right"].copy())

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
