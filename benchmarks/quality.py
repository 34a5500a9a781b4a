"""Are the vectors right? Cosine against a reference system, and Spearman against the gold scores of STSb."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def ranks(values: NDArray[np.floating]) -> NDArray[np.float64]:
    """Ranks from 1; equal values share the mean of their ranks."""
    order = np.argsort(values, kind="stable")
    _, group, counts = np.unique(values[order], return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    shared = last - (counts - 1) / 2  # mean of the ranks last - count + 1 .. last
    result = np.empty(len(values), np.float64)
    result[order] = shared[group]
    return result


def spearman(left: NDArray[np.floating], right: NDArray[np.floating]) -> float:
    """Correlation of the ranks, times 100 as in the papers."""
    return float(np.corrcoef(ranks(left), ranks(right))[0, 1] * 100)


def sts_spearman(vectors: NDArray[np.float32], gold: Sequence[float]) -> float:
    """`vectors` holds the n left texts, then the n right texts, all of length 1."""
    half = len(gold)
    cosines = np.sum(vectors[:half] * vectors[half : 2 * half], axis=1)
    return spearman(cosines, np.asarray(gold))


def agreement(vectors: NDArray[np.float32], reference: NDArray[np.float32]) -> dict[str, float]:
    """Smallest and mean cosine of the two vectors of each text."""
    lengths = np.linalg.norm(vectors, axis=1) * np.linalg.norm(reference, axis=1)
    cosines = np.sum(vectors.astype(np.float64) * reference, axis=1) / lengths
    return {"min": float(cosines.min()), "mean": float(cosines.mean())}


def looks_wrong(precision: str, cosine: dict[str, float]) -> bool:
    """Float32 must agree on every text; bfloat16 and int8 fall below a mean of 0.9 only if something is broken."""
    return not (cosine["min"] > 0.999 if precision == "float32" else cosine["mean"] > 0.9)
