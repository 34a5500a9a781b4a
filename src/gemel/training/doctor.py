"""The data doctor: all checks of a data set before training, as one diagnosis."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from gemel.encoder.tokenizer import TextTokenizer
from gemel.training.data.store import Examples, text_hash
from gemel.training.data_checks import CHECKS, MOST, Evidence, Finding, Level, fold, percent, row_keys
from gemel.training.objectives.base import Needs

__all__ = ["Diagnosis", "Finding", "examine"]


def examine(
    examples: Examples,
    needs: Needs,
    *,
    batch_size: int,
    tokenizer: TextTokenizer | None = None,
    max_length: int | None = None,
    evaluation_texts: Iterable[tuple[str, str]] = (),
) -> Diagnosis:
    """What is wrong or suspicious about a data set. Reads every row once and compares the words of 2,000 rows.

    `evaluation_texts`: the pairs that the model will be scored on. Truncation is checked if both `tokenizer` and
    `max_length` (special tokens included) are given. Nothing is changed or refused: that is up to the caller.
    """
    evidence = Evidence(examples, needs, batch_size)
    findings = [finding for check in CHECKS for finding in check(evidence)]
    if tokenizer is not None and max_length is not None:
        findings += cut_texts(evidence, tokenizer, max_length)
    findings += leaked_pairs(evidence, evaluation_texts)
    findings.sort(key=Finding.rank)
    return Diagnosis(examples.name, len(examples), len(evidence.sample_rows), tuple(findings))


@dataclass(frozen=True)
class Diagnosis:
    """The findings of one data set, the worst first."""

    name: str
    rows: int
    sample: int
    """Rows that the slow checks used."""
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "error")

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def summary(self) -> list[str]:
        """A line about the data set, then one line per finding."""
        head = f"{self.name}: {self.rows:,} rows, {len(self.findings) or 'no'} finding{'s'[: len(self.findings) != 1]}"
        return [head, *(f"{finding.level}: {finding.text}" for finding in self.findings)]


# Checks that need more than the training data.


def leaked_pairs(evidence: Evidence, pairs: Iterable[tuple[str, str]]) -> Iterator[Finding]:
    """Evaluation pairs in the training data, in either order, ignoring case and white space."""
    if not evidence.paired:
        return
    hashes = np.array([sorted((text_hash(fold(a)), text_hash(fold(b)))) for a, b in pairs], dtype=np.uint64)
    if not len(hashes):
        return
    scored = np.unique(row_keys(hashes))
    leaked = np.zeros(len(evidence), dtype=bool)
    seen = np.zeros(len(scored), dtype=bool)
    for column in range(1, len(evidence.roles)):
        keys = row_keys(np.sort(evidence.folded[:, [0, column]], axis=1))
        leaked |= np.isin(keys, scored)
        seen |= np.isin(scored, keys)
    if not leaked.any():
        return
    level: Level = "error" if seen.mean() >= MOST else "warning"
    part = f"{int(seen.sum()):,} of {len(scored):,} ({percent(float(seen.mean()))})"
    yield evidence.finding(
        level,
        f"evaluation pairs among the training data: {part}",
        np.flatnonzero(leaked),
        "Scores on them measure memorization: remove them from the training data",
    )


def cut_texts(evidence: Evidence, tokenizer: TextTokenizer, max_length: int) -> Iterator[Finding]:
    """The share of rows in the sample with a text that is truncated."""
    room = max_length - len(tokenizer.special)
    over = np.zeros(len(evidence.sample_rows), dtype=bool)
    longest = 0
    for column in evidence.sample.columns:
        sizes = np.array([len(content) for content in tokenizer.content(column)])
        over |= sizes > room
        longest = max(longest, int(sizes.max(initial=0)) + len(tokenizer.special))
    if over.any():
        share = float(over.mean())
        yield Finding(
            "warning" if share > 0.05 else "note",
            f"of {len(over):,} sampled rows, some have a text over {max_length} tokens, which is truncated; "
            f"the longest has {longest:,}",
            int(over.sum()),
            share,
            evidence.show(evidence.sample_rows[over]),
            "Use a larger max_length, if the model allows it" if share > 0.05 else "",
        )
