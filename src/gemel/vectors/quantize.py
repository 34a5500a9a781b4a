"""Vectors in fewer bytes (float16, int8, binary), and exact scores for candidates that they propose.

Every form keeps a vector's direction and is computed from that vector alone, so equal vectors stay equal.
"""

from __future__ import annotations

from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.options import Output
from gemel.types import AnyVectors, Vectors
from gemel.vectors.scan.exact import PRODUCT, exact_scores, squares
from gemel.vectors.similarity import shaped


def quantize(vectors: Vectors, output: Output) -> AnyVectors:
    """The rows of (n, dim) vectors as `output`: float32, float16, int8 or binary.

    int8: each row scaled so that its largest number is 127; cosine is kept, length is not. binary: one bit per
    dimension, 1 where the number is above 0, eight to a byte, first dimension first; dim must be a multiple of 8.
    """
    vectors = shaped(vectors, "vectors")
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
    """Exact cosines of each query with its candidate rows: (q, d), (n, ...), (q, k) positions -> (q, k).

    The second step of a search that first takes many candidates by a cheap score. The corpus may be any output of
    `quantize`; a binary row counts as -1 and 1. Equal rows get equal scores, the same bits as those of `search`.
    """
    if candidates.ndim != 2 or len(candidates) != len(queries):
        raise InputError(
            f"candidates must be (queries, k), got {candidates.shape} for {len(queries)} queries"
        )
    dim = queries.shape[1]
    packed = corpus.dtype == np.uint8
    if corpus.shape[1] * (8 if packed else 1) != dim:
        raise InputError(
            f"queries have {dim} dimensions but the corpus has {corpus.shape[1]} numbers per row"
        )
    scores = np.empty(candidates.shape, dtype=np.float32)
    for query, chosen, out in zip(queries, candidates, scores, strict=True):
        rows = np.unpackbits(corpus[chosen], axis=1) * 2.0 - 1.0 if packed else corpus[chosen]
        rows = rows.astype(np.float32)
        weights = _inverse_lengths(query[None]), _inverse_lengths(rows)
        first, each = np.zeros(len(rows), np.int64), np.arange(len(rows))
        out[:] = exact_scores(PRODUCT, query[None], rows, first, each, weights)
    return scores


def _inverse_lengths(rows: Vectors) -> NDArray[np.float64]:
    """(n,) 1 / length; 0 for a row of zeros."""
    lengths = np.sqrt(squares(rows))
    return np.divide(1.0, lengths, out=np.zeros_like(lengths), where=lengths > 0)
