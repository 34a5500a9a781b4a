"""Measured numbers for the figures, from vectors of the sentences that are part of gemel."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import NDArray

import gemel
from gemel.texts.whitening import fit_whitening

MODEL = "all-MiniLM-L6-v2"
PAIR = ("My parcel has not arrived.", "Where is my delivery?")
BINS = 80


def measure(plain: str) -> dict[str, Any]:
    """`plain` is an encoder that was never trained for sentences."""
    texts = files("gemel.texts").joinpath("sentences.txt").read_text(encoding="utf-8").splitlines()
    raw = gemel.load(plain).encode(texts, normalize=False)
    white = fit_whitening(raw, dim=64).apply(raw)
    return {
        "anisotropy": {"before": _spread(raw), "after": _spread(white)},
        "explanation": _explained(),
        "calibration": _calibrated(texts),
    }


def _spread(vectors: NDArray[np.float32]) -> dict[str, Any]:
    """Points: the share of each direction along the mean and along the widest direction across it."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    mean = unit.mean(axis=0)
    ahead = mean / np.linalg.norm(mean)
    rest = unit - np.outer(unit @ ahead, ahead)
    across = np.linalg.svd(rest, full_matrices=False)[2][0]
    cosines = _pairs(unit)
    points = np.stack([unit @ ahead, unit @ across], axis=1)
    return {
        "points": [[round(float(value), 3) for value in point] for point in points],
        "cosines": _counts(cosines),
        "mean": round(float(cosines.mean()), 4),
    }


def _explained() -> dict[str, Any]:
    result = gemel.explain(gemel.load(MODEL), *PAIR)
    table = [[round(float(value), 4) for value in row] for row in result.table]
    left, right = result.tokens
    return {"texts": PAIR, "left": left, "right": right, "table": table, "score": round(result.score, 4)}


def _calibrated(texts: list[str]) -> dict[str, Any]:
    vectors = gemel.load(MODEL).encode(texts)
    cut = gemel.calibrate(vectors).threshold(expected_false=1)
    cosines = _pairs(vectors)
    result = sorted(round(float(score), 3) for score in cosines[cosines >= cut])
    return {
        "texts": len(texts),
        "pairs": len(cosines),
        "cosines": _counts(cosines),
        "cut": round(cut, 3),
        "above": len(result),
        "found": result,
    }


def _pairs(unit: NDArray[np.float32]) -> NDArray[np.float32]:
    rows, columns = np.triu_indices(len(unit), 1)
    return (unit @ unit.T)[rows, columns]


def _counts(cosines: NDArray[np.float32]) -> list[int]:
    return [int(count) for count in np.histogram(cosines, bins=BINS, range=(-1, 1))[0]]
