"""Cosines, distances and losses in torch that several objectives share.

Zero vectors and equal vectors have finite gradients in all of them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from torch import Tensor

Distance: TypeAlias = Literal["euclidean", "cosine", "manhattan"]


def unit(vectors: Tensor) -> Tensor:
    """Rows normalized to length 1; zeros stay zeros."""
    from torch.nn.functional import normalize

    # A vector shorter than eps is noise; a smaller eps would give it a larger gradient.
    return normalize(vectors, dim=-1, eps=1e-6)


def cosine_rows(left: Tensor, right: Tensor) -> Tensor:
    """(n,): the cosine of row i of both."""
    return (unit(left) * unit(right)).sum(-1)


def cosine_table(left: Tensor, right: Tensor) -> Tensor:
    """(n, m): the cosine of every row of `left` with every row of `right`."""
    return unit(left) @ unit(right).T


def distance_rows(left: Tensor, right: Tensor, metric: Distance) -> Tensor:
    """(n,): the distance of row i of both; cosine distance is 1 - cosine."""
    import torch

    if metric == "cosine":
        return 1 - cosine_rows(left, right)
    return torch.linalg.vector_norm(left - right, ord=1 if metric == "manhattan" else 2, dim=-1)


def distance_table(vectors: Tensor, metric: Distance) -> Tensor:
    """(n, n): the distance of every row from every row."""
    import torch

    if metric == "cosine":
        return 1 - cosine_table(vectors, vectors)
    # For many rows torch would use a matrix product, which loses precision when two rows are near.
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(vectors, vectors, p=1.0 if metric == "manhattan" else 2.0, compute_mode=exact)


def info_nce(scores: Tensor) -> Tensor:
    """Cross-entropy of a table of scores (n, m), m >= n, in which row i belongs to column i."""
    import torch
    from torch.nn.functional import cross_entropy

    return cross_entropy(scores, torch.arange(len(scores), device=scores.device))


def rank_by_score(similarity: Tensor, gold: Tensor, temperature: float) -> Tensor:
    """log(1 + sum of exp((s_j - s_i) / temperature)) over all i, j with gold_i > gold_j.

    0 for a batch in which all gold scores are equal.
    """
    import torch

    gaps = (similarity[None, :] - similarity[:, None]) / temperature  # [i, j] = s_j - s_i
    unordered = gold[:, None] <= gold[None, :]
    terms = gaps.masked_fill(unordered, -torch.inf).flatten()
    return torch.logsumexp(torch.cat([terms.new_zeros(1), terms]), dim=0)  # the zero is the 1 of the formula
