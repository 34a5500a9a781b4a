"""False negatives in a batch, for objectives whose rows are each other's negatives."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from gemel.training.data.texts import Hashes
from gemel.training.doctor.diagnosis import Finding, percent
from gemel.training.doctor.evidence import Evidence


def false_negatives(evidence: Evidence) -> Iterator[Finding]:
    """Rows that share a text: kept apart if it is equal to the letter, not if only case or spaces differ."""
    if not evidence.needs.distinct or len(evidence) < 2:
        return
    equal = _others(evidence.hashes[:, :2])
    shared = np.flatnonzero(equal)
    if len(shared):
        chance = _chance(equal, evidence)
        yield evidence.finding(
            "note",
            f"a text in common with another row; in random batches of {evidence.batch_size}, {percent(chance)} of the "
            "rows would meet a false negative",
            shared,
            "They are kept in different batches",
        )
    twins = _others(evidence.folded[:, :2]) - equal
    rows = np.flatnonzero(twins > 0)
    if len(rows):
        chance = _chance(np.maximum(twins, 0), evidence)
        yield evidence.finding(
            "warning" if chance > 0.01 else "note",
            "a text in common with another row but for case or white space; they are not kept apart, and "
            f"{percent(chance)} of all rows will meet such a false negative in a batch",
            rows,
            "Write equal texts alike",
        )


def crowded_texts(evidence: Evidence) -> Iterator[Finding]:
    """A text in more rows than there are batches: some of its rows have no batch to go to."""
    if not evidence.needs.distinct:
        return
    batches = max(len(evidence) // evidence.batch_size, 1)
    texts, counts = np.unique(evidence.hashes, return_counts=True)
    rows = np.flatnonzero((evidence.hashes == texts[counts.argmax()]).any(axis=1))
    if len(rows) > max(batches, 2):
        yield evidence.finding(
            "warning",
            f"one text in common, but an epoch has about {batches:,} batches of {evidence.batch_size}",
            rows,
            "Rows that find no batch are left out of an epoch: use a smaller batch_size, or other negatives",
        )


def _others(hashes: Hashes) -> NDArray[np.int64]:
    """(n,) about how many other rows have a text of this row in one of these columns."""
    total = np.zeros(len(hashes), dtype=np.int64)
    _, where, counts = np.unique(hashes.reshape(-1), return_inverse=True, return_counts=True)
    of_text = counts[where].reshape(hashes.shape)
    own = (hashes[:, :, None] == hashes[:, None, :]).sum(axis=2)  # a text that stands twice in its own row
    for column in range(hashes.shape[1]):
        total = np.maximum(total, of_text[:, column] - own[:, column])
    return total


def _chance(others: NDArray[np.int64], evidence: Evidence) -> float:
    """Expected share of rows that meet one of so many others in a random batch."""
    miss = 1 - np.minimum(others / (len(evidence) - 1), 1)
    return float((1 - miss ** (min(evidence.batch_size, len(evidence)) - 1)).mean())
