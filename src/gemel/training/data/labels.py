"""Labels from a column, one reader for each kind: classes, 0 and 1, groups, numbers, vectors, relations.

A value that cannot be read raises `BadValueError` with the reason. Classes have the same order in every run; scores
are rescaled to 0..1, on a scale that is declared or detected.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.training.data.store import ScoreRange, Spool
from gemel.training.objectives.base import LabelKind

NLI = ("entailment", "neutral", "contradiction")

UNLABELED = ("", "-", "None", "nan")  # "-" in SNLI: the annotators did not agree


class BadValueError(Exception):
    """A value that cannot be used; the message is the reason."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of all rows."""

    values: NDArray[Any] | None
    """None: the objective uses no label."""
    classes: tuple[str, ...] = ()
    range: ScoreRange | None = None
    notes: tuple[str, ...] = ()


class LabelReader:
    """Takes the labels one by one; `done` gives them all. A subclass says what integer a label is, or stores others."""

    def __init__(self) -> None:
        self._values = array("q")

    def add(self, value: Any) -> None:  # noqa: ANN401 - any value in the data
        self._values.append(self._code(value))

    def _code(self, value: Any) -> int:  # noqa: ANN401
        raise NotImplementedError

    def done(self, where: str) -> Labels:
        return Labels(np.array(self._values))


def open_reader(
    kind: LabelKind,
    *,
    names: Sequence[str] | None = None,
    classes: Sequence[str] | None = None,
    score_range: tuple[float, float] | None = None,
) -> LabelReader:
    """`names`: the classes that integers in the data stand for; `classes`: all classes, in their order."""
    if kind == "class":
        return ClassLabels(names, classes)
    if kind == "binary":
        return BinaryLabels()
    if kind == "group":
        return GroupLabels()
    if kind in ("vector", "scores"):
        return VectorLabels("vector" if kind == "vector" else "list of scores")
    return NumberLabels(kind, score_range)


class ClassLabels(LabelReader):
    """Names of classes, or integers that stand for names."""

    def __init__(self, names: Sequence[str] | None, classes: Sequence[str] | None) -> None:
        super().__init__()
        self._names = tuple(names or classes or ())
        self._given = tuple(classes or ())
        self._codes: dict[Any, int] = {}  # of values as in the data
        self._classes: dict[str, int] = {}

    def _code(self, value: Any) -> int:  # noqa: ANN401
        try:
            code = self._codes.get(value)
        except TypeError:
            raise BadValueError(
                f"a label must be a name or a whole number, got {type(value).__name__}"
            ) from None
        if code is None:
            name = self._name(value)
            code = self._codes[value] = self._classes.setdefault(name, len(self._classes))
        return code

    def _name(self, value: Any) -> str:  # noqa: ANN401
        name = plain_name(value)
        if name in UNLABELED:
            raise BadValueError(f"no gold label ({value!r})")
        if self._names and name.lstrip("-").isdigit() and name not in self._names:
            if not 0 <= int(name) < len(self._names):
                raise BadValueError(f"no gold label ({value!r}; labels are from 0 to {len(self._names) - 1})")
            name = plain_name(self._names[int(name)])
        if not self._given:
            return name
        for label in self._given:
            if label.lower() == name.lower():
                return label
        raise BadValueError(f"the label {name!r} is not one of {', '.join(self._given)}")

    def done(self, where: str) -> Labels:
        classes = self._given or ordered(self._classes)
        codes = np.array([classes.index(name) for name in self._classes], dtype=np.int64)
        return Labels(codes[np.array(self._values)], classes, notes=(f"labels: {', '.join(classes)}",))


class BinaryLabels(LabelReader):
    """0 and 1, also written as true and false."""

    _MEANING: ClassVar = {"0": 0, "1": 1, "0.0": 0, "1.0": 1, "false": 0, "true": 1, "no": 0, "yes": 1}

    def _code(self, value: Any) -> int:  # noqa: ANN401
        label = self._MEANING.get(str(value).strip().lower())
        if label is None:
            raise BadValueError(f"the label must be 0 or 1, got {value!r}")
        return label


_RELATIONS: Mapping[str, int] = {
    **dict(zip(NLI, (1, 0, -1), strict=True)),
    "1": 1,
    "0": -1,
    "true": 1,
    "false": -1,
}


