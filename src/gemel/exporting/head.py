"""What stands after pooling, as nodes: dense layers, flows, fewer dimensions, length 1. As `encoder/head.py` has it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from gemel.checkpoint.flow import Coupling, Flow
from gemel.checkpoint.head import Dense
from gemel.encoder.network import Array
from gemel.exporting.portable import PortableNodes

_ACTIVATIONS = {"tanh": "Tanh", "relu": "Relu", "sigmoid": "Sigmoid", "gelu": "Gelu"}
_TINY = 1e-30  # zeros stay zeros


def add_head(
    nodes: PortableNodes,
    x: str,
    layers: Sequence[Dense],
    *,
    unit: bool,
    dim: int | None,
    keep: int | None = None,
) -> str:
    """Pooled vectors (b, p) through the checkpoint's last steps, (b, dim); `keep` numbers of a finished vector."""
    for layer in layers:
        x = _linear(nodes, x, layer.weight, layer.bias)
        if isinstance(layer, Flow):
            for step in layer.couplings:
                x = _couple(nodes, x, step, len(layer.weight))
        elif layer.activation != "identity":
            x = nodes.node(_ACTIVATIONS[layer.activation], x)
    if dim is not None:
        x = _first(nodes, x, dim)
    if unit:
        length = nodes.node("ReduceL2", x, nodes.integers(1), keepdims=1)
        x = nodes.node("Div", x, nodes.node("Max", length, nodes.number(_TINY)))
    return x if keep is None else _first(nodes, x, keep)


def _first(nodes: PortableNodes, x: str, dim: int) -> str:
    return nodes.node("Slice", x, nodes.integers(0), nodes.integers(dim), nodes.integers(1))


def _linear(nodes: PortableNodes, x: str, weight: Array, bias: Array | None) -> str:
    parts = [part for part in (weight, bias) if part is not None]
    return nodes.node("Gemm", x, *map(nodes.constant, parts), transB=1)


def _couple(nodes: PortableNodes, x: str, step: Coupling, dim: int) -> str:
    x = nodes.node("Gather", x, nodes.constant(np.asarray(step.order, dtype=np.int64)), axis=1)
    half = dim // 2
    first, second = nodes.several("Split", x, nodes.integers(half, dim - half), outputs=2, axis=1)
    inner = nodes.node("Relu", _linear(nodes, first, step.w1, step.b1))
    both = _linear(nodes, inner, step.w2, step.b2)
    scale, move = nodes.several("Split", both, outputs=2, axis=1, num_outputs=2)
    grown = nodes.node("Mul", second, nodes.node("Exp", nodes.node("Tanh", scale)))
    return nodes.node("Concat", first, nodes.node("Add", grown, move), axis=1)
