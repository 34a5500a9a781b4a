"""What follows pooling: dense layers, layer norms, flows, fewer dimensions, normalization; the classification head; and
checks for NaN.

The bits of a row do not depend on the other rows.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from gemel.checkpoint.files import is_finite
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.head import ClassificationHead, Coupling, Dense, Flow, LayerNorm, parse_concat
from gemel.errors import InputError, ModelError
from gemel.options import EncodeOptions
from gemel.types import Vectors
from gemel.vectors.similarity import check_same_dim, checked, normalize

_ONE_ROW = "oi,i->o"


def finish(pooled: Vectors, dense: Sequence[Dense], *, unit: bool, dim: int | None) -> Vectors:
    """Pooled vectors through the checkpoint's dense layers: (n, p) -> (n, dim) float32, normalized if `unit`."""
    vectors = pooled
    for layer in dense:
        vectors = _apply(layer, vectors)
    if dim is not None:
        vectors = vectors[:, :dim]
    return normalize(vectors) if unit else np.ascontiguousarray(vectors)


def finish_as(checkpoint: Checkpoint, pooled: Vectors, options: EncodeOptions) -> Vectors:
    """`finish` as the checkpoint and the options say. The checkpoint's own `truncate_dim` cuts normalized vectors, as
    in sentence-transformers; a requested `dim` or `normalize` normalizes what is left."""
    kept = checkpoint.truncate_dim
    early = options.dim or (kept if options.normalize else None)
    vectors = finish(pooled, checkpoint.dense, unit=unit_length(checkpoint, options), dim=early)
    return vectors if early or kept is None else np.ascontiguousarray(vectors[:, :kept])


def unit_length(checkpoint: Checkpoint, options: EncodeOptions) -> bool:
    """Whether vectors are scaled to length 1."""
    return checkpoint.normalize if options.normalize is None else options.normalize


def _apply(layer: Dense, vectors: Vectors) -> Vectors:
    if isinstance(layer, LayerNorm):
        return _normalized(layer, vectors)
    # BLAS picks its kernel, and so the bits, by the number of rows: one row at a time instead.
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


def _normalized(layer: LayerNorm, vectors: Vectors) -> Vectors:
    centered = vectors - vectors.mean(axis=1, keepdims=True)
    variance = np.square(centered).mean(axis=1, keepdims=True)
    scaled = centered / np.sqrt(variance + np.float32(layer.epsilon)) * layer.weight
    return np.asarray(scaled if layer.bias is None else scaled + layer.bias, dtype=np.float32)


def _couple(step: Coupling, vector: Vectors) -> Vectors:
    """One coupling on one row (d,); without BLAS, as in `_apply`."""
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


def _elu(x: Vectors, alpha: float = 1.0, scale: float = 1.0) -> Vectors:
    low = np.float32(alpha) * np.expm1(np.minimum(x, np.float32(0)))
    return np.float32(scale) * (np.maximum(x, np.float32(0)) + low)


def sigmoid(x: Vectors) -> Vectors:
    """1 / (1 + exp(-x)) in float32, of any number."""
    # exp of a positive number could overflow; both forms are the same function.
    small = np.exp(-np.abs(x))
    return np.divide(np.where(x >= 0, np.float32(1), small), np.float32(1) + small, dtype=np.float32)


def _softplus(x: Vectors) -> Vectors:
    # torch gives x itself above 20, which float32 cannot tell from the formula.
    return np.maximum(x, np.float32(0)) + np.log1p(np.exp(-np.abs(x)))


def _hard_sigmoid(x: Vectors) -> Vectors:
    share: Vectors = np.clip(x + np.float32(3), np.float32(0), np.float32(6)) / np.float32(6)
    return share


_SELU = (1.6732632423543772, 1.0507009873554805)  # alpha and scale (arXiv 1706.02515)

_SHRINK = np.float32(0.5)  # torch's default for both shrinking functions

_ACTIVATIONS: dict[str, Callable[[Vectors], Vectors]] = {
    "identity": lambda x: x,
    "tanh": np.tanh,
    "relu": lambda x: np.maximum(x, np.float32(0)),
    "sigmoid": sigmoid,
    "gelu": lambda x: x * np.float32(0.5) * (np.float32(1) + _erf(x * np.float32(0.5**0.5))),
    "silu": lambda x: x * sigmoid(x),
    "elu": _elu,
    "selu": lambda x: _elu(x, *_SELU),
    "celu": _elu,  # equal to ELU where alpha is 1
    "leakyrelu": lambda x: np.where(x >= 0, x, np.float32(0.01) * x),
    "relu6": lambda x: np.clip(x, np.float32(0), np.float32(6)),
    "mish": lambda x: x * np.tanh(_softplus(x)),
    "softplus": _softplus,
    "softsign": lambda x: np.divide(x, np.float32(1) + np.abs(x), dtype=np.float32),
    "logsigmoid": lambda x: -_softplus(-x),
    "hardtanh": lambda x: np.clip(x, np.float32(-1), np.float32(1)),
    "hardsigmoid": _hard_sigmoid,
    "hardswish": lambda x: x * _hard_sigmoid(x),
    "softshrink": lambda x: np.sign(x) * np.maximum(np.abs(x) - _SHRINK, np.float32(0)),
    "hardshrink": lambda x: np.where(np.abs(x) > _SHRINK, x, np.float32(0)),
    "tanhshrink": lambda x: x - np.tanh(x),
}