class RelationLabels(LabelReader):
    """NLI labels, or 0 and 1, as 1: the texts belong together · -1: they do not · 0: neutral."""

    def __init__(self, names: tuple[str, ...] | None) -> None:
        super().__init__()
        self._names = names

    def _code(self, value: Any) -> int:  # noqa: ANN401
        name = plain_name(value)
        if name in UNLABELED or (self._names and name == "-1"):
            raise BadValueError(f"no gold label ({value!r})")
        if self._names and name.isdigit() and int(name) < len(self._names):
            meaning = plain_name(self._names[int(name)])
            name = meaning if meaning in _RELATIONS else name
        if name.lower() not in _RELATIONS:
            raise BadValueError(
                f"the label {value!r} does not say whether two texts belong together: expected "
                f"{', '.join(NLI)}, or 0 and 1"
            )
        return _RELATIONS[name.lower()]


class GroupLabels(LabelReader):
    """Any values, numbered in the order of their first occurrence."""

    def __init__(self) -> None:
        super().__init__()
        self._codes: dict[str, int] = {}

    def _code(self, value: Any) -> int:  # noqa: ANN401
        name = plain_name(value)
        if not name:
            raise BadValueError("no group")
        return self._codes.setdefault(name, len(self._codes))

    def done(self, where: str) -> Labels:
        return Labels(np.array(self._values), notes=(f"{len(self._codes):,} groups",))


class NumberLabels(LabelReader):
    """Scores, rescaled to 0..1 (or left on -1..1), and margins, left as they are."""

    def __init__(self, kind: str, score_range: tuple[float, float] | None) -> None:
        self._kind, self._range = kind, score_range
        self._numbers = array("d")

    def add(self, value: Any) -> None:  # noqa: ANN401
        try:
            number = float(value)
        except (TypeError, ValueError):
            raise BadValueError(f"the {self._kind} {value!r} is not a number") from None
        if not math.isfinite(number):
            raise BadValueError(f"the {self._kind} {value!r} is not a finite number")
        self._numbers.append(number)

    def done(self, where: str) -> Labels:
        values = np.array(self._numbers)
        if self._kind != "score" or not len(values):
            return Labels(values.astype(np.float32))
        scale = find_range(values, self._range, where)
        return Labels(rescale(values, scale), range=scale, notes=(scale.summary(),))


class VectorLabels(LabelReader):
    """Lists of numbers of one length, stored on disk."""

    def __init__(self, what: str) -> None:
        self._what = what
        self._dim = 0
        self._vectors = Spool("f")

    def add(self, value: Any) -> None:  # noqa: ANN401
        try:
            vector = np.asarray(value, dtype=np.float32)
        except (TypeError, ValueError):
            raise BadValueError(f"the {self._what} is not a list of numbers") from None
        if vector.ndim != 1 or not len(vector):
            raise BadValueError(f"the {self._what} is not a list of numbers")
        if not np.isfinite(vector).all():
            raise BadValueError(f"the {self._what} has a number that is not finite")
        self._dim = self._dim or len(vector)
        if len(vector) != self._dim:
            raise BadValueError(f"the {self._what} has {len(vector)} numbers, earlier ones have {self._dim}")
        self._vectors.extend(vector.tobytes())

    def done(self, where: str) -> Labels:
        return Labels(self._vectors.done().reshape(-1, max(self._dim, 1)))


def plain_name(value: Any) -> str:  # noqa: ANN401 - a label as in the data
    """The label as a name: stripped, whole numbers without a decimal point, NLI labels in lower case."""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    name = str(value).strip()
    return name.lower() if name.lower() in NLI else name


def ordered(names: Collection[str]) -> tuple[str, ...]:
    """NLI labels in their usual order, numbers by value, others alphabetically."""
    if set(names) <= set(NLI):
        return tuple(name for name in NLI if name in names)
    if all(name.lstrip("-").isdigit() for name in names):
        return tuple(sorted(names, key=int))
    return tuple(sorted(names))


_SCALES = ((0.0, 1.0), (-1.0, 1.0), (1.0, 5.0), (0.0, 5.0))
"""Those that data sets use, the narrowest first; 1..5 comes before 0..5, since a score below 1 excludes it."""


def find_range(values: NDArray[np.float64], declared: tuple[float, float] | None, where: str) -> ScoreRange:
    """The declared scale, or the narrowest common one that has all values."""
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
        f"{where}: the scores go from {lowest:g} to {highest:g}, which is not one of the common scales (0..1, -1..1, "
        "1..5, 0..5). Declare it with score_range=(low, high)"
    )


def rescale(values: NDArray[Any], scale: ScoreRange) -> NDArray[np.float32]:
    """To 0..1, or unchanged on -1..1. A value outside of the scale stays outside: the data checks report it."""
    if scale.signed:
        return values.astype(np.float32)
    return ((values - scale.low) / (scale.high - scale.low)).astype(np.float32)
