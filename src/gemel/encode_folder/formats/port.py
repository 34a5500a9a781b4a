"""What every format answers: what a block adds to which file, how a file is finished, how it is read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from gemel.registry import Table
from gemel.types import AnyVectors


@dataclass(frozen=True)
class Block:
    """Rows that are written and recorded together; they never cross the border of a shard."""

    ids: Sequence[str]
    texts: Sequence[str] | None
    """None: texts are not kept."""
    vectors: AnyVectors
    shard: int


@dataclass(frozen=True)
class Shape:
    """Of the vectors in one file."""

    rows: int
    dim: int
    dtype: str


class Format(Protocol):
    """One way to lay out rows. Growing files go by the name they will have in the end."""

    @property
    def sharded(self) -> bool:
        """Whether rows are spread over files of a fixed number of rows."""
        ...

    def check(self) -> None:
        """Raise when a package that the format needs is missing, before any work."""
        ...

    def gains(self, block: Block) -> dict[str, bytes]:
        """What each growing file gains with the block."""
        ...

    def header_bytes(self, name: str) -> int:
        """Bytes to leave free at the start of a growing file."""
        ...

    def seal(self, folder: Path, shard: int, shape: Shape, sizes: dict[str, int]) -> str:
        """Make the shard's file out of the growing ones and take those out of `sizes`; the file's name.

        Doing it twice gives the same bytes.
        """
        ...

    def reopen(self, folder: Path, file: str, shape: Shape) -> dict[str, int]:
        """The growing files that `seal` made the file of, and their sizes; those that are gone are made anew."""
        ...

    def vectors(self, path: Path, shape: Shape) -> AnyVectors:
        """The vectors of a finished file, memory-mapped where the format allows it."""
        ...

    def column(self, folder: Path, files: Sequence[str], name: str) -> list[str]:
        """All values of "id" or "text", in order of the rows."""
        ...


FORMATS: Table[Format] = Table("format")
