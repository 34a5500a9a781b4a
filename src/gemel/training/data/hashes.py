"""A number for each text of a data set, so that equal texts can be found without holding any."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemel.training.data.texts import Hashes, text_hash
from gemel.training.examples import Batch, Examples

_ROWS = 4096


def text_hashes(examples: Examples) -> Hashes:
    """(n, columns) equal for equal texts. Data sets that have them give them; others are read through."""
    known: Hashes | None = getattr(examples, "hashes", None)
    if known is not None:
        return known
    parts = [
        np.array([[text_hash(text) for text in column] for column in batch.columns], dtype=np.uint64).T
        for batch in batches_in_order(examples)
    ]
    return np.concatenate(parts) if parts else np.empty((0, len(examples.roles)), np.uint64)


def batches_in_order(examples: Examples) -> Iterator[Batch]:
    """All rows, some thousand at a time."""
    for start in range(0, len(examples), _ROWS):
        yield examples.batch(np.arange(start, min(start + _ROWS, len(examples)), dtype=np.int64))
