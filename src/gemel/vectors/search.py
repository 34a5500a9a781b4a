"""The nearest rows of a corpus for each query, exact: `search`, arrays in, `Hits` out.

And vectors in fewer bytes (float16, int8, binary), with exact scores for candidates that they propose: every form keeps
a vector's direction and is computed from that vector alone, so equal vectors stay equal. `texts/cascade.py` searches
texts in two such steps.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Never, get_args

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.errors import InputError, refuse_keywords
from gemel.options import Output, check_choice, check_count, parse_bytes
from gemel.terminal import Progress
from gemel.types import AnyVectors, Encoder, ShownResult, Vectors
from gemel.vectors.scan.compare import thread_count
from gemel.vectors.scan.exact import PRODUCT, exact_scores, squares
from gemel.vectors.scan.scanner import scan
from gemel.vectors.similarity import METRICS, check_same_dim, shaped, vectors_or_encoded

__all__ = ["Hits", "quantize", "rescore", "search"]

_QUERIES = 4608  # queries that the corpus streams past at once

_ARGUMENTS = ("queries", "corpus", "k", "metric", "where", "memory", "threads", "prune", "progress", "model")

_FEW = 64  # for fewer queries, converting the corpus to int8 costs more than it saves


@dataclass(frozen=True, eq=False)
class Hits(ShownResult):
    """The nearest corpus rows of each query, best first; ties go to the lower position."""

    index: NDArray[np.int64]
    """(q, k) positions in the corpus; -1 where there are fewer results."""
    score: Vectors
    """(q, k), higher is nearer."""
    recall: float | None = None
    """The share of the true results that an approximate search finds, measured on a sample; None: it was exact."""

    def __len__(self) -> int:
        return len(self.index)

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        for (query, rank), position in np.ndenumerate(self.index):
            yield {"query": query, "rank": rank + 1, "index": position, "score": self.score[query, rank]}


def search(  # noqa: PLR0913 - one question, and how to work on it
    queries: ArrayLike | str | Sequence[str],
    corpus: ArrayLike | Sequence[str],
    k: int = 10,
    metric: str = "cosine",
    *,
    where: ArrayLike | None = None,
    memory: int | str = "1GB",
    threads: int | None = None,
    prune: bool = True,
    progress: bool = False,
    model: Encoder | None = None,
    **others: Never,
) -> Hits:
    """The `k` nearest corpus rows for each query. A corpus of n < k rows gives n columns.

    Every row is compared, and scores do not depend on the options below.

    where: compare with these corpus rows only: one boolean per row, or their positions. Hits keep the positions of the
    whole corpus.
    memory: for the hits being collected and the packed queries, besides the arrays given.
    prune: rule rows out by 8-bit bounds first, where the processor supports them. The result is the same.
    model: encodes queries and corpus where they are texts; `gemel.search_texts` gives the texts back.
    """
    refuse_keywords("search", _ARGUMENTS, others)
    check_count("k", k.item() if isinstance(k, np.integer) else k)
    METRICS[metric]
    left = shaped(vectors_or_encoded(queries, model, "encode_query"), "queries")
    right = shaped(vectors_or_encoded(corpus, model, "encode_document"), "corpus")
    check_same_dim(left, right, "queries", "corpus rows")
    chosen = None if where is None else _positions(where, len(right))
    columns = min(int(k), len(right) if chosen is None else len(chosen))
    threads, memory = thread_count(threads), parse_bytes(memory)
    ready = scan(
        left,
        right,
        metric,
        threads=threads,
        int8=prune and len(left) >= _FEW,
        names=("queries", "corpus"),
        chosen=chosen,
    )
    index = np.empty((len(left), columns), dtype=np.int64)
    score = np.empty((len(left), columns), dtype=np.float32)
    # Each thread keeps its own best; they are joined and sorted.
    bytes_per_query = 5 * left.shape[1] + 48 * columns * (threads + 1)
    group = max(1, min(_QUERIES, memory // bytes_per_query)) if columns else 1
    line = Progress(len(left), "queries", shown=progress)
    for begin in range(0, len(left) if columns else 0, group):
        end = min(begin + group, len(left))
        best = ready.scanner.nearest(ready.scanner.block(begin, end), columns, threads)
        index[begin:end], score[begin:end] = best.index, best.score
        line.add(end - begin)
    line.close()
    return Hits(index, score)


def _positions(where: ArrayLike, rows: int) -> NDArray[np.int64]:
    """The positions of a filter, ascending, each once."""
    given: NDArray[Any] = np.asarray(where)
    if given.ndim != 1:
        raise InputError(f"where must be a list of booleans or positions, got the shape {given.shape}")
    if given.dtype == np.bool_:
        if len(given) != rows:
            raise InputError(f"where has {len(given)} booleans but the corpus has {rows} rows")
        return np.flatnonzero(given)
    if given.size == 0:
        return np.empty(0, dtype=np.int64)
    if given.dtype.kind not in "iu":
        raise InputError(f"where must be booleans or positions, got an array of {given.dtype}")
    wrong = (given < 0) | (given >= rows)
    if wrong.any():
        raise InputError(f"where asks for row {int(given[wrong][0])}, but the corpus has {rows} rows")
    return np.unique(given).astype(np.int64)


def quantize(vectors: Vectors, output: Output) -> AnyVectors:
    """The rows of (n, dim) vectors as `output`: float32, float16, int8 or binary.

    int8: each row scaled so that its largest number is 127; cosine is kept, length is not. binary: one bit per
    dimension, 1 where the number is above 0, eight to a byte, first dimension first; dim must be a multiple of 8.
    """
    check_choice("output", output, get_args(Output))
    vectors = shaped(vectors, "vectors")
    if output == "float32":
        return vectors
    if output == "float16":
        return vectors.astype(np.float16)
    if output == "int8":
        largest = np.abs(vectors).max(axis=1, keepdims=True, initial=0)
        steps = np.divide(127, largest, out=np.zeros_like(largest), where=largest > 0)
        return np.asarray(np.rint(vectors * steps), dtype=np.int8)
    if vectors.shape[1] % 8:
        raise InputError(f"binary packs 8 dimensions to a byte; the vectors have {vectors.shape[1]}")
    return np.packbits(vectors > 0, axis=1)


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
