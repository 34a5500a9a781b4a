"""Vectors in fewer bytes: float16, int8, binary; and exact scores for the candidates they find.

Every form keeps a vector's direction and is made from that vector alone, so equal vectors stay equal in any company.

Nearest rows through one bit a dimension: candidates by the number of equal signs, then exact scores.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.options import Output
from gemel.types import AnyVectors, Vectors
from gemel.vectors.scan.compare import thread_count
from gemel.vectors.scan.exact import PRODUCT, exact_scores, squares
from gemel.vectors.scan.scanner import scan
from gemel.vectors.search import Hits, search
from gemel.vectors.similarity import check_same_dim, checked, shaped


def quantize(vectors: Vectors, output: Output) -> AnyVectors:
    """(n, dim) float32 -> the same rows as `output`.

    int8: each row scaled so that its largest number is 127; cosine is kept, length is not. binary: one bit a
    dimension, 1 where the number is above 0, eight to a byte, first dimension first; dim must be a multiple of 8.
    """
    vectors = shaped(vectors, "vectors")  # whole numbers are numbers too
    if output == "float32":
        return vectors
    if output == "float16":
        return vectors.astype(np.float16)
    if output == "int8":
        largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
        steps = np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
        return np.asarray(np.rint(vectors * steps), dtype=np.int8)
    if output == "binary":
        if vectors.shape[1] % 8:
            raise InputError(f"binary packs 8 dimensions to a byte; the vectors have {vectors.shape[1]}")
        return np.packbits(vectors > 0, axis=1)
    raise InputError(f"output must be one of {', '.join(get_args(Output))}, got {output!r}")


def rescore(queries: Vectors, corpus: AnyVectors, candidates: NDArray[np.integer[Any]]) -> Vectors:
    """Cosine of each float query with its candidate rows of a smaller corpus: (q, d), (n, ...), (q, k) -> (q, k).

    The second step of a search that first takes many candidates by a cheap score: a binary row counts as -1 and 1.
    """
    if candidates.ndim != 2 or len(candidates) != len(queries):
        raise InputError(
            f"candidates must be (queries, k), got {candidates.shape} for {len(queries)} queries"
        )
    dim = queries.shape[1]
    packed = corpus.dtype == np.uint8
    if corpus.shape[1] * (8 if packed else 1) != dim:
        raise InputError(f"queries have {dim} dimensions but the corpus has {corpus.shape[1]} numbers a row")
    scores = np.empty(candidates.shape, dtype=np.float32)
    for query, chosen, out in zip(queries, candidates, scores, strict=True):
        rows = np.unpackbits(corpus[chosen], axis=1) * 2.0 - 1.0 if packed else corpus[chosen]
        out[:] = _cosines(query[None], rows.astype(np.float32))
    return scores


def _cosines(query: Vectors, rows: Vectors) -> Vectors:
    """(n,) cosines of a query (1, d) with rows (n, d), to the bit those that `search` gives: equal rows tie."""
    weights = _inverse_lengths(query), _inverse_lengths(rows)
    return exact_scores(PRODUCT, query, rows, np.zeros(len(rows), np.int64), np.arange(len(rows)), weights)


def _inverse_lengths(rows: Vectors) -> NDArray[np.float64]:
    """(n,) 1 / length; 0 for a row of zeros."""
    lengths = np.sqrt(squares(rows))
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)


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
