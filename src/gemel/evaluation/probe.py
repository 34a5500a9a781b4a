"""Linear probes on fixed vectors: logistic regression with a grid of penalties, and ridge regression.

The L2 penalty of logistic regression is the best of a grid by accuracy on rows that were not fitted; of equal ones the
strongest. Vectors are not standardized, as in SentEval (arXiv 1803.05449).
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import MissingExtra
from gemel.evaluation.metrics import Floats
from gemel.evaluation.statistics import deal_folds
from gemel.types import Vectors

GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0)
"""Values of C, strongest penalty first: the six of SentEval, and 32 for unit vectors, which need larger weights."""

_SMALL = 1024
"""Dimensions up to which Newton's method is used: a step costs their square for each row."""

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """Labels predicted for rows that were not fitted."""

    predicted: Labels
    chosen: tuple[float, ...]
    """C of each fit: one, or one per fold."""


def pair_features(left: Vectors, right: Vectors) -> Vectors:
    """(n, 2 dim): |u - v| and u * v, the same for (u, v) and (v, u)."""
    return np.concatenate([np.abs(left - right), left * right], axis=1)


def probe_folds(vectors: Vectors, labels: Labels, *, folds: int, seed: int) -> ProbeResult:
    """Each fold predicted by a fit on the others; C chosen by as many inner folds of those others."""
    predicted, ready = np.empty_like(labels), compact(vectors)
    fold = deal_folds(labels, folds, seed)
    chosen: list[float] = []
    for number in range(folds):
        out = fold == number
        fit = _inner(ready[~out], labels[~out], ready[out], folds, seed)
        predicted[out] = fit.predicted
        chosen += fit.chosen
    return ProbeResult(predicted, tuple(chosen))


def probe_inner(vectors: Vectors, labels: Labels, test: Vectors, *, folds: int, seed: int) -> ProbeResult:
    """The test rows predicted by a fit on all others; C chosen by cross-validation inside those."""
    return _inner(compact(vectors), labels, compact(test), folds, seed)


def _inner(vectors: Any, labels: Labels, test: Any, folds: int, seed: int) -> ProbeResult:  # noqa: ANN401 - see compact
    inner = deal_folds(labels, folds, seed)
    right = np.zeros(len(GRID))
    for number in range(folds):
        out = inner == number
        path = _predict(vectors[~out], labels[~out], vectors[out], GRID)
        right += [(one == labels[out]).sum() for one in path]
    best = GRID[int(right.argmax())]
    return ProbeResult(_predict(vectors, labels, test, (best,))[0], (best,))


def probe_dev(
    vectors: Vectors, labels: Labels, dev: Vectors, dev_labels: Labels, test: Vectors
) -> ProbeResult:
    """The test rows predicted by a fit on the training rows; C chosen by the dev rows."""
    path = _predict(compact(vectors), labels, compact(np.concatenate([dev, test])), GRID)
    best = int(np.argmax([(one[: len(dev)] == dev_labels).sum() for one in path]))
    return ProbeResult(path[best][len(dev) :], (GRID[best],))


def _newton(vectors: Any, labels: Labels) -> bool:  # noqa: ANN401
    """True for two labels and a small dense matrix: a few Newton steps instead of hundreds of L-BFGS."""
    return isinstance(vectors, np.ndarray) and vectors.shape[1] <= _SMALL and len(np.unique(labels)) == 2


def _predict(vectors: Any, labels: Labels, test: Any, grid: tuple[float, ...]) -> list[Labels]:  # noqa: ANN401
    """Predictions for `test`, one array for each C; each fit starts from the one before."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtra("a linear probe", "scikit-learn", "evaluate") from error
    if (labels == labels[0]).all():  # a small training part may have one label
        return [np.full(test.shape[0], labels[0]) for _ in grid]
    # The default tolerance of 1e-4 stops too soon: numbers of unit vectors are small, and so is the gradient.
    model = LogisticRegression(tol=1e-5, max_iter=1000, warm_start=True)
    if _newton(vectors, labels):
        model.set_params(solver="newton-cholesky")
        vectors, test = vectors.astype(np.float64), test.astype(np.float64)  # float32 is too imprecise
    predictions = []
    with one_thread("a linear probe"), warnings.catch_warnings():
        # After a thousand steps the predicted labels do not change any more.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for strength in grid:
            model.set_params(C=strength).fit(vectors, labels)
            predictions.append(np.asarray(model.predict(test), dtype=np.int64))
    return predictions


PENALTIES = tuple(float(10.0**power) for power in range(-2, 4))


@dataclass(frozen=True, eq=False)
class Ridge:
    """A fitted ridge regression; the intercept is not penalized."""

    weights: Floats
    intercept: float
    penalty: float
    left_out: Floats
    """(n,) the prediction of each training row by the other rows."""

    def predict(self, features: ArrayLike) -> Floats:
        return np.asarray(features, dtype=np.float64) @ self.weights + self.intercept


def fit_ridge(features: ArrayLike, targets: ArrayLike, penalties: tuple[float, ...] = PENALTIES) -> Ridge:
    """The fit whose leave-one-out predictions have the least squared error; of equal ones the smallest penalty.

    The prediction of row i by a fit on all others follows from the full fit: y_i - (y_i - p_i) / (1 - h_i), where h_i
    is the weight of the row in its own prediction.
    """
    x, y = np.asarray(features, dtype=np.float64), np.asarray(targets, dtype=np.float64)
    center, mean = x.mean(axis=0), float(y.mean())
    x, y = x - center, y - mean
    values, axes = np.linalg.eigh(x.T @ x)
    values = np.maximum(values, 0)  # a rounding error below zero
    rotated = x @ axes  # (n, p): in these axes a penalty is a division
    projection = rotated.T @ y
    best: Ridge | None = None
    least = np.inf
    for penalty in penalties:
        shrink = 1 / (values + penalty)
        own = np.square(rotated) @ shrink + 1 / len(y)  # 1/n is the weight through the intercept
        left_out = y - (y - rotated @ (projection * shrink)) / np.maximum(1 - own, 1e-12)
        error = float(np.square(y - left_out).sum())
        if best is None or error < least:
            weights = axes @ (projection * shrink)
            best, least = Ridge(weights, mean - float(center @ weights), penalty, left_out + mean), error
    assert best is not None
    return best


FEW = 0.05
"""The share of nonzero numbers up to which sparse matrices are faster in scikit-learn."""


def compact(vectors: Vectors) -> Any:  # noqa: ANN401 - an array or a scipy matrix, which has no stubs
    """The vectors, as a sparse matrix of scipy where they are mostly zeros, such as word counts."""
    if not vectors.size or np.count_nonzero(vectors) > FEW * vectors.size:
        return vectors
    from scipy.sparse import csr_matrix

    return csr_matrix(vectors, dtype=np.float64)  # float64 costs little with so few numbers


@contextmanager
def one_thread(feature: str) -> Iterator[None]:
    """numpy, scipy and scikit-learn compute on one thread inside: faster for small products, and bit-exact.

    `feature` is the name of the work in an error.
    """
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        # A dependency of scikit-learn, which the extra installs.
        raise MissingExtra(feature, "threadpoolctl", "evaluate") from error
    with threadpool_limits(limits=1):
        yield
