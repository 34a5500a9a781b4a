"""Inverted lists of 4-bit codes (faiss), for candidates: which slots are worth an exact comparison.

An object never changes once it answers; adding makes another. How many lists a query visits is found by trying, on
questions that stored vectors stand for, until 0.985 of the ten exact neighbours are among the candidates. Questions
unlike what is stored (a single word, a line of code) need more: what each number of lists finds of both kinds is kept.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.errors import MissingExtra
from gemel.scan.workers import thread_count
from gemel.types import Vectors

AIM = 0.985
_QUESTIONS = 256
_KINDS = (0.3, 0.6, None)
"""How much of another stored vector is added to one to make a question; None: of a random direction, `_NOISE`."""
_NOISE = 1.5
_FAR = 2.5  # times the usual lists that a short question visits at least
_FINEST = 0.995  # a recall up to which it is measured; above, everything is compared
_WIDEST = 16
_NEIGHBOURS = 10
_TRAINED_ON = 40  # vectors a list: k-means is most of the time of a build
_ROUNDS = 10
_BLOCK = 65_536


@dataclass(frozen=True)
class Point:
    """What a number of lists finds."""

    visited: int
    wide: int
    near: float
    """Recall of questions like the stored vectors."""
    far: float
    """And of questions unlike them."""


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
    curve: tuple[Point, ...] = ()
    """As it was measured, from few lists to many."""

    def tuned_for(self, recall: float | None, *, far: bool = False) -> Lists | None:
        """These lists with as many visited as find this part; None: none does, so everything is compared.

        `recall` None: what is usual. `far`: of questions unlike the stored vectors.
        """
        if recall is None and not far:
            return self
        if recall is not None and recall > _FINEST:
            return None
        aim = AIM if recall is None else max(recall, AIM)
        good = [point for point in self.curve if (point.far if far else point.near) >= aim]
        if not good and recall is not None:
            return None
        point = good[0] if good else self.curve[-1] if self.curve else None
        visited, wide = (self.visited, self.wide) if point is None else (point.visited, point.wide)
        if far:  # a made question may be easier than a word that no stored text consists of
            visited = max(visited, math.ceil(_FAR * self.visited))
        return replace(self, visited=min(visited, int(self.index.nlist)), wide=max(wide, self.wide))

    @property
    def measured(self) -> dict[str, float]:
        """Recall by the kind of question, as a search goes without further request."""
        far = self.tuned_for(None, far=True)
        here = {(point.visited, point.wide): point for point in self.curve}
        kinds = {}
        if (self.visited, self.wide) in here:
            kinds["like the stored texts (between two of them)"] = here[self.visited, self.wide].near
            kinds["unlike them (moved at random)"] = here[self.visited, self.wide].far
        if far is not None and kinds:
            reached = [point.far for point in self.curve if point.visited <= far.visited]
            kinds["short (moved at random, wider search)"] = max(reached)
        return kinds

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
    questions = _questions(vectors, chance)
    truth = _Best(len(questions))
    for start in range(0, count, _BLOCK):
        block = np.ascontiguousarray(vectors[start : start + _BLOCK])
        index.add_with_ids(block, np.arange(start, start + len(block), dtype=np.int64))
        truth.see(questions @ block.T, start)
    return _tuned(Lists(index, count, 1, 0.0, count), questions, truth.slots)


def _tuned(lists: Lists, questions: Vectors, truth: NDArray[np.int64]) -> Lists:
    """As many lists as it takes; where all of them do not do, the codes are too coarse and more are looked up.

    It is measured on until questions of the other kind are found too, or there is nothing more to visit.
    """
    visited, wide, most = 1, 1, int(lists.index.nlist)
    chosen: Lists | None = None
    curve: list[Point] = []
    while True:
        tried = replace(lists, visited=visited, wide=wide)
        found = tried.search(questions, _NEIGHBOURS, None).slots
        right = (truth[:, :, None] == found[:, None, :]).any(axis=2)
        kinds = right.reshape(len(_KINDS), -1).mean(axis=1).tolist()
        point = Point(visited, wide, near=min(kinds[:-1]), far=kinds[-1])
        curve.append(point)
        last = visited >= most and wide >= _WIDEST
        if chosen is None and (point.near >= AIM or last):
            chosen = replace(tried, recall=point.near)
        if last or (chosen is not None and (min(point.near, point.far) >= _FINEST or visited >= most)):
            break
        if visited >= most:
            visited, wide = 1, 2 * wide
        else:
            step = 1.3 if chosen is None else 1.6
            visited = min(most, max(visited + 1, int(visited * step)))
    assert chosen is not None, "the last point is chosen if none before was"
    # Before the chosen one the points are of no use to anybody.
    sizes = [(point.visited, point.wide) for point in curve]
    first = sizes.index((chosen.visited, chosen.wide))
    return replace(chosen, curve=tuple(curve[first:]))


def _questions(vectors: Vectors, chance: np.random.Generator) -> Vectors:
    """Stored vectors, moved: a stored vector itself would be found in the first list.

    Of three kinds, one after the other. Two are moved towards another vector, as questions like the stored texts are;
    the last in a random direction, to where no stored text is, as a single word or a line of code among sentences.
    """
    out = []
    for weight in _KINDS:
        first = np.sort(chance.integers(len(vectors), size=_QUESTIONS))
        if weight is None:
            noise = chance.normal(size=(_QUESTIONS, vectors.shape[1])).astype(np.float32)
            mixed = vectors[first] + _NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
        else:
            mixed = vectors[first] + weight * vectors[chance.integers(len(vectors), size=_QUESTIONS)]
        out.append(mixed / np.maximum(np.linalg.norm(mixed, axis=1, keepdims=True), 1e-6))
    return np.concatenate(out).astype(np.float32)


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
