"""What a distillation gave: the student's folder, and how it compares with its teacher."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from gemel.distillation.agreement import Agreement
from gemel.training.run import Trained


@dataclass(frozen=True)
class Side:
    """The teacher, or the student."""

    name: str
    megabytes: float
    """Of its weights."""
    speed: float | None
    """Texts a second on this machine, measured once; None: not measured."""
    unit: str = "texts"
    """What the speed counts: a cross-encoder reads pairs."""

    def summary(self) -> str:
        fast = "" if self.speed is None else f", {self.speed:,.0f} {self.unit}/s"
        return f"{self.name}: {self.megabytes:,.1f} MB{fast}"


@dataclass(frozen=True)
class Distilled:
    """A student in a folder."""

    folder: Path
    how: str
    teacher: Side
    student: Side
    dim: int
    learnt_from: str
    """Such as "1,200 texts"; empty: the teacher's vocabulary or layers alone."""
    before: Agreement | None
    """Of the student before it learnt; None where nothing could be measured, for want of texts."""
    after: Agreement | None
    held_out: bool
    """The agreement is of texts that were not learnt from."""
    notes: tuple[str, ...] = ()
    trained: Trained | None = None

    def to_json(self) -> dict[str, Any]:
        trained = None if self.trained is None else self.trained.to_json()
        return {**asdict(self), "folder": str(self.folder), "notes": list(self.notes), "trained": trained}

    def summary(self) -> str:
        """Some lines for a person."""
        lines = [f"{self.folder}: {self.student.name}, {self.dim} dimensions, by {self.how}"]
        lines += [f"teacher {self.teacher.summary()}", f"student {self.student.summary()}"]
        lines += self.agreement_lines()
        return "\n".join(lines)

    def agreement_lines(self) -> list[str]:
        if self.after is None:
            return []
        where = "texts held back" if self.held_out else "the texts it learnt from (too few to hold some back)"
        lines = [f"agreement with the teacher, Spearman x 100 on {where}:"]
        if self.before is not None:
            lines.append(f"  before: {self.before.summary()}")
        return [*lines, f"  after:  {self.after.summary()}"]
