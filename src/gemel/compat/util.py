"""The common functions of `sentence_transformers.util`, with exact search, pairs and communities of gemel.

Arrays and tensors are arguments and results, without importing torch.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, MissingExtra
from gemel.groups.cluster import cluster
from gemel.vectors.search import search
from gemel.vectors.similarity import normalize, row_scores, scores

if TYPE_CHECKING:
    import torch

    from gemel.compat.model import SentenceTransformer

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

_PRECISIONS = ("float32", "int8", "uint8", "binary", "ubinary")


def cos_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - arrays, tensors, or lists of them
    """(n, m) cosines: an array, or a tensor for tensors."""
    return score_table(scores(as_rows(a), as_rows(b), "cosine"), a, b)


def dot_score(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n, m) dot products."""
    return score_table(scores(as_rows(a), as_rows(b), "dot"), a, b)


def euclidean_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n, m) negative distances."""
    return score_table(scores(as_rows(a), as_rows(b), "euclidean"), a, b)


def manhattan_sim(a: Any, b: Any) -> Any:  # noqa: ANN401 - as above
    """(n, m) negative sums of absolute differences."""
    return score_table(scores(as_rows(a), as_rows(b), "manhattan"), a, b)


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


def quantize_embeddings(
    embeddings: Any,  # noqa: ANN401 - an array or a tensor
    precision: str,
    ranges: Any = None,  # noqa: ANN401 - as above
    calibration_embeddings: Any = None,  # noqa: ANN401 - as above
) -> Any:  # noqa: ANN401 - as what came in
    """(n, dim) floats in fewer bytes; binary and ubinary pack 8 dimensions into a byte.

    int8 and uint8 divide the range of each dimension, (2, dim) `ranges` or those of `calibration_embeddings` or of the
    vectors themselves, into 255 steps: unless ranges are given, a result depends on the other vectors.
    `gemel.quantize` has no such ranges.
    """
    if precision not in _PRECISIONS:
        raise InputError(
            f"precision must be one of {', '.join(_PRECISIONS)}, got {precision!r}. "
            "float16: gemel.load(...).encode(texts, output='float16')"
        )
    rows = as_rows(embeddings).astype(np.float32)
    if precision == "float32":
        return like(rows, embeddings)
    if precision.endswith("binary"):
        levels = np.packbits(rows > 0, axis=1)
    else:
        start, step = _steps(rows, ranges, calibration_embeddings)
        levels = np.clip((rows - start) / step, 0, 255).astype(np.uint8)
    if precision.startswith("u"):
        return like(levels, embeddings)
    # The signed form is the byte minus 128, not the same bits.
    return like((levels.astype(np.int16) - 128).astype(np.int8), embeddings)


def _steps(rows: Any, ranges: Any, calibration: Any) -> tuple[Any, Any]:  # noqa: ANN401 - arrays
    if ranges is not None:
        low, high = as_rows(ranges, "ranges")
    else:
        sample = rows if calibration is None else as_rows(calibration, "calibration_embeddings")
        if len(sample) < 2:
            raise InputError(
                "int8 ranges need more than one vector. Give ranges or calibration_embeddings, or use int8 vectors "
                "without ranges: gemel.load(...).encode(texts, output='int8')"
            )
        low, high = sample.min(axis=0), sample.max(axis=0)
    step = (high - low) / 255
    return low, np.where(step == 0, 1, step)


def _pairwise(a: Any, b: Any, metric: str) -> Any:  # noqa: ANN401 - as above
    result = score_table(row_scores(as_rows(a), as_rows(b), metric), a, b)
    return result[0] if is_one(a) and is_one(b) else result


def _metric(score_function: Callable[[Any, Any], Any]) -> str:
    if score_function not in _METRICS:
        raise InputError(
            "score_function must be cos_sim, dot_score, euclidean_sim or manhattan_sim of gemel.compat.util. "
            "The gemel way is a name: gemel.search(queries, corpus, metric='dot')"
        )
    return _METRICS[score_function]


def is_tensor(value: object) -> bool:
    """True for a tensor of torch, which is not imported: a caller with a tensor has imported it."""
    module = sys.modules.get("torch")
    return module is not None and isinstance(value, module.Tensor)


def as_rows(given: Any, name: str = "embeddings") -> NDArray[Any]:  # noqa: ANN401 - array, tensor, or list of them
    """(n, dim) from an array, a tensor or a list of vectors; one vector is one row."""
    array = _as_array(given)
    if array.ndim == 1:
        array = array[None]
    if array.ndim != 2 or array.dtype.kind not in "fiu":
        raise InputError(
            f"{name} must be vectors of numbers, (n, dim) or (dim,), got {array.dtype} {array.shape}"
        )
    return array


def is_one(given: Any) -> bool:  # noqa: ANN401 - as above
    """True for a single vector."""
    return _as_array(given).ndim == 1


def like(result: NDArray[Any], *given: object) -> Any:  # noqa: ANN401 - an array or a tensor
    """The result as a tensor on the device of the first argument that is one, else as it is."""
    first = next((tensor for tensor in map(_first_tensor, given) if tensor is not None), None)
    return result if first is None else to_tensor(result).to(first.device)


class ScoreArray(np.ndarray):
    """An array of scores that can be used as a tensor of sentence-transformers is, without torch until then.

    `float()` of a table with one score is that score, functions of torch take it (`torch.topk(scores[0], k)`), and
    `cpu`, `detach`, `numpy`, `tolist`, `item` and `topk` exist.
    """

    def __float__(self) -> float:
        return float(self.item())

    def cpu(self) -> Self:
        return self

    def detach(self) -> Self:
        return self

    def numpy(self) -> NDArray[Any]:
        return self.view(np.ndarray)

    def topk(self, k: int, **named: Any) -> Any:  # noqa: ANN401 - values and indices, as tensors
        return to_tensor(self.numpy()).topk(k, **named)

    @classmethod
    def __torch_function__(
        cls,
        function: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:  # noqa: ANN401 - whatever the function of torch gives
        named = {name: _tensors(value) for name, value in (kwargs or {}).items()}
        return function(*map(_tensors, args), **named)


def _tensors(value: Any) -> Any:  # noqa: ANN401 - an argument of torch
    if isinstance(value, list | tuple):
        return type(value)(map(_tensors, value))
    return to_tensor(value.numpy()) if isinstance(value, ScoreArray) else value


def score_table(scores: NDArray[Any], *given: object) -> Any:  # noqa: ANN401 - an array or a tensor
    """Scores as a tensor for tensors, else as an array that torch takes."""
    return like(scores.view(ScoreArray), *given)


def to_tensor(array: NDArray[Any]) -> torch.Tensor:
    try:
        import torch
    except ImportError as error:
        raise MissingExtra("a tensor as the result", "torch", "train") from error
    return torch.from_numpy(np.ascontiguousarray(array))


def _as_array(given: Any) -> NDArray[Any]:  # noqa: ANN401 - as above
    if is_tensor(given):
        return np.asarray(given.detach().cpu().numpy())
    if isinstance(given, list | tuple) and given and not np.isscalar(given[0]):
        return np.stack([_as_array(each) for each in given])
    return np.asarray(given)


def _first_tensor(given: object) -> torch.Tensor | None:
    value = given[0] if isinstance(given, list | tuple) and given else given
    return value if is_tensor(value) else None
