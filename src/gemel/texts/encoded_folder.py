"""A finished folder, opened for reading."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np

from gemel.errors import GemelError, InputError
from gemel.texts.formats import FORMATS, Shape
from gemel.texts.journal import JOURNAL, Json, check_file, load_manifest
from gemel.types import AnyVectors


@dataclass(frozen=True, eq=False)
class EncodedFolder:
    """Vectors, ids and what made them. Everything is read when asked for."""

    path: Path
    manifest: Json

    def __len__(self) -> int:
        return int(self.manifest["rows"])

    @property
    def dim(self) -> int:
        """Numbers per row of `vectors`."""
        return int(self.manifest["dim"])

    def blocks(self) -> Iterator[AnyVectors]:
        """The vectors file by file: bounded memory for sharded folders, a memory map for npy."""
        layout = FORMATS[self.manifest["format"]]
        for shard in self.manifest["shards"]:
            shape = Shape(shard["rows"], self.dim, self.manifest["dtype"])
            path = self.path / shard["file"]
            with whole(path):
                block = layout.vectors(path, shape)
                if block.shape != (shape.rows, shape.dim):
                    raise ValueError(f"it holds {block.shape}, the manifest says {(shape.rows, shape.dim)}")
            yield block

    @cached_property
    def vectors(self) -> AnyVectors:
        """(rows, dim). A memory map when all rows are in one npy or safetensors file, else in memory."""
        blocks = list(self.blocks())
        if len(blocks) == 1:
            return blocks[0]
        return np.concatenate([np.zeros((0, self.dim), self.manifest["dtype"]), *blocks])

    @cached_property
    def ids(self) -> list[str]:
        """The id of every row."""
        return self._column("id")

    @cached_property
    def texts(self) -> list[str]:
        """The text of every row; only when they were kept."""
        if not self.manifest["keep_texts"]:
            raise InputError(f"{self.path} holds no texts. Encode again with keep_texts (--keep-texts)")
        return self._column("text")

    def verify(self) -> None:
        """Compare every file with the hash in the manifest."""
        for entry in (*self.manifest["shards"], *self.manifest["files"]):
            check_file(self.path / entry["file"], entry["sha256"])

    def _column(self, name: str) -> list[str]:
        files = [shard["file"] for shard in self.manifest["shards"]]
        with whole(self.path):
            values = FORMATS[self.manifest["format"]].column(self.path, files, name)
            if len(values) != len(self):
                raise ValueError(
                    f"it holds {len(values):,} values of {name!r}, the manifest says {len(self):,}"
                )
        return values


@contextmanager
def whole(path: Path) -> Iterator[None]:
    """What goes wrong in here is that a file is not as it was written."""
    try:
        yield
    except GemelError:
        raise
    except (OSError, ValueError, LookupError, TypeError, ArithmeticError, EOFError, MemoryError) as error:
        said = str(error).partition("\n")[0]
        raise InputError(f"{path} is damaged: {said}. Encode again with overwrite (--overwrite)") from error


def read_folder(path: Path | str) -> EncodedFolder:
    """Open a folder that `encode_to_folder` finished."""
    path = Path(path)
    if not path.is_dir():
        raise InputError(f"no folder at {path}")
    manifest = load_manifest(path)
    if manifest is None or (path / JOURNAL).exists():
        state = (
            "is not finished: run the same gemel encode again"
            if (path / JOURNAL).exists()
            else "has no manifest"
        )
        raise InputError(f"{path} {state}")
    return EncodedFolder(path, manifest)
