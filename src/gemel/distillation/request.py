"""What is asked of a distillation; what does not belong together is refused before any work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from gemel.errors import InputError

How = Literal["pairs", "vectors", "layers", "static"]
PairObjective = Literal["regression", "cosent"]
Bridge = Literal["auto", "pca", "dense"]

_ONLY: Mapping[str, tuple[How, ...]] = {
    "student": ("pairs", "vectors"),
    "objective": ("pairs",),
    "neighbours": ("pairs",),
    "random_pairs": ("pairs",),
    "bridge": ("vectors",),
    "layers": ("layers",),
    "keep": ("layers",),
    "dim": ("static",),
    "train": ("layers", "static"),
}
"""The ways to which a setting belongs; the others belong to all."""


@dataclass(frozen=True, kw_only=True)
class DistillRequest:
    """Teacher, texts, student and the way from one to the other; how to train is said by TrainOptions."""

    teacher: str | Path
    out: Path
    how: How
    data: Any = None
    student: str | Path | None = None
    objective: PairObjective = "regression"
    """Of pairs: bring cosines to the teacher's scores, or only into their order."""
    neighbours: int = 3
    """Of pairs, where the data has single texts: the nearest so many of each are labelled."""
    random_pairs: int = 3
    """And so many random ones."""
    bridge: Bridge = "auto"
    """Of vectors of different sizes: reduce the teacher's (pca), or give the student a layer more (dense)."""
    layers: int | None = None
    """Of layers: how many stay, evenly spaced."""
    keep: tuple[int, ...] = ()
    """Of layers: which stay, from 0."""
    dim: int | None = None
    """Of static: numbers in a vector. None: 256."""
    train: bool | None = None
    """Of layers and static: train after the cut or the fit. None: layers yes, static no."""
    columns: Mapping[str, str] | None = None
    """Role to column, where the names do not say it."""
    resume: bool = False

    def __post_init__(self) -> None:
        for name, known in (("how", How), ("objective", PairObjective), ("bridge", Bridge)):
            if getattr(self, name) not in get_args(known):
                listed = ", ".join(get_args(known))
                raise InputError(f"{name} must be one of {listed}, got {getattr(self, name)!r}")
        for field in fields(self):
            ways = _ONLY.get(field.name)
            if ways and self.how not in ways and getattr(self, field.name) != field.default:
                raise InputError(f"{field.name} belongs to how={' or '.join(ways)}, not to how={self.how}")
        for name in ("neighbours", "random_pairs"):
            value = getattr(self, name)
            if not isinstance(value, int) or value < 1:
                raise InputError(f"{name} must be a whole number of at least 1, got {value!r}")
        if self.how in ("pairs", "vectors") and self.student is None:
            raise InputError(f"how={self.how} trains a student. Name the model it starts from (--student)")
        if self.data is None and (self.trains or self.how in ("pairs", "vectors")):
            raise InputError("training a student needs texts. Give some (--data FILE)")

    @property
    def trains(self) -> bool:
        """Whether torch has work to do."""
        return self.how != "static" if self.train is None else self.train


def likely_how(*, cross: bool, student: bool, layers: bool) -> How:
    """The way that is meant when none is named."""
    if layers:
        return "layers"
    if not student:
        return "static"
    return "pairs" if cross else "vectors"
