"""A model as one ONNX graph of standard operators: input_ids and attention_mask in, sentence_embedding out.

The graph has word embeddings, the network, pooling, dense layers, flows, truncation of dimensions and normalization.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.checkpoint.architecture import architecture_of, model_types
from gemel.checkpoint.folder import Checkpoint, static_table
from gemel.checkpoint.head import Coupling, Dense, Flow, LayerNorm
from gemel.encoder.engines.onnx import MultiplyInt8
from gemel.encoder.engines.onnx_graph import (
    FAR,
    FLOAT,
    Attribute,
    Multiply,
    Nodes,
    add_network,
    multiply_float32,
)
from gemel.encoder.int8 import quantize_linear, smoothing_factors
from gemel.encoder.network import Array, Network
from gemel.encoder.pooling import POOLINGS
from gemel.encoder.weights import CheckpointWeights, read_network
from gemel.errors import InputError, ModelError
from gemel.options import Precision

WEIGHT_BITS = 8
"""Of an int8 graph. `PortableNodes` stores weights as unsigned bytes: ONNX Runtime adds products of those in 32 bits on
any processor."""


@dataclass(frozen=True)
class SentenceGraph:
    """The nodes of a graph, its inputs and its output."""

    nodes: PortableNodes
    inputs: tuple[str, ...]
    """input_ids, attention_mask and, where the architecture has them, token_type_ids: all (b, t) int64."""
    output: str
    """The name of the vectors, (b, dim)."""
    dim: int


def sentence_graph(
    checkpoint: Checkpoint,
    *,
    precision: Precision,
    unit: bool,
    dim: int | None = None,
    keep: int | None = None,
    unknown: int | None = None,
) -> SentenceGraph:
    """The graph of a checkpoint. `unknown`: the id of a token that is ignored, as in model2vec.

    `keep`: the output has only these first numbers of the normalized vector (`truncate_dim` of the checkpoint).
    """
    _check_prompt(checkpoint)
    nodes = PortableNodes()
    mask = _mask(nodes, unknown, checkpoint.max_length)  # (b, t) float32
    mask_column = nodes.node("Unsqueeze", mask, nodes.integers(2))  # (b, t, 1)
    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    modes = checkpoint.pooling.modes
    if checkpoint.kind == "static":
        table = static_table(checkpoint)
        hidden, width = add_words(nodes, table, precision), int(table.shape[1])
    else:
        network = _network(checkpoint)
        words = add_words(nodes, network.word, precision)
        types = type_table(checkpoint, int(network.word.shape[1]))
        if types is not None:
            inputs = (*inputs, "token_type_ids")
            words = nodes.node("Add", words, nodes.node("Gather", nodes.constant(types), "token_type_ids"))
        hidden = add_network(
            nodes, network, _multiply(network, precision), words, _unseen(nodes, mask), "input_ids"
        )
        width = network.width
    pooled = add_pooling(nodes, hidden, mask_column, modes)
    own = checkpoint.dense[-1].outputs if checkpoint.dense else width * len(modes)
    if dim is not None and dim > own:
        raise InputError(f"dim must be at most {own}, the model's own, got {dim}")
    keep = None if keep is None else min(keep, dim or own)
    output = add_head(nodes, pooled, checkpoint.dense, unit=unit, dim=dim, keep=keep)
    return SentenceGraph(nodes, inputs, output, keep or dim or own)


def _network(checkpoint: Checkpoint) -> Network:
    if architecture_of(checkpoint.config) is None:
        raise ModelError(
            f"{checkpoint.name} has the architecture {checkpoint.config.get('model_type')!r}, which gemel runs "
            f"through torch only and cannot export. Can be exported: {', '.join(model_types())}"
        )
    return read_network(checkpoint.config, checkpoint.weights)


def _multiply(network: Network, precision: Precision) -> Multiply:
    return (
        MultiplyInt8(WEIGHT_BITS, smoothing_factors(network), low_ends=True)
        if precision == "int8"
        else multiply_float32
    )


def _mask(nodes: PortableNodes, unknown: int | None, most: int | None) -> str:
    """1 for each token that is used. With `unknown`, these are the first `most` of the other tokens."""
    mask = nodes.floats("attention_mask")
    if unknown is None:
        return mask
    known = nodes.node("Not", nodes.node("Equal", "input_ids", nodes.constant(np.array(unknown))))
    mask = nodes.node("Mul", mask, nodes.floats(known))
    if most is None:
        return mask
    running = nodes.node("CumSum", mask, nodes.constant(np.array(1)))
    inside = nodes.floats(nodes.node("LessOrEqual", running, nodes.number(most)))
    return nodes.node("Mul", mask, inside)


def _unseen(nodes: PortableNodes, mask: str) -> str:
    """The mask that is added to attention scores, (b, 1, 1, 1, t)."""
    five = nodes.node("Unsqueeze", mask, nodes.integers(1, 2, 3))
    return nodes.node("Mul", nodes.node("Sub", nodes.number(1), five), nodes.constant(np.array(FAR)))


def _check_prompt(checkpoint: Checkpoint) -> None:
    if checkpoint.sides_are_tasks:
        raise ModelError(
            f"{checkpoint.name} has adapters of their own for queries and for documents, and a graph has one network. "
            "Export one at a time: gemel.load(name, task='retrieval.query') or --task"
        )
    if checkpoint.query_side is not None:
        raise ModelError(
            f"{checkpoint.name} has modules of their own for queries and for documents, and a graph has one input. "
            "Export another model"
        )
    if not checkpoint.pooling.include_prompt and checkpoint.prompts:
        raise ModelError(
            f"{checkpoint.name} leaves the tokens of its prompt out of the pooling, and a graph of ids and a mask "
            "cannot know which they are. Export another model"
        )


_ACTIVATIONS = {
    "tanh": "Tanh",
    "relu": "Relu",
    "sigmoid": "Sigmoid",
    "gelu": "Gelu",
    "elu": "Elu",
    "selu": "Selu",
    "celu": "Celu",
    "leakyrelu": "LeakyRelu",
    "mish": "Mish",
    "softplus": "Softplus",
    "softsign": "Softsign",
    "hardswish": "HardSwish",
}
"""Activations with an operator of their own, with the same default arguments as in torch."""

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
    """Pooled vectors (b, p) to (b, dim): the steps of `encoder/head.py`."""
    for layer in layers:
        x = _add_layer(nodes, x, layer)
    if dim is not None:
        x = _first(nodes, x, dim)
    if unit:
        length = nodes.node("ReduceL2", x, nodes.integers(1), keepdims=1)
        x = nodes.node("Div", x, nodes.node("Max", length, nodes.number(_TINY)))
    return x if keep is None else _first(nodes, x, keep)


def _add_layer(nodes: PortableNodes, x: str, layer: Dense) -> str:
    if isinstance(layer, LayerNorm):
        parts = [nodes.constant(part) for part in (layer.weight, layer.bias) if part is not None]
        return nodes.node("LayerNormalization", x, *parts, epsilon=layer.epsilon)
    x = _linear(nodes, x, layer.weight, layer.bias)
    if isinstance(layer, Flow):
        for step in layer.couplings:
            x = _couple(nodes, x, step, len(layer.weight))
        return x
    if layer.activation == "identity":
        return x
    if layer.activation == "silu":
        return nodes.node("Mul", x, nodes.node("Sigmoid", x))
    if layer.activation not in _ACTIVATIONS:
        raise ModelError(
            f"a dense layer with the activation {layer.activation!r} cannot be exported. "
            f"Can be exported: {', '.join(('identity', 'silu', *_ACTIVATIONS))}"
        )
    return nodes.node(_ACTIVATIONS[layer.activation], x)


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
    scale, shift = nodes.several("Split", both, outputs=2, axis=1, num_outputs=2)
    scaled = nodes.node("Mul", second, nodes.node("Exp", nodes.node("Tanh", scale)))
    return nodes.node("Concat", first, nodes.node("Add", scaled, shift), axis=1)


def add_words(nodes: PortableNodes, table: Array, precision: Precision) -> str:
    """Rows of the table (vocabulary, e) for "input_ids": (b, t, e). In int8 each row has its own scale."""
    if precision == "float32":
        return nodes.node("Gather", nodes.constant(table), "input_ids")
    small = quantize_linear(np.asarray(table, dtype=np.float32))
    rows = nodes.floats(nodes.node("Gather", nodes.constant(small.integers), "input_ids"))
    scales = nodes.node("Gather", nodes.constant(small.scale[:, None].copy()), "input_ids")
    return nodes.node("Mul", rows, scales)


def type_table(checkpoint: Checkpoint, width: int) -> Array | None:
    """(types, e): what each token type adds to a word relative to type 0, which is part of the positions.

    None where the architecture has no token types, or only one.
    """
    types = checkpoint.config.get("type_vocab_size", 2)
    architecture = architecture_of(checkpoint.config)
    if architecture is None or not architecture.tokenizer_types or not isinstance(types, int) or types < 2:
        return None
    name = "embeddings.token_type_embeddings.weight"
    table = CheckpointWeights(checkpoint.weights, architecture.word_table).array(name, types, width)
    return np.asarray(table - table[0], dtype=np.float32)


_ZERO_POINT = 128  # the unsigned byte of the weight 0


class PortableNodes(Nodes):
    """`Nodes` with standard operators only, for any ONNX runtime. ONNX Runtime fuses them again."""

    def __init__(self) -> None:
        super().__init__()
        self._unsigned: dict[str, str] = {}  # constants of signed weights to the unsigned ones

    def fused(self, kind: str, *inputs: str, **attributes: Attribute) -> str:
        match kind:
            case "FusedMatMul":
                alpha = attributes["alpha"]
                assert isinstance(alpha, float) and attributes["transB"] == 1, (
                    "the only form that attention uses"
                )
                return self._scores(*inputs, alpha=alpha)
            case "RotaryEmbedding":
                return self._rotate(*inputs)
            case "MatMulIntegerToFloat":
                return self._integer_product(*inputs)
        raise AssertionError(f"{kind} has no form in standard operators")

    def rms_norm(self, x: str, weight: str, epsilon: float) -> str:
        squares = self.node("ReduceMean", self.node("Mul", x, x), self.integers(-1), keepdims=1)
        spread = self.node("Sqrt", self.node("Add", squares, self.number(epsilon)))
        return self.node("Mul", self.node("Div", x, spread), weight)

    def floats(self, x: str) -> str:
        """`x` in float32."""
        return self.node("Cast", x, to=FLOAT)

    def _scores(self, q: str, k: str, *, alpha: float) -> str:
        """alpha * q @ k transposed, both of five axes."""
        product = self.node("MatMul", q, self.node("Transpose", k, perm=[0, 1, 2, 4, 3]))
        return self.node("Mul", product, self.number(alpha))

    def _rotate(self, x: str, _start: str, cosines: str, sines: str) -> str:
        """(b, h, t, d/h) with rotary positions; the first token has position 0."""
        zero, length = self.integers(0), self.node("Shape", x, start=2, end=3)
        cosine, sine = (self.node("Slice", table, zero, length, zero) for table in (cosines, sines))
        first, second = self.several("Split", x, outputs=2, axis=-1, num_outputs=2)
        left = self.node("Sub", self.node("Mul", first, cosine), self.node("Mul", second, sine))
        right = self.node("Add", self.node("Mul", second, cosine), self.node("Mul", first, sine))
        return self.node("Concat", left, right, axis=-1)

    def _integer_product(self, rows: str, columns: str, _one: str, scales: str, zero: str) -> str:
        """A product of unsigned bytes.

        With signed weights, x86 processors without VNNI add pairs of products in 16 bits, which overflow with more
        than 7 bits.
        """
        if columns not in self._unsigned:
            signed = self.arrays[columns].astype(np.int16)
            self._unsigned[columns] = self.constant((signed + _ZERO_POINT).astype(np.uint8))
        middle = self.constant(np.array(_ZERO_POINT, dtype=np.uint8))
        product = self.node("MatMulInteger", rows, self._unsigned[columns], zero, middle)
        return self.node("Mul", self.floats(product), scales)


def add_pooling(nodes: PortableNodes, hidden: str, mask: str, modes: tuple[str, ...]) -> str:
    """All `modes` side by side, (b, modes * d). A static text without tokens gives zeros."""
    parts = [POOLINGS[mode].graph_form(nodes, hidden, mask) for mode in modes]
    return parts[0] if len(parts) == 1 else nodes.node("Concat", *parts, axis=1)
