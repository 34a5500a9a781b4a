"""Labels out of a column, one reader for each kind. A value that is none raises `BadValueError` with the reason.

Names of classes: how they are written, and their order, which is the same in every run.

The scale of gold scores: declared or detected, and brought to what a cosine can be.

An array that grows on disk while data are read and is memory-mapped afterwards.

The file has no name: it is gone when the process ends, however it ends.
"""

from __future__ import annotations

import hashlib
import math
import mmap
import tempfile
from array import array
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO, ClassVar, Protocol, cast
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError
from gemel.training.objectives.base import LabelKind


class BadValueError(Exception):
    """Carries the reason why a value cannot be used."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of all rows."""

    values: NDArray[Any] | None
    """None: the objective needs no label."""
    classes: tuple[str, ...] = ()
    range: ScoreRange | None = None
    notes: tuple[str, ...] = ()


class LabelReader(Protocol):
    """Takes the label of one row after the other."""

    def add(self, value: Any) -> None: ...  # noqa: ANN401 - whatever stands in the data

    def done(self, where: str) -> Labels: ...


def open_reader(
    kind: LabelKind,
    *,
    names: Sequence[str] | None = None,
    known: Sequence[str] | None = None,
    score_range: tuple[float, float] | None = None,
) -> LabelReader:
    """`names`: what the numbers of classes stand for; `known`: the classes that there are, in their order."""
    if kind == "class":
        return ClassLabels(names, known)
    if kind == "binary":
        return BinaryLabels()
    if kind == "group":
        return GroupLabels()
    if kind == "vector":
        return VectorLabels()
    return NumberLabels(kind, score_range)


class ClassLabels:
    """Names, or numbers that stand for names."""

    def __init__(self, names: Sequence[str] | None, known: Sequence[str] | None) -> None:
        self._names = tuple(names or known or ())
        self._known = tuple(known or ())
        self._codes: dict[Any, int] = {}  # of values as they stand in the data
        self._classes: dict[str, int] = {}
        self._values = array("q")

    def add(self, value: Any) -> None:  # noqa: ANN401
        try:
            code = self._codes.get(value)
        except TypeError:
            raise BadValueError(f"a label is a name or a whole number, got {type(value).__name__}") from None
        if code is None:
            name = self._name(value)
            code = self._codes[value] = self._classes.setdefault(name, len(self._classes))
        self._values.append(code)

    def _name(self, value: Any) -> str:  # noqa: ANN401
        name = plain_name(value)
        if name in UNLABELLED:
            raise BadValueError(f"no gold label ({value!r})")
        if self._names and name.lstrip("-").isdigit() and name not in self._names:
            if not 0 <= int(name) < len(self._names):
                raise BadValueError(f"no gold label ({value!r}; labels go from 0 to {len(self._names) - 1})")
            name = plain_name(self._names[int(name)])
        if not self._known:
            return name
        for label in self._known:
            if label.lower() == name.lower():
                return label
        raise BadValueError(f"the label {name!r} is none of {', '.join(self._known)}")

    def done(self, where: str) -> Labels:
        classes = self._known or ordered(self._classes)
        places = np.array([classes.index(name) for name in self._classes], dtype=np.int64)
        values = (
            places[np.frombuffer(self._values, dtype=np.int64)] if self._values else np.empty(0, np.int64)
        )
        return Labels(values, tuple(classes), notes=(f"labels: {', '.join(classes)}",))


class BinaryLabels:
    """0 and 1, also as true and false."""

    _MEANING: ClassVar = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1}

    def __init__(self) -> None:
        self._values = array("q")

    def add(self, value: Any) -> None:  # noqa: ANN401
        found = self._MEANING.get(str(value).strip().lower())
        if found is None:
            raise BadValueError(f"the label must be 0 or 1, got {value!r}")
        self._values.append(found)

    def done(self, where: str) -> Labels:
        return Labels(np.frombuffer(self._values, dtype=np.int64) if self._values else np.empty(0, np.int64))


class GroupLabels:
    """Anything that can be equal to another; numbered as they come."""

    def __init__(self) -> None:
        self._codes: dict[str, int] = {}
        self._values = array("q")

    def add(self, value: Any) -> None:  # noqa: ANN401
        name = plain_name(value)
        if not name:
            raise BadValueError("no group")
        self._values.append(self._codes.setdefault(name, len(self._codes)))

    def done(self, where: str) -> Labels:
        values = np.frombuffer(self._values, dtype=np.int64) if self._values else np.empty(0, np.int64)
        return Labels(values, notes=(f"{len(self._codes):,} groups",))


