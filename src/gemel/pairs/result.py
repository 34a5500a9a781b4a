"""The answer: pairs as arrays, and as a table for pandas or Arrow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import MissingExtra
from gemel.types import Vectors

if TYPE_CHECKING:
    import pandas
    import pyarrow


@dataclass(frozen=True, eq=False)
class Pairs:
    """Pairs of rows, best first; ties break on the lower left, then the lower right position.

    Pairs that were streamed to a folder without a `k` come in the order of their positions instead.
    """

    score: Vectors
    """(p,), higher is nearer."""
    left: NDArray[np.int64]
    """(p,) position in the first set."""
    right: NDArray[np.int64]
    """(p,) position in the second set; within one set left < right."""
    compared: int
    """Pairs that the answer is about: those that bounds ruled out count, those a faster model never proposed do not."""
    complete: bool
    """No pair that belongs here was missed."""
    recall: float | None = None
    """Of an approximate answer: the part of the right pairs it found, measured on a sample; None when exact."""

    def __len__(self) -> int:
        return len(self.score)

    def summary(self) -> str:
        """One line for a person."""
        parts = [f"{len(self):,} pairs", f"{self.compared:,} compared"]
        if self.complete:
            parts.append("complete")
        else:
            found = "unknown" if self.recall is None else f"about {self.recall:.1%} (measured on a sample)"
            parts.append(f"not complete, recall {found}")
        return ", ".join(parts)

    def to_pandas(self) -> pandas.DataFrame:
        """Columns score, left, right."""
        try:
            import pandas
        except ImportError as error:
            raise MissingExtra("to_pandas", "pandas", "pandas") from error
        return pandas.DataFrame(self._columns(), copy=False)

    def to_arrow(self) -> pyarrow.Table:
        """Columns score, left, right."""
        try:
            import pyarrow
        except ImportError as error:
            raise MissingExtra("to_arrow", "pyarrow", "parquet") from error
        return pyarrow.table(self._columns())

    def _columns(self) -> dict[str, NDArray[Any]]:
        return {name: np.asarray(getattr(self, name)) for name in ("score", "left", "right")}
