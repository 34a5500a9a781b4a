"""Ridge regression with its penalty chosen by leave-one-out, which costs no second fit.

The prediction of row i by a fit on all others follows from the full fit: y_i - (y_i - p_i) / (1 - h_i), where h_i is
the row's own weight in its prediction. So each training row also gets an honest prediction, good for a threshold.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]

PENALTIES = tuple(float(10.0**power) for power in range(-2, 4))


@dataclass(frozen=True, eq=False)
class Ridge:
    """A fitted line through features, with an intercept that is not penalised."""

    weights: Floats
    intercept: float
    penalty: float
    left_out: Floats
    """(n,) the prediction of each training row by the other rows."""

    def predict(self, features: ArrayLike) -> Floats:
        return np.asarray(features, dtype=np.float64) @ self.weights + self.intercept


def fit_ridge(features: ArrayLike, targets: ArrayLike, penalties: tuple[float, ...] = PENALTIES) -> Ridge:
    """The fit whose left-out predictions have the least squared error; of equals the smallest penalty."""
    x, y = np.asarray(features, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    centre, mean = x.mean(axis=0), float(y.mean())
    x, y = x - centre, y - mean
    values, axes = np.linalg.eigh(x.T @ x)
    values = np.maximum(values, 0)  # a rounding error below zero
    turned = x @ axes  # (n, p): every penalty is a division in these axes
    pull = turned.T @ y
    best: Ridge | None = None
    least = np.inf
    for penalty in penalties:
        shrink = 1 / (values + penalty)
        own = np.square(turned) @ shrink + 1 / len(y)  # the intercept gives each row 1/n of its own weight
        left_out = y - (y - turned @ (pull * shrink)) / np.maximum(1 - own, 1e-12)
        error = float(np.square(y - left_out).sum())
        if best is None or error < least:
            weights = axes @ (pull * shrink)
            best, least = Ridge(weights, mean - float(centre @ weights), penalty, left_out + mean), error
    assert best is not None
    return best
