"""Which rows make a batch, and in which order batches come: a function of (seed, epoch) and nothing else.

Grouped by length: rows are shuffled, cut into windows of 100 batches, sorted by length inside a window and cut into
batches, which are shuffled. Batches that are not full come last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.training.apart import Apart
from gemel.training.data.hashes import text_hashes
from gemel.training.examples import Draw, Examples, Rows
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
    """Draws every row once an epoch. Fits `gemel.training.examples.Sampler`.

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
        self._apart = [Apart(text_hashes(part)) if distinct else None for part in examples]
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
