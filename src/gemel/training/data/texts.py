"""Texts on disk: one file of UTF-8 bytes, where each text ends, and a hash of each. By number, in any order."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.spool import Spool

Hashes = NDArray[np.uint64]

_TOGETHER = 1024  # texts that are written at a time


@dataclass(frozen=True, eq=False)
class Texts:
    """Any number of texts, by number."""

    content: NDArray[np.uint8]
    ends: NDArray[np.int64]
    """(n + 1,) where each text ends in `content`, after a 0."""
    hashes: Hashes
    """(n,) equal for equal texts; different for different ones but for one chance in 2^64 a pair."""
    digest: bytes

    def __len__(self) -> int:
        return len(self.hashes)

    def pick(self, numbers: Iterable[int] | NDArray[np.int64]) -> list[str]:
        """The texts of these numbers, in this order."""
        places = np.asarray(numbers, dtype=np.int64)
        starts, ends = self.ends[places].tolist(), self.ends[places + 1].tolist()
        content = self.content.data
        return [str(content[a:b], "utf-8") for a, b in zip(starts, ends, strict=True)]


class TextWriter:
    """Takes texts and gives them back as `Texts`."""

    def __init__(self) -> None:
        self._content, self._ends, self._hashes = Spool("B"), Spool("q"), Spool("Q")
        self._waiting: list[bytes] = []
        self._size = 0
        self._ends.append(0)

    def add(self, raw_texts: Sequence[bytes]) -> None:
        """Texts in UTF-8."""
        self._waiting += raw_texts
        if len(self._waiting) >= _TOGETHER:
            self._write()

    def done(self) -> Texts:
        self._write()
        content, ends, hashes = self._content.done(), self._ends.done(), self._hashes.done()
        return Texts(content, ends, hashes, self._content.digest() + self._ends.digest())

    def _write(self) -> None:
        sizes = np.array([len(raw) for raw in self._waiting], dtype=np.int64)
        self._content.extend(b"".join(self._waiting))
        self._ends.extend((self._size + np.cumsum(sizes)).tobytes())
        self._hashes.extend(b"".join([blake2b(raw, digest_size=8).digest() for raw in self._waiting]))
        self._size += int(sizes.sum())
        self._waiting = []


def text_hash(text: str) -> int:
    """The number that `Texts.hashes` has for this text."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), sys.byteorder)
