"""Poolings: token vectors to one vector per text, each in NumPy (inference), torch (training) and ONNX (export).

The three forms of a pooling stand side by side and compute the same. A law holds for every registered pooling, and is
tested in all three forms: the vector of a text does not depend on the other texts of the batch. torch and onnx are used
through the arguments only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.registry import Registry
from gemel.types import Vectors

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Pooling:
    """One way to make a vector of token vectors."""

    numpy_form: Callable[[Vectors, Vectors], Vectors]
    """(hidden (b, t, d), positions (t,) counted from 1) -> (b, d). All texts have t tokens, so there is no mask."""
    torch_form: Callable[[Tensor, TextPack], Tensor]
    """(hidden (T, d) of all texts end to end, which token belongs to which text) -> (n, d)"""
    graph_form: Callable[[NodeWriter, str, str], str]
    """(nodes, hidden (b, t, d), mask (b, t, 1) float32 of 0 and 1) -> (b, d). Padding stands on the right."""
    linear: bool
    """The vector is a weighted sum of the token vectors, so that a score can be explained token by token."""

    def __call__(self, hidden: Vectors) -> Vectors:
        """(b, t, d) -> (b, d) in NumPy."""
        return self.numpy_form(hidden, _positions(hidden))


class TextPack(Protocol):
    """Texts of different lengths end to end; `gemel.training.packing.Pack` is one."""

    @property
    def texts(self) -> int:
        """Number of texts."""
        ...

    @property
    def lengths(self) -> Tensor:
        """(n,) tokens of each text."""
        ...

    @property
    def owners(self) -> Tensor:
        """(T,) the text of each token."""
        ...

    @property
    def positions(self) -> Tensor:
        """(T,) the position of each token in its text, from 0."""
        ...

    def map_padded(self, rows: Tensor, function: Callable[[Tensor, Tensor | None], Tensor]) -> Tensor:
        """`function(states (b, L, d), absent (b, L) or None)` of texts of similar length, results (b, d) joined."""
        ...


class NodeWriter(Protocol):
    """Writes an ONNX graph; `gemel.export.graph.PortableNodes` is one."""

    def node(
        self, kind: str, *inputs: str, **attributes: Any
    ) -> str: ...  # Any: what ONNX takes as attributes

    def constant(self, array: NDArray[Any]) -> str: ...

    def number(self, value: float) -> str: ...

    def integers(self, *values: int) -> str: ...

    def floats(self, x: str) -> str: ...


POOLINGS: Registry[Pooling] = Registry("pooling")


def pool(hidden: Vectors, modes: tuple[str, ...], skip: int = 0) -> Vectors:
    """All `modes` side by side, (b, modes * d). The first `skip` tokens, those of a prompt, do not count."""
    counted = hidden[:, min(skip, hidden.shape[1]) :]
    if counted.shape[1] == 0:
        return np.zeros((len(hidden), len(modes) * hidden.shape[2]), dtype=np.float32)
    # Positions include the prompt, also where its tokens do not count.
    positions = _positions(counted, skip)
    parts = [POOLINGS[mode].numpy_form(counted, positions) for mode in modes]
    return parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)


def pool_each(hidden: Vectors, modes: tuple[str, ...], skips: NDArray[np.int64]) -> Vectors:
    """`pool`, where each row leaves out its own number of tokens."""
    if (skips == skips[0]).all():
        return pool(hidden, modes, int(skips[0]))
    out = np.empty((len(hidden), len(modes) * hidden.shape[2]), dtype=np.float32)
    for skip in np.unique(skips):
        rows = skips == skip
        out[rows] = pool(hidden[rows], modes, int(skip))
    return out


def sum_of_tokens(states: Vectors) -> Vectors:
    """(t, d) -> (d,): the sum that `mean` divides, with the same bits; t is at least 1."""
    total: Vectors = _sum_numpy(states[None])[0]
    return total


def join_windows(pooled: Vectors, weights: Sequence[Sequence[int]]) -> Vectors:
    """One row per text that was split into windows: the mean of its rows of `pooled`, weighted."""
    out = np.empty((len(weights), pooled.shape[1]), dtype=np.float32)
    start = 0
    for row, own in zip(out, weights, strict=True):
        parts = pooled[start : start + len(own)]
        start += len(parts)
        factors = np.asarray(own, dtype=np.float32)
        row[:] = parts[0] if len(parts) == 1 else (parts * (factors / factors.sum())[:, None]).sum(axis=0)
    return out


def _positions(hidden: Vectors, skipped: int = 0) -> Vectors:
    return np.arange(skipped + 1, skipped + 1 + hidden.shape[1], dtype=np.float32)


# mean: the average token, the most common pooling of sentence encoders.


def _mean_numpy(hidden: Vectors, positions: Vectors) -> Vectors:
    return _sum_numpy(hidden) / np.float32(hidden.shape[1])


def _mean_torch(hidden: Tensor, pack: TextPack) -> Tensor:
    return _sum_torch(hidden, pack) / pack.lengths[:, None].clamp(min=1)


def _mean_graph(nodes: NodeWriter, hidden: str, mask: str) -> str:
    return nodes.node("Div", _sum_graph(nodes, hidden, mask), _count_graph(nodes, mask))


POOLINGS.add("mean")(Pooling(_mean_numpy, _mean_torch, _mean_graph, linear=True))


# mean-sqrt-len: the sum divided by the square root of the length.


def _mean_sqrt_len_numpy(hidden: Vectors, positions: Vectors) -> Vectors:
    return _sum_numpy(hidden) / np.float32(np.sqrt(hidden.shape[1]))


def _mean_sqrt_len_torch(hidden: Tensor, pack: TextPack) -> Tensor:
    return _sum_torch(hidden, pack) / pack.lengths[:, None].clamp(min=1).sqrt()


def _mean_sqrt_len_graph(nodes: NodeWriter, hidden: str, mask: str) -> str:
    return nodes.node("Div", _sum_graph(nodes, hidden, mask), nodes.node("Sqrt", _count_graph(nodes, mask)))


POOLINGS.add("mean-sqrt-len")(
    Pooling(_mean_sqrt_len_numpy, _mean_sqrt_len_torch, _mean_sqrt_len_graph, linear=True)
)


# weighted-mean: the average with weights 1, 2, ..., t, for decoders, whose later tokens have seen more of the text.


def _weighted_mean_numpy(hidden: Vectors, positions: Vectors) -> Vectors:
    return np.asarray(_sum_numpy(hidden * positions[:, None]) / positions.sum())


def _weighted_mean_torch(hidden: Tensor, pack: TextPack) -> Tensor:
    weights = (pack.positions + 1).to(hidden.dtype)[:, None]
    return _sum_torch(hidden * weights, pack) / _sum_torch(weights, pack)


def _weighted_mean_graph(nodes: NodeWriter, hidden: str, mask: str) -> str:
    weights = nodes.node("Mul", nodes.node("CumSum", mask, nodes.constant(np.array(1))), mask)
    return nodes.node("Div", _sum_graph(nodes, hidden, weights), _count_graph(nodes, weights))


POOLINGS.add("weighted-mean")(
    Pooling(_weighted_mean_numpy, _weighted_mean_torch, _weighted_mean_graph, linear=True)
)


# cls: the first token, [CLS] in BERT.


def _cls_numpy(hidden: Vectors, positions: Vectors) -> Vectors:
    return hidden[:, 0].copy()


def _cls_torch(hidden: Tensor, pack: TextPack) -> Tensor:
    return hidden[pack.lengths.cumsum(0) - pack.lengths]


def _cls_graph(nodes: NodeWriter, hidden: str, mask: str) -> str:
    return nodes.node("Gather", hidden, nodes.constant(np.array(0)), axis=1)


POOLINGS.add("cls")(Pooling(_cls_numpy, _cls_torch, _cls_graph, linear=True))


# last: the last token.


def _last_numpy(hidden: Vectors, positions: Vectors) -> Vectors:
    return hidden[:, -1].copy()


def _last_torch(hidden: Tensor, pack: TextPack) -> Tensor:
    return hidden[pack.lengths.cumsum(0) - 1]


def _last_graph(nodes: NodeWriter, hidden: str, mask: str) -> str:
    running = nodes.node("CumSum", mask, nodes.constant(np.array(1)))
    length = nodes.node("ReduceSum", mask, nodes.integers(1), keepdims=1)  # (b, 1, 1)
    here = nodes.floats(nodes.node("Equal", running, length))
    return _sum_graph(nodes, hidden, nodes.node("Mul", here, mask))


POOLINGS.add("last")(Pooling(_last_numpy, _last_torch, _last_graph, linear=True))


# max: the largest number of each dimension.

_FAR_BELOW = np.float32(-1e30)  # added to padding: below every hidden state, and finite


def _max_numpy(hidden: Vectors, positions: Vectors) -> Vectors:
    return np.asarray(hidden.max(axis=1))


def _max_torch(hidden: Tensor, pack: TextPack) -> Tensor:
    def largest(states: Tensor, absent: Tensor | None) -> Tensor:
        if absent is not None:
            states = states.masked_fill(absent[..., None], float("-inf"))
        return states.amax(1)

    return pack.map_padded(hidden, largest)


def _max_graph(nodes: NodeWriter, hidden: str, mask: str) -> str:
    below = nodes.node("Mul", nodes.node("Sub", nodes.number(1), mask), nodes.constant(np.array(_FAR_BELOW)))
    return nodes.node("ReduceMax", nodes.node("Add", hidden, below), nodes.integers(1), keepdims=0)


POOLINGS.add("max")(Pooling(_max_numpy, _max_torch, _max_graph, linear=False))


def _sum_numpy(hidden: Vectors) -> Vectors:
    """The sum over tokens, added one token after the other whatever the batch is."""
    total = hidden[:, 0].copy()
    for position in range(1, hidden.shape[1]):
        total += hidden[:, position]
    return total


def _sum_torch(hidden: Tensor, pack: TextPack) -> Tensor:
    return hidden.new_zeros(pack.texts, hidden.shape[1]).index_add(0, pack.owners, hidden)


def _sum_graph(nodes: NodeWriter, hidden: str, weights: str) -> str:
    return nodes.node("ReduceSum", nodes.node("Mul", hidden, weights), nodes.integers(1), keepdims=0)


def _count_graph(nodes: NodeWriter, weights: str) -> str:
    """The sum of the weights, (b, 1); 1 where there are none."""
    total = nodes.node("ReduceSum", weights, nodes.integers(1), keepdims=0)
    return nodes.node("Max", total, nodes.number(1))
