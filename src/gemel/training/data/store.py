"""Training data as the loop sees it: rows of texts by role, a label per row, random access.

The texts of `Examples` are in a temporary file that is memory-mapped and disappears when the process ends.
"""

from __future__ import annotations

import hashlib
import mmap
import sys
import tempfile
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from hashlib import blake2b
from typing import Any, BinaryIO, cast
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError

Hashes = NDArray[np.uint64]

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows of a data set."""

    columns: tuple[list[str], ...]
    """The texts of each role, in the objective's order; further columns (negatives) at the end."""
    label: NDArray[Any] | None
    """One label per row: int64 for class, binary, group; float32 for score, margin; (n, d) float32 for vector, and
    (n, columns, d) for guide."""


_ROWS = 4096


@dataclass(frozen=True)
class ScoreRange:
    """The scale of gold scores, and the lowest and highest score in the data."""

    low: float
    high: float
    lowest: float
    highest: float
    declared: bool

    @property
    def signed(self) -> bool:
        """Scores on -1..1 stay as they are; all others are rescaled to 0..1."""
        return (self.low, self.high) == (-1.0, 1.0)

    def summary(self) -> str:
        how = "as declared" if self.declared else "detected; declare score_range if it is wrong"
        result = "unchanged" if self.signed else "rescaled to 0..1"
        return (
            f"scores from {self.lowest:g} to {self.highest:g} on a scale of {self.low:g}..{self.high:g} "
            f"({how}), {result}"
        )


@dataclass(eq=False)
class Examples:
    """One data set, read and checked for one objective."""

    name: str
    roles: tuple[str, ...]
    """Roles of the columns of every batch, such as ("anchor", "positive", "negative", "negative")."""
    texts: Texts
    cells: NDArray[np.int64]
    """(n, columns) indices into `texts`."""
    lengths: NDArray[np.int32]
    """(n,) characters of each row, all its texts together: for grouping by length."""
    labels: NDArray[Any] | None = None
    classes: tuple[str, ...] = ()
    """Names of the labels, in the order of their codes; empty unless the label is a class."""
    score_range: ScoreRange | None = None
    notes: tuple[str, ...] = ()
    """What was decided about the data: columns, labels, scale."""
    skipped: int = 0
    """Bad rows that were left out."""
    bad: tuple[str, ...] = ()
    """The first few of them, as `file:line: reason`."""
    guide: GuideVectors | None = None
    """The vectors of the texts by another model; they become the label of a row."""

    def __len__(self) -> int:
        return len(self.cells)

    @property
    def hashes(self) -> Hashes:
        """(n, columns) equal for equal texts."""
        return self.texts.hashes[self.cells]

    def batch(self, rows: Rows) -> Batch:
        """The rows at these positions, in this order."""
        cells = self.cells[rows]
        columns = tuple(self.texts.pick(column) for column in cells.T)
        if self.guide is not None:
            return Batch(columns, self.guide.vectors[self.guide.rows[cells]])
        return Batch(columns, None if self.labels is None else self.labels[rows])

    def batches_in_order(self) -> Iterator[Batch]:
        """All rows, a few thousand at a time."""
        for start in range(0, len(self), _ROWS):
            yield self.batch(np.arange(start, min(start + _ROWS, len(self)), dtype=np.int64))

    def fingerprint(self) -> str:
        """sha256 of the rows, so that a run is not resumed on other data."""
        digest = hashlib.sha256("\x1f".join([*self.roles, "", *self.classes]).encode())
        digest.update(self.texts.digest)
        digest.update(np.ascontiguousarray(self.cells).data)
        if self.labels is not None:
            digest.update(np.ascontiguousarray(self.labels).data)
        if self.guide is not None:
            digest.update(self.guide.digest)
        return digest.hexdigest()

    def with_classes(self, classes: Sequence[str]) -> Examples:
        """The same rows with their labels numbered as in `classes`, which must have every class of these rows."""
        missing = [name for name in self.classes if name not in classes]
        if missing or self.labels is None:
            raise InputError(f"{self.name}: the label {missing[:1]} is not one of {', '.join(classes)}")
        codes = np.array([list(classes).index(name) for name in self.classes], dtype=np.int64)
        return replace(self, labels=codes[self.labels], classes=tuple(classes))


