"""Which rows take part: a random choice of them, and folds for cross-validation. Seeded, nothing else is random."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError

Rows = NDArray[np.int64]


def choose(rows: int, limit: int | None, seed: int) -> Rows:
    """All row numbers, or `limit` of them at random, in order. Not the first ones: files are sorted by class."""
    if limit is None or limit >= rows:
        return np.arange(rows)
    if limit < 2:
        raise InputError(f"limit must be at least 2 rows, got {limit}")
    return np.sort(np.random.default_rng(seed).permutation(rows)[:limit])


def deal_folds(labels: Sequence[str] | NDArray[np.int64], folds: int, seed: int) -> Rows:
    """(n,) the fold of each row, 0 to folds - 1. Folds are of one size (±1) and so is each label's share of them."""
    if folds < 2 or len(labels) < folds:
        raise InputError(f"{len(labels)} rows cannot make {folds} folds: between 2 and as many as rows")
    random = np.random.default_rng(seed)
    _, group = np.unique(np.asarray(labels), return_inverse=True)
    order = random.permutation(len(labels))
    order = order[np.argsort(group[order], kind="stable")]  # label by label, shuffled inside
    found = np.empty(len(labels), dtype=np.int64)
    found[order] = np.arange(len(labels)) % folds  # dealt like cards
    return found
