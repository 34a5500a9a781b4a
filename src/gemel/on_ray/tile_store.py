"""Finished tiles on disk, beside the folder's own files, until their stripe is done."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

from gemel.on_ray.tiles import Tile
from gemel.scan.found import Found

_FOLDER, _FRESH = "tiles", ".new"
_PAIR = np.dtype([("score", "<f4"), ("left", "<i4"), ("right", "<i4")])


class TileStore:
    """Tiles by name; a file with a tile's name is whole."""

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

    def load(self, tile: Tile) -> Found | None:
        """None: it is not there."""
        path = self._folder / tile.name
        if not path.exists():
            return None
        rows = np.load(path)
        return Found(rows["score"].copy(), rows["left"].copy(), rows["right"].copy())

    def drop(self, tiles: list[Tile]) -> None:
        """Their pairs are kept elsewhere now."""
        for tile in tiles:
            (self._folder / tile.name).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing of it stays, not even what runs with other tiles left."""
        for path in self._folder.iterdir():
            path.unlink()
        self._folder.rmdir()
