"""The input of a job: rows in blocks, and the hash that tells whether it is still the same input."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path

from gemel.encode_folder.storage import START_AGAIN
from gemel.errors import InputError
from gemel.text.rows import Row

# A block ends here too, so that long documents neither fill memory nor delay a checkpoint.
BLOCK_CHARS = 2_000_000


def take(rows: Iterator[Row], limit: int) -> list[Row]:
    """The next `limit` rows; fewer when they are long or the input ends, none when it has ended."""
    block: list[Row] = []
    chars = 0
    while len(block) < limit and chars < BLOCK_CHARS and (row := next(rows, None)) is not None:
        block.append(row)
        chars += len(row.text)
    return block


class Source:
    """The input, with the hash of all that was taken from it."""

    def __init__(self, rows: Iterator[Row]) -> None:
        self._rows = rows
        self.taken = 0
        self.hash = InputHash()

    def take(self, limit: int) -> list[Row]:
        """The next block, counted and hashed."""
        block = take(self._rows, limit)
        for row in block:
            self.hash.add(row)
        self.taken += len(block)
        return block

    def skip(self, rows: int, sha256: str, folder: Path) -> None:
        """Pass over the rows that are done, and make sure that they are the rows that were done."""
        for row in islice(self._rows, rows):
            self.hash.add(row)
            self.taken += 1
        if self.taken < rows or self.hash.hexdigest() != sha256:
            raise InputError(changed(folder, rows))

    def ended(self) -> bool:
        """Whether no row is left to take."""
        ahead = list(islice(self._rows, 1))
        self._rows = chain(ahead, self._rows)
        return not ahead


def changed(folder: Path, rows: int) -> str:
    """The message for an input that is not the one the folder was made from."""
    return (
        f"the input has changed since {folder} was begun: it does not hold the {rows:,} rows encoded there. "
        f"Give the same input. {START_AGAIN}"
    )


class InputHash:
    """sha256 over id and text of every row, each as a netstring (`length:bytes,`)."""

    def __init__(self) -> None:
        self._digest = hashlib.sha256()

    def add(self, row: Row) -> None:
        for value in (row.id, row.text):
            data = value.encode("utf-8", "surrogatepass")
            self._digest.update(b"%d:%b," % (len(data), data))

    def hexdigest(self) -> str:
        return self._digest.hexdigest()
