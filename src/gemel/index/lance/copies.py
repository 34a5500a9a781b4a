"""Vectors and texts of passages at hand, each under a number of its own: its slot.

The first slots are files of a cache, mapped into memory; the others grew in this process. Copies are never the truth:
what is missing is read from the table, and a slot whose passage is gone is not asked for again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.lance.columns import indices, matrix
from gemel.index.lance.view import Positions, View
from gemel.scan.pair_scores import dot_scores
from gemel.types import Vectors

if TYPE_CHECKING:
    import pyarrow as pa

TEXTS_A_BATCH = 65_536
_CELLS = 32  # so many texts are read one by one; more are taken at once
_BLOCK = 16_384  # rows that are read at once: 16,384 x 384 x 4 bytes = 25 MB


@dataclass(frozen=True, eq=False)
class Base:
    """Slots from 0 on, as they were when the search structure was built."""

    stamp: NDArray[np.int64]
    vector: Vectors
    """(n, dim); a file mapped into memory, or an array."""
    text: Sequence[pa.Array]
    """Batches of `TEXTS_A_BATCH`, the last one shorter."""

    def text_at(self, slot: int) -> str:
        return str(self.text[slot // TEXTS_A_BATCH][slot % TEXTS_A_BATCH].as_py())

    def texts_at(self, slots: NDArray[np.int64]) -> list[str]:
        """The same of many, batch by batch."""
        batch, rows = np.divmod(slots, TEXTS_A_BATCH)
        out: list[str] = [""] * len(slots)
        for number in np.flatnonzero(np.bincount(batch)).tolist():
            at = np.flatnonzero(batch == number)
            for place, text in zip(
                at.tolist(), self.text[number].take(indices(rows[at])).to_pylist(), strict=True
            ):
                out[place] = text
        return out


class Copies:
    """Grows at its end only, so whoever holds a count may read below it while others add."""

    def __init__(self, base: Base, cache: str | None = None) -> None:
        """`cache`: name of the list cache that the base is mapped from; None: it is in memory."""
        self.base, self.cache = base, cache
        self._lock = threading.Lock()
        self._first = len(base.stamp)
        self._count = self._first
        self._stamp = np.empty(256, dtype=np.int64)
        self._vector = np.empty((256, base.vector.shape[1]), dtype=np.float32)
        self._text: list[str] = []

    def __len__(self) -> int:
        return self._count

    @property
    def grown(self) -> int:
        """Slots that are not in the base."""
        return self._count - self._first

    def add(self, stamp: NDArray[np.int64], vector: Vectors, text: Sequence[str]) -> NDArray[np.int64]:
        """The slots that these passages got."""
        with self._lock:
            start = self._count - self._first
            end = start + len(stamp)
            if end > len(self._stamp):
                self._stamp = _larger(self._stamp, end)
                self._vector = _larger(self._vector, end)
            self._stamp[start:end] = stamp
            self._vector[start:end] = vector
            self._text.extend(text)
            self._count += len(stamp)
            return np.arange(self._first + start, self._first + end, dtype=np.int64)

    def stamps(self) -> NDArray[np.int64]:
        return np.concatenate([self.base.stamp, self._stamp[: self.grown]])

    def vectors(self, slots: NDArray[np.int64]) -> Vectors:
        """(n, dim)"""
        old = slots < self._first
        if old.all():
            return np.asarray(self.base.vector[slots])
        if not old.any():
            return self._vector[slots - self._first]
        out = np.empty((len(slots), self._vector.shape[1]), dtype=np.float32)
        out[old] = self.base.vector[slots[old]]
        out[~old] = self._vector[slots[~old] - self._first]
        return out

    def run(self, start: int, end: int) -> Vectors:
        """The vectors of slots start to end, without a copy where they lie together."""
        if end <= self._first:
            return self.base.vector[start:end]
        if start >= self._first:
            return self._vector[start - self._first : end - self._first]
        return np.concatenate([self.base.vector[start:], self._vector[: end - self._first]])

    def scores(self, queries: Vectors, i: NDArray[np.int64], slots: NDArray[np.int64]) -> Vectors:
        """(n,) exact scores of queries[i] and the vectors of these slots, read where they are."""
        old = slots < self._first
        if old.all():
            return dot_scores(queries, self.base.vector, i, slots)
        out = np.empty(len(slots), dtype=np.float32)
        out[old] = dot_scores(queries, self.base.vector, i[old], slots[old])
        out[~old] = dot_scores(queries, self._vector, i[~old], slots[~old] - self._first)
        return out

    def blocks(self, count: int) -> Iterator[tuple[int, Vectors]]:
        """The vectors of the slots below `count`, in arrays that lie together, each with its first slot."""
        if self._first:
            yield 0, self.base.vector[:count]
        if count > self._first:
            yield self._first, self._vector[: count - self._first]

    def texts(self, slots: NDArray[np.int64]) -> list[str]:
        if len(slots) > _CELLS and int(slots.max()) < self._first:
            return self.base.texts_at(slots)
        return [
            self.base.text_at(slot) if slot < self._first else self._text[slot - self._first]
            for slot in slots.tolist()
        ]


def read(view: View, positions: Positions, use: Callable[[slice, Vectors, pa.ChunkedArray], None]) -> None:
    """Vectors and texts of these rows, ascending, from the table; `use` gets them block by block, with their places
    among the positions."""
    if len(positions) * 4 >= view.passages:  # a walk over all is quicker than many visits
        wanted = np.zeros(len(view.live), dtype=np.bool_)
        wanted[positions] = True
        _walk(view, wanted, use)
        return
    for start in range(0, len(positions), _BLOCK):
        place = slice(start, min(start + _BLOCK, len(positions)))
        table = view.take(positions[place], ["vector", "text"])
        use(place, matrix(table["vector"]), table["text"])


def _walk(
    view: View, wanted: NDArray[np.bool_], use: Callable[[slice, Vectors, pa.ChunkedArray], None]
) -> None:
    import pyarrow as pa

    done = 0
    scanner: Any = view.dataset.scanner(
        columns=["vector", "text"], with_row_address=True, scan_in_order=True, batch_size=_BLOCK
    )
    for batch in scanner.to_batches():
        keep = wanted[view.positions(batch["_rowaddr"].to_numpy())]
        if not keep.all():
            batch = batch.filter(pa.array(keep))  # noqa: PLW2901 - the rest of it is what goes on
        count = batch.num_rows
        if count:
            use(slice(done, done + count), matrix(batch["vector"]), batch["text"])
            done += count


def _larger(array: NDArray[Any], least: int) -> NDArray[Any]:
    out = np.empty((max(least, 2 * len(array)), *array.shape[1:]), dtype=array.dtype)
    out[: len(array)] = array
    return out
