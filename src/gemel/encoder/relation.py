"""The relation head at work: two arrays of vectors in, a probability for each label out. Rows cannot see each other."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from gemel.checkpoint.relation import RelationHead, parse_concat
from gemel.errors import InputError
from gemel.similarity import check_same_dim, checked
from gemel.types import Vectors

_ROWS = 2048  # pairs at once: the largest part, 2048 x 1024 dimensions x 4 bytes, is 8 MB


def relation_probabilities(head: RelationHead, left: ArrayLike, right: ArrayLike) -> Vectors:
    """(n, labels) float32: how row i of `left` relates to row i of `right`; every row sums to 1."""
    u, v = checked(left, "left"), checked(right, "right")
    check_same_dim(u, v, "rows of left", "rows of right")
    if len(u) != len(v):
        raise InputError(f"left has {len(u)} rows but right has {len(v)}; rows are compared one to one")
    if u.shape[1] != head.dim:
        raise InputError(
            f"vectors have {u.shape[1]} dimensions, the relation head takes {head.dim}. "
            "Give it the model's vectors as encode gives them by default"
        )
    names = parse_concat(head.concat)
    weights = np.split(np.ascontiguousarray(head.weight), len(names), axis=1)
    pieces = {name: np.ascontiguousarray(weight) for name, weight in zip(names, weights, strict=True)}
    out = np.empty((len(u), len(head.labels)), dtype=np.float32)
    for start in range(0, len(u), _ROWS):
        block = slice(start, start + _ROWS)
        out[block] = _softmax(_logits(head, pieces, u[block], v[block]))
    return out


def _logits(head: RelationHead, pieces: dict[str, Vectors], u: Vectors, v: Vectors) -> Vectors:
    """weight @ joined + bias, part by part: the parts need not be joined."""
    logits = np.zeros((len(u), len(head.labels)), dtype=np.float32)
    for name, weight in pieces.items():
        # Not a matrix product: that picks its kernel by the number of rows, and so its bits.
        logits += np.einsum("nd,kd->nk", _part(name, u, v), weight)
    return logits if head.bias is None else logits + head.bias


def _part(name: str, u: Vectors, v: Vectors) -> Vectors:
    if name in ("u", "v"):
        return u if name == "u" else v
    return np.abs(u - v) if name == "|u-v|" else u * v


def _softmax(logits: Vectors) -> Vectors:
    raised = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), dtype=np.float32)
