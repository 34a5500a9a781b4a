"""Vectors of recent texts, the least recently asked for forgotten first. Bounded by bytes."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from gemel.types import Vectors

OVERHEAD = 400  # bytes of an entry beside the numbers: the key, the dictionary's place, the objects


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """What became of one text."""

    vector: Vectors
    """(dim,)"""
    tokens: int
    kept: int


class VectorCache:
    """Used by one thread only: the one that answers."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes = most_bytes
        self.bytes = 0
        self._known: OrderedDict[bytes, Known] = OrderedDict()

    def __len__(self) -> int:
        return len(self._known)

    def get(self, key: bytes) -> Known | None:
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
        return known

    def put(self, key: bytes, known: Known) -> None:
        size = known.vector.nbytes + OVERHEAD
        if size > self.most_bytes or key in self._known:
            return
        self._known[key] = known
        self.bytes += size
        while self.bytes > self.most_bytes:
            _, old = self._known.popitem(last=False)
            self.bytes -= old.vector.nbytes + OVERHEAD
