"""Inverted lists of 4-bit codes (faiss): which vectors are candidates, worth an exact comparison.

`Lists` are immutable; adding vectors makes new ones. How many lists a query visits is measured (`approximate.py`), for
queries like the stored vectors and unlike them. An unlike query (a single word, a line of code) is recognized by its
vector: no list is much nearer to it than the average list (`Lists.unlike`). Vectors are numbered by slots.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import MissingExtra
from gemel.index.approximate import (
    FINEST_RECALL,
    LIKE_STORED,
    NEIGHBORS,
    UNLIKE_STORED,
    USUAL_RECALL,
    RecallQueries,
    near_recall,
    recall_of,
    recall_queries,
)
from gemel.types import Vectors
from gemel.vectors.scan.compare import thread_count

_QUERIES = 256  # of each kind that recall is measured with

_FAR_RECALL = 0.95  # of queries unlike the stored vectors, unless a search requests another

_FAR_WIDE = 2  # times the candidates of such a query: the scores of its neighbors differ less

_EDGES = (0.1, 0.5)
"""Part of the queries like the stored vectors that is searched widely too: usually, and for a requested recall."""

_WIDEST = 16

_TRAINED_ON = 40  # vectors per list: k-means is most of the time of a build

_ROUNDS = 10

_STEPS = (1.3, 1.15)
"""From one measured number of lists to the next: until queries like the stored vectors are found, and after."""

_BLOCK = 65_536


@dataclass(frozen=True)
class RecallPoint:
    """The recall of a number of lists."""

    visited: int
    wide: int
    near: float
    """Recall of queries like the stored vectors."""
    far: float
    """Recall of queries unlike them, with `_FAR_WIDE` times the candidates."""


@dataclass(frozen=True, eq=False)
class Codes:
    """Candidates by code."""

    slots: NDArray[np.int64]
    """(queries, candidates), -1 where there are no more."""
    score: Vectors
    """By code, descending."""

    def may_have_ties(self, query: int, best: NDArray[np.int64], k: int) -> bool:
        """Whether equal vectors may follow the last candidate: the k-th best has the same score by code."""
        row = self.slots[query]
        if len(best) < k or row[-1] < 0:
            return False
        at = np.flatnonzero(row == best[k - 1])
        return bool(len(at)) and bool(self.score[query, at[0]] <= self.score[query, -1])


@dataclass(frozen=True, eq=False)
class Lists:
    index: Any
    """faiss.IndexIVFPQFastScan: two dimensions per code, compared 32 codes at once; its ids are slots."""
    count: int
    """Slots from 0 on that are inside."""
    visited: int
    """Lists a query visits when nothing is filtered and k is 10."""
    recall: float
    """Measured when it was built."""
    trained: int
    """Vectors that were there then."""
    wide: int = 1
    """How many times the usual number of candidates are looked up."""
    curve: tuple[RecallPoint, ...] = ()
    """As it was measured, from few lists to many."""
    edges: tuple[float, float] | None = None
    """A query whose `lead` is smaller is searched widely: usually, and where a recall is requested; None: unknown."""

    @cached_property
    def centroids(self) -> Vectors:
        return np.asarray(self.index.quantizer.reconstruct_n(0, int(self.index.nlist)), dtype=np.float32)

    def lead(self, queries: Vectors) -> Vectors:
        """(queries,) how far the score of the best centroid lies above the mean score of all centroids.

        One product per query, never one for all of them: a batch could round differently, and a query must get the
        same answer alone and in a batch.
        """
        scores = (self.centroids @ query for query in queries)
        return np.array([score.max() - score.mean() for score in scores], dtype=np.float32)

    def unlike(self, queries: Vectors, recall: float | None = None) -> NDArray[np.bool_]:
        """(queries,) which of them are unlike the stored vectors and need a wider search for the same recall.

        The border is not sharp, so where more than the usual recall is requested, more of them count.
        """
        if self.edges is None:
            return np.zeros(len(queries), dtype=np.bool_)
        return np.asarray(self.lead(queries) < self.edges[recall is not None and recall > _FAR_RECALL])

    def tuned_for(self, recall: float | None, *, far: bool = False) -> Lists | None:
        """These lists with as many visited as this recall needs; None: too few, so everything is compared.

        `recall` None: the usual one. `far`: of queries unlike the stored vectors.
        """
        if recall is None and not far:
            return self
        if recall is not None and recall > FINEST_RECALL:
            return None
        least = _FAR_RECALL if far else USUAL_RECALL
        aim = least if recall is None else max(recall, least)
        good = [point for point in self.curve if (point.far if far else point.near) >= aim]
        if not good and recall is not None:
            return None
        point = good[0] if good else self.curve[-1] if self.curve else None
        visited, wide = (self.visited, self.wide) if point is None else (point.visited, point.wide)
        return replace(self, visited=visited, wide=wide * (_FAR_WIDE if far else 1))

    @property
    def measured(self) -> dict[str, float]:
        """Recall by the kind of query, of a search that requests no other."""
        if not self.curve:
            return {}
        far = next((point for point in self.curve if point.far >= _FAR_RECALL), self.curve[-1])
        return {LIKE_STORED: self.recall, UNLIKE_STORED: far.far}

    @property
    def layout(self) -> str:
        return f"IVF{self.index.nlist},PQ{self.index.M}x4fs ({self.visited} lists visited)"

    def search(
        self,
        queries: Vectors,
        k: int,
        chosen: NDArray[np.bool_] | None,
        *,
        widely: bool = False,
        wide: int | None = None,
    ) -> Codes:
        """Candidates for k answers. `chosen`: (slots,) which of them count.

        The rarer the chosen, the more lists are visited, so a filter loses nothing. `widely`: all lists.
        """
        faiss = load_faiss()
        part = 1.0 if chosen is None else np.count_nonzero(chosen[: self.count]) / max(1, self.count)
        visited = self.visits(k, part) if not widely else self.index.nlist
        selector = None
        if chosen is not None:
            bits = np.packbits(chosen[: self.count], bitorder="little")
            selector = faiss.IDSelectorBitmap(bits)
        parameters = faiss.SearchParametersIVF(nprobe=visited, sel=selector)
        _use_threads(faiss, 1 if len(queries) < 8 else thread_count(None))
        most = min(wide or self.candidates(k), self.count)
        score, slots = self.index.search(np.ascontiguousarray(queries, np.float32), most, params=parameters)
        return Codes(np.asarray(slots, dtype=np.int64), np.asarray(score))

    def candidates(self, k: int) -> int:
        """How many codes are looked up for k answers: codes order neighbors only roughly."""
        return self.wide * (2 * k + 40)

    def extended(self, vectors: Vectors) -> Lists:
        """These lists and further slots, one for each vector."""
        faiss = load_faiss()
        index = faiss.clone_index(self.index)
        _use_threads(faiss, 1)
        ids = np.arange(self.count, self.count + len(vectors), dtype=np.int64)
        index.add_with_ids(np.ascontiguousarray(vectors), ids)
        return replace(self, index=index, count=self.count + len(vectors))

    def visits(self, k: int, part: float) -> int:
        """Lists to visit for k answers where this part of the slots counts."""
        visited = self.visited * max(1.0, math.sqrt(k / NEIGHBORS)) / max(part, 1e-6)
        return min(int(self.index.nlist), math.ceil(visited))

    def compares(self, part: float) -> float:
        """Codes that a search for ten reads."""
        return self.count * self.visits(NEIGHBORS, part) / int(self.index.nlist)


def build(vectors: Vectors) -> Lists:
    """Lists of these vectors, tuned; `vectors` may be a file that is larger than memory."""
    faiss = load_faiss()
    count, dim = vectors.shape
    # As the root of the rows: k-means takes the time of the square of the lists, so it grows as the rows do.
    lists = max(1, int(min(1.6 * math.sqrt(count), count / 200)))
    codes = dim // 2 if dim % 2 == 0 else dim
    index = faiss.IndexIVFPQFastScan(faiss.IndexFlatIP(dim), dim, lists, codes, 4, faiss.METRIC_INNER_PRODUCT)
    index.cp.niter, index.cp.min_points_per_centroid = _ROUNDS, 1
    index.cp.spherical, index.cp.max_points_per_centroid = True, _TRAINED_ON
    index.pq.cp.niter, index.pq.cp.min_points_per_centroid = _ROUNDS, 1
    rng = np.random.default_rng(0)
    sample = np.sort(rng.choice(count, min(count, max(4096, _TRAINED_ON * lists)), replace=False))
    _use_threads(faiss, thread_count(None))
    index.train(np.ascontiguousarray(vectors[sample]))
    empty = Lists(index, 0, 1, 0.0, count)
    queries = recall_queries(vectors, empty.centroids, _QUERIES, rng)
    truth = _ExactNeighbors(queries.both)
    for start in range(0, count, _BLOCK):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK])
        index.add_with_ids(block, np.arange(start, start + len(block), dtype=np.int64))
        truth.see(block, start)
    usual, careful = np.quantile(empty.lead(queries.near), _EDGES).tolist()
    return _tuned(replace(empty, count=count, edges=(usual, careful)), queries, truth.slots)


def _tuned(lists: Lists, queries: RecallQueries, truth: NDArray[np.int64]) -> Lists:
    """The lists with as many visited as the usual recall needs; if all are too few, more codes are looked up.

    Larger numbers are measured too, until queries of the other kind are found or there is nothing more to visit.
    """
    visited, wide, most = 1, 1, int(lists.index.nlist)
    near_truth, far_truth = truth[: len(queries.near)], truth[len(queries.near) :]
    chosen: Lists | None = None
    curve: list[RecallPoint] = []
    while True:
        tried = replace(lists, visited=visited, wide=wide)
        if chosen is None or curve[-1].near < FINEST_RECALL:  # above it the exact number is not needed
            near = near_recall(tried.search(queries.near, NEIGHBORS, None).slots, near_truth)
        widely = replace(tried, wide=_FAR_WIDE * wide)
        far = recall_of(widely.search(queries.far, NEIGHBORS, None).slots, far_truth)
        point = RecallPoint(visited, wide, near=near, far=far)
        curve.append(point)
        last = visited >= most and wide >= _WIDEST
        if chosen is None and (point.near >= USUAL_RECALL or last):
            chosen = replace(tried, recall=point.near)
        if last or (chosen is not None and (min(point.near, point.far) >= FINEST_RECALL or visited >= most)):
            break
        if visited >= most:
            visited, wide = 1, 2 * wide
        else:
            visited = min(most, max(visited + 1, int(visited * _STEPS[chosen is not None])))
    assert chosen is not None, "the last point is chosen if none before was"
    # The points before the chosen one are not used.
    sizes = [(point.visited, point.wide) for point in curve]
    first = sizes.index((chosen.visited, chosen.wide))
    return replace(chosen, curve=tuple(curve[first:]))


class _ExactNeighbors:
    """The exact neighbors of some queries, found while blocks of vectors are read."""

    def __init__(self, queries: Vectors) -> None:
        self._queries = queries
        self.slots = np.full((len(queries), NEIGHBORS), -1, dtype=np.int64)
        self._score = np.full((len(queries), NEIGHBORS), -np.inf, dtype=np.float32)

    def see(self, block: Vectors, start: int) -> None:
        """`start`: the slot of the first vector of the block."""
        scores = self._queries @ block.T
        kept = min(NEIGHBORS, scores.shape[1])
        near = np.argpartition(-scores, kept - 1, axis=1)[:, :kept]
        score = np.concatenate([self._score, np.take_along_axis(scores, near, 1)], axis=1)
        slots = np.concatenate([self.slots, near + start], axis=1)
        order = np.argsort(-score, axis=1)[:, :NEIGHBORS]
        self.slots, self._score = np.take_along_axis(slots, order, 1), np.take_along_axis(score, order, 1)


_threads = {"used": False, "lost": False}
"""Whether faiss has started threads in this process, or had in the one that this process was forked from."""


def _use_threads(faiss: Any, count: int) -> None:  # noqa: ANN401
    """One thread after a fork: the pool of the parent does not exist in the child, and OpenMP would wait forever."""
    _threads["used"] |= count > 1
    faiss.omp_set_num_threads(1 if _threads["lost"] else count)


def _lose_threads() -> None:
    _threads["lost"] |= _threads["used"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_lose_threads)


def load_faiss() -> Any:  # noqa: ANN401 - faiss has no types
    try:
        import faiss
    except ImportError as error:
        raise MissingExtra("search in a large index", "faiss-cpu", "index") from error
    return faiss
