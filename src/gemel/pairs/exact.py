"""All pairs, compared: into memory, or block by block into a folder."""

from __future__ import annotations

from time import monotonic

import numpy as np

from gemel.pairs.collect import Best, Every, by_position, in_order
from gemel.pairs.folder import PairFolder
from gemel.pairs.request import Request, too_many
from gemel.pairs.result import Pairs
from gemel.pairs.walk import Walk
from gemel.scan.found import Found

_SAVE_EVERY = 5.0  # seconds between two saved states of the best k


class _Full(Exception):
    """A block has more pairs than fit; it is tried again with fewer rows."""


def into_memory(walk: Walk, request: Request) -> Pairs:
    """Best first."""
    if request.k is not None:
        best = Best(request.k, request.floor, walk.rights)
        for begin in range(0, walk.lefts, walk.block_rows):
            end = min(begin + walk.block_rows, walk.lefts)
            walk.block(begin, end, best)
            walk.done(begin, end)
        return as_pairs(best.found(), walk.total)

    def full() -> None:
        raise too_many(request)

    every = Every(request.floor, request.most_pairs, full)
    for begin in range(0, walk.lefts, walk.block_rows):
        end = min(begin + walk.block_rows, walk.lefts)
        walk.block(begin, end, every)
        walk.done(begin, end)
    return as_pairs(in_order(every.found(), walk.rights), walk.total)


def into_folder(walk: Walk, request: Request, folder: PairFolder) -> None:
    """Goes on where the folder ends, and finishes it."""
    if request.k is not None:
        _best_into(walk, request, request.k, folder)
    else:
        _every_into(walk, request, folder)
    folder.finish(walk.total)


def _best_into(walk: Walk, request: Request, k: int, folder: PairFolder) -> None:
    best = Best(k, request.floor, walk.rights, kept=folder.kept())
    walk.done(0, folder.next_row)
    saved = monotonic()
    for begin in range(folder.next_row, walk.lefts, walk.block_rows):
        end = min(begin + walk.block_rows, walk.lefts)
        walk.block(begin, end, best)
        walk.done(begin, end)
        if monotonic() - saved >= _SAVE_EVERY:
            folder.keep(best.found(), end)
            saved = monotonic()
    folder.append(best.found(), walk.lefts)


def _every_into(walk: Walk, request: Request, folder: PairFolder) -> None:
    """By position. A block with more pairs than fit is tried again with half its rows; the files are the same."""

    def full() -> None:
        if rows > 1:
            raise _Full

    rows = walk.block_rows
    walk.done(0, folder.next_row)
    while folder.next_row < walk.lefts:
        begin, end = folder.next_row, min(folder.next_row + rows, walk.lefts)
        rows = end - begin
        every = Every(request.floor, request.most_pairs, full)
        try:
            walk.block(begin, end, every)
        except _Full:
            rows = max(1, rows // 2)
            continue
        folder.append(by_position(every.found(), walk.rights), end)
        walk.done(begin, end)
        rows = min(2 * rows, walk.block_rows)


def as_pairs(found: Found, compared: int) -> Pairs:
    """A complete answer."""
    left, right = found.left.astype(np.int64), found.right.astype(np.int64)
    return Pairs(found.score, left, right, compared=compared, complete=True)
