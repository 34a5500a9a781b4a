"""Exact search on a cluster: groups of queries as tasks, the corpus once on every machine."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from gemel.nearest import Hits, search
from gemel.on_ray.cluster import Cluster
from gemel.progress import Progress
from gemel.similarity import METRICS, check_same_dim, shaped
from gemel.types import Vectors

_LEAST, _MOST = 64, 4608  # queries a task
_GROUPS = 8  # tasks a worker, so that all end at about the same time


class SearchWorker:
    """Holds the corpus, answers groups of queries."""

    def __init__(self, corpus: Vectors, how: dict[str, Any]) -> None:
        """`how`: further arguments of `search`."""
        self._corpus, self._how = corpus, how

    def ready(self) -> None:
        pass

    def work(self, queries: Vectors, k: int) -> Hits:
        return search(queries, self._corpus, k, **self._how)


def search_on_ray(
    cluster: Cluster,
    queries: ArrayLike,
    corpus: ArrayLike,
    k: int = 10,
    metric: str = "cosine",
    *,
    threads: int | None = None,
    progress: bool = False,
) -> Hits:
    """`search` on the cluster; the same hits, scores and order. Few queries are answered here."""
    METRICS[metric]
    asked, known = shaped(queries, "queries"), shaped(corpus, "corpus")
    check_same_dim(asked, known, "queries", "corpus rows")
    group = max(_LEAST, min(_MOST, len(asked) // (_GROUPS * cluster.workers)))
    if len(asked) <= group or not len(known):
        return search(asked, known, k, metric, progress=progress)
    how = {"metric": metric, "threads": threads or cluster.threads}
    pool = cluster.pool(SearchWorker, cluster.put(known), how, key=object())
    line = Progress(len(asked), "queries", shown=progress)
    parts = []

    def calls() -> Iterator[tuple[Any, ...]]:
        yield from ((asked[at : at + group], k) for at in range(0, len(asked), group))

    for hits in pool.in_order(calls()):
        parts.append(hits)
        line.add(len(hits))
    line.close()
    cluster.end_pool()
    return Hits(
        np.concatenate([part.index for part in parts]), np.concatenate([part.score for part in parts])
    )