_ROWS = 2048  # pairs at once: the largest part, 2048 x 1024 dimensions x 4 bytes, is 8 MB


def classification_head(
    checkpoint: Checkpoint, options: EncodeOptions | None = None, named: Collection[str] = ()
) -> ClassificationHead:
    """The head of the checkpoint; an error if it has none, or if `options` make other vectors than it takes.

    `named`: options that were given by name, whatever their value.
    """
    if checkpoint.relation is None:
        raise InputError(
            f"the model {checkpoint.name} has no classification head. Train one with --objective classification"
        )
    default = EncodeOptions()
    for name in ("dim", "output", "normalize"):
        if name in named or getattr(options or default, name) != getattr(default, name):
            raise InputError(
                f"relation takes no {name}: its head was trained on the vectors of the default options"
            )
    return checkpoint.relation


def relation_probabilities(checkpoint: Checkpoint, left: ArrayLike, right: ArrayLike) -> Vectors:
    """`classification_probabilities` by the head of the checkpoint."""
    return classification_probabilities(classification_head(checkpoint), left, right)


def classification_probabilities(head: ClassificationHead, left: ArrayLike, right: ArrayLike) -> Vectors:
    """(n, labels) float32: how row i of `left` relates to row i of `right`; every row sums to 1."""
    u, v = checked(left, "left"), checked(right, "right")
    check_same_dim(u, v, "rows of left", "rows of right")
    if len(u) != len(v):
        raise InputError(f"left has {len(u)} rows but right has {len(v)}; rows are compared one to one")
    if u.shape[1] != head.dim:
        raise InputError(
            f"vectors have {u.shape[1]} dimensions, the classification head takes {head.dim}. "
            "Give it the model's vectors as encode gives them by default"
        )
    names = parse_concat(head.concat)
    weights = np.split(np.ascontiguousarray(head.weight), len(names), axis=1)
    pieces = {name: np.ascontiguousarray(weight) for name, weight in zip(names, weights, strict=True)}
    out = np.empty((len(u), len(head.labels)), dtype=np.float32)
    for start in range(0, len(u), _ROWS):
        block = slice(start, start + _ROWS)
        out[block] = softmax(_logits(head, pieces, u[block], v[block]))
    return out


def _logits(head: ClassificationHead, pieces: dict[str, Vectors], u: Vectors, v: Vectors) -> Vectors:
    """weight @ concatenated + bias, part by part, so that nothing is concatenated."""
    logits = np.zeros((len(u), len(head.labels)), dtype=np.float32)
    for name, weight in pieces.items():
        # No matrix product: BLAS picks its kernel, and so the bits, by the number of rows.
        logits += np.einsum("nd,kd->nk", _part(name, u, v), weight)
    return logits if head.bias is None else logits + head.bias


def _part(name: str, u: Vectors, v: Vectors) -> Vectors:
    if name in ("u", "v"):
        return u if name == "u" else v
    return np.abs(u - v) if name == "|u-v|" else u * v


def softmax(logits: Vectors) -> Vectors:
    """Rows of numbers as probabilities."""
    raised = np.exp(logits - logits.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(raised / raised.sum(axis=1, keepdims=True), dtype=np.float32)


def check_finite(numbers: NDArray[np.float32], checkpoint: Checkpoint) -> None:
    """Refuse NaN and infinity; the error names the weight that has them, or says that the numbers overflowed."""
    if np.isfinite(numbers).all():
        return
    name = next(_bad_weights(checkpoint), None)
    if name is not None:
        raise ModelError(
            f"{checkpoint.name} gives vectors that are not numbers: its weight {name!r} holds NaN or infinite values. "
            "Fetch or save the model again"
        )
    raise ModelError(
        f"{checkpoint.name} gives vectors that are not numbers, though all of its weights are: they overflow "
        "float32 inside the network. Train it again, with a smaller learning rate"
    )


def check_weights(checkpoint: Checkpoint) -> None:
    """Refuse weights with NaN or infinity, for engines that read the files themselves."""
    name = next(_bad_weights(checkpoint), None)
    if name is not None:
        raise ModelError(
            f"the weight {name!r} of {checkpoint.name} holds NaN or infinite values. Fetch or save the model again"
        )


def _bad_weights(checkpoint: Checkpoint) -> Iterator[str]:
    for name in checkpoint.weights:
        if not checkpoint.weights.finite(name):
            yield name
    for number, layer in enumerate(checkpoint.dense, start=1):
        if not (is_finite(layer.weight) and (layer.bias is None or is_finite(layer.bias))):
            yield f"dense layer {number}"
