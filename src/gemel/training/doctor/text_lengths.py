"""Texts without a word, and texts that are longer than the model reads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from typing import Protocol

import numpy as np

from gemel.training.data.texts import text_hash
from gemel.training.doctor.diagnosis import Finding
from gemel.training.doctor.evidence import Evidence


class Tokenizer(Protocol):
    """What is used of `gemel.text.tokenizer.TextTokenizer`."""

    @property
    def marks(self) -> Sized: ...

    def content(self, texts: Sequence[str]) -> Sequence[Sized]: ...


def empty_texts(evidence: Evidence) -> Iterator[Finding]:
    """White space alone counts as empty."""
    rows = np.flatnonzero((evidence.folded == np.uint64(text_hash(""))).any(axis=1))
    if len(rows):
        yield evidence.finding("warning", "empty text", rows, "Remove them: nothing stands for nothing")


def cut_texts(evidence: Evidence, tokenizer: Tokenizer, max_length: int) -> Iterator[Finding]:
    """The share of rows in the sample with a text that is over the limit."""
    room = max_length - len(tokenizer.marks)
    over = np.zeros(len(evidence.sample_rows), dtype=bool)
    longest = 0
    for column in evidence.sample.columns:
        sizes = np.array([len(content) for content in tokenizer.content(column)])
        over |= sizes > room
        longest = max(longest, int(sizes.max(initial=0)) + len(tokenizer.marks))
    if over.any():
        share = float(over.mean())
        yield Finding(
            "warning" if share > 0.05 else "note",
            f"of {len(over):,} rows looked at, some have a text over {max_length} tokens, which is cut; the longest "
            f"has {longest:,}",
            int(over.sum()),
            share,
            evidence.show(evidence.sample_rows[over]),
            "A larger max_length keeps more, if the model can" if share > 0.05 else "",
        )
