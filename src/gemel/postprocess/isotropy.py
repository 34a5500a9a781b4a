"""How evenly vectors use their space. All numbers are of directions: each vector is scaled to length 1 first."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.similarity import checked, normalize


@dataclass(frozen=True)
class Isotropy:
    """Measures of one set of vectors. Perfectly even: 0, 0, 1, dim, dim."""

    vectors: int
    dim: int
    mean_cosine: float
    """Of all pairs of two different rows: what two random texts score."""
    mean_length: float
    """Length of the mean vector, 0 to 1: how much all texts have in common."""
    partition: float
    """Smallest over largest sum of exp(c · v), c along the principal directions, both ways (arXiv 1702.01417)."""
    effective_rank: float
    """exp of the entropy of the variances: directions in use."""
    participation_ratio: float
    """(Σ variance)² / Σ variance²: as above, and less moved by many small ones."""

    def summary(self) -> str:
        """One line for a person."""
        return (
            f"mean cosine {self.mean_cosine:.3f}, mean length {self.mean_length:.3f}, "
            f"partition {self.partition:.3f}, effective rank {self.effective_rank:.1f} "
            f"and participation ratio {self.participation_ratio:.1f} of {self.dim}"
        )

    def to_json(self) -> dict[str, float]:
        return asdict(self)


def isotropy(vectors: ArrayLike) -> Isotropy:
    """The measures of two or more vectors; vectors that are all equal are in 0 directions."""
    ready = checked(vectors, "vectors")
    rows, dim = ready.shape
    if rows < 2 or dim < 1:
        raise InputError(
            f"isotropy is about pairs: it needs at least 2 vectors, got {rows} of {dim} dimensions"
        )
    unit = normalize(ready).astype(np.float64)
    total = unit.sum(axis=0)
    own = float((unit * unit).sum())  # rows, but for zero vectors, which stay zero
    mean = total / rows
    second = unit.T @ unit / rows
    spread = np.maximum(np.linalg.eigvalsh(second - np.outer(mean, mean)), 0.0)
    return Isotropy(
        vectors=rows,
        dim=dim,
        mean_cosine=float((total @ total - own) / (rows * (rows - 1))),
        mean_length=float(np.sqrt(mean @ mean)),
        partition=_partition(unit, second),
        effective_rank=_effective_rank(spread),
        participation_ratio=_participation_ratio(spread),
    )


def _partition(unit: NDArray[np.float64], second: NDArray[np.float64]) -> float:
    along = unit @ np.linalg.eigh(second)[1]
    # The sign of a principal direction is anybody's choice: both count.
    sums = np.concatenate([np.exp(along).sum(axis=0), np.exp(-along).sum(axis=0)])
    return float(sums.min() / sums.max())


def _effective_rank(spread: NDArray[np.float64]) -> float:
    shares = _shares(spread)
    return float(np.exp(-(shares * np.log(shares)).sum())) if len(shares) else 0.0


def _participation_ratio(spread: NDArray[np.float64]) -> float:
    shares = _shares(spread)
    return float(1 / (shares * shares).sum()) if len(shares) else 0.0


def _shares(spread: NDArray[np.float64]) -> NDArray[np.float64]:
    """Each variance as a part of their sum; what rounding leaves of equal unit vectors is no variance."""
    wide = spread[spread > 1e-12]
    return np.asarray(wide / wide.sum())
