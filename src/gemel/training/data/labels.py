"""Labels out of a column, one reader for each kind. A value that is none raises `BadValueError` with the reason."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.objectives.table import LabelKind
from gemel.training.data.class_names import UNLABELLED, ordered, plain_name
from gemel.training.data.score_range import Range, find_range, rescale
from gemel.training.data.spool import Spool


class BadValueError(Exception):
    """Carries the reason why a value cannot be used."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of all rows."""

    values: NDArray[Any] | None
    """None: the objective needs no label."""
    classes: tuple[str, ...] = ()
    range: Range | None = None
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
