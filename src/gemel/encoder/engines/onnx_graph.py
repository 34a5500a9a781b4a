"""A `Network` as an ONNX graph, written node by node: word vectors in, hidden states out, no export step.

In the engine all texts of a call have the same length, so there is no padding and no mask; an exported graph has one.
Large arrays stay outside of the protobuf, whose limit is 2 GB, and are handed to the session as they are. The bytes of
the file are written here too: the package onnx would be a larger dependency than all that it is needed for.

    b texts, t tokens, d width, h heads, f feed-forward width, e width of the word table
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.encoder.network import (
    Activation,
    Array,
    Block,
    Convolution,
    Heads,
    Linear,
    Network,
    Norm,
    Padding,
    RelativeTables,
    Rotary,
    WordStep,
)

FAR = np.float32(-1e30)  # added to a score to rule a key out: exp gives exactly 0, and no NaN can come of it


class Multiply(Protocol):
    """How a linear layer becomes nodes: this is where precisions differ."""

    def __call__(self, nodes: Nodes, x: str, linear: Linear, low: float | None = None) -> str:
        """Nodes for x @ weight.T + bias over (rows, in); `low` is a bound that no number of x is below."""
        ...


def build_graph(network: Network, multiply: Multiply) -> Graph:
    """The encoder after the word table: input "words" (b, t, e), output "hidden" (b, t, d).

    The table itself stays outside: the session would copy it, and in a multilingual model nothing is larger.
    """
    nodes = Nodes()
    hidden = add_network(nodes, network, multiply, "words")
    embedding = int(network.word.shape[1])
    return nodes.finish(hidden, ("b", "t", embedding), ("b", "t", network.width))


def add_network(
    nodes: Nodes,
    network: Network,
    multiply: Multiply,
    words: str,
    unseen: str | None = None,
    ids: str | None = None,
) -> str:
    """Nodes from word vectors (b, t, e) to hidden states (b, t, d).

    `unseen` (b, 1, 1, 1, t) is added to the scores: 0 where a token counts, `FAR` at padding. None: all tokens count.
    `ids` (b, t) are the tokens, where the graph itself must see which of them take no position.
    Rows of all texts form one (b t, d) matrix, except inside the attention.
    """
    shape = nodes.node("Shape", words, end=2)  # [b, t]
    tokens = nodes.node("Slice", shape, nodes.integers(1), nodes.integers(2))  # [t]
    x = _embed(nodes, network, words, tokens, ids)  # (b, t, e)
    x = nodes.node("Reshape", x, nodes.integers(-1, int(network.word.shape[1])))  # (b t, e)
    if network.projection:
        x = multiply(nodes, x, network.projection)  # (b t, d)
    attention = _Attention(nodes, network, shape, tokens, unseen)
    first = x
    for block in network.blocks:
        before = x
        x = _add_block(nodes, network, block, attention, multiply, x)
        if block.word_step is not None:
            x = nodes.node("Add", _read_words(nodes, network, block.word_step, multiply, x, first), x)
        if block.convolution is not None:
            x = _convolve(nodes, network, block.convolution, multiply, (before, x), shape, unseen)
        x = x if block.scale == 1 else nodes.node("Mul", x, nodes.number(block.scale))
    x = _norm(nodes, x, network.final_norm)
    x = multiply(nodes, x, network.output) if network.output else x
    return nodes.node("Reshape", x, nodes.node("Concat", shape, nodes.integers(network.width), axis=0))


def _embed(nodes: Nodes, network: Network, x: str, tokens: str, ids: str | None) -> str:
    if network.positions is not None and network.padding is not None and ids is not None:
        x = nodes.node("Add", x, _counted_positions(nodes, network.positions, network.padding, ids))
    elif network.positions is not None:
        zero = nodes.integers(0)
        table = nodes.constant(network.positions)
        x = nodes.node("Add", x, nodes.node("Slice", table, zero, tokens, zero))
    x = _norm(nodes, x, network.embedding_norm)
    return x if network.word_scale == 1 else nodes.node("Mul", x, nodes.number(network.word_scale))


def _counted_positions(nodes: Nodes, positions: Array, padding: Padding, ids: str) -> str:
    """(b, t, e): the n-th token that is not padding takes row n - 1, padding the row of its own."""
    table = nodes.constant(np.concatenate([padding.position[None], positions]))
    counts = nodes.node("Not", nodes.node("Equal", ids, nodes.constant(np.array(padding.id))))
    ones = nodes.node("Cast", counts, to=INT64)
    running = nodes.node("CumSum", ones, nodes.constant(np.array(1)))
    return nodes.node("Gather", table, nodes.node("Mul", running, ones))


def _add_block(
    nodes: Nodes, network: Network, block: Block, attention: _Attention, multiply: Multiply, x: str
) -> str:
    """Norms are after the sums, or in a pre-norm network before the two steps."""
    before = network.prenorm
    y = _norm(nodes, x, block.attention_norm) if before else x
    seen = multiply(nodes, attention.add(block, multiply(nodes, y, block.qkv)), block.out)
    x = nodes.node("Add", _norm(nodes, seen, block.attention_out_norm), x)
    x = x if before else _norm(nodes, x, block.attention_norm)
    y = _norm(nodes, x, block.ffn_norm) if before else x
    x = nodes.node("Add", _feed_forward(nodes, network, block, multiply, y), x)
    return x if before else _norm(nodes, x, block.ffn_norm)


def _feed_forward(nodes: Nodes, network: Network, block: Block, multiply: Multiply, x: str) -> str:
    y = multiply(nodes, x, block.up)  # (b t, f) or (b t, 2 f)
    if network.gated:
        active, gate = nodes.several("Split", y, outputs=2, axis=-1, num_outputs=2)
        active = _activate(nodes, network.activation, active)
        y = multiply(nodes, nodes.node("Mul", active, gate), block.down)
    else:
        y = multiply(
            nodes, _activate(nodes, network.activation, y), block.down, low=LOWEST[network.activation]
        )
    return _norm(nodes, y, block.ffn_out_norm)


def _read_words(
    nodes: Nodes, network: Network, step: WordStep, multiply: Multiply, x: str, words: str
) -> str:
    gate = _activate(nodes, network.activation, multiply(nodes, x, step.gate))  # (b t, p)
    factors = _norm(nodes, multiply(nodes, words, step.words), step.words_norm)
    return _norm(nodes, multiply(nodes, nodes.node("Mul", gate, factors), step.out), step.norm)


def _convolve(
    nodes: Nodes,
    network: Network,
    step: Convolution,
    multiply: Multiply,
    around: tuple[str, str],
    shape: str,
    unseen: str | None,
) -> str:
    """`around`: what came into the block and what left it, (b t, d) each."""
    width, side = nodes.integers(network.inner_width), step.tokens // 2
    x = nodes.node("Reshape", around[0], nodes.node("Concat", shape, width, axis=0))  # (b, t, d)
    if unseen is not None:  # padding is as if it were not there
        counts = nodes.node("Cast", nodes.node("Equal", unseen, nodes.number(0)), to=FLOAT)
        x = nodes.node("Mul", x, nodes.node("Reshape", counts, nodes.integers(0, -1, 1)))
    padded = nodes.node("Pad", x, nodes.integers(0, side, 0, 0, side, 0))
    tokens = nodes.node("Slice", shape, nodes.integers(1), nodes.integers(2))
    ends = [nodes.node("Add", tokens, nodes.integers(n)) for n in range(step.tokens)]
    shifted = [
        nodes.node("Slice", padded, nodes.integers(n), end, nodes.integers(1)) for n, end in enumerate(ends)
    ]
    rows = nodes.node(
        "Reshape", nodes.node("Concat", *shifted, axis=2), nodes.integers(-1, step.linear.shape[1])
    )
    y = _activate(nodes, step.activation, multiply(nodes, rows, step.linear))
    return _norm(nodes, nodes.node("Add", around[1], y), step.norm)


# No output of the activation is below this, rounded down a little.
LOWEST = {"gelu": -0.1701, "gelu-tanh": -0.1701, "relu": 0.0, "silu": -0.2785}


def _activate(nodes: Nodes, activation: Activation, x: str) -> str:
    match activation:
        case "gelu":
            return nodes.node("Gelu", x)
        case "gelu-tanh":
            return nodes.node("Gelu", x, approximate="tanh")
        case "relu":
            return nodes.node("Relu", x)
        case "silu":
            return nodes.node("Mul", x, nodes.node("Sigmoid", x))


def _norm(nodes: Nodes, x: str, norm: Norm | None) -> str:
    if norm is None:
        return x
    if norm.rms:
        return nodes.rms_norm(x, nodes.constant(norm.weight), norm.epsilon)
    parts = [nodes.constant(part) for part in (norm.weight, norm.bias) if part is not None]
    return nodes.node("LayerNormalization", x, *parts, axis=-1, epsilon=norm.epsilon)


class _Attention:
    """Nodes for the attention of each block; what all blocks share (biases, angles) is made once."""

    def __init__(
        self, nodes: Nodes, network: Network, shape: str, tokens: str, unseen: str | None = None
    ) -> None:
        self.nodes, self.network, self.tokens, self.unseen = nodes, network, tokens, unseen
        self._shape = shape
        self._shapes: dict[Heads, tuple[str, str]] = {}
        self._distances: str | None = None
        self._angles: dict[Rotary, tuple[str, str]] = {}
        self._masks: dict[tuple[int | None, bool], str] = {}
        self._biases: dict[int, str] = {}  # by the identity of a table, which blocks may share

    def add(self, block: Block, qkv: str) -> str:
        """(b t, q + 2 kv) queries, keys and values -> (b t, q)."""
        nodes, heads = self.nodes, self.network.heads_of(block)
        split, grouped = self._shapes_of(heads)
        y = nodes.node("Reshape", qkv, split)  # (b, t, heads of all three, head size)
        y = nodes.node("Transpose", y, perm=[0, 2, 1, 3])  # (b, heads of all three, t, head size)
        sizes = nodes.integers(heads.queries, heads.keys, heads.keys)
        q, k, v = nodes.several("Split", y, sizes, outputs=3, axis=1)
        q, k = _norm(nodes, q, block.query_norm), _norm(nodes, k, block.key_norm)
        v = _norm(nodes, v, block.value_norm)
        if block.rotary is not None:
            q, k = self._rotate(q, block.rotary), self._rotate(k, block.rotary)
        added = None if block.relative is None else self._relative(block.relative, q, k)
        q = nodes.node("Reshape", q, grouped)
        axis = nodes.integers(2)
        k, v = (
            nodes.node("Unsqueeze", k, axis),
            nodes.node("Unsqueeze", v, axis),
        )  # (b, key heads, 1, t, size)
        scores = nodes.fused("FusedMatMul", q, k, transB=1, alpha=heads.scale)  # (b, key heads, group, t, t)
        for bias in (self._relative_bias(block.relative_bias), added):
            if bias is not None:
                scores = nodes.node("Add", scores, bias)
        if block.window is not None or block.causal:
            scores = nodes.node("Add", scores, self._mask(block.window, block.causal))
        if self.unseen is not None:
            scores = nodes.node("Add", scores, self.unseen)
        seen = nodes.node(
            "MatMul", nodes.node("Softmax", scores, axis=-1), v
        )  # (b, key heads, group, t, size)
        seen = nodes.node("Transpose", seen, perm=[0, 3, 1, 2, 4])  # (b, t, key heads, group, size)
        return nodes.node("Reshape", seen, nodes.integers(-1, heads.queries * heads.size))

    def _shapes_of(self, heads: Heads) -> tuple[str, str]:
        """Of all heads, (b, t, heads of all three, size); of those of queries, (b, key heads, group, t, size).

        Heads of queries are in groups that share a head of keys and values.
        """
        if heads not in self._shapes:
            nodes, group = self.nodes, heads.queries // heads.keys
            start, size = nodes.integers(0, heads.keys, group), nodes.integers(heads.size)
            self._shapes[heads] = (
                nodes.node("Concat", self._shape, nodes.integers(-1, heads.size), axis=0),
                nodes.node("Concat", start, self.tokens, size, axis=0),
            )
        return self._shapes[heads]

    def _rotate(self, x: str, rotary: Rotary) -> str:
        """(b, h, t, size): numbers i and i + size/2 of each head rotated by an angle that grows with the position."""
        nodes = self.nodes
        if rotary not in self._angles:
            cosines, sines = rotary.tables(self.network.max_positions)
            self._angles[rotary] = (nodes.constant(cosines), nodes.constant(sines))
        start = nodes.integers(0)  # one number: the position of the first token of every text
        return nodes.fused("RotaryEmbedding", x, start, *self._angles[rotary])

    def _relative(self, tables: RelativeTables, q: str, k: str) -> str | None:
        """(b, h, 1, t, t): what the vectors of relative positions add to the scores of queries and keys."""
        nodes, rows = self.nodes, self.network.relative_rows
        assert rows is not None
        # Rows of the tables for query i and key j; `_position_differences` is the key minus the query.
        middle = nodes.integers(self.network.max_positions - 1)
        columns = nodes.node("Sub", middle, self._position_differences())
        index = nodes.node("Gather", nodes.constant(rows.astype(np.int64)), columns)  # (t, t)
        added = None
        for x, table, by_key in ((q, tables.keys, False), (k, tables.queries, True)):
            if table is None:
                continue
            turned = nodes.constant(np.ascontiguousarray(table.swapaxes(1, 2)))  # (h, size, rows)
            products = nodes.node("MatMul", x, turned)  # (b, h, t, rows)
            chosen = nodes.node("Transpose", index, perm=[1, 0]) if by_key else index
            shape = nodes.node(
                "Concat", nodes.node("Shape", products, end=2), nodes.node("Shape", index), axis=0
            )
            gathered = nodes.node("GatherElements", products, nodes.node("Expand", chosen, shape), axis=3)
            gathered = nodes.node("Transpose", gathered, perm=[0, 1, 3, 2]) if by_key else gathered
            added = gathered if added is None else nodes.node("Add", added, gathered)
        return None if added is None else nodes.node("Unsqueeze", added, nodes.integers(2))

    def _relative_bias(self, table: Array | None) -> str | None:
        """(h, 1, t, t)"""
        if table is None:
            return None
        if id(table) not in self._biases:
            middle = self.nodes.integers(self.network.max_positions - 1)
            columns = self.nodes.node("Add", self._position_differences(), middle)
            bias = self.nodes.node("Gather", self.nodes.constant(table), columns, axis=1)  # (h, t, t)
            self._biases[id(table)] = self.nodes.node("Unsqueeze", bias, self.nodes.integers(1))
        return self._biases[id(table)]

    def _mask(self, window: int | None, causal: bool) -> str:
        """0 for keys that a query sees, far below any score for the others; (t, t)."""
        if (window, causal) not in self._masks:
            nodes, distance = self.nodes, self._position_differences()
            outside = [nodes.node("Greater", distance, nodes.integers(0))] if causal else []
            if window is not None:
                outside.append(nodes.node("Greater", nodes.node("Abs", distance), nodes.integers(window)))
            hidden = outside[0] if len(outside) == 1 else nodes.node("Or", *outside)
            far = nodes.constant(np.array(FAR))
            self._masks[window, causal] = nodes.node("Where", hidden, far, nodes.number(0))
        return self._masks[window, causal]

    def _position_differences(self) -> str:
        """Position of the key minus position of the query, (t, t)."""
        if self._distances is None:
            nodes = self.nodes
            end = nodes.node("Squeeze", self.tokens, nodes.integers(0))
            zero, one = nodes.constant(np.array(0)), nodes.constant(np.array(1))
            positions = nodes.node("Range", zero, end, one)
            queries = nodes.node("Unsqueeze", positions, nodes.integers(1))
            self._distances = nodes.node("Sub", positions, queries)
        return self._distances


def multiply_float32(nodes: Nodes, x: str, linear: Linear, low: float | None = None) -> str:
    """The weight as it is in the checkpoint; ONNX Runtime packs it for its kernel."""
    parts = [nodes.linear(linear), *([nodes.constant(linear.bias)] if linear.bias is not None else [])]
    return nodes.node("Gemm", x, *parts, transB=1)


OPSET = 20  # the first with Gelu

_FUSED = "com.microsoft"  # the domain of ONNX Runtime's own operators

_LARGE = 1024  # bytes; smaller constants go into the protobuf, where shape inference sees them


@dataclass(frozen=True)
class Graph:
    """A serialized model and the arrays that it names but does not contain."""

    model: bytes
    arrays: dict[str, NDArray[Any]]


class Nodes:
    """Collects nodes and constants; every method that adds one returns the name of its output."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.arrays: dict[str, NDArray[Any]] = {}
        self._layers: dict[int, Array] = {}
        self._names: dict[int, str] = {}  # id of an array -> its constant, so shared weights are stored once

    def constant(self, array: NDArray[Any]) -> str:
        """A constant; the same array object gives the same constant."""
        name = self._names.setdefault(id(array), f"c{len(self.arrays)}")
        self.arrays[name] = array
        return name

    def linear(self, linear: Linear) -> str:
        """The weight of a layer, which is read from the checkpoint once."""
        if id(linear) not in self._layers:
            self._layers[id(linear)] = linear.read()
        return self.constant(self._layers[id(linear)])

    def number(self, value: float) -> str:
        return self.constant(np.array(value, dtype=np.float32))

    def integers(self, *values: int) -> str:
        return self.constant(np.array(values, dtype=np.int64))

    def node(self, kind: str, *inputs: str, domain: str = "", **attributes: Attribute) -> str:
        return self.several(kind, *inputs, outputs=1, domain=domain, **attributes)[0]

    def fused(self, kind: str, *inputs: str, **attributes: Attribute) -> str:
        """One of ONNX Runtime's own operators."""
        return self.node(kind, *inputs, domain=_FUSED, **attributes)

    def rms_norm(self, x: str, weight: str, epsilon: float) -> str:
        """x / root mean square * weight. ONNX Runtime has it under a name of its own, in the domain of ONNX."""
        return self.node("SimplifiedLayerNormalization", x, weight, axis=-1, epsilon=epsilon)

    def several(
        self, kind: str, *inputs: str, outputs: int, domain: str = "", **attributes: Attribute
    ) -> list[str]:
        names = [f"n{len(self.nodes)}.{number}" for number in range(outputs)]
        self.nodes.append(Node(kind, inputs, tuple(names), domain, attributes))
        return names

    def finish(self, output: str, words: Shape, hidden: Shape) -> Graph:
        """The model with the input "words" and the output "hidden", both float32 of these shapes."""
        large = {name: array for name, array in self.arrays.items() if array.nbytes > _LARGE}
        constants = [
            # The session gets the array itself, by its name.
            tensor(name, array, {"location": "given to the session"} if name in large else None)
            for name, array in self.arrays.items()
        ]
        parts = model_file(
            "encoder",
            [*self.nodes, Node("Identity", (output,), ("hidden",))],
            inputs=[Value("words", FLOAT, words)],
            outputs=[Value("hidden", FLOAT, hidden)],
            constants=constants,
            domains={"": OPSET, _FUSED: 1},
        )
        return Graph(b"".join(parts), large)


