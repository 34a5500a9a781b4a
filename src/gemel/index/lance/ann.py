"""Inverted lists of 4-bit codes (faiss), for candidates: which slots are worth an exact comparison.

An object never changes once it answers; adding makes another. How many lists a query visits is found by trying, on
questions that stored vectors stand for, until 0.985 of the ten exact neighbours are among the candidates. Questions
unlike what is stored (a single word, a line of code) need more: what each number of lists finds of both kinds is kept.
Such a query is recognized by its vector: no list is much nearer to it than the average list (`Lists.unlike`).
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
from gemel.types import Vectors
from gemel.vectors.scan.compare import thread_count

AIM = 0.985

_QUESTIONS = 256

_MIXED = (0.3, 0.6)
"""How much of another stored vector is added to one to make a question like the stored vectors."""

_REMOVED = 0.95
"""Part of what a stored vector shares with its centroid that is removed, for a question unlike the stored vectors."""

_SUMMED = 3  # vectors that are summed after this removal

_FAR_AIM = 0.95  # recall of questions unlike the stored vectors, unless a search requests another

_FAR_WIDE = 2  # times the candidates of such a question: the scores of its neighbors differ less

_EDGES = (0.1, 0.5)
"""Part of the questions like the stored vectors that is searched widely too: usually, and for a requested recall."""

_FINEST = 0.995  # a recall up to which it is measured; above, everything is compared

_WIDEST = 16

_NEIGHBOURS = 10

_TRAINED_ON = 40  # vectors a list: k-means is most of the time of a build

_ROUNDS = 10

_STEPS = (1.3, 1.15)
"""From one number of lists that is tried to the next: until the questions like the stored ones are found, and after."""

_BLOCK = 65_536


@dataclass(frozen=True)
class RecallPoint:
    """What a number of lists finds."""

    visited: int
    wide: int
    near: float
    """Recall of questions like the stored vectors."""
    far: float
    """Recall of questions unlike them, with `_FAR_WIDE` times the candidates."""


@dataclass(frozen=True, eq=False)
class Codes:
    """Candidates by code."""

    slots: NDArray[np.int64]
    """(queries, candidates), -1 where there are no more."""
    score: Vectors
    """By code, descending."""

    def may_go_on(self, query: int, best: NDArray[np.int64], k: int) -> bool:
        """The k-th best is as good by its code as the last candidate: equal ones may follow behind it."""
        row = self.slots[query]
        if len(best) < k or row[-1] < 0:
            return False
        at = np.flatnonzero(row == best[k - 1])
        return bool(len(at)) and bool(self.score[query, at[0]] <= self.score[query, -1])


@dataclass(frozen=True, eq=False)
class Lists:
    index: Any
    """faiss.IndexIVFPQFastScan: two dimensions a code, compared 32 codes at once; its ids are slots."""
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
        return np.asarray(self.lead(queries) < self.edges[recall is not None and recall > _FAR_AIM])

    def tuned_for(self, recall: float | None, *, far: bool = False) -> Lists | None:
        """These lists with as many visited as find this part; None: none does, so everything is compared.

        `recall` None: what is usual. `far`: of questions unlike the stored vectors.
        """
        if recall is None and not far:
            return self
        if recall is not None and recall > _FINEST:
            return None
        least = _FAR_AIM if far else AIM
        aim = least if recall is None else max(recall, least)
        good = [point for point in self.curve if (point.far if far else point.near) >= aim]
        if not good and recall is not None:
            return None
        point = good[0] if good else self.curve[-1] if self.curve else None
        visited, wide = (self.visited, self.wide) if point is None else (point.visited, point.wide)
        return replace(self, visited=visited, wide=wide * (_FAR_WIDE if far else 1))

    @property
    def measured(self) -> dict[str, float]:
        """Recall by the kind of question, as a search goes without further request."""
        if not self.curve:
            return {}
        far = next((point for point in self.curve if point.far >= _FAR_AIM), self.curve[-1])
        return {
            "like the stored texts (between two of them)": self.recall,
            "unlike them (as words and code are; wider search)": far.far,
        }

    @property
    def layout(self) -> str:
        return f"IVF{self.index.nlist},PQ{self.index.M}x4fs ({self.visited} lists asked)"

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
        """How many codes are looked up for k answers, as codes order neighbours a little wrongly."""
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
        visited = self.visited * max(1.0, math.sqrt(k / _NEIGHBOURS)) / max(part, 1e-6)
        return min(int(self.index.nlist), math.ceil(visited))

    def compares(self, part: float) -> float:
        """Codes that a search for ten looks at."""
        return self.count * self.visits(_NEIGHBOURS, part) / int(self.index.nlist)


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
    chance = np.random.default_rng(0)
    sample = np.sort(chance.choice(count, min(count, max(4096, _TRAINED_ON * lists)), replace=False))
    _use_threads(faiss, thread_count(None))
    index.train(np.ascontiguousarray(vectors[sample]))
    empty = Lists(index, 0, 1, 0.0, count)
    questions = _questions(vectors, empty.centroids, chance)
    truth = _Best(len(questions))
    for start in range(0, count, _BLOCK):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK])
        index.add_with_ids(block, np.arange(start, start + len(block), dtype=np.int64))
        truth.see(questions @ block.T, start)
    near = questions[: len(_MIXED) * _QUESTIONS]
    usual, careful = np.quantile(empty.lead(near), _EDGES).tolist()
    return _tuned(replace(empty, count=count, edges=(usual, careful)), questions, truth.slots)


def _tuned(lists: Lists, questions: Vectors, truth: NDArray[np.int64]) -> Lists:
    """As many lists as it takes; where all of them do not do, the codes are too coarse and more are looked up.

    It is measured on until questions of the other kind are found too, or there is nothing more to visit.
    """
    visited, wide, most = 1, 1, int(lists.index.nlist)
    near = len(_MIXED) * _QUESTIONS
    chosen: Lists | None = None
    curve: list[RecallPoint] = []
    while True:
        tried = replace(lists, visited=visited, wide=wide)
        if chosen is None or curve[-1].near < _FINEST:  # above it nobody asks how many more are found
            right = _right(tried, questions[:near], truth[:near])
            share = float(right.reshape(len(_MIXED), -1).mean(axis=1).min())
        widely = replace(tried, wide=_FAR_WIDE * wide)
        far = float(_right(widely, questions[near:], truth[near:]).mean())
        point = RecallPoint(visited, wide, near=share, far=far)
        curve.append(point)
        last = visited >= most and wide >= _WIDEST
        if chosen is None and (point.near >= AIM or last):
            chosen = replace(tried, recall=point.near)
        if last or (chosen is not None and (min(point.near, point.far) >= _FINEST or visited >= most)):
            break
        if visited >= most:
            visited, wide = 1, 2 * wide
        else:
            visited = min(most, max(visited + 1, int(visited * _STEPS[chosen is not None])))
    assert chosen is not None, "the last point is chosen if none before was"
    # Before the chosen one the points are of no use to anybody.
    sizes = [(point.visited, point.wide) for point in curve]
    first = sizes.index((chosen.visited, chosen.wide))
    return replace(chosen, curve=tuple(curve[first:]))


def _right(lists: Lists, questions: Vectors, truth: NDArray[np.int64]) -> NDArray[np.bool_]:
    """(questions, neighbors) which of the true neighbors are among the candidates."""
    found = lists.search(questions, _NEIGHBOURS, None).slots
    return np.asarray((truth[:, :, None] == found[:, None, :]).any(axis=2))


def _questions(vectors: Vectors, centroids: Vectors, chance: np.random.Generator) -> Vectors:
    """Stored vectors, moved: a stored vector itself would be found in the first list.

    Of three kinds, one after the other. Two are moved towards another vector, as questions like the stored texts are.
    The last are unlike them: sums of vectors without most of what these share with their centroids. So the order of
    the lists says little about where their neighbors are. Single words and lines of Python code among sentences
    needed about as many lists or fewer (benchmarks/index_recall.py); random noise on stored vectors needs far fewer.
    """
    out = []
    for weight in _MIXED:
        first = np.sort(chance.integers(len(vectors), size=_QUESTIONS))
        mixed = vectors[first] + weight * vectors[chance.integers(len(vectors), size=_QUESTIONS)]
        out.append(_unit(mixed))
    rest = np.zeros((_QUESTIONS, vectors.shape[1]), dtype=np.float32)
    for _ in range(_SUMMED):
        some = vectors[chance.integers(len(vectors), size=_QUESTIONS)]
        scores = some @ centroids.T
        best = scores.argmax(axis=1)
        rest += _unit(some - _REMOVED * scores.max(axis=1, keepdims=True) * centroids[best])
    out.append(_unit(rest))
    return np.concatenate(out)


def _unit(vectors: Vectors) -> Vectors:
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, 1e-6), dtype=np.float32)


class _Best:
    """The exact neighbours of some questions while blocks stream by."""

    def __init__(self, questions: int) -> None:
        self.slots = np.full((questions, _NEIGHBOURS), -1, dtype=np.int64)
        self._score = np.full((questions, _NEIGHBOURS), -np.inf, dtype=np.float32)

    def see(self, scores: Vectors, start: int) -> None:
        kept = min(_NEIGHBOURS, scores.shape[1])
        near = np.argpartition(-scores, kept - 1, axis=1)[:, :kept]
        score = np.concatenate([self._score, np.take_along_axis(scores, near, 1)], axis=1)
        slots = np.concatenate([self.slots, near + start], axis=1)
        order = np.argsort(-score, axis=1)[:, :_NEIGHBOURS]
        self.slots, self._score = np.take_along_axis(slots, order, 1), np.take_along_axis(score, order, 1)


_threads = {"used": False, "lost": False}
"""Whether faiss has started threads in this process, or had in the one that this process was forked from."""


def _use_threads(faiss: Any, count: int) -> None:  # noqa: ANN401
    """The pool of a parent does not exist in a forked child, and OpenMP waits for it for ever."""
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
