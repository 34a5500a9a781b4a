"""The head: logistic regression on vectors, two arrays that are enough to use it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.evaluation.one_thread import one_thread


@dataclass(frozen=True, eq=False)
class Head:
    """A row for each class; of two classes both have one, the first of zeros."""

    weight: NDArray[np.float64]
    """(classes, dim)"""
    bias: NDArray[np.float64]
    """(classes,)"""

    def scores(self, vectors: NDArray[Any]) -> NDArray[np.float64]:
        """(n, classes). A row's bits do not depend on the other rows."""
        wide = vectors.astype(np.float64)
        # Not a matrix product: BLAS adds up in another order for other numbers of rows.
        return np.stack([(wide * row).sum(axis=1) for row in self.weight], axis=1) + self.bias


def probabilities(scores: NDArray[np.float64]) -> NDArray[np.float64]:
    """(n, classes) scores to probabilities; rows sum to 1."""
    powers = np.exp(scores - scores.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def fit_head(
    vectors: NDArray[Any],
    numbers: NDArray[np.int64],
    *,
    C: float,  # noqa: N803 - LogisticRegression's name
    seed: int,
) -> Head:
    """L2-penalised; `C` as scikit-learn has it."""
    from sklearn.linear_model import LogisticRegression

    if not C > 0:
        raise InputError(f"C must be more than 0, got {C!r}")
    with one_thread("the few-shot classifier"):
        model = LogisticRegression(C=C, max_iter=2000, random_state=seed).fit(
            vectors.astype(np.float64), numbers
        )
    weight, bias = np.asarray(model.coef_), np.asarray(model.intercept_)
    if len(weight) == 1:  # of two classes scikit-learn keeps the second only
        weight, bias = np.concatenate([np.zeros_like(weight), weight]), np.append(0.0, bias)
    return Head(weight, bias)