# The file format: https://onnx.ai, onnx.proto, in the wire format of protobuf. Each number below is that of a field.
# Messages are lists of buffers, so that weights are not copied before they are written.

Attribute: TypeAlias = int | float | str | list[int]

Shape: TypeAlias = tuple[str | int, ...]  # a name stands for a length that differs from call to call

Parts: TypeAlias = "list[bytes | memoryview]"

FLOAT, INT64 = 1, 7  # the numbers of the types in ONNX
_TYPES = {"float32": FLOAT, "uint8": 2, "int8": 3, "int32": 6, "int64": INT64, "bool": 9}


class Node(NamedTuple):
    """One operator of a graph."""

    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    domain: str = ""
    attributes: Mapping[str, Attribute] = MappingProxyType({})


class Value(NamedTuple):
    """An input or an output of a graph."""

    name: str
    type: int
    shape: Shape


def model_file(
    name: str,
    nodes: Iterable[Node],
    *,
    inputs: Iterable[Value],
    outputs: Iterable[Value],
    constants: Iterable[Parts],
    domains: Mapping[str, int],
    facts: Mapping[str, str] = MappingProxyType({}),
) -> Parts:
    """The bytes of a model, in parts. `constants` come from `tensor`, `domains` are versions of sets of operators."""
    graph = _joined(
        *(_field(1, _node(node)) for node in nodes),
        _field(2, name),
        *(_field(5, constant) for constant in constants),
        *(_field(11, _value(value)) for value in inputs),
        *(_field(12, _value(value)) for value in outputs),
    )
    return _joined(
        _field(1, 10),  # the version of the format
        _field(2, "gemel"),
        _field(7, graph),
        *(_field(8, _joined(_field(1, domain), _field(2, number))) for domain, number in domains.items()),
        *(_field(14, _joined(_field(1, key), _field(2, value))) for key, value in facts.items()),
    )


