"""Columns for the labels of a relation head: entailment or contradiction, from vectors that are there already."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.model import Model
from gemel.options import EncodeOptions
from gemel.types import Vectors

_BLOCK = 4096  # pairs at once: their vectors are copied


class ByPosition(Protocol):
    """Vectors of texts by their positions: an array, or some of one."""

    def __getitem__(self, positions: NDArray[np.int64], /) -> Vectors: ...


@dataclass(frozen=True, eq=False)
class Relations:
    """How left relates to right, pair by pair."""

    labels: tuple[str, ...]
    probabilities: Vectors
    """(pairs, labels)"""

    def row(self, place: int) -> dict[str, float]:
        """Columns p_LABEL of one pair."""
        values = self.probabilities[place].tolist()
        return {f"p_{label}": value for label, value in zip(self.labels, values, strict=True)}


def relations_of(
    model: Model,
    options: EncodeOptions,
    left: ByPosition,
    rows: NDArray[np.int64],
    right: ByPosition,
    columns: NDArray[np.int64],
) -> Relations | None:
    """For pairs of positions; None where the model keeps no head, or the options give vectors it does not know."""
    known = options.dim is None and options.normalize in (None, model.checkpoint.normalize)
    if model.labels is None or not known:
        return None
    out = np.empty((len(rows), len(model.labels)), dtype=np.float32)
    for start in range(0, len(rows), _BLOCK):
        block = slice(start, start + _BLOCK)
        out[block] = model.relation_of(left[rows[block]], right[columns[block]])
    return Relations(model.labels, out)
