"""Similar pairs on a cluster: tiles as tasks; the same pairs, scores and order as `similar_pairs` gives."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from gemel.on_ray.cluster import Cluster
from gemel.on_ray.gather import Gather, InFolder, InMemory
from gemel.on_ray.tile_store import TileStore
from gemel.on_ray.tiles import TileWorker, side_of, stripes
from gemel.pairs import Pairs, similar_pairs
from gemel.pairs.folder import PairFolder, content_hash
from gemel.pairs.request import Request, checked_limits, checked_memory
from gemel.progress import Progress
from gemel.similarity import METRICS, check_same_dim, shaped
from gemel.types import Vectors


def pairs_on_ray(  # noqa: PLR0913 - one question, and how to work on it
    cluster: Cluster,
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
    """`similar_pairs` on the cluster; see there.

    memory: of this process; the arrays are once in the memory of each machine besides. threads: of a worker; None: as
    many as the cluster was opened with. out: finished tiles are kept in the folder, so that a run that was stopped
    goes on when asked again.
    """
    checked_limits(k, min_score)
    METRICS[metric]
    left = shaped(vectors, "vectors")
    right = None if other is None else shaped(other, "other")
    check_same_dim(left, left if right is None else right, "vectors", "other")
    total = _total(left, right)
    if total == 0:
        return similar_pairs(left, k=k, min_score=min_score, other=right, metric=metric, out=out)
    asked = None if k is None else min(int(k), total)
    request = Request(
        k=asked,
        min_score=None if min_score is None else float(min_score),
        metric=metric,
        memory=checked_memory(memory, max(len(left), 0 if right is None else len(right)), asked),
        threads=threads or cluster.threads,
        prune=prune,
        progress=progress,
        out=None if out is None else Path(out),
    )
    return _found(cluster, left, right, request, total)


def _total(left: Vectors, right: Vectors | None) -> int:
    return len(left) * (len(left) - 1) // 2 if right is None else len(left) * len(right)


def _found(cluster: Cluster, left: Vectors, right: Vectors | None, request: Request, total: int) -> Pairs:
    if request.out is None:
        return _compared(cluster, left, right, request, total, None)
    plan = {"metric": request.metric, "k": request.k, "min_score": request.min_score}
    with PairFolder(request.out, {**plan, "vectors": content_hash(left, right)}) as folder:
        if folder.finished:
            return folder.result()
        return _compared(cluster, left, right, request, total, folder)


def _compared(
    cluster: Cluster,
    left: Vectors,
    right: Vectors | None,
    request: Request,
    total: int,
    folder: PairFolder | None,
) -> Pairs:
    width, same = len(left if right is None else right), right is None
    side = side_of(max(len(left), width), request.most_pairs if request.k is None else None)
    begin = 0 if folder is None else folder.next_row
    tiles = stripes(len(left), width, side, same=same, begin=begin)
    gather: Gather = InMemory(request, width)
    if folder is not None and request.out is not None:
        gather = InFolder(request, width, folder, TileStore(request.out), tiles)
    how = {"metric": request.metric, "int8": request.prune, "threads": request.threads}
    pool = cluster.pool(TileWorker, cluster.put(left), cluster.put(right), how, key=object())
    line = Progress(total, "pairs", shown=request.progress)
    line.add(total - sum(tile.pairs(same=same) for stripe in tiles for tile in stripe))

    def calls() -> Iterator[tuple[Any, ...]]:
        for tile in (tile for stripe in tiles for tile in stripe):
            if gather.there(tile):
                line.add(tile.pairs(same=same))
            else:
                yield tile, request.k, gather.floor()  # the floor of now, not of when the job began

    for (tile, *_), found in pool.as_done(calls()):
        gather.take(tile, found)
        line.add(tile.pairs(same=same))
    line.close()
    cluster.end_pool()
    return gather.pairs(total)
