"""What stands after pooling: dense layers, length 1, fewer dimensions. Row by row, so rows cannot see each other."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from gemel.checkpoint.head import Dense
from gemel.similarity import normalize
from gemel.types import Vectors

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
    out = np.empty((len(vectors), layer.weight.shape[0]), dtype=np.float32)
    for row, vector in zip(out, vectors, strict=True):
        np.einsum("oi,i->o", layer.weight, vector, out=row)
    if layer.bias is not None:
        out += layer.bias
    return np.asarray(_ACTIVATIONS[layer.activation](out), dtype=np.float32)


def _erf(x: Vectors) -> Vectors:
    from math import erf

    return np.vectorize(erf, otypes=[np.float32])(x) if x.size else x
