"""How vectors lie while they are trained: what random texts score, how evenly they spread, how near positives are.

Alignment and uniformity are those of arXiv 2005.10242; all numbers are of directions, as a cosine is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.postprocess.isotropy import isotropy
from gemel.similarity import checked, normalize, row_scores

BINS = 80
"""Of a histogram of cosines from -1 to 1, so that two histograms can be laid side by side."""
Pairs = NDArray[np.int64]
"""(m, 2): positions of two texts that belong together."""


@dataclass(frozen=True)
class Geometry:
    """Measures of one set of vectors."""

    mean_cosine: float
    """Of all pairs of two different texts."""
    uniformity: float
    """log of the mean of exp(-2 |x - y|²) over all pairs: 0 when all are equal, near -4 when spread evenly."""
    alignment: float | None
    """Mean |x - y|² of texts that belong together, 0 to 4; None without such pairs."""
    effective_rank: float
    """exp of the entropy of the variances (Roy and Vetterli, 2007): directions in use."""

    def to_json(self) -> dict[str, float | None]:
        return asdict(self)


def geometry(vectors: ArrayLike, pairs: ArrayLike | None = None) -> Geometry:
    """The measures of two or more vectors; a few hundred of different texts are enough, and all pairs are looked at."""
    even = isotropy(vectors)
    return Geometry(
        even.mean_cosine, uniformity(vectors), alignment(vectors, pairs), effective_rank=even.effective_rank
    )


def uniformity(vectors: ArrayLike) -> float:
    """Lower is more even; see `Geometry.uniformity`."""
    cosines = _cosines(vectors)
    return float(np.log(np.exp(-4 * (1 - cosines)).mean()))  # |x - y|² = 2 - 2 cos for unit vectors


def alignment(vectors: ArrayLike, pairs: ArrayLike | None) -> float | None:
    """Lower is nearer; None without pairs."""
    together = _together(vectors, pairs)
    return None if together is None else float((2 - 2 * together).mean())


def closeness(alignment: float | None, mean_cosine: float) -> float | None:
    """Alignment over the mean |x - y|² of all pairs: below 1, positives are nearer than random texts are."""
    random = 2 * (1 - mean_cosine)
    return None if alignment is None or random <= 0 else alignment / random


@dataclass(frozen=True)
class Similarities:
    """Cosines in `BINS` equal bins from -1 to 1, as counts."""

    random: tuple[int, ...]
    """Of two different texts that nobody says belong together."""
    positive: tuple[int, ...] | None
    """Of two texts that belong together; None where the data does not say."""

    def to_json(self) -> dict[str, list[int] | None]:
        positive = None if self.positive is None else list(self.positive)
        return {"random": list(self.random), "positive": positive}

    @classmethod
    def from_json(cls, content: Mapping[str, Any]) -> Similarities:
        """What `to_json` gave; further fields are of no matter."""
        positive = content.get("positive")
        return cls(tuple(content["random"]), None if positive is None else tuple(positive))


def similarities(vectors: ArrayLike, pairs: ArrayLike | None = None) -> Similarities:
    """The histograms of all pairs of different rows that are not in `pairs`, and of those that are."""
    together = _together(vectors, pairs)
    random = _counts(_cosines(vectors))
    if together is None:
        return Similarities(tuple(random.tolist()), None)
    both = np.unique(np.sort(np.asarray(pairs, dtype=np.int64), axis=1), axis=0)
    both = both[both[:, 0] != both[:, 1]]
    inside = _counts(row_scores(*(checked(vectors, "vectors")[side] for side in both.T)))
    # A score at the edge of a bin may round to the other side in the two computations.
    rest = np.maximum(random - inside, 0)
    return Similarities(tuple(rest.tolist()), tuple(_counts(together).tolist()))


def _cosines(vectors: ArrayLike) -> NDArray[np.float64]:
    """Of every two different rows, once."""
    unit = normalize(vectors).astype(np.float64)
    if len(unit) < 2:
        raise InputError(f"cosines of pairs need at least 2 vectors, got {len(unit)}")
    return np.asarray((unit @ unit.T)[np.triu_indices(len(unit), k=1)])


def _together(vectors: ArrayLike, pairs: ArrayLike | None) -> NDArray[np.float64] | None:
    """The cosine of each pair; None where there is none."""
    if pairs is None:
        return None
    places, ready = np.asarray(pairs, dtype=np.int64), checked(vectors, "vectors")
    if places.size == 0:
        return None
    if places.ndim != 2 or places.shape[1] != 2 or places.min() < 0 or places.max() >= len(ready):
        raise InputError(
            f"pairs must be two positions a row, each from 0 to {len(ready) - 1}, got shape {places.shape}"
        )
    return row_scores(ready[places[:, 0]], ready[places[:, 1]]).astype(np.float64)


def _counts(cosines: NDArray[Any]) -> NDArray[np.int64]:
    return np.histogram(cosines.clip(-1, 1), bins=BINS, range=(-1, 1))[0].astype(np.int64)
