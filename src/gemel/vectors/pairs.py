"""The most similar pairs of rows, within one array or between two: `similar_pairs`, exact and complete.

Pairs are collected in memory, or block by block in a folder that a killed run resumes.
"""

from __future__ import annotations

from pathlib import Path
from time import monotonic

import numpy as np
from numpy.typing import ArrayLike

from gemel.vectors.pair_folder import PairFolder
from gemel.vectors.pair_scan import (
    Best,
    Every,
    PairRequest,
    Pairs,
    Walk,
    by_position,
    in_order,
    too_many,
)
from gemel.vectors.scan.compare import ScanResult, thread_count
from gemel.vectors.scan.scanner import scan

__all__ = ["Pairs", "similar_pairs"]

_SAVE_EVERY = 5.0  # seconds between two saved states of the best k


def similar_pairs(  # noqa: PLR0913 - one question, and how to work on it
    vectors: ArrayLike,
    *,
    k: int | None = None,
    min_score: float | None = None,
    other: ArrayLike | None = None,
    metric: str = "cosine",
    memory: int | str = "1GB",
    threads: int | None = None,
    out: str | Path | None = None,
    prune: bool = True,
    progress: bool = False,
) -> Pairs:
    """The `k` best pairs, or all with a score of at least `min_score`, or the best `k` of those.

    Within `vectors` every pair is compared once and no row with itself; with `other`, each row of `vectors` (left)
    with each of `other` (right). The result is exact, and its scores do not depend on any other option.

    memory: for blocks and collected pairs, besides the arrays given; a threshold that matches more needs `out`.
    out: a folder to stream the pairs to, as score.npy, left.npy, right.npy. The same call resumes a run that was
    killed. With `min_score` alone they are sorted by position, not best first.
    prune: rule pairs out by 8-bit bounds first, where the processor supports them. The result is the same.
    """
    request = PairRequest.of(
        vectors,
        other,
        k=k,
        min_score=min_score,
        metric=metric,
        memory=memory,
        threads=thread_count(threads),
        prune=prune,
        progress=progress,
        out=out,
    )
    if request.out is None:
        return _compare(request, None)
    with PairFolder(request.out, request.plan) as folder:
        return folder.result() if folder.finished else _compare(request, folder)


def _compare(request: PairRequest, folder: PairFolder | None) -> Pairs:
    ready = scan(
        request.left,
        request.right,
        request.metric,
        threads=request.threads,
        int8=request.prune,
        names=("vectors", "other"),
    )
    walk = Walk(ready, request)
    try:
        if folder is not None:
            _into_folder(walk, request, folder)
            return folder.result()
        if walk.total == 0:
            return as_pairs(ScanResult(np.empty(0, np.float32), *np.empty((2, 0), np.int32)), 0)
        return _into_memory(walk, request)
    finally:
        walk.close()


def _into_memory(walk: Walk, request: PairRequest) -> Pairs:
    """All pairs of the request, best first."""
    if request.k is not None:
        best = Best(request.k, request.floor, walk.rights)
        for begin in range(0, walk.lefts, walk.block_rows):
            end = min(begin + walk.block_rows, walk.lefts)
            walk.block(begin, end, best)
            walk.done(begin, end)
        return as_pairs(best.result(), walk.total)

    def full() -> None:
        raise too_many(request)

    every = Every(request.floor, request.most_pairs, full)
    for begin in range(0, walk.lefts, walk.block_rows):
        end = min(begin + walk.block_rows, walk.lefts)
        walk.block(begin, end, every)
        walk.done(begin, end)
    return as_pairs(in_order(every.result(), walk.rights), walk.total)


def _into_folder(walk: Walk, request: PairRequest, folder: PairFolder) -> None:
    """Resume where the folder ends, and finish it."""
    if request.k is not None:
        _best_into(walk, request, request.k, folder)
    else:
        _every_into(walk, request, folder)
    folder.finish(walk.total)


def _best_into(walk: Walk, request: PairRequest, k: int, folder: PairFolder) -> None:
    best = Best(k, request.floor, walk.rights, kept=folder.kept())
    walk.done(0, folder.next_row)
    saved = monotonic()
    for begin in range(folder.next_row, walk.lefts, walk.block_rows):
        end = min(begin + walk.block_rows, walk.lefts)
        walk.block(begin, end, best)
        walk.done(begin, end)
        if monotonic() - saved >= _SAVE_EVERY:
            folder.keep(best.result(), end)
            saved = monotonic()
    folder.append(best.result(), walk.lefts)


def _every_into(walk: Walk, request: PairRequest, folder: PairFolder) -> None:
    """Sorted by position. A block with more pairs than fit is tried again with half its rows; the files are equal."""

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
        folder.append(by_position(every.result(), walk.rights), end)
        walk.done(begin, end)
        rows = min(2 * rows, walk.block_rows)


class _Full(Exception):
    """A block has more pairs than fit."""


def as_pairs(pairs: ScanResult, compared: int) -> Pairs:
    """The complete result of `compared` pairs."""
    left, right = pairs.left.astype(np.int64), pairs.right.astype(np.int64)
    return Pairs(pairs.score, left, right, compared=compared, complete=True)
