"""The most similar pairs of rows, within one array or between two: exact and complete."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from gemel.pairs.exact import as_pairs, into_folder, into_memory
from gemel.pairs.folder import PairFolder, content_hash
from gemel.pairs.request import Request, checked_limits, checked_memory
from gemel.pairs.result import Pairs as Pairs
from gemel.pairs.walk import Walk
from gemel.scan.found import Found
from gemel.scan.scanner import scan
from gemel.scan.workers import thread_count
from gemel.similarity import METRICS, shaped
from gemel.types import Vectors

__all__ = ["Pairs", "similar_pairs"]


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
    with each of `other` (right). The answer is exact, its scores do not depend on any other option.

    memory: for blocks and found pairs, besides the arrays given; a threshold that matches more asks for `out`.
    out: a folder to stream the pairs to, as score.npy, left.npy, right.npy. A run that was killed goes on when asked
    again. With `min_score` alone they come by position, not best first.
    prune: rule pairs out by 8-bit bounds first, where the processor has them. The answer is the same.
    """
    checked_limits(k, min_score)
    METRICS[metric]
    left = shaped(vectors, "vectors")
    right = None if other is None else shaped(other, "other")
    total = len(left) * (len(left) - 1) // 2 if right is None else len(left) * len(right)
    asked = None if k is None else min(int(k), max(total, 1))
    request = Request(
        k=asked,
        min_score=min_score if min_score is None else float(min_score),
        metric=metric,
        memory=checked_memory(memory, max(len(left), 0 if right is None else len(right)), asked),
        threads=thread_count(threads),
        prune=prune,
        progress=progress,
        out=None if out is None else Path(out),
    )
    return _exact(left, right, request)


def _exact(left: Vectors, right: Vectors | None, request: Request) -> Pairs:
    if request.out is None:
        return _walked(left, right, request, None)
    plan = {"metric": request.metric, "k": request.k, "min_score": request.min_score}
    with PairFolder(request.out, {**plan, "vectors": content_hash(left, right)}) as folder:
        return folder.result() if folder.finished else _walked(left, right, request, folder)


def _walked(left: Vectors, right: Vectors | None, request: Request, folder: PairFolder | None) -> Pairs:
    ready = scan(
        left,
        right,
        request.metric,
        threads=request.threads,
        int8=request.prune,
        names=("vectors", "other"),
    )
    walk = Walk(ready, request)
    try:
        if folder is not None:
            into_folder(walk, request, folder)
            return folder.result()
        if walk.total == 0:
            return as_pairs(Found(np.empty(0, np.float32), *np.empty((2, 0), np.int32)), 0)
        return into_memory(walk, request)
    finally:
        walk.close()
