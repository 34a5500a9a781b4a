"""Values of a column -> vectors of the distinct texts among them, and which row has which."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.tokenizer import check_texts
from gemel.errors import WorkError
from gemel.types import Encoder, Vectors


@dataclass(frozen=True, eq=False)
class EncodedColumn:
    """A column of vectors, each distinct one kept once."""

    vectors: Vectors
    """(distinct texts, dim), in the order in which the texts first appear."""
    places: NDArray[np.int64]
    """(rows,) the position in `vectors` of each row's; -1 for a null."""

    @property
    def dim(self) -> int:
        return int(self.vectors.shape[1])

    @property
    def present(self) -> NDArray[np.bool_]:
        """(rows,) False for a null."""
        return self.places >= 0

    @property
    def whole(self) -> bool:
        """Every row has a vector of its own: `vectors` is the column."""
        return len(self.vectors) == len(self.places)

    def rows(self) -> Vectors:
        """(rows, dim): one vector a row, zeros for a null."""
        if self.whole:
            return self.vectors
        rows = np.zeros((len(self.places), self.dim), np.float32)
        rows[self.present] = self.vectors[self.places[self.present]]
        return rows


def encoded(texts: Sequence[str | None], column: str, encoder: Encoder) -> EncodedColumn:
    """Each distinct text of the column encoded once."""
    check_texts(("" if text is None else text for text in texts), column)  # an error names the row
    where: dict[str, int] = {}
    places = np.fromiter(
        (-1 if text is None else where.setdefault(text, len(where)) for text in texts), np.int64, len(texts)
    )
    vectors = np.ascontiguousarray(encoder.encode(list(where)), dtype=np.float32)
    if vectors.shape != (len(where), encoder.dim):
        raise WorkError(
            f"the encoder gave {vectors.shape} for {len(where)} texts; expected {(len(where), encoder.dim)}"
        )
    return EncodedColumn(vectors, places)