class NumberLabels:
    """Scores, brought to 0..1 (or left at -1..1), and margins, left as they are."""

    def __init__(self, kind: str, score_range: tuple[float, float] | None) -> None:
        self._kind = kind
        self._range = score_range
        self._values = array("d")

    def add(self, value: Any) -> None:  # noqa: ANN401
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise BadValueError(f"the {self._kind} {value!r} is not a number") from None
        if not math.isfinite(number):
            raise BadValueError(f"the {self._kind} {value!r} is not a finite number")
        self._values.append(number)

    def done(self, where: str) -> Labels:
        values = np.frombuffer(self._values, dtype=np.float64) if self._values else np.empty(0)
        if self._kind != "score" or not len(values):
            return Labels(values.astype(np.float32))
        found = find_range(values, self._range, where)
        return Labels(rescale(values, found), range=found, notes=(found.said(),))


class VectorLabels:
    """Lists of numbers of one length, kept on disk."""

    def __init__(self) -> None:
        self._dim = 0
        self._values = Spool("f")

    def add(self, value: Any) -> None:  # noqa: ANN401
        try:
            vector = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            raise BadValueError("the vector is not a list of numbers") from None
        if vector.ndim != 1 or not len(vector):
            raise BadValueError("the vector is not a list of numbers")
        if not np.isfinite(vector).all():
            raise BadValueError("the vector has a number that is not finite")
        self._dim = self._dim or len(vector)
        if len(vector) != self._dim:
            raise BadValueError(f"the vector has {len(vector)} numbers, those before it {self._dim}")
        self._values.extend(vector.tobytes())

    def done(self, where: str) -> Labels:
        return Labels(self._values.done().reshape(-1, max(self._dim, 1)))


NLI = ("entailment", "neutral", "contradiction")

UNLABELLED = ("", "-", "None", "nan")  # "-" in SNLI: the annotators did not agree


def plain_name(value: Any) -> str:  # noqa: ANN401 - a label as it stands in the data
    """The label as a name: no space around it, whole numbers without a point, NLI's names in lower case."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    name = str(value).strip()
    return name.lower() if name.lower() in NLI else name


def ordered(names: Collection[str]) -> tuple[str, ...]:
    """NLI's in their usual order, numbers by value, others by the alphabet."""
    if set(names) <= set(NLI):
        return tuple(name for name in NLI if name in names)
    if all(name.lstrip("-").isdigit() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


_SCALES = ((0.0, 1.0), (-1.0, 1.0), (1.0, 5.0), (0.0, 5.0))
"""Those that data sets use, the narrowest first. 1..5 stands before 0..5: a score below 1 rules it out."""


@dataclass(frozen=True)
class ScoreRange:
    """A scale, and the lowest and highest score that were seen on it."""

    low: float
    high: float
    lowest: float
    highest: float
    declared: bool

    @property
    def signed(self) -> bool:
        """Scores on -1..1 stay there; all others go to 0..1."""
        return (self.low, self.high) == (-1.0, 1.0)

    def said(self) -> str:
        how = "as declared" if self.declared else "detected; declare score_range if it is another"
        kept = "kept" if self.signed else "rescaled to 0..1"
        return (
            f"scores from {self.lowest:g} to {self.highest:g} on a scale of {self.low:g}..{self.high:g} "
            f"({how}), {kept}"
        )


def find_range(values: NDArray[np.float64], declared: tuple[float, float] | None, where: str) -> ScoreRange:
    """The declared scale, or the narrowest usual one that holds all values."""
    lowest, highest = float(values.min()), float(values.max())
    if declared is not None:
        low, high = map(float, declared)
        if not low < high:
            raise InputError(f"score_range goes from low to high, got {low:g}, {high:g}")
        return ScoreRange(low, high, lowest, highest, True)
    for low, high in _SCALES:
        if low <= lowest and highest <= high:
            return ScoreRange(low, high, lowest, highest, False)
    raise InputError(
        f"{where}: the scores go from {lowest:g} to {highest:g}, which is none of the usual scales (0..1, -1..1, "
        "1..5, 0..5). Declare theirs with score_range=(low, high)"
    )


def rescale(values: NDArray[Any], scale: ScoreRange) -> NDArray[np.float32]:
    """To 0..1, or as they are on -1..1. A value outside of the scale stays outside: the doctor reports it."""
    if scale.signed:
        return values.astype(np.float32)
    return ((values - scale.low) / (scale.high - scale.low)).astype(np.float32)


_FLUSH_BYTES = 2**20


class Spool:
    """Numbers or bytes, appended; `done` gives them as one read-only array."""

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
        """All that was appended, (n,). Nothing may be appended after it."""
        self._flush()
        size = self._file.tell()
        mapped = mmap.mmap(self._file.fileno(), size, access=mmap.ACCESS_READ) if size else b""
        self._close()  # the map keeps the content
        return np.frombuffer(mapped, self._dtype)

    def digest(self) -> bytes:
        """sha256 of all that was flushed; call it after `done`."""
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
