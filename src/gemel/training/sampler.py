"""The batches of an epoch and their order, which depend only on the seed and the number of the epoch.

Grouping by length: rows are shuffled, split into windows of 100 batches, sorted by length inside a window and split
into batches, which are shuffled. Batches that are not full come last.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.training.data.store import Examples, Hashes, Rows
from gemel.training.options import Mixing

TOGETHER = 4  # consecutive rows of one label, for triplets that are mined from labels

WINDOW = 100  # batches: enough to group lengths, few enough to stay random


@dataclass(frozen=True, eq=False)
class Draw:
    """The rows of one step: which data set, and which of its rows."""

    dataset: int
    rows: Rows


class Epoch(list[Draw]):
    """The draws of one epoch, in order."""

    dropped: int = 0
    """Rows that are left out of this epoch because they share texts with too many others."""


class EpochSampler:
    """Draws every row once per epoch, in an order that depends on seed and epoch only: a resume needs the position.

    `distinct`: no text is in two rows of a batch. A row that clashes moves to another batch of its window; the
    remaining ones make batches at the end, where a batch of one row is dropped and counted (`Epoch.dropped`).
    `mixing`: "proportional" draws all batches of all data sets; "round-robin" one of each in turn until the smallest
    data set ends, so that some rows of the others are not used in this epoch.
    `together`: rows with the same label come in fours, so that every batch has positives to mine triplets from;
    lengths are then ignored.
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
                f"the rows of a batch are each other's negatives: batch_size must be at least 2, got {batch_size}"
            )
        self._sizes = [len(part) for part in examples]
        self._lengths = [part.lengths if group_by_length and not together else None for part in examples]
        self._groups = [_labels(part) if together else None for part in examples]
        self._distinct = [DistinctTextBatches(part.hashes) if distinct else None for part in examples]
        self._batch_size, self._seed, self._mixing = batch_size, seed, mixing

    def epoch(self, number: int) -> Epoch:
        parts = [self._batches(number, dataset) for dataset in range(len(self._sizes))]
        batches = [part for part, _ in parts]
        turns = _mix([len(part) for part in batches], self._mixing, self._rng(number, len(batches)))
        if not len(turns):
            raise InputError(
                f"no batch of two rows without a common text can be made of {sum(self._sizes):,} rows. "
                "Is one column the same text in every row?"
            )
        epoch = Epoch(Draw(dataset, batches[dataset][batch]) for dataset, batch in turns.tolist())
        epoch.dropped = sum(dropped for _, dropped in parts)
        return epoch

    def _rng(self, number: int, dataset: int) -> np.random.Generator:
        return np.random.default_rng([self._seed, number, dataset])

    def _batches(self, number: int, dataset: int) -> tuple[list[Rows], int]:
        """The batches of one data set in the order of this epoch, and the rows that are left out."""
        rng = self._rng(number, dataset)
        order = rng.permutation(self._sizes[dataset])
        groups = self._groups[dataset]
        if groups is not None:
            order = _in_fours(order, groups, rng)
        distinct, size = self._distinct[dataset], self._batch_size
        rest = len(order) % size
        if distinct is not None and rest == 1 and len(order) > 2 and size > 2:
            rest = 2  # a single row would have no negatives
        order, last = order[: len(order) - rest], order[len(order) - rest :]
        order = _by_length(order, self._lengths[dataset], size * WINDOW)
        if distinct is None:
            full = [order[start : start + size] for start in range(0, len(order), size)]
            small, dropped = [last] if len(last) else [], 0
        else:
            full, left = distinct.batches(order, size, size * WINDOW)
            small, dropped = distinct.small_batches(np.concatenate([left, last]), size)
        return [full[index] for index in rng.permutation(len(full))] + small, dropped


def _labels(examples: Examples) -> NDArray[np.int64]:
    label = examples.batch(np.arange(len(examples), dtype=np.int64)).label
    assert label is not None, "an objective that mines by label has labels"
    return np.asarray(label, dtype=np.int64)


def _in_fours(order: Rows, groups: NDArray[np.int64], rng: np.random.Generator) -> Rows:
    """The rows of `order` in runs of up to `TOGETHER` with the same label; the runs are in random order."""
    by_group = order[np.argsort(groups[order], kind="stable")]
    labels = groups[by_group]
    starts = np.flatnonzero(np.diff(labels, prepend=labels[0] - 1))
    offset = np.arange(len(by_group)) - np.repeat(starts, np.diff(starts, append=len(by_group)))
    first = offset % TOGETHER == 0
    run = np.cumsum(first) - 1
    ranks = rng.permutation(int(first.sum()))
    return np.asarray(by_group[np.argsort(ranks[run], kind="stable")])


