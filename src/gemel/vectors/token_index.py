"""Search among the token vectors of many documents: `TokenIndex`, with candidates from centroids and exact scores.

As in PLAID (arXiv 2205.09707): tokens are grouped around centroids, and a document is described by the centroids of its
tokens. A query is compared with the centroids, every document is scored by its centroids alone, which takes one small
step per token, and the best of them are scored by their vectors. How many these are is measured when the index is
built, and continued in each search: how far exact scores are from those by centroids depends on the query (one that is
filled up with mask tokens repeats the same error), so documents are compared until the others are too far behind.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError
from gemel.files.atomic import atomic_folder, write_json
from gemel.options import check_count
from gemel.types import Vectors
from gemel.vectors.maxsim import (
    GroupedCentroids,
    MultiVectors,
    document_scores,
    make_centroids,
    read_array,
)
from gemel.vectors.scan.compare import thread_count
from gemel.vectors.scan.native_scanner import CentroidCodesView, chosen_level, late_library
from gemel.vectors.similarity import check_same_dim, checked

_EXACT = 5000  # documents below which comparing all of them is fast

_QUERIES = 64  # sampled documents, with which recall is measured

_QUERY_TOKENS = (8, 32)  # of every second of them: real queries are short, or filled up to some length

_BEST = 10  # results whose recall is measured

_START = 0.9  # of these results are among the candidates that a search begins with

_GOAL = 0.985  # of them are found in the end

_PER_RESULT = 16  # candidates for each of k results, where that is more

_SAMPLED = 128  # documents, evenly spread, whose exact scores tell how much those by centroids say

_SPREAD = 4.0  # standard deviations above its expected score that a document may have

_BLOCK = 1 << 17  # tokens at once

_FORMAT = 1


class TokenIndex:
    """Finds documents by MaxSim. Safe to use from several threads."""

    def __init__(
        self,
        documents: MultiVectors,
        codes: CentroidCodes | None = None,
        *,
        candidates: int = 0,
        recall: float | None = None,
    ) -> None:
        """Use `TokenIndex.build` or `TokenIndex.load`."""
        self.documents = documents
        self.recall = recall
        """The share of the 10 best that a search finds, measured on a sample; None: every search is exact."""
        self.candidates = candidates
        """Documents that are compared by their vectors at least; 0: all."""
        self._codes = codes

    def __len__(self) -> int:
        return len(self.documents)

    def __repr__(self) -> str:
        how = "exact" if self.recall is None else f"candidates={self.candidates:,}, recall={self.recall:.3f}"
        return f"TokenIndex({len(self):,} documents, {self.documents.form}, {how})"

    @classmethod
    def build(
        cls, documents: MultiVectors, *, queries: MultiVectors | None = None, threads: int | None = None
    ) -> TokenIndex:
        """An index of `documents`, in the form they have; 2-bit residuals bring their centroids along.

        `queries`: real ones, to measure recall with; None: parts of documents, which may be unlike queries.
        Fewer than 5,000 documents are always compared exactly, and so are documents that their centroids describe too
        badly.
        """
        if len(documents) < _EXACT:
            return cls(documents)
        codes = CentroidCodes.build(documents, threads)
        samples = _samples(documents, codes, queries, threads)
        ranks = np.concatenate([np.empty(0, np.int64), *(each.ranks for each in samples)])
        candidates = int(np.quantile(ranks, _START, method="higher")) + 1 if len(ranks) else len(documents)
        while candidates <= len(documents) // 4:
            index = cls(documents, codes, candidates=candidates)
            recall = float(np.mean([each.found(index, threads) for each in samples]))
            if recall >= _GOAL:
                index.recall = recall
                return index
            candidates *= 2
        return cls(documents)

    def search(
        self,
        query: ArrayLike,
        k: int = 10,
        *,
        inside: NDArray[np.bool_] | None = None,
        exact: bool = False,
        threads: int | None = None,
    ) -> tuple[NDArray[np.int64], Vectors]:
        """The rows of the `k` best documents and their scores, which are exact; best first, ties to the lower row.

        `query`: its token vectors (tokens, dim). `inside`: one boolean per document, which may be found. `exact`: every
        document is compared by its vectors, not only candidates. Documents without tokens are never found.
        """
        check_count("k", k)
        vectors = checked(query, "query")
        rows = np.arange(len(self)) if inside is None else np.flatnonzero(_checked_mask(inside, len(self)))
        wanted = max(self.candidates, _PER_RESULT * k)
        if not exact and self._codes is not None and wanted < len(rows):
            return self._candidates(vectors, rows, wanted, k, threads)
        return best_rows(rows, document_scores(vectors, self.documents, rows, threads=threads), k)

    def _candidates(
        self, query: Vectors, rows: NDArray[np.int64], wanted: int, k: int, threads: int | None
    ) -> tuple[NDArray[np.int64], Vectors]:
        """The best by exact scores, of documents in the order of their scores by centroids; twice as many each time
        until no other one is likely to be among the k best."""
        assert self._codes is not None
        estimates = self._codes.scores(query, rows, threads)
        order = np.argsort(-estimates, kind="stable")
        sample = order[:: max(1, len(order) // _SAMPLED)]
        exact = np.full(len(rows), -np.inf, np.float32)
        done = 0
        while True:
            block = order[done:wanted] if done else np.union1d(order[:wanted], sample)
            exact[block] = document_scores(query, self.documents, rows[block], threads=threads)
            done, wanted = wanted, 2 * wanted
            if done >= len(order) or not self._may_follow(exact, estimates, order, done, k):
                return best_rows(rows, exact, k)

    @staticmethod
    def _may_follow(
        exact: Vectors, estimates: NDArray[np.int32], order: NDArray[np.int64], done: int, k: int
    ) -> bool:
        """Whether a document after the first `done` may have a better score than the k-th so far: by the line through
        the scores that are known, and how far these are from it."""
        known = np.flatnonzero(exact > -np.inf)
        if len(known) <= k:
            return True
        steps, scores = estimates[known].astype(np.float64), exact[known].astype(np.float64)
        spread = steps - steps.mean()
        slope = max(0.0, float(spread @ scores) / (float(spread @ spread) or 1.0))
        away = float((scores - scores.mean() - slope * spread).std())
        least = np.partition(scores, len(scores) - k)[len(scores) - k]
        next_best = scores.mean() + slope * (float(estimates[order[done]]) - steps.mean())
        return bool(next_best + _SPREAD * away >= least)

    def save(self, folder: str | Path) -> None:
        """Write the index and the vectors of its documents to `folder`, as arrays of NumPy."""
        settings = {"format": _FORMAT, "candidates": self.candidates, "recall": self.recall}
        with atomic_folder(Path(folder)) as working:
            self.documents.save(working / "documents")
            write_json(working / "index.json", settings)
            if self._codes is not None:
                self._codes.save(working, with_centroids=self.documents.codebook is None)

    @classmethod
    def load(cls, folder: str | Path) -> TokenIndex:
        """What `save` wrote. Arrays stay on disk and are read when they are needed."""
        folder = Path(folder)
        try:
            settings = json.loads((folder / "index.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise InputError(f"{folder} has no saved index of token vectors: {error}") from error
        documents = MultiVectors.load(folder / "documents")
        recall, candidates = _checked_settings(folder, settings)
        if recall is None:
            return cls(documents)
        return cls(documents, CentroidCodes.load(folder, documents), candidates=candidates, recall=recall)


def _checked_settings(folder: Path, settings: Any) -> tuple[float | None, int]:  # noqa: ANN401 - JSON of a file
    if not isinstance(settings, dict) or settings.get("format") != _FORMAT:
        raise InputError(f"{folder} is an index of token vectors of another format. Build it again")
    recall, candidates = settings.get("recall"), settings.get("candidates")
    if not isinstance(recall, float | None) or not isinstance(candidates, int) or candidates < 0:
        raise InputError(f"{folder} is damaged: index.json has {settings!r:.100}. Build it again")
    return recall, candidates


def best_rows(
    rows: NDArray[np.int64], scores: NDArray[Any], k: int
) -> tuple[NDArray[np.int64], NDArray[Any]]:
    """The `k` rows with the best scores, best first, ties to the lower row; those at minus infinity are left out.

    `rows` must ascend.
    """
    if k < len(rows):
        least = np.partition(scores, len(rows) - k)[len(rows) - k]
        near = np.flatnonzero(scores >= least)  # more than k where several have the score of the last
        rows, scores = rows[near], scores[near]
    order = np.argsort(-scores, kind="stable")[:k]
    order = order[scores[order] > -np.inf]
    return rows[order], scores[order]


def _checked_mask(inside: NDArray[np.bool_], count: int) -> NDArray[np.bool_]:
    mask = np.asarray(inside)
    if mask.shape != (count,) or mask.dtype != np.bool_:
        raise InputError(
            f"inside must be {count:,} booleans, one per document, got {mask.dtype} of the shape {mask.shape}"
        )
    return mask


@dataclass(frozen=True, eq=False)
class _Sample:
    """A query, its best documents by exact scores, and the ranks of these by centroids."""

    query: Vectors
    best: NDArray[np.int64]
    ranks: NDArray[np.int64]
    itself: int | None
    """The document that the query is a part of."""

    def found(self, index: TokenIndex, threads: int | None) -> float:
        """The share of the best documents that a search finds."""
        rows, _ = index.search(self.query, _BEST + 1, threads=threads)
        return float(np.isin(self.best, rows[rows != self.itself][:_BEST]).mean())


def _samples(
    documents: MultiVectors, codes: CentroidCodes, queries: MultiVectors | None, threads: int | None
) -> list[_Sample]:
    """Queries, or parts of documents, compared with all documents."""
    every, out = np.arange(len(documents)), []
    count = len(every) if queries is None else len(queries)
    sample = np.sort(np.random.default_rng(0).choice(count, min(_QUERIES, count), replace=False))
    for number, row in enumerate(sample.tolist()):
        query = (documents if queries is None else queries).of(row)
        if queries is None:
            query = query[: _QUERY_TOKENS[number % len(_QUERY_TOKENS)]]
        if not len(query):
            continue
        scores = document_scores(query, documents, threads=threads)
        if queries is None:
            scores[row] = -np.inf  # finding itself says nothing
        estimates = codes.scores(query, every, threads)
        rank = np.empty(len(every), np.int64)
        rank[np.argsort(-estimates, kind="stable")] = every
        best = best_rows(every, scores, _BEST)[0]
        out.append(_Sample(query, best, rank[best], row if queries is None else None))
    return out


@dataclass(frozen=True, eq=False)
class CentroidCodes:
    """Documents by the centroids that their tokens are nearest to."""

    centroids: Vectors
    """(count, dim)"""
    offsets: NDArray[np.int64]
    """(documents + 1,)"""
    codes: NDArray[np.uint16]
    """The centroids of each document, each once; document i has those from offsets[i] to offsets[i + 1]."""

    @classmethod
    def build(cls, documents: MultiVectors, threads: int | None) -> CentroidCodes:
        """The nearest centroid of each token vector; of 2-bit residuals it is known."""
        book, nearest = documents.codebook, documents.nearest
        if book is not None and nearest is not None:
            return cls(book.centroids, *_distinct(nearest, documents.offsets))
        _, centroids = make_centroids(documents, threads=threads)
        nearest, groups = np.empty(len(documents.vectors), np.uint16), GroupedCentroids.of(centroids, threads)
        for begin in range(0, len(nearest), _BLOCK):
            part = documents.rows(begin, min(begin + _BLOCK, len(nearest)))
            nearest[begin : begin + _BLOCK] = groups.nearest(part, threads)
        return cls(centroids, *_distinct(nearest, documents.offsets))

    def scores(
        self, query: Vectors, chosen: NDArray[np.int64], threads: int | None = None
    ) -> NDArray[np.int32]:
        """Of the documents at `chosen`: the sum of the largest product of each token with their centroids, in steps.

        The products of a token are in 256 steps from its smallest, which are the same for all tokens.
        """
        check_same_dim(query, self.centroids, "query", "documents")
        level = chosen_level()
        if level == "numpy":
            return self._numpy_scores(query, chosen)
        out = np.empty(len(chosen), np.int32)
        view = CentroidCodesView(
            *(array.ctypes.data for array in self._arrays().values()), *self.centroids.shape
        )
        late_library(level).gemel_centroid_scores(
            query.ctypes.data,
            len(query),
            view,
            chosen.ctypes.data,
            len(chosen),
            thread_count(threads),
            out.ctypes.data,
        )
        return out

    def _numpy_scores(self, query: Vectors, chosen: NDArray[np.int64]) -> NDArray[np.int32]:
        """As `ProductTable` of native/maxsim.h."""
        products = self.centroids @ query.T  # (centroids, tokens)
        products -= products.min(axis=0, initial=np.inf)
        most = products.max(initial=0)
        table = (products * (255 / most if most > 0 else 0) + 0.5).astype(np.uint8)
        out = np.zeros(len(chosen), np.int32)
        for number, row in enumerate(chosen.tolist()):
            own = self.codes[self.offsets[row] : self.offsets[row + 1]]
            out[number] = table[own].max(axis=0, initial=0).sum(dtype=np.int32)
        return out

    def save(self, folder: Path, *, with_centroids: bool) -> None:
        """Write the arrays to `folder`, with those of the centroids unless the documents have them."""
        for name, array in self._arrays().items():
            if name != "centroids" or with_centroids:
                np.save(folder / f"{name}.npy", array)

    @classmethod
    def load(cls, folder: Path, documents: MultiVectors) -> CentroidCodes:
        """What `save` wrote."""
        book = documents.codebook
        centroids = read_array(folder / "centroids.npy") if book is None else book.centroids
        loaded = cls(centroids, read_array(folder / "offsets.npy"), read_array(folder / "codes.npy"))
        loaded._check(folder, len(documents), documents.dim)
        return loaded

    def _check(self, folder: Path, documents: int, dim: int) -> None:
        """Compiled code reads what the offsets and codes say, so they must be right."""
        offsets, count = self.offsets, len(self.centroids)
        types = [str(array.dtype) for array in self._arrays().values()]
        good = (
            types == ["float32", "int64", "uint16"]
            and self.centroids.shape == (count, dim)
            and self.codes.ndim == 1
            and offsets.shape == (documents + 1,)
            and (offsets[0], offsets[-1]) == (0, len(self.codes))
            and (np.diff(offsets) >= 0).all()
            and self.codes.max(initial=0) < max(1, count)
        )
        if not good:
            raise InputError(f"{folder} is damaged: its codes do not fit its documents. Build it again")

    def _arrays(self) -> dict[str, NDArray[Any]]:
        """In the order of `CentroidCodesView`."""
        return {"centroids": self.centroids, "offsets": self.offsets, "codes": self.codes}


def _distinct(
    nearest: NDArray[np.uint16], offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.uint16]]:
    """The centroids of each document, ascending and each once, with their offsets."""
    out, codes = np.zeros(len(offsets), np.int64), []
    begin = 0
    while begin + 1 < len(offsets):
        end = int(np.searchsorted(offsets, offsets[begin] + _BLOCK, side="right")) - 1
        end = min(max(end, begin + 1), len(offsets) - 1)
        owner = np.repeat(np.arange(begin, end), np.diff(offsets[begin : end + 1]))
        pairs = np.unique(owner << 16 | nearest[offsets[begin] : offsets[end]])
        out[begin + 1 : end + 1] = np.bincount((pairs >> 16) - begin, minlength=end - begin)
        codes.append((pairs & 0xFFFF).astype(np.uint16))
        begin = end
    return np.cumsum(out), np.concatenate(codes) if codes else np.empty(0, np.uint16)