def tensor(name: str, array: NDArray[Any], outside: Mapping[str, str] | None = None) -> Parts:
    """A constant. `outside`: its data are in another file, and where."""
    head = _joined(
        *(_field(1, length) for length in array.shape), _field(2, _TYPES[array.dtype.name]), _field(8, name)
    )
    if outside is None:
        little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
        return _joined(head, _field(9, [little.reshape(-1).view(np.uint8).data]))
    places = [_field(13, _joined(_field(1, key), _field(2, value))) for key, value in outside.items()]
    return _joined(head, *places, _field(14, 1))


def _node(node: Node) -> Parts:
    return _joined(
        *(_field(1, name) for name in node.inputs),
        *(_field(2, name) for name in node.outputs),
        _field(4, node.kind),
        *(_field(5, _attribute(name, value)) for name, value in sorted(node.attributes.items())),
        _field(7, node.domain),
    )


def _attribute(name: str, value: Attribute) -> Parts:
    match value:
        case int():
            return _joined(_field(1, name), _field(3, value), _field(20, 2))
        case float():
            return [*_field(1, name), bytes([2 << 3 | 5]) + struct.pack("<f", value), *_field(20, 1)]
        case str():
            return _joined(_field(1, name), _field(4, value), _field(20, 3))
        case list():
            return _joined(_field(1, name), *(_field(8, each) for each in value), _field(20, 7))


def _value(value: Value) -> Parts:
    lengths = [_field(1, _field(2 if isinstance(length, str) else 1, length)) for length in value.shape]
    kind = _joined(_field(1, value.type), _field(2, _joined(*lengths)))
    return _joined(_field(1, value.name), _field(2, _field(1, kind)))


def _field(number: int, value: int | str | Parts) -> Parts:
    """An integer, or bytes after their number."""
    if isinstance(value, int):
        return [_varint(number << 3) + _varint(value)]
    parts: Parts = [value.encode()] if isinstance(value, str) else value
    return [_varint(number << 3 | 2) + _varint(sum(map(len, parts))), *parts]


def _joined(*fields: Parts) -> Parts:
    return [part for field in fields for part in field]


def _varint(value: int) -> bytes:
    """Seven bits per byte, the lowest first; a negative number as 64 bits."""
    value &= (1 << 64) - 1
    made = bytearray()
    while value > 127:
        made.append(value & 127 | 128)
        value >>= 7
    return bytes([*made, value])
