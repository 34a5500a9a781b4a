"""Nearest rows through one bit a dimension: candidates by the number of equal signs, then exact scores."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.nearest import Hits, search
from gemel.scan.scanner import scan
from gemel.scan.workers import thread_count
from gemel.similarity import check_same_dim, checked
from gemel.small_vectors import quantize
from gemel.types import AnyVectors, Vectors

_SAMPLE = 50  # queries that are asked twice to measure the recall
_ROWS = 65536  # corpus rows compared at once
_ONES = np.array([bin(byte).count("1") for byte in range(256)], dtype=np.uint8)


def search_by_bits(
    queries: Vectors,
    corpus: Vectors,
    k: int = 10,
    *,
    candidates: int | None = None,
    threads: int | None = None,
) -> Hits:
    """The `k` rows with the best cosine among `candidates` a query (default 10 k) whose signs agree most.

    `recall` of the answer is measured on a sample of the queries. The dimensions must be a multiple of 8.
    """
    asked, known = checked(queries, "queries"), checked(corpus, "corpus")
    check_same_dim(asked, known, "queries", "corpus rows")
    wide = min(10 * k if candidates is None else candidates, len(known))
    if wide < min(k, len(known)):
        raise InputError(f"candidates must be at least k={k}, got {candidates}")
    bits, signs = quantize(known, "binary"), quantize(asked, "binary")
    if not len(asked) or not wide:
        return Hits(np.empty((len(asked), 0), np.int64), np.empty((len(asked), 0), np.float32))
    rough = np.stack([_nearest_bits(row, bits, wide) for row in signs])
    ready = scan(
        asked, known, "cosine", threads=thread_count(threads), int8=False, names=("queries", "corpus")
    )
    query = np.repeat(np.arange(len(asked)), wide)
    score = ready.scanner.exact(query, rough.ravel(), thread_count(threads)).reshape(rough.shape)
    order = np.lexsort((rough, -score), axis=1)[:, :k]
    index, score = np.take_along_axis(rough, order, 1), np.take_along_axis(score, order, 1)
    sample = np.sort(np.random.default_rng(0).permutation(len(asked))[:_SAMPLE])
    truth = search(asked[sample], known, index.shape[1], threads=threads).index
    right = [np.isin(row, index[at]).mean() for at, row in zip(sample, truth, strict=True)]
    return Hits(index, score, recall=float(np.mean(right)))


def _nearest_bits(query: AnyVectors, corpus: AnyVectors, k: int) -> NDArray[np.int64]:
    """(k,) rows with the fewest bits that differ; of equal ones the earlier."""
    apart = np.concatenate(
        [
            _ONES[corpus[start : start + _ROWS] ^ query].sum(axis=1, dtype=np.int32)
            for start in range(0, len(corpus), _ROWS)
        ]
    )
    return np.argsort(apart, kind="stable")[:k]
