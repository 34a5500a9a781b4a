"""Vectors that are mostly zeros, such as word counts, in a form in which zeros cost nothing."""

from __future__ import annotations

from typing import Any

import numpy as np

from gemel.types import Vectors

FEW = 0.05
"""The share of numbers that are not zero, up to which the sparse form is faster in scikit-learn."""


def compact(vectors: Vectors) -> Any:  # noqa: ANN401 - an array or a scipy matrix, which has no stubs
    """The vectors as they are, or as a sparse matrix of scipy: rows are chosen and fits are made in the same way."""
    if not vectors.size or np.count_nonzero(vectors) > FEW * vectors.size:
        return vectors
    from scipy.sparse import csr_matrix

    return csr_matrix(vectors, dtype=np.float64)  # sums of a few products: exact ones cost no more
