"""Sparse vectors: a weight for each of a few words, in the layout that most libraries call CSR."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, SupportsIndex

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra
from gemel.types import ShownResult, Vectors

SparseRow = tuple[NDArray[np.int32], NDArray[np.float32]]
"""The positions of a row that are not zero, in their order, and what is there."""


@dataclass(frozen=True, eq=False)
class SparseVectors(ShownResult):
    """One row of weights per text. Row i is `values[indptr[i]:indptr[i + 1]]`, its columns are `indices` there."""

    indptr: NDArray[np.int64]
    """(n + 1,) where each row starts, and where the last one ends."""
    indices: NDArray[np.int32]
    """(weights,) the column of each weight, ascending in each row: the id of a token, or a dimension."""
    values: NDArray[np.float32]
    """(weights,)"""
    vocabulary: tuple[str, ...]
    """The name of each column: a token as the tokenizer has it, or the number of a dimension."""

    @classmethod
    def of(cls, rows: Sequence[SparseRow], vocabulary: tuple[str, ...]) -> SparseVectors:
        """From the rows one by one."""
        indptr = np.concatenate([[0], np.cumsum([len(indices) for indices, _ in rows])]).astype(np.int64)
        indices = np.concatenate([np.empty(0, np.int32), *(indices for indices, _ in rows)])
        values = np.concatenate([np.empty(0, np.float32), *(values for _, values in rows)])
        return cls(indptr, indices.astype(np.int32), values.astype(np.float32), vocabulary)

    @property
    def shape(self) -> tuple[int, int]:
        return len(self), len(self.vocabulary)

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def __getitem__(self, rows: SupportsIndex | slice | Sequence[int] | NDArray[np.int64]) -> SparseVectors:
        """These rows; a single one is a matrix of one row."""
        chosen = np.atleast_1d(np.arange(len(self))[rows])
        return SparseVectors.of([self.row(int(row)) for row in chosen], self.vocabulary)

    def row(self, row: int) -> SparseRow:
        """The columns and the weights of one text, views of the whole."""
        if not -len(self) <= row < len(self):
            raise InputError(f"there is no row {row}: there are {len(self):,} texts, the first one is row 0")
        start, stop = self.indptr[row % len(self)], self.indptr[row % len(self) + 1]
        return self.indices[start:stop], self.values[start:stop]

    def tokens(self, row: int) -> list[tuple[str, float]]:
        """The words of one text with their weights, heaviest first; ties break on the lower column."""
        indices, values = self.row(row)
        order = np.argsort(-values, kind="stable")
        return [(self.vocabulary[indices[i]], float(values[i])) for i in order]

    def similarity(self, other: SparseVectors) -> Vectors:
        """(n, m) the dot product of each row with each row of `other`; no pair depends on the others."""
        if other.vocabulary is not self.vocabulary and other.vocabulary != self.vocabulary:
            raise InputError(
                f"the vectors have {self.shape[1]:,} and {other.shape[1]:,} columns, with different names: they are of "
                "different models, and cannot be compared"
            )
        out = np.empty((len(self), len(other)), dtype=np.float32)
        owners = np.repeat(np.arange(len(other)), np.diff(other.indptr))
        dense = np.zeros(self.shape[1])
        for position, scores in enumerate(out):
            indices, values = self.row(position)
            dense[indices] = values
            # A product of two float32 is exact in float64, and a sum goes from the first column to the last.
            scores[:] = np.bincount(owners, dense[other.indices] * other.values, minlength=len(other))
            dense[indices] = 0
        return out

    def to_dense(self) -> Vectors:
        """(n, columns) with all zeros."""
        out = np.zeros(self.shape, dtype=np.float32)
        out[np.repeat(np.arange(len(self)), np.diff(self.indptr)), self.indices] = self.values
        return out

    def to_scipy(self) -> Any:  # noqa: ANN401 - scipy has no stubs
        """A scipy.sparse.csr_matrix of the same numbers; needs scipy."""
        try:
            from scipy.sparse import csr_matrix
        except ImportError as error:
            raise MissingExtra("to_scipy", "scipy", "evaluate") from error
        return csr_matrix((self.values, self.indices, self.indptr), shape=self.shape)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for row in range(len(self)):
            words = ", ".join(f"{token} {weight:.2f}" for token, weight in self.tokens(row)[:10])
            yield {"text": row, "weights": len(self.row(row)[0]), "heaviest": words}


def largest(weights: Vectors, most: int | None, least: float | None) -> SparseRow:
    """The columns of (columns,) that are not zero; at most `most`, the largest, and none below `least`.

    A negative weight counts by its size. Ties break on the lower column.
    """
    indices = np.flatnonzero(weights)
    sizes = np.abs(weights[indices])
    if least is not None:
        indices, sizes = indices[sizes >= least], sizes[sizes >= least]
    if most is not None and len(indices) > most:
        indices = np.sort(indices[np.argsort(-sizes, kind="stable")[:most]])
    return indices.astype(np.int32), np.asarray(weights[indices], dtype=np.float32)
