"""A linear probe: what logistic regression reads out of fixed vectors. The encoder is not changed.

Strength of the L2 penalty: the best of a grid by accuracy on rows that the fit did not see; of equals the strongest.
Vectors go in as they are, not standardised, as in SentEval (arXiv 1803.05449).

Ridge regression with its penalty chosen by leave-one-out, which costs no second fit.

The prediction of row i by a fit on all others follows from the full fit: y_i - (y_i - p_i) / (1 - h_i), where h_i is
the row's own weight in its prediction. So each training row also gets an honest prediction, good for a threshold.

Vectors that are mostly zeros, such as word counts, in a form in which zeros cost nothing.

Many small matrix products, one thread: handing them around costs more than it saves, and order never changes.
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
from gemel.evaluation.statistics import deal_folds
from gemel.types import Vectors

GRID = (0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 32.0)
"""Values of C, strongest penalty first: SentEval's six, and one for vectors of length 1, which need larger weights."""

_SMALL = 1024
"""A step of Newton's costs the square of this for each row."""

Labels = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Probed:
    """Labels predicted for rows that the fit did not see."""

    predicted: Labels
    chosen: tuple[float, ...]
    """C of each fit: one, or one a fold."""


def pair_features(left: Vectors, right: Vectors) -> Vectors:
    """(n, 2 dim): |u - v| and u * v, the same for (u, v) and (v, u)."""
    return np.concatenate([np.abs(left - right), left * right], axis=1)


def probe_folds(vectors: Vectors, labels: Labels, *, folds: int, seed: int) -> Probed:
    """Each fold predicted by a fit on the others; C chosen by as many inner folds of those others."""
    predicted, ready = np.empty_like(labels), compact(vectors)
    fold = deal_folds(labels, folds, seed)
    chosen: list[float] = []
    for number in range(folds):
        out = fold == number
        fit = _inner(ready[~out], labels[~out], ready[out], folds, seed)
        predicted[out] = fit.predicted
        chosen += fit.chosen
    return Probed(predicted, tuple(chosen))


def probe_inner(vectors: Vectors, labels: Labels, test: Vectors, *, folds: int, seed: int) -> Probed:
    """The test rows predicted by a fit on all others; C chosen by cross-validation inside those."""
    return _inner(compact(vectors), labels, compact(test), folds, seed)


def _inner(vectors: Any, labels: Labels, test: Any, folds: int, seed: int) -> Probed:  # noqa: ANN401 - see compact
    inner = deal_folds(labels, folds, seed)
    right = np.zeros(len(GRID))
    for number in range(folds):
        out = inner == number
        path = _predict(vectors[~out], labels[~out], vectors[out], GRID)
        right += [(one == labels[out]).sum() for one in path]
    best = GRID[int(right.argmax())]
    return Probed(_predict(vectors, labels, test, (best,))[0], (best,))


def probe_dev(vectors: Vectors, labels: Labels, dev: Vectors, dev_labels: Labels, test: Vectors) -> Probed:
    """The test rows predicted by a fit on the training rows; C chosen by the dev rows."""
    path = _predict(compact(vectors), labels, compact(np.concatenate([dev, test])), GRID)
    best = int(np.argmax([(one[: len(dev)] == dev_labels).sum() for one in path]))
    return Probed(path[best][len(dev) :], (GRID[best],))


def _newton(vectors: Any, labels: Labels) -> bool:  # noqa: ANN401
    """Two labels and a small dense table: a few Newton steps get where L-BFGS needs hundreds."""
    return isinstance(vectors, np.ndarray) and vectors.shape[1] <= _SMALL and len(np.unique(labels)) == 2


def _predict(vectors: Any, labels: Labels, test: Any, grid: tuple[float, ...]) -> list[Labels]:  # noqa: ANN401
    """Predictions for `test`, one array for each C; each fit starts from the one before."""
    try:
        from sklearn.exceptions import ConvergenceWarning
        from sklearn.linear_model import LogisticRegression
    except ImportError as error:
        raise MissingExtra("a linear probe", "scikit-learn", "evaluate") from error
    if (labels == labels[0]).all():  # a small training part may hold one label: there is nothing to fit
        return [np.full(test.shape[0], labels[0]) for _ in grid]
    # The usual tolerance of 1e-4 stops too soon: numbers of a vector of length 1 are small, and so is the gradient.
    model = LogisticRegression(tol=1e-5, max_iter=1000, warm_start=True)
    if _newton(vectors, labels):
        model.set_params(solver="newton-cholesky")
        vectors, test = vectors.astype(np.float64), test.astype(np.float64)  # float32 is singular too soon
    found = []
    with one_thread("a linear probe"), warnings.catch_warnings():
        # A thousand steps are far past the point where labels still change.
        warnings.simplefilter("ignore", ConvergenceWarning)
        for strength in grid:
            model.set_params(C=strength).fit(vectors, labels)
            found.append(np.asarray(model.predict(test), dtype=np.int64))
    return found


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


FEW = 0.05
"""The share of numbers that are not zero, up to which the sparse form is faster in scikit-learn."""


def compact(vectors: Vectors) -> Any:  # noqa: ANN401 - an array or a scipy matrix, which has no stubs
    """The vectors as they are, or as a sparse matrix of scipy: rows are chosen and fits are made in the same way."""
    if not vectors.size or np.count_nonzero(vectors) > FEW * vectors.size:
        return vectors
    from scipy.sparse import csr_matrix

    return csr_matrix(vectors, dtype=np.float64)  # sums of a few products: exact ones cost no more


@contextmanager
def one_thread(feature: str) -> Iterator[None]:
    """Inside, numpy, scipy and scikit-learn compute on one thread. `feature` is what an error calls the work."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        # It comes with scikit-learn, which is what the extra names.
        raise MissingExtra(feature, "threadpoolctl", "evaluate") from error
    with threadpool_limits(limits=1):
        yield
