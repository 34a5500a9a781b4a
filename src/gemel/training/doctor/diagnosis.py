"""What the doctor says: findings, each with how many rows, a few of them, and what to do."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Level = Literal["note", "warning", "error"]
"""note: worth knowing · warning: probably not what you want · error: certainly wrong, training is refused."""

_WORST_FIRST = ("error", "warning", "note")


@dataclass(frozen=True)
class Finding:
    """One thing that was seen."""

    level: Level
    what: str
    count: int | None = None
    """Rows that it concerns; None where it is about all of them together."""
    share: float | None = None
    """The same as a part of the rows that were looked at."""
    examples: tuple[str, ...] = ()
    advice: str = ""

    def line(self) -> str:
        """For a terminal."""
        size = [] if self.count is None else [f"{self.count:,} row{'s'[: self.count != 1]}"]
        size += [] if self.share is None else [percent(self.share)]
        told = f" ({', '.join(size)})" if size else ""
        return f"{self.level}: {self.what}{told}" + (f". {self.advice}" if self.advice else "")


@dataclass(frozen=True)
class Diagnosis:
    """What was found in one data set, the worst first."""

    name: str
    rows: int
    sample: int
    """Rows that the slow checks looked at."""
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> list[str]:
        """One line a finding, after a line about the data set."""
        head = f"{self.name}: {self.rows:,} rows, {len(self.findings) or 'no'} finding{'s'[: len(self.findings) != 1]}"
        return [head, *(finding.line() for finding in self.findings)]


def worst_first(findings: list[Finding]) -> tuple[Finding, ...]:
    return tuple(sorted(findings, key=lambda finding: _WORST_FIRST.index(finding.level)))


def percent(share: float) -> str:
    return "under 0.1 %" if 0 < share < 0.001 else f"{100 * share:.1f} %"
