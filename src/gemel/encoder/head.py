"""What stands after pooling: dense layers, flows, fewer dimensions, length 1. Rows cannot see each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemel.checkpoint.flow import Coupling, Flow
from gemel.checkpoint.head import Dense
from gemel.similarity import normalize
from gemel.types import Vectors

_ONE_ROW = "oi,i->o"

_ACTIVATIONS: dict[str, Callable[[Vectors], Vectors]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "sigmoid": lambda x: np.float32(1) / (np.float32(1) + np.exp(-x)),
    "gelu": lambda x: x * np.float32(0.5) * (np.float32(1) + _erf(x * np.float32(0.5**0.5))),
}


def finish(pooled: Vectors, dense: Sequence[Dense], *, unit: bool, dim: int | None) -> Vectors:
    """Pooled vectors through the checkpoint's last steps: (n, p) -> (n, dim) float32."""
    vectors = pooled
    for layer in dense:
        vectors = _apply(layer, vectors)
    if dim is not None:
        vectors = vectors[:, :dim]
    return normalize(vectors) if unit else np.ascontiguousarray(vectors)


def _apply(layer: Dense, vectors: Vectors) -> Vectors:
    # A matrix product picks its kernel by the number of rows, and so its bits: one row at a time, without BLAS.
    weight = np.ascontiguousarray(layer.weight)  # the order in memory is the order of summing
    out = np.empty((len(vectors), weight.shape[0]), dtype=np.float32)
    for row, vector in zip(out, vectors, strict=True):
        np.einsum(_ONE_ROW, weight, vector, out=row)
    if layer.bias is not None:
        out += layer.bias
    if isinstance(layer, Flow):
        for row in out:
            for step in layer.couplings:
                row[:] = _couple(step, row)
        return out
    return np.asarray(_ACTIVATIONS[layer.activation](out), dtype=np.float32)


def _couple(step: Coupling, vector: Vectors) -> Vectors:
    """One coupling on one row (d,); the law of `_apply` holds here too."""
    vector = vector[step.order]
    half = len(vector) // 2
    inner = np.maximum(np.einsum(_ONE_ROW, step.w1, vector[:half]) + step.b1, np.float32(0))
    both = np.einsum(_ONE_ROW, step.w2, inner) + step.b2
    scale, move = both[: len(both) // 2], both[len(both) // 2 :]
    vector[half:] = vector[half:] * np.exp(np.tanh(scale)) + move
    return vector


def _erf(x: Vectors) -> Vectors:
    from math import erf

    return np.vectorize(erf, otypes=[np.float32])(x) if x.size else x
