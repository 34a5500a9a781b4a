"""Groups of near-duplicates as stars: one text is kept, and each removed one is near to the one that stands for it.

Chains (a like b, b like c, so a with c) would put texts together that have nothing in common, and removing a text
because of a chain loses it. Here a goes or stays for one reason that can be read. No two kept texts are near.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.clusters.neighbours import neighbours_of
from gemel.pairs import Pairs
from gemel.types import Vectors

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Stars:
    """Which of n rows are removed, and for which kept one."""

    removed: Positions
    """Ascending."""
    kept_for: Positions
    """The kept row that each stands behind: of those that are near enough, the most similar."""
    score: Vectors


def stars(pairs: Pairs, rows: int, order: Positions) -> Stars:
    """`pairs` are all that are near enough; `order` has the rows that are to be kept first, first."""
    near = neighbours_of(pairs, rows)
    gone = np.zeros(rows, dtype=bool)
    connected = np.diff(near.start) > 0
    for row in order[connected[order]].tolist():
        if not gone[row]:
            gone[near.of(row)] = True
    rank = np.empty(rows, dtype=np.int64)
    rank[order] = np.arange(rows)
    one, other = np.append(pairs.left, pairs.right), np.append(pairs.right, pairs.left)
    score = np.append(pairs.score, pairs.score)
    edge = np.flatnonzero(gone[one] & ~gone[other])
    # By removed row, then the most similar kept one, then that which comes first in the order.
    edge = edge[np.lexsort((rank[other[edge]], -score[edge], one[edge]))]
    removed, first = np.unique(one[edge], return_index=True)
    return Stars(removed, other[edge][first], score[edge][first])


def central_order(pairs: Pairs, rows: int) -> tuple[Positions, NDArray[np.float64]]:
    """(n,) how many near-duplicates each row has, and how near they are altogether."""
    near = neighbours_of(pairs, rows)
    return np.diff(near.start), near.nearness
