"""The network in plain NumPy: to read, to test engines against, and to observe the inputs of layers.

`NumpyEngine` encodes with it where there is neither a compiled kernel nor ONNX Runtime. It is slow.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from gemel.encoder.engines.engine import check_ids
from gemel.encoder.network import (
    Activation,
    Array,
    Block,
    Convolution,
    Linear,
    Network,
    Norm,
    Rotary,
    WordStep,
    position_rows,
)
from gemel.types import Ids, Vectors


class PlainNetwork:
    """Runs a Network; `watch(linear, x)` sees the (b, t, in) input of every linear layer.

    `exact`: in float64, so that rounding does not depend on the processor. `keep`: weights stay in memory in float32.
    The bits of a text depend on the batch.
    """

    def __init__(
        self,
        network: Network,
        watch: Callable[[Linear, Array], None] | None = None,
        *,
        exact: bool = False,
        keep: bool = False,
    ) -> None:
        self.network = network
        self._weights: dict[Linear, Array] | None = {} if keep else None
        self._watch = watch
        self._numbers = np.float64 if exact else np.float32

    def hidden(self, ids: Ids, keys: int | None = None) -> Vectors:
        """(b, t) token ids, all rows of t real tokens -> (b, t, width).

        `keys`: tokens see the first so many only, and not even themselves after them; None: all. A token that sees none
        gets zeros from the attention, as in torch.
        """
        net = self.network
        x: Array = net.word[ids].astype(self._numbers)  # (b, t, e)
        if net.positions is not None:
            x = x + position_rows(net, ids)
        x = _norm(x, net.embedding_norm) * np.float32(net.word_scale)
        if net.projection is not None:
            x = self._linear(net.projection, x)  # (b, t, d)
        words = x
        for block in net.blocks:
            x = self._prenorm(block, x, words, keys) if net.prenorm else self._postnorm(block, x, keys)
        x = _norm(x, net.final_norm)
        return x if net.output is None else self._linear(net.output, x)

    def _postnorm(self, block: Block, x: Array, keys: int | None) -> Array:
        y = _norm(x + self._attention(block, x, keys), block.attention_norm)
        y = _norm(y + self._feed_forward(block, y), block.ffn_norm)
        return y if block.convolution is None else self._convolve(block.convolution, x, y)

    def _prenorm(self, block: Block, x: Array, words: Array, keys: int | None) -> Array:
        x = x + self._attention(block, _norm(x, block.attention_norm), keys)
        x = x + self._feed_forward(block, _norm(x, block.ffn_norm))
        if block.word_step is not None:
            x = x + self._read_words(block.word_step, x, words)
        return x * np.float32(block.scale)

    def _read_words(self, step: WordStep, x: Array, words: Array) -> Array:
        gate = self._activate(self._linear(step.gate, x), self.network.activation)
        factors = _norm(self._linear(step.words, words), step.words_norm)  # (b, t, p)
        return _norm(self._linear(step.out, gate * factors), step.norm)

    def _convolve(self, step: Convolution, x: Array, y: Array) -> Array:
        t, side = x.shape[1], step.tokens // 2
        padded = np.pad(x, ((0, 0), (side, side), (0, 0)))
        neighbors = np.concatenate([padded[:, n : n + t] for n in range(step.tokens)], axis=-1)
        return _norm(y + self._activate(self._linear(step.linear, neighbors), step.activation), step.norm)

    def _attention(self, block: Block, x: Array, keys: int | None) -> Array:
        b, t, _ = x.shape
        heads = self.network.heads_of(block)
        qkv = self._linear(block.qkv, x).reshape(b, t, -1, heads.size).swapaxes(1, 2)
        q, k, v = np.split(qkv, [heads.queries, heads.queries + heads.keys], axis=1)  # (b, heads, t, size)
        q, k, v = _norm(q, block.query_norm), _norm(k, block.key_norm), _norm(v, block.value_norm)
        if block.rotary is not None:
            q, k = _rotate(q, block.rotary), _rotate(k, block.rotary)
        group = heads.queries // heads.keys
        k, v = k.repeat(group, axis=1), v.repeat(group, axis=1)  # (b, h, t, size)
        scores = q @ k.swapaxes(-1, -2) * np.float32(heads.scale)  # (b, h, t, t)
        scores = scores + self._positions(block, q, k)
        distance = np.arange(t) - np.arange(t)[:, None]  # position of the key minus that of the query
        if block.window is not None:
            scores = np.where(np.abs(distance) > block.window, np.float32(-np.inf), scores)
        if block.causal:
            scores = np.where(distance > 0, np.float32(-np.inf), scores)
        if keys is not None:
            scores = np.where(np.arange(t) >= keys, np.float32(-np.inf), scores)
        highest = np.maximum(
            scores.max(axis=-1, keepdims=True), np.finfo(np.float32).min
        )  # finite, if none is seen
        weights = np.exp(scores - highest)
        total = weights.sum(axis=-1, keepdims=True)
        seen = (weights / np.where(total > 0, total, np.float32(1))) @ v  # (b, h, t, size)
        y = self._linear(block.out, seen.swapaxes(1, 2).reshape(b, t, -1))
        return _norm(y, block.attention_out_norm)

    def _positions(self, block: Block, q: Array, k: Array) -> Array:
        """What the relative positions of queries and keys add to the scores."""
        net, t = self.network, q.shape[2]
        distance = np.arange(t) - np.arange(t)[:, None]
        added = np.zeros((1, 1, t, t), dtype=np.float32)
        if block.relative_bias is not None:
            added = added + block.relative_bias[:, distance + net.max_positions - 1]
        if block.relative is not None:
            assert net.relative_rows is not None
            rows = net.relative_rows[-distance + net.max_positions - 1]  # (t, t) for query i and key j
            if block.relative.keys is not None:
                added = added + np.einsum("bhid,hijd->bhij", q, block.relative.keys[:, rows])
            if block.relative.queries is not None:
                added = added + np.einsum("bhjd,hijd->bhij", k, block.relative.queries[:, rows])
        return added

    def _feed_forward(self, block: Block, x: Array) -> Array:
        y = self._linear(block.up, x)
        if self.network.gated:
            active, gate = np.split(y, 2, axis=-1)
            y = self._activate(active, self.network.activation) * gate
        else:
            y = self._activate(y, self.network.activation)
        return _norm(self._linear(block.down, y), block.ffn_out_norm)

    def _activate(self, x: Array, activation: Activation) -> Array:
        half = np.float32(0.5)
        grown: Array
        match activation:
            case "gelu":
                grown = half * (1 + _erf(x * np.sqrt(half)))
            case "gelu-tanh":
                inner = np.float32((2 / np.pi) ** 0.5) * (x + np.float32(0.044715) * x * x * x)
                grown = half * (1 + np.tanh(inner))
            case "silu":
                grown = half * (1 + np.tanh(half * x))
            case "relu":
                grown = (x > 0).astype(np.float32)
        return x * grown

    def _linear(self, linear: Linear, x: Array) -> Array:
        if self._watch is not None:
            self._watch(linear, x)
        y: Array = x @ self._weight(linear).T
        return y if linear.bias is None else y + linear.bias

    def _weight(self, linear: Linear) -> Array:
        if self._weights is None:
            return linear.read()
        if linear not in self._weights:
            self._weights[linear] = linear.read()
        return self._weights[linear]


class NumpyEngine:
    """Fits `Engine`, in float32. Each text runs alone, so that its bits do not depend on the others."""

    name = "numpy"
    batch_tokens = 512

    def __init__(self, network: Network) -> None:
        self.width = network.width
        self._network = network
        self._plain = PlainNetwork(network, keep=True)

    def hidden(self, ids: Ids, threads: int = 1) -> Vectors:
        """(b, t) token ids, all rows of t real tokens -> (b, t, width) float32."""
        check_ids(ids, vocabulary=len(self._network.word), max_positions=self._network.max_positions)
        return np.concatenate([self._plain.hidden(text[None]) for text in ids]).astype(np.float32)

    def bytes_per_text(self, tokens: int) -> int:
        """A few matrices of each width, and the scores of all heads with what is added to them."""
        widths = 8 * self.width + 4 * self._network.ffn_width
        return 4 * tokens * (widths + 4 * self._network.heads * tokens)


def _norm(x: Array, norm: Norm | None) -> Array:
    if norm is None:
        return x
    centered = x if norm.rms else x - x.mean(axis=-1, keepdims=True)
    spread = np.sqrt((centered * centered).mean(axis=-1, keepdims=True) + np.float32(norm.epsilon))
    scaled: Array = centered / spread * norm.weight
    return scaled if norm.bias is None else scaled + norm.bias


def _rotate(x: Array, rotary: Rotary) -> Array:
    cosine, sine = rotary.tables(x.shape[-2])
    first, second = np.split(x, 2, axis=-1)
    return np.concatenate([first * cosine - second * sine, second * cosine + first * sine], axis=-1)


def _erf(x: Array) -> Array:
    """The error function, which NumPy lacks: Abramowitz and Stegun 7.1.26, off by at most 1.5e-7."""
    t = np.float32(1) / (1 + np.float32(0.3275911) * np.abs(x))
    series = np.zeros_like(x)
    for factor in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        series = np.multiply(series + np.float32(factor), t)
    result: Array = np.sign(x) * (1 - series * np.exp(-x * x))
    return result
