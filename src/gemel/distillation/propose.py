"""Pairs of texts for a teacher to label: near ones, which teach, and random ones, so that not all scores are high."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.nearest import search
from gemel.types import Vectors

Positions = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Proposed:
    """Positions of texts, pair by pair; no pair is there twice, in either order."""

    near: Positions
    """(p, 2)"""
    random: Positions
    """(q, 2)"""

    @property
    def all(self) -> Positions:
        return np.concatenate([self.near, self.random])


def propose_pairs(
    vectors: Vectors, *, neighbours: int, random: int, seed: int = 0, threads: int | None = None
) -> Proposed:
    """For each row its nearest `neighbours`, and `random` others a row; fewer where there are no more."""
    count = len(vectors)
    if count < 2:
        return Proposed(np.empty((0, 2), np.int64), np.empty((0, 2), np.int64))
    hits = search(vectors, vectors, k=min(neighbours + 1, count), threads=threads).index
    rows = np.repeat(np.arange(count), hits.shape[1])
    found = np.stack([rows, hits.ravel()], axis=1)
    # A text may come after an equal vector, so itself is not always the first hit.
    near = _distinct(found[found[:, 0] != found[:, 1]])
    dice = np.random.default_rng(seed)
    drawn = _distinct(_unequal(dice.integers(0, count, size=(count * random, 2))))
    taken = set(map(tuple, near.tolist()))
    fresh = [pair for pair in drawn.tolist() if tuple(pair) not in taken]
    return Proposed(near, np.array(fresh, dtype=np.int64).reshape(-1, 2))


def _unequal(pairs: Positions) -> Positions:
    unequal: Positions = pairs[pairs[:, 0] != pairs[:, 1]]
    return unequal


def _distinct(pairs: Positions) -> Positions:
    """Each pair once, lower position first, in the order of the positions."""
    found: Positions = np.unique(np.sort(pairs, axis=1), axis=0)
    return found
