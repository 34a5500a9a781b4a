"""Training data that was read and checked: texts on disk, labels, and what was noticed on the way.

Texts on disk: one file of UTF-8 bytes, where each text ends, and a hash of each. By number, in any order.

A number for each text of a data set, so that equal texts can be found without holding any.

Training data as the loop sees it: rows of texts by role, a label a row, random access, nothing else.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.training.data.labels import ScoreRange, Spool


@dataclass(eq=False)
class TableExamples:
    """One data set for one objective. Fits `gemel.training.data.store.Examples`."""

    name: str
    roles: tuple[str, ...]
    texts: Texts
    cells: NDArray[np.int64]
    """(n, columns) numbers of the texts of each row."""
    lengths: NDArray[np.int32]
    """(n,) characters of each row."""
    labels: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()
    score_range: ScoreRange | None = None
    notes: tuple[str, ...] = ()
    """What was decided about the data: columns, labels, scale."""
    skipped: int = 0
    """Bad rows that were left out."""
    bad: tuple[str, ...] = ()
    """The first few of them, as `file:line: reason`."""

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def hashes(self) -> Hashes:
        """(n, columns) equal for equal texts."""
        return self.texts.hashes[self.cells]

    def batch(self, rows: Rows) -> Batch:
        cells = self.cells[rows]
        columns = tuple(self.texts.pick(column) for column in cells.T)
        return Batch(columns, None if self.labels is None else self.labels[rows])

    def fingerprint(self) -> str:
        digest = hashlib.sha256("\x1f".join([*self.roles, "", *self.classes]).encode())
        digest.update(self.texts.digest)
        digest.update(np.ascontiguousarray(self.cells).data)
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels).data)
        return digest.hexdigest()

    def with_classes(self, classes: Sequence[str]) -> TableExamples:
        """The same rows, their labels numbered as in `classes`, which must hold every class of these rows."""
        missing = [name for name in self.classes if name not in classes]
        if missing or self.labels is None:
            raise InputError(f"{self.name}: the label {missing[:1]} is none of {', '.join(classes)}")
        places = np.array([list(classes).index(name) for name in self.classes], dtype=np.int64)
        return replace(self, labels=places[self.labels], classes=tuple(classes))

    def with_labels(self, labels: NDArray[Any]) -> TableExamples:
        """The same rows with other labels, such as what a teacher says of them."""
        if len(labels) != len(self):
            raise InputError(f"{len(labels)} labels for {len(self)} rows of {self.name}")
        return replace(self, labels=labels, classes=(), score_range=None)


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


_ROWS = 4096


def text_hashes(examples: Examples) -> Hashes:
    """(n, columns) equal for equal texts. Data sets that have them give them; others are read through."""
    known: Hashes | None = getattr(examples, "hashes", None)
    if known is not None:
        return known
    parts = [
        np.array([[text_hash(text) for text in column] for column in batch.columns], dtype=np.uint64).T
        for batch in batches_in_order(examples)
    ]
    return np.concatenate(parts) if parts else np.empty((0, len(examples.roles)), np.uint64)


def batches_in_order(examples: Examples) -> Iterator[Batch]:
    """All rows, some thousand at a time."""
    for start in range(0, len(examples), _ROWS):
        yield examples.batch(np.arange(start, min(start + _ROWS, len(examples)), dtype=np.int64))


Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows, ready to be encoded."""

    columns: tuple[list[str], ...]
    """The texts of each role, in the objective's order; extra columns (negatives) at the end."""
    label: NDArray[Any] | None
    """One label a row: int64 for class, binary, group; float32 for score, margin; (n, d) float32 for vector."""


class Examples(Protocol):
    """One data set, checked and ready for one objective."""

    name: str
    roles: tuple[str, ...]
    """Roles of the columns of every batch, such as ("anchor", "positive", "negative", "negative")."""
    classes: tuple[str, ...]
    """Names of the labels, in the order of their numbers; empty unless the label is a class."""
    lengths: NDArray[np.int32]
    """Characters of each row, all its texts together: for grouping."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> Batch:
        """The rows at these positions, in this order."""
        ...

    def fingerprint(self) -> str:
        """sha256 of the rows, so that a run is not resumed on other data."""
        ...


@dataclass(frozen=True, eq=False)
class Draw:
    """The rows of one step: which data set, and which of its rows."""

    dataset: int
    rows: Rows


class Sampler(Protocol):
    """The order of an epoch, made anew from (seed, epoch), so that a position in it is all that a resume needs."""

    def epoch(self, number: int) -> Sequence[Draw]: ...