def _by_length(order: Rows, lengths: NDArray[np.int32] | None, window: int) -> Rows:
    if lengths is None:
        return order
    return order[np.lexsort((lengths[order], np.arange(len(order)) // window))]


def _mix(counts: Sequence[int], mixing: Mixing, rng: np.random.Generator) -> NDArray[np.int64]:
    """(m, 2) the data set and the batch of each draw; the batches of a data set keep their order."""
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


_TRIES = 16  # batches that are tried for a row


class DistinctTextBatches:
    """Makes batches in which no text is in two rows, in linear time.

    Rows are split into batches first. Of two rows that clash in a batch the later one is moved to another batch of its
    window that has room; rows that fit nowhere are left for `small_batches`.
    """

    def __init__(self, hashes: Hashes) -> None:
        _, texts, counts = np.unique(hashes.reshape(-1), return_inverse=True, return_counts=True)
        repeated = np.where(counts[texts] > 1, texts, -1).astype(np.int64)
        self._texts = repeated.reshape(hashes.shape)  # (n, columns), -1: in no other row

    def batches(self, order: Rows, size: int, window: int) -> tuple[list[Rows], Rows]:
        """Batches of `size` rows in order, clashes moved within `window` rows, and the rows that fit nowhere."""
        where = np.arange(len(order)) // size
        out = np.flatnonzero(self._clashing(order, where))
        home = where[out]
        where[out] = -1
        edges = np.append(np.flatnonzero(np.diff(home // (window // size), prepend=-1)), len(out))
        for start, end in pairwise(edges):
            self._move(order, where, out[start:end], home[start:end], size)
        alone = np.bincount(where[where >= 0], minlength=1)[where] == 1
        where[alone] = -1
        used = np.flatnonzero(where >= 0)
        used = used[np.argsort(where[used], kind="stable")]
        ends = np.flatnonzero(np.diff(where[used], append=-1)) + 1
        rows = order[used]
        starts = np.append(0, ends[:-1]).tolist()
        full = (
            [rows[start:end] for start, end in zip(starts, ends.tolist(), strict=True)] if len(rows) else []
        )
        return full, order[where < 0]

    def _clashing(self, order: Rows, where: NDArray[np.int64]) -> NDArray[np.bool_]:
        """(n,) True for a row with a text that an earlier row of its batch has."""
        texts = self._texts[order]
        index, column = np.nonzero(texts >= 0)
        key = where[index] * (int(texts.max(initial=0)) + 1) + texts[index, column]
        sort = np.argsort(key, kind="stable")
        key, index = key[sort], index[sort]
        clash = (key[1:] == key[:-1]) & (index[1:] != index[:-1])
        clashing = np.zeros(len(order), dtype=bool)
        clashing[index[1:][clash]] = True
        return clashing

    def _move(
        self, order: Rows, where: NDArray[np.int64], out: Rows, home: NDArray[np.int64], size: int
    ) -> None:
        """Move the rows at the positions `out`, taken from the batches `home`, to batches with room; sets `where`."""
        open_batches, free = (values.tolist() for values in np.unique(home, return_counts=True))
        texts = {batch: self._texts_of(order, where, batch, size) for batch in open_batches}
        turn = 0
        for index in out.tolist():
            own = {text for text in self._texts[order[index]].tolist() if text >= 0}
            for step in range(min(_TRIES, len(open_batches))):
                at = (turn + step) % len(open_batches)
                batch = open_batches[at]
                if own.isdisjoint(texts[batch]):
                    where[index] = batch
                    texts[batch] |= own
                    free[at] -= 1
                    if not free[at]:
                        del open_batches[at], free[at]
                    turn = at + 1
                    break

    def _texts_of(self, order: Rows, where: NDArray[np.int64], batch: int, size: int) -> set[int]:
        rows = np.arange(batch * size, min((batch + 1) * size, len(order)))
        return set(self._texts[order[rows[where[rows] == batch]]].reshape(-1).tolist())

    def small_batches(self, rows: Rows, size: int) -> tuple[list[Rows], int]:
        """As few batches as one pass finds, and the number of rows that would be alone in a batch."""
        batches: list[list[int]] = [[] for _ in rows]
        not_full = list(range(len(rows)))
        last: dict[int, int] = {}  # text to the last batch that has it
        for row, texts in zip(rows.tolist(), self._texts[rows].tolist(), strict=True):
            repeated = [text for text in texts if text >= 0]
            earliest = max((last.get(text, -1) for text in repeated), default=-1) + 1
            at = bisect_left(not_full, earliest)
            batch = not_full[at]
            batches[batch].append(row)
            if len(batches[batch]) == size:
                del not_full[at]
            last |= dict.fromkeys(repeated, batch)
        shared = [np.array(batch, dtype=np.int64) for batch in batches if len(batch) > 1]
        return shared, len(rows) - sum(map(len, shared))
