"""Which texts run together: groups of texts of exactly the same length, so nothing is ever padded."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

Positions = NDArray[np.int64]


def same_length_batches(lengths: Sequence[int], rows_for: Callable[[int], int]) -> list[Positions]:
    """Positions grouped by exact length, at most `rows_for(length)` to a batch, longest first.

    Longest first, so that the work left for the end is small and the cores finish together.
    """
    order = np.argsort(-np.asarray(lengths, dtype=np.int64), kind="stable")
    ordered = np.asarray(lengths, dtype=np.int64)[order]
    borders = np.flatnonzero(np.diff(ordered)) + 1
    batches: list[Positions] = []
    for group in np.split(order, borders):
        if len(group):
            rows = max(1, rows_for(int(lengths[group[0]])))
            batches.extend(group[start : start + rows] for start in range(0, len(group), rows))
    return batches


def joined_batches(
    groups: Sequence[Positions], costs: Sequence[tuple[int, int]], limits: tuple[int, int]
) -> list[list[Positions]]:
    """Neighbouring groups in one batch while both of their costs (tokens, bytes) stay within the limits together."""
    batches: list[list[Positions]] = []
    tokens = size = 0
    for group, (more_tokens, more_bytes) in zip(groups, costs, strict=True):
        if batches and tokens + more_tokens <= limits[0] and size + more_bytes <= limits[1]:
            batches[-1].append(group)
            tokens, size = tokens + more_tokens, size + more_bytes
        else:
            batches.append([group])
            tokens, size = more_tokens, more_bytes
    return batches