@dataclass(frozen=True, eq=False)
class GuideVectors:
    """The vectors that another model gives the texts of a data set, each distinct text once."""

    vectors: NDArray[np.float32]
    """(distinct texts, d) in a temporary file."""
    rows: NDArray[np.int64]
    """(texts,) the vector of each text."""
    digest: bytes


def guide_vectors(texts: Texts, encode: Callable[[list[str]], NDArray[np.float32]]) -> GuideVectors:
    """All distinct texts, encoded a few thousand at a time."""
    _, first, rows = np.unique(texts.hashes, return_index=True, return_inverse=True)
    spool, dim = Spool("f"), 0
    for start in range(0, len(first), _ROWS):
        part = np.ascontiguousarray(encode(texts.pick(first[start : start + _ROWS])), dtype=np.float32)
        spool.extend(part.tobytes())
        dim = part.shape[1]
    vectors = spool.done().reshape(len(first), dim)
    return GuideVectors(vectors, rows.astype(np.int64), spool.digest())


_WRITE_TEXTS = 1024  # at a time


@dataclass(frozen=True, eq=False)
class Texts:
    """Texts in a memory-mapped file, by index."""

    content: NDArray[np.uint8]
    ends: NDArray[np.int64]
    """(n + 1,) a 0, then the end of each text in `content`."""
    hashes: Hashes
    """(n,) equal for equal texts; two different texts collide with a probability of 2^-64."""
    digest: bytes

    def __len__(self) -> int:
        return len(self.hashes)

    def pick(self, indices: Iterable[int] | NDArray[np.int64]) -> list[str]:
        """The texts at these indices, in this order."""
        rows = np.asarray(indices, dtype=np.int64)
        starts, ends = self.ends[rows].tolist(), self.ends[rows + 1].tolist()
        content = self.content.data
        return [str(content[a:b], "utf-8") for a, b in zip(starts, ends, strict=True)]


class TextWriter:
    """Writes texts to disk; `done` gives them as `Texts`."""

    def __init__(self) -> None:
        self._content, self._ends, self._hashes = Spool("B"), Spool("q"), Spool("Q")
        self._waiting: list[bytes] = []
        self._size = 0
        self._ends.append(0)

    def add(self, raw_texts: Sequence[bytes]) -> None:
        """Texts in UTF-8."""
        self._waiting += raw_texts
        if len(self._waiting) >= _WRITE_TEXTS:
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
    """The hash of this text in `Texts.hashes`."""
    return int.from_bytes(blake2b(text.encode("utf-8", "replace"), digest_size=8).digest(), sys.byteorder)


_FLUSH_BYTES = 2**20


class Spool:
    """An array that grows in a temporary file; `done` gives it memory-mapped and read-only."""

    def __init__(self, code: str) -> None:
        """`code`: the type of the module array: "B" bytes, "q" int64, "Q" uint64, "f" float32."""
        self._dtype = np.dtype(code)
        self._waiting = array(code)
        self._limit = _FLUSH_BYTES // self._waiting.itemsize
        self._digest = hashlib.sha256()
        self._file = cast(BinaryIO, tempfile.TemporaryFile(prefix="gemel-"))  # noqa: SIM115
        self._close = finalize(self, self._file.close)  # also when reading ends in an error

    def append(self, value: float) -> None:
        self._waiting.append(cast(Any, value))
        if len(self._waiting) >= self._limit:
            self._flush()

    def extend(self, values: bytes) -> None:
        """Values of the type, as the bytes that they are in memory."""
        self._waiting.frombytes(values)
        if len(self._waiting) >= self._limit:
            self._flush()

    def done(self) -> NDArray[Any]:
        """All that was appended, (n,). Nothing can be appended afterwards."""
        self._flush()
        size = self._file.tell()
        mapped = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        self._close()  # the map keeps the content
        return np.frombuffer(mapped, self._dtype)

    def digest(self) -> bytes:
        """sha256 of the content; call it after `done`."""
        return self._digest.digest()

    def _flush(self) -> None:
        content = self._waiting.tobytes()
        self._digest.update(content)
        try:
            self._file.write(content)
            self._file.flush()
        except OSError as error:
            raise WorkError(
                f"cannot write training texts to the temporary folder {tempfile.gettempdir()}: {error.strerror}. "
                "Free some space, or set TMPDIR to a folder that has it"
            ) from error
        del self._waiting[:]
