"""Batches in which no text stands in two rows.

Batches are cut first. Of rows that clash inside a batch the later ones are taken out, and each is offered to a few
other batches of its window that have room. What finds no place is dealt anew at the end. All of it is linear.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.texts import Hashes
from gemel.training.examples import Rows

_TRIES = 16  # batches that a row is offered to


class Apart:
    """The texts of a data set that stand in more than one row."""

    def __init__(self, hashes: Hashes) -> None:
        _, texts, counts = np.unique(hashes.reshape(-1), return_inverse=True, return_counts=True)
        repeated = np.where(counts[texts] > 1, texts, -1).astype(np.int64)
        self._texts = repeated.reshape(hashes.shape)  # (n, columns), -1: stands nowhere else

    def batches(self, order: Rows, size: int, window: int) -> tuple[list[Rows], Rows]:
        """Batches of `size` rows in order, clashes moved inside `window` rows, and the rows that found no place."""
        where = np.arange(len(order)) // size
        out = np.flatnonzero(self._clashing(order, where))
        home = where[out]
        where[out] = -1
        edges = np.append(np.flatnonzero(np.diff(home // (window // size), prepend=-1)), len(out))
        for start, end in pairwise(edges):
            self._move(order, where, out[start:end], home[start:end], size)
        alone = np.bincount(where[where >= 0], minlength=1)[where] == 1
        where[alone] = -1
        kept = np.flatnonzero(where >= 0)
        kept = kept[np.argsort(where[kept], kind="stable")]
        ends = np.flatnonzero(np.diff(where[kept], append=-1)) + 1
        rows = order[kept]
        starts = np.append(0, ends[:-1]).tolist()
        full = (
            [rows[start:end] for start, end in zip(starts, ends.tolist(), strict=True)] if len(rows) else []
        )
        return full, order[where < 0]

    def _clashing(self, order: Rows, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True for a row with a text that an earlier row of its batch has."""
        texts = self._texts[order]
        place, column = np.nonzero(texts >= 0)
        key = where[place] * (int(texts.max(initial=0)) + 1) + texts[place, column]
        sort = np.argsort(key, kind="stable")
        key, place = key[sort], place[sort]
        clash = (key[1:] == key[:-1]) & (place[1:] != place[:-1])
        found = np.zeros(len(order), dtype=bool)
        found[place[1:][clash]] = True
        return found

    def _move(
        self, order: Rows, where: NDArray[np.int64], out: Rows, home: NDArray[np.int64], size: int
    ) -> None:
        """Give the rows at the places `out`, taken from the batches `home`, to batches that have room; sets `where`."""
        open_batches, free = (values.tolist() for values in np.unique(home, return_counts=True))
        texts = {batch: self._texts_of(order, where, batch, size) for batch in open_batches}
        turn = 0
        for place in out.tolist():
            mine = {text for text in self._texts[order[place]].tolist() if text >= 0}
            for step in range(min(_TRIES, len(open_batches))):
                at = (turn + step) % len(open_batches)
                batch = open_batches[at]
                if mine.isdisjoint(texts[batch]):
                    where[place] = batch
                    texts[batch] |= mine
                    free[at] -= 1
                    if not free[at]:
                        del open_batches[at], free[at]
                    turn = at + 1
                    break

    def _texts_of(self, order: Rows, where: NDArray[np.int64], batch: int, size: int) -> set[int]:
        places = np.arange(batch * size, min((batch + 1) * size, len(order)))
        return set(self._texts[order[places[where[places] == batch]]].reshape(-1).tolist())

    def small_batches(self, rows: Rows, size: int) -> tuple[list[Rows], int]:
        """As few batches as one pass finds, and the number of rows that would be alone in theirs."""
        placed, _ = self._place(rows, size, len(rows))
        kept = [np.array(batch, dtype=np.int64) for batch in placed if len(batch) > 1]
        return kept, len(rows) - sum(map(len, kept))

    def _place(self, rows: Rows, size: int, batches: int) -> tuple[list[list[int]], list[int]]:
        placed: list[list[int]] = [[] for _ in range(batches)]
        room = _Room(batches)
        last: dict[int, int] = {}
        left = []
        for row, texts in zip(rows.tolist(), self._texts[rows].tolist(), strict=True):
            place = room.first(_after(last, texts))
            if place == batches:
                left.append(row)
                continue
            placed[place].append(row)
            if len(placed[place]) == size:
                room.fill(place)
            for text in texts:
                if text >= 0:
                    last[text] = place
        return placed, left


def _after(last: dict[int, int], texts: Iterable[int]) -> int:
    """The batch after the last one that has one of the texts."""
    return max((last.get(text, -1) for text in texts if text >= 0), default=-1) + 1


class _Room:
    """The first batch from a place on that is not full, found in nearly constant time."""

    def __init__(self, batches: int) -> None:
        self._next = list(range(batches + 1))

    def first(self, place: int) -> int:
        following = self._next
        while following[place] != place:
            following[place] = following[following[place]]
            place = following[place]
        return place

    def fill(self, place: int) -> None:
        self._next[place] = place + 1
