"""A table of token vectors fitted to texts: the mean over a text's tokens shall be the text's vector.

Ridge regression towards the table that is there, so that tokens which few texts have stay where they were. Solved by
conjugate gradients, all dimensions side by side; numpy only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gemel.text.tokenizer import TokenIds
from gemel.types import Vectors

_TOKENS = 65_536  # tokens whose rows are gathered at once
_LONG = 32  # tokens
_ENOUGH = 1e-3  # of the first gradient's length: nearer than that, nothing visible changes


@dataclass(frozen=True, eq=False)
class _Means:
    """The matrix that turns token vectors into text vectors, as lists: text i has the tokens of one stretch."""

    rows: NDArray[np.int64]
    """(t,) the row of each token, text after text."""
    starts: NDArray[np.int64]
    """(n + 1,)"""
    order: NDArray[np.int64]
    """(t,) places of `rows`, sorted by row."""
    owner: NDArray[np.int64]
    """(t,) the text of each token, in the order of `order`."""
    row_starts: NDArray[np.int64]
    """(u + 1,) where the tokens of each row start in `order`."""

    @classmethod
    def of(cls, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Means:
        order = np.argsort(rows, kind="stable")
        owner = np.repeat(np.arange(len(lengths)), lengths)[order]
        row_starts = np.concatenate([[0], np.cumsum(np.bincount(rows))])
        return cls(rows, np.concatenate([[0], np.cumsum(lengths)]), order, owner, row_starts)

    @property
    def shares(self) -> Vectors:
        """(n, 1) what one token counts in its text."""
        return np.asarray(1.0 / np.diff(self.starts), dtype=np.float32)[:, None]

    def texts(self, table: Vectors) -> Vectors:
        """(u, d) -> (n, d): the mean over the tokens of each text."""
        return _sums(table, self.rows, self.starts) * self.shares

    def tokens(self, texts: Vectors) -> Vectors:
        """(n, d) -> (u, d): the transpose."""
        return _sums(texts * self.shares, self.owner, self.row_starts)

    def weight(self) -> NDArray[np.float64]:
        """(u,) about the diagonal of the transpose times the matrix: how much the texts say of each row."""
        lengths = np.diff(self.starts)
        return np.asarray(np.bincount(self.rows, np.repeat(1.0 / lengths**2, lengths)), dtype=np.float64)


def _sums(source: Vectors, rows: NDArray[np.int64], starts: NDArray[np.int64]) -> Vectors:
    """For each stretch of `rows`, the sum of those rows of `source`; no stretch is empty.

    Long stretches one by one, short ones side by side, place by place: many times as fast as np.add.reduceat.
    """
    lengths = np.diff(starts)
    out = np.empty((len(lengths), source.shape[1]), dtype=np.float32)
    order = np.argsort(-lengths, kind="stable")
    many = int((lengths > _LONG).sum())
    for place in order[:many]:
        out[place] = _long_sum(source, rows[starts[place] : starts[place + 1]])
    short = order[many:]
    first, left = starts[:-1][short], lengths[short]
    total = source[rows[first]]
    for step in range(1, _LONG):
        count = int((left > step).sum())
        total[:count] += source[rows[first[:count] + step]]
    out[short] = total
    return out


def _long_sum(source: Vectors, rows: NDArray[np.int64]) -> Vectors:
    parts = [source[rows[at : at + _TOKENS]].sum(axis=0) for at in range(0, len(rows), _TOKENS)]
    return np.asarray(sum(parts[1:], parts[0]))


def fit_table(
    table: Vectors, texts: Sequence[TokenIds], targets: Vectors, *, ridge: float = 0.1, rounds: int = 15
) -> Vectors:
    """`table` (v, d), changed so that the mean over the tokens of text i is near `targets[i]`.

    `ridge`: how strongly rows are held where they are. Texts without tokens are passed over.
    """
    filled = [place for place, ids in enumerate(texts) if len(ids)]
    if not filled:
        return table
    flat = np.concatenate([texts[place] for place in filled]).astype(np.int64)
    used, rows = np.unique(flat, return_inverse=True)
    means = _Means.of(rows, np.array([len(texts[place]) for place in filled], dtype=np.int64))
    missing = targets[filled] - means.texts(table[used])
    fitted = table.copy()
    fitted[used] += _solve(means, missing, ridge, rounds)
    return fitted


def _solve(means: _Means, missing: Vectors, ridge: float, rounds: int) -> Vectors:
    """x of (AᵀA + ridge) x = Aᵀ missing; each dimension takes steps of its own.

    Rows are scaled by how much the texts say of them: else the many frequent tokens would hold up the rare ones.
    """
    scale = (1.0 / (means.weight() + ridge)).astype(np.float32)[:, None]
    residual = means.tokens(missing)
    direction = scale * residual
    found = np.zeros_like(residual)
    square = first = _dots(residual, direction)
    for _ in range(rounds):
        if (square <= first * _ENOUGH**2).all():
            break
        image = means.tokens(means.texts(direction)) + np.float32(ridge) * direction
        along = _dots(direction, image)
        step = np.where(along > 0, square / np.where(along > 0, along, 1), 0).astype(np.float32)
        found += step * direction
        residual -= step * image
        scaled = scale * residual
        before, square = square, _dots(residual, scaled)
        direction = scaled + (square / np.where(before > 0, before, 1)).astype(np.float32) * direction
    return found


def _dots(left: Vectors, right: Vectors) -> Vectors:
    return np.asarray(np.einsum("ud,ud->d", left, right))
