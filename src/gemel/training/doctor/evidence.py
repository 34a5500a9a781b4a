"""What all checks look at, made once: hashes of texts, labels, and a sample of rows with their words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.objectives.table import Needs
from gemel.training.data.hashes import batches_in_order, text_hashes
from gemel.training.data.texts import Hashes, text_hash
from gemel.training.doctor.diagnosis import Finding, Level
from gemel.training.examples import Batch, Examples, Rows

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
