"""What the doctor says: findings, each with how many rows, a few of them, and what to do.

What all checks look at, made once: hashes of texts, labels, and a sample of rows with their words.
"""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.store import Batch, Examples, Hashes, Rows, batches_in_order, text_hash, text_hashes
from gemel.training.objectives.base import Needs

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


SAMPLE = 2000

_SHOWN = 3

_SHOWN_CHARACTERS = 80

_WORD = re.compile(r"\w+")


@dataclass(frozen=True, eq=False)
class Evidence:
    """One data set under examination."""

    examples: Examples
    needs: Needs
    batch_size: int

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def roles(self) -> tuple[str, ...]:
        return self.examples.roles

    @property
    def paired(self) -> bool:
        return len(self.roles) > 1

    @cached_property
    def hashes(self) -> Hashes:
        """(n, columns) equal for equal texts."""
        return text_hashes(self.examples)

    @cached_property
    def folded(self) -> Hashes:
        """(n, columns) equal for texts that differ in case and white space only. One pass over all texts."""
        parts = [
            np.array(
                [[text_hash(fold(text)) for text in column] for column in batch.columns], dtype=np.uint64
            ).T
            for batch in batches_in_order(self.examples)
        ]
        return np.concatenate(parts)

    @cached_property
    def labels(self) -> NDArray[Any] | None:
        if self.needs.label in (None, "tokens"):
            return None
        known: NDArray[Any] | None = getattr(self.examples, "labels", None)
        if known is not None:
            return known
        return np.concatenate([np.asarray(batch.label) for batch in batches_in_order(self.examples)])

    @cached_property
    def sample_rows(self) -> Rows:
        """At most `SAMPLE` rows, the same every time."""
        return np.sort(np.random.default_rng(0).permutation(len(self))[:SAMPLE])

    @cached_property
    def sample(self) -> Batch:
        return self.examples.batch(self.sample_rows)

    @cached_property
    def words(self) -> list[list[frozenset[str]]]:
        """For each column, the words of each row of the sample."""
        return [
            [frozenset(_WORD.findall(text.casefold())) for text in column] for column in self.sample.columns
        ]

    def overlap(self, one: int, other: int) -> NDArray[np.float64]:
        """For each row of the sample, common words of two columns as a share of all their words."""
        pairs = zip(self.words[one], self.words[other], strict=True)
        return np.array([len(a & b) / max(len(a | b), 1) for a, b in pairs])

    def finding(self, level: Level, what: str, rows: Rows, advice: str = "") -> Finding:
        """About these rows, the first few of them shown."""
        return Finding(level, what, len(rows), len(rows) / len(self), self.show(rows), advice)

    def show(self, rows: Rows) -> tuple[str, ...]:
        """The first few rows as a person would write them down."""
        batch = self.examples.batch(np.asarray(rows[:_SHOWN], dtype=np.int64))
        lines = []
        for place, texts in enumerate(zip(*batch.columns, strict=True)):
            parts = [
                text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 1] + "…"
                for text in texts
            ]
            if batch.label is not None and batch.label.ndim == 1:
                parts.append(self.label_name(batch.label[place].item()))
            lines.append(" | ".join(parts))
        return tuple(lines)

    def label_name(self, label: float) -> str:
        return self.examples.classes[int(label)] if self.examples.classes else f"{label:g}"


def fold(text: str) -> str:
    """Without what a reader would not see: case, and white space around and between words."""
    return " ".join(text.casefold().split())


def mixed(hashes: Hashes) -> Hashes:
    """(n,) one number for the texts of a row, in their order."""
    key = np.zeros(len(hashes), dtype=np.uint64)
    for column in hashes.T:
        key = key * np.uint64(0x9E3779B97F4A7C15) + column
    return key
