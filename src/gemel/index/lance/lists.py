"""Inverted lists of 4-bit codes (faiss), for candidates: which slots are worth an exact comparison.

An object never changes once it answers; adding makes another. How many lists a query visits is found by trying, on
questions that stored vectors stand for, until 0.985 of the ten exact neighbours are among the candidates.
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
_MIXED = (0.3, 0.6)
_WIDEST = 16
_NEIGHBOURS = 10
_TRAINED_ON = 40  # vectors a list: k-means is most of the time of a build
_ROUNDS = 10
_BLOCK = 65_536


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

    @property
    def layout(self) -> str:
        return f"IVF{self.index.nlist},PQ{self.index.M}x4fs ({self.visited} lists asked)"

    def search(
        self, queries: Vectors, k: int, chosen: NDArray[np.bool_] | None, *, widely: bool = False
    ) -> NDArray[np.int64]:
        """(queries, candidates) slots, -1 where there are no more. `chosen`: (slots,) which of them count.

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
        wide = min(self.candidates(k), self.count)
        _, slots = self.index.search(np.ascontiguousarray(queries, np.float32), wide, params=parameters)
        return np.asarray(slots, dtype=np.int64)

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

    def compares(self, k: int, part: float) -> float:
        """Codes that such a search looks at."""
        return self.count * self.visits(k, part) / int(self.index.nlist)


def build(vectors: Vectors) -> Lists:
    """Lists of these vectors, tuned; `vectors` may be a file that is larger than memory."""
    faiss = load_faiss()
    count, dim = vectors.shape
    lists = max(1, int(min(4 * math.sqrt(count), count / 200)))
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
    """As many lists as it takes; where all of them do not do, the codes are too coarse and more are looked up."""
    visited, wide = 1, 1
    while True:
        tried = replace(lists, visited=visited, wide=wide)
        found = tried.search(questions, _NEIGHBOURS, None)
        right = (truth[:, :, None] == found[:, None, :]).any(axis=2)
        recall = float(right.reshape(len(_MIXED), -1).mean(axis=1).min())
        if recall >= AIM or (visited >= lists.index.nlist and wide >= _WIDEST):
            return replace(tried, recall=recall)
        if visited >= lists.index.nlist:
            visited, wide = 1, 2 * wide
        else:
            visited = min(int(lists.index.nlist), max(visited + 1, int(visited * 1.3)))


def _questions(vectors: Vectors, chance: np.random.Generator) -> Vectors:
    """Between two stored vectors, nearer to the first: a stored vector itself would be found in the first list.

    Of two kinds, one after the other, for questions that are near to what is stored and for others.
    """
    out = []
    for part in _MIXED:
        rows = (
            np.sort(chance.integers(len(vectors), size=_QUESTIONS)),
            chance.integers(len(vectors), size=_QUESTIONS),
        )
        mixed = vectors[rows[0]] + part * vectors[rows[1]]
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
