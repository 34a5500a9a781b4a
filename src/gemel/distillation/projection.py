"""Fewer dimensions for a teacher's vectors: the widest directions, chosen so that cosines change least."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class Projection:
    """x -> weight @ x."""

    weight: Vectors
    """(dim, in) float32, rows of length 1 at right angles."""
    kept: float
    """Share of the squared length of the vectors that is left."""

    def apply(self, vectors: Vectors) -> Vectors:
        """(n, in) -> (n, dim)"""
        return np.asarray(vectors @ self.weight.T, dtype=np.float32)


def widest_directions(vectors: Vectors, dim: int) -> Projection:
    """The `dim` directions that hold most of the vectors' length.

    Nothing is centred: a cosine is measured from the origin, and the mean may be what tells two kinds of text apart.
    """
    exact = vectors.astype(np.float64)
    spread, columns = np.linalg.eigh(exact.T @ exact)
    directions = columns.T[::-1][:dim]
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    total = max(float(spread.sum()), 1e-30)
    return Projection(
        (directions * signs[:, None]).astype(np.float32), float(spread[::-1][:dim].sum() / total)
    )
