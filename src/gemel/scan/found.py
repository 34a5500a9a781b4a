"""What a scan gives: pairs with their exact scores; and what a scanner is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class Found:
    """Pairs in no order."""

    score: Vectors
    left: NDArray[np.int32]
    right: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.score)


@dataclass(frozen=True, eq=False)
class Nearest:
    """For some queries their best rows, best first; ties by position. `index` is -1 where there are no more rows."""

    score: Vectors
    index: NDArray[np.int64]


class Scanner(Protocol):
    """Scans one comparison. All methods may be called from several threads at once."""

    block_rows: int
    """Left rows that are best packed together."""

    def block(self, begin: int, end: int) -> Any:  # noqa: ANN401 - each scanner's own
        """Left rows `begin` .. `end`, packed."""

    def pairs(
        self,
        block: Any,  # noqa: ANN401
        begin: int,
        end: int,
        floor: Callable[[], float],
        take: Callable[[Found], None],
    ) -> None:
        """All pairs of the block with right rows `begin` .. `end` that reach the floor, in as many parts as needed.

        The floor is asked for again before every part: it may rise.
        """

    def nearest(self, block: Any, k: int, threads: int, *, exact: bool) -> Nearest:  # noqa: ANN401
        """The `k` best right rows of each row of the block. Not `exact`: int8 estimates instead of scores."""

    def exact(self, i: NDArray[np.int64], j: NDArray[np.int64], threads: int) -> Vectors:
        """(p,) scores of left rows `i` with right rows `j`."""
