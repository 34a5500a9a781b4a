"""Scores of random pairs of a corpus, each pair at most once: all where they are few, else a spread of tiles."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from gemel.similarity import METRICS
from gemel.types import Vectors

_TILE = 64  # rows a side: a matrix product is fast, and 2 million scores still see 31,000 different rows


def random_scores(
    vectors: Vectors, other: Vectors | None, *, metric: str, most: int, random: np.random.Generator
) -> Vectors:
    """(s,) scores, s <= about `most`; within one array of pairs i < j, with `other` across."""
    compare = METRICS[metric]
    rows = compare.prepare(vectors)[random.permutation(len(vectors))]
    columns = rows if other is None else compare.prepare(other)[random.permutation(len(other))]
    found: list[Vectors] = []
    count = 0
    for top, left, same in _tiles(len(rows), len(columns), within=other is None):
        table = compare.scores(rows[top : top + _TILE], columns[left : left + _TILE])
        found.append(table[np.triu_indices(len(table), 1)] if same else table.ravel())
        count += len(found[-1])
        if count >= most:
            break
    return np.concatenate(found) if found else np.empty(0, np.float32)


def _tiles(rows: int, columns: int, *, within: bool) -> Iterator[tuple[int, int, bool]]:
    """(top, left, on the diagonal) of tiles that cover every pair once, each round over all rows before the next."""
    down, across = -(-rows // _TILE), -(-columns // _TILE)
    if not within:
        for shift in range(across):
            yield from ((i * _TILE, (i + shift) % across * _TILE, False) for i in range(down))
        return
    # Shift 0, the diagonal, goes last: its tiles hold half as many pairs.
    for shift in range(1, down // 2 + 1):
        half = down // 2 if 2 * shift == down else down
        yield from ((i * _TILE, (i + shift) % down * _TILE, False) for i in range(half))
    yield from ((i * _TILE, i * _TILE, True) for i in range(down))
