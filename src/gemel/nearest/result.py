"""The answer of a search."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class Hits:
    """The nearest corpus rows of each query, best first; ties break on the lower position."""

    index: NDArray[np.int64]
    """(q, k) positions in the corpus."""
    score: Vectors
    """(q, k), higher is nearer."""
    recall: float | None = None
    """Of a search through int8 candidates: the part of the right rows it found for a sample of queries; else None."""

    def __len__(self) -> int:
        return len(self.index)
