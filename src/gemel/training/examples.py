"""Training data as the loop sees it: rows of texts by role, a label a row, random access, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class Batch:
    """Some rows, ready to be encoded."""

    columns: tuple[list[str], ...]
    """The texts of each role, in the objective's order; extra columns (negatives) at the end."""
    label: NDArray[Any] | None
    """One label a row: int64 for class, binary, group; float32 for score, margin; (n, d) float32 for vector."""


class Examples(Protocol):
    """One data set, checked and ready for one objective."""

    name: str
    roles: tuple[str, ...]
    """Roles of the columns of every batch, such as ("anchor", "positive", "negative", "negative")."""
    classes: tuple[str, ...]
    """Names of the labels, in the order of their numbers; empty unless the label is a class."""
    lengths: NDArray[np.int32]
    """Characters of each row, all its texts together: for grouping."""

    def __len__(self) -> int: ...

    def batch(self, rows: Rows) -> Batch:
        """The rows at these positions, in this order."""
        ...

    def fingerprint(self) -> str:
        """sha256 of the rows, so that a run is not resumed on other data."""
        ...


@dataclass(frozen=True, eq=False)
class Draw:
    """The rows of one step: which data set, and which of its rows."""

    dataset: int
    rows: Rows


class Sampler(Protocol):
    """The order of an epoch, made anew from (seed, epoch), so that a position in it is all that a resume needs."""

    def epoch(self, number: int) -> Sequence[Draw]: ...
