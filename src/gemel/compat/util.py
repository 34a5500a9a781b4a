"""The common functions of `sentence_transformers.util`, with exact search, pairs and communities of gemel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from gemel.compat.arrays import as_rows, is_one, like, quantize_embeddings
from gemel.compat.model import SentenceTransformer
from gemel.errors import InputError
from gemel.groups.cluster import cluster
from gemel.vectors.search import search
from gemel.vectors.similarity import normalize, row_scores, scores

__all__ = [
    "community_detection",
    "cos_sim",
    "dot_score",
    "euclidean_sim",
    "manhattan_sim",
    "normalize_embeddings",
    "pairwise_cos_sim",
    "pairwise_dot_score",
    "pairwise_euclidean_sim",
    "pairwise_manhattan_sim",
    "paraphrase_mining",
    "paraphrase_mining_embeddings",
    "pytorch_cos_sim",
    "quantize_embeddings",
    "semantic_search",
    "truncate_embeddings",
]


def cos_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - arrays, tensors, or lists of them
    """(n, m) cosines: an array, or a tensor for tensors."""
    return like(scores(as_rows(a), as_rows(b), "cosine"), a, b)


def dot_score(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n, m) dot products."""
    return like(scores(as_rows(a), as_rows(b), "dot"), a, b)


def euclidean_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n, m) negative distances."""
    return like(scores(as_rows(a), as_rows(b), "euclidean"), a, b)


def manhattan_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n, m) negative sums of absolute differences."""
    return like(scores(as_rows(a), as_rows(b), "manhattan"), a, b)


def pairwise_cos_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n,) cosines of row i with row i."""
    return _pairwise(a, b, "cosine")


def pairwise_dot_score(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n,) dot products of row i with row i."""
    return _pairwise(a, b, "dot")


def pairwise_euclidean_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n,) negative distances of row i and row i."""
    return _pairwise(a, b, "euclidean")


def pairwise_manhattan_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n,) negative sums of absolute differences of row i and row i."""
    return _pairwise(a, b, "manhattan")


def normalize_embeddings(embeddings: Any) -> Any:  # noqa: ANN401 - as above
    """Rows of length 1."""
    unit = normalize(as_rows(embeddings))
    return like(unit[0] if is_one(embeddings) else unit, embeddings)


def truncate_embeddings(embeddings: Any, truncate_dim: int | None) -> Any:  # noqa: ANN401 - as above
    """The first `truncate_dim` numbers of each row, not normalized."""
    return embeddings[..., :truncate_dim]


pytorch_cos_sim = cos_sim
_METRICS: dict[Any, str] = {
    cos_sim: "cosine",
    dot_score: "dot",
    euclidean_sim: "euclidean",
    manhattan_sim: "manhattan",
}


def semantic_search(
    query_embeddings: Any,  # noqa: ANN401 - as above
    corpus_embeddings: Any,  # noqa: ANN401 - as above
    query_chunk_size: int = 100,
    corpus_chunk_size: int = 500_000,
    top_k: int = 10,
    score_function: Callable[[Any, Any], Any] = cos_sim,
) -> list[list[dict[str, int | float]]]:
    """For each query its best corpus rows: dicts of corpus_id and score. The chunk sizes are ignored."""
    metric = _metric(score_function)
    hits = search(as_rows(query_embeddings), as_rows(corpus_embeddings), k=top_k, metric=metric)
    return [
        [{"corpus_id": int(i), "score": float(score)} for i, score in zip(index, row, strict=True)]
        for index, row in zip(hits.index, hits.score, strict=True)
    ]


def paraphrase_mining(  # noqa: PLR0913, PLR0917 - their arguments
    model: SentenceTransformer,
    sentences: Sequence[str],
    show_progress_bar: bool = False,
    batch_size: int = 32,
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100_000,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Callable[[Any, Any], Any] = cos_sim,
    truncate_dim: int | None = None,
    prompt_name: str | None = None,
    prompt: str | None = None,
) -> list[list[float | int]]:
    """The nearest pairs of sentences, best first: [score, i, j]. `gemel.similar_pairs` needs no `top_k`."""
    vectors = model.encode(
        sentences,
        show_progress_bar=show_progress_bar,
        batch_size=batch_size,
        truncate_dim=truncate_dim,
        prompt_name=prompt_name,
        prompt=prompt,
    )
    return paraphrase_mining_embeddings(
        vectors, query_chunk_size, corpus_chunk_size, max_pairs, top_k, score_function
    )


def paraphrase_mining_embeddings(
    embeddings: Any,  # noqa: ANN401 - as above
    query_chunk_size: int = 5000,
    corpus_chunk_size: int = 100_000,
    max_pairs: int = 500_000,
    top_k: int = 100,
    score_function: Callable[[Any, Any], Any] = cos_sim,
) -> list[list[float | int]]:
    """`paraphrase_mining` of vectors: the pairs in which one is among the `top_k` nearest of the other."""
    rows = as_rows(embeddings)
    if len(rows) < 2:
        return []
    hits = search(rows, rows, k=top_k + 1, metric=_metric(score_function))
    own = np.arange(len(rows))[:, None]
    # The row itself goes last; it may be missing where many rows are equal.
    order = np.argsort(hits.index == own, axis=1, kind="stable")[:, : min(top_k, len(rows) - 1)]
    other = np.take_along_axis(hits.index, order, axis=1)
    score = np.take_along_axis(hits.score, order, axis=1).ravel()
    left, right = np.minimum(own, other).ravel(), np.maximum(own, other).ravel()
    _, first = np.unique(left * len(rows) + right, return_index=True)
    best = first[np.lexsort((right[first], left[first], -score[first]))][:max_pairs]
    return [[float(score[i]), int(left[i]), int(right[i])] for i in best]


def community_detection(
    embeddings: Any,  # noqa: ANN401 - as above
    threshold: float = 0.75,
    min_community_size: int = 10,
    batch_size: int = 1024,
    show_progress_bar: bool = False,
) -> list[list[int]]:
    """Positions of each community, the largest first; its center first, then the others by similarity.

    Where communities overlap, ties are broken by content, not by position: docs/reference/clustering.md.
    `batch_size` is ignored.
    """
    rows = as_rows(embeddings)
    clusters = cluster(
        rows,
        method="communities",
        min_score=threshold,
        min_size=min_community_size,
        progress=show_progress_bar,
    )
    communities = []
    for item in clusters.items:
        members = clusters.members(item.id)
        near = scores(rows[[item.center]], rows[members], "cosine")[0]
        near[members == item.center] = np.inf
        communities.append(members[np.argsort(-near, kind="stable")].tolist())
    # Communities of equal size in the order of their centers.
    return sorted(communities, key=lambda each: (-len(each), each[0]))


def _pairwise(a: Any, b: Any, metric: str) -> Any:  # noqa: ANN401 - as above
    result = like(row_scores(as_rows(a), as_rows(b), metric), a, b)
    return result[0] if is_one(a) and is_one(b) else result


def _metric(score_function: Callable[[Any, Any], Any]) -> str:
    if score_function not in _METRICS:
        raise InputError(
            "score_function must be cos_sim, dot_score, euclidean_sim or manhattan_sim of gemel.compat.util. "
            "The gemel way is a name: gemel.search(queries, corpus, metric='dot')"
        )
    return _METRICS[score_function]
