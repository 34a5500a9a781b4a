"""Which rows make a batch, and in which order batches come: a function of (seed, epoch) and nothing else.

Grouped by length: rows are shuffled, cut into windows of 100 batches, sorted by length inside a window and cut into
batches, which are shuffled. Batches that are not full come last.

Batches in which no text stands in two rows.

Batches are cut first. Of rows that clash inside a batch the later ones are taken out, and each is offered to a few
other batches of its window that have room. What finds no place is dealt anew at the end. All of it is linear.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.training.data.store import Draw, Examples, Hashes, Rows, text_hashes
from gemel.training.options import Mixing

TOGETHER = 4  # rows of one label side by side, where triplets are mined from labels

WINDOW = 100  # batches: enough lengths to choose from, few enough to stay random


class Epoch(Sequence[Draw]):
    """The draws of one epoch; cheap to slice, so a resumed run starts in the middle."""

    def __init__(self, batches: Sequence[Sequence[Rows]], turns: NDArray[np.int64], dropped: int) -> None:
        self._batches = batches
        self._turns = turns
        self.dropped = dropped
        """Rows that could not be kept apart from others and are left out of this epoch."""

    def __len__(self) -> int:
        return len(self._turns)

    @overload
    def __getitem__(self, place: int) -> Draw: ...
    @overload
    def __getitem__(self, place: slice) -> Epoch: ...
    def __getitem__(self, place: int | slice) -> Draw | Epoch:
        if isinstance(place, slice):
            return Epoch(self._batches, self._turns[place], self.dropped)
        dataset, number = self._turns[place].tolist()
        return Draw(dataset, self._batches[dataset][number])


class EpochSampler:
    """Draws every row once an epoch. Fits `gemel.training.data.store.Sampler`.

    `distinct`: no text stands in two rows of a batch. A row that clashes goes to another batch of its window; what is
    left over makes batches at the end, and of those a batch of one row is dropped and counted (`Epoch.dropped`).
    `mixing`: "proportional" draws all batches of all data sets; "round-robin" one of each in turn until the smallest
    data set ends, so rows of the others wait for another epoch.
    `together`: rows with the same label come in fours, so that every batch has positives to mine triplets from; then
    lengths do not decide.
    """

    def __init__(
        self,
        examples: Sequence[Examples],
        *,
        batch_size: int,
        seed: int,
        group_by_length: bool = False,
        distinct: bool = False,
        together: bool = False,
        mixing: Mixing = "proportional",
    ) -> None:
        if distinct and batch_size < 2:
            raise InputError(
                f"rows are each other's negatives: batch_size must be at least 2, got {batch_size}"
            )
        self._sizes = [len(part) for part in examples]
        self._lengths = [part.lengths if group_by_length and not together else None for part in examples]
        self._groups = [_labels(part) if together else None for part in examples]
        self._apart = [DistinctTextBatches(text_hashes(part)) if distinct else None for part in examples]
        self._batch_size = batch_size
        self._seed = seed
        self._mixing = mixing

    def epoch(self, number: int) -> Epoch:
        parts = [self._batches(number, dataset) for dataset in range(len(self._sizes))]
        batches = [part for part, _ in parts]
        turns = _mix([len(part) for part in batches], self._mixing, self._rng(number, len(batches)))
        if not len(turns):
            raise InputError(
                f"no batch of two rows without a common text can be made of {sum(self._sizes):,} rows. "
                "Is one column the same text in every row?"
            )
        return Epoch(batches, turns, sum(dropped for _, dropped in parts))

    def _rng(self, number: int, dataset: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, number, dataset])

    def _batches(self, number: int, dataset: int) -> tuple[list[Rows], int]:
        """The batches of one data set in the order of this epoch, and the rows that are left out."""
        rng = self._rng(number, dataset)
        order = rng.permutation(self._sizes[dataset])
        groups = self._groups[dataset]
        if groups is not None:
            order = _in_fours(order, groups, rng)
        apart, size = self._apart[dataset], self._batch_size
        rest = len(order) % size
        if apart is not None and rest == 1 and len(order) > 2 and size > 2:
            rest = 2  # nobody is a negative to a row alone
        order, last = order[: len(order) - rest], order[len(order) - rest :]
        order = _by_length(order, self._lengths[dataset], size * WINDOW)
        if apart is None:
            full = [order[start : start + size] for start in range(0, len(order), size)]
            small, dropped = [last] if len(last) else [], 0
        else:
            full, left = apart.batches(order, size, size * WINDOW)
            small, dropped = apart.small_batches(np.concatenate([left, last]), size)
        return [full[place] for place in rng.permutation(len(full))] + small, dropped


def _labels(examples: Examples) -> NDArray[np.int64]:
    label = examples.batch(np.arange(len(examples), dtype=np.int64)).label
    assert label is not None, "an objective that mines by label has labels"
    return np.asarray(label, dtype=np.int64)


def _in_fours(order: Rows, groups: NDArray[np.int64], rng: np.random.Generator) -> Rows:
    """The rows of `order` in runs of up to `TOGETHER` with the same label; the runs stand in a random order."""
    by_group = order[np.argsort(groups[order], kind="stable")]
    labels = groups[by_group]
    starts = np.flatnonzero(np.diff(labels, prepend=labels[0] - 1))
    place = np.arange(len(by_group)) - np.repeat(starts, np.diff(starts, append=len(by_group)))
    first = place % TOGETHER == 0
    run = np.cumsum(first) - 1
    ranks = rng.permutation(int(first.sum()))
    return np.asarray(by_group[np.argsort(ranks[run], kind="stable")])


def _by_length(order: Rows, lengths: NDArray[np.int32] | None, window: int) -> Rows:
    if lengths is None:
        return order
    return order[np.lexsort((lengths[order], np.arange(len(order)) // window))]


def _mix(counts: Sequence[int], mixing: Mixing, rng: np.random.Generator) -> NDArray[np.int64]:
    """(m, 2) the data set and the batch of each draw; a data set's batches keep their order."""
    if mixing == "round-robin":
        least = min(counts)
        turns = np.tile(np.arange(len(counts)), least)
        return np.column_stack([turns, np.repeat(np.arange(least), len(counts))])
    turns = np.repeat(np.arange(len(counts)), counts)
    rng.shuffle(turns)
    numbers = np.empty(len(turns), dtype=np.int64)
    for dataset, count in enumerate(counts):
        numbers[turns == dataset] = np.arange(count)
    return np.column_stack([turns, numbers])


_TRIES = 16  # batches that a row is offered to


class DistinctTextBatches:
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
