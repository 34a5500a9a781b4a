"""A transformer as data: what an architecture file reads out of a checkpoint, and what an engine runs.

Every encoder and decoder that gemel reads is this data with some fields left out. Architectures know the names of
weights, engines know arithmetic; neither knows the other.

    h  = norm(word[ids] + positions[0:t]) * scale    then `projection`, if the table is narrower than the network
    post-norm block   h = norm(h + out(attention(qkv(h))));  h = norm(h + down(act(up(h))))
    pre-norm block    h = h + out(attention(qkv(norm(h))));  h = h + down(act(up(norm(h))))
    h  = final_norm(h)                               pre-norm networks only; then `output`, if there is one

A decoder is a pre-norm network with `causal` blocks. Norms after a step and of the heads, rotary positions and relative
positions are fields of a block; so is a third step, where a network has one (`WordStep`, `Convolution`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from gemel.types import Ids

Array = NDArray[np.float32]

Activation = Literal["gelu", "gelu-tanh", "relu", "silu"]


class StoredArray(Protocol):
    """A matrix of a checkpoint that is read each time it is used, so that it is in memory only while it is packed."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __array__(self, dtype: None = None, copy: None = None) -> Array: ...


@dataclass(frozen=True, eq=False)
class Linear:
    """x -> x @ weight.T + bias, the layout of the checkpoints: weight (out, in), bias (out,)."""

    weight: Array | StoredArray
    bias: Array | None = None

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        outputs, inputs = self.weight.shape
        return outputs, inputs

    def read(self) -> Array:
        """The weight in memory."""
        return np.asarray(self.weight)


@dataclass(frozen=True, eq=False)
class Norm:
    """Layer normalization over the last axis; `rms`: division by the root mean square only (RMSNorm)."""

    weight: Array
    bias: Array | None
    epsilon: float
    rms: bool = False


@dataclass(frozen=True, eq=False)
class Rotary:
    """Rotary positions (RoFormer, arXiv 2104.09864): numbers i and i + size/2 of a head are rotated together."""

    speeds: Array
    """(size/2,) the angle between two positions."""
    scale: float = 1.0
    """Factor on cosines and sines (YaRN)."""

    def tables(self, positions: int) -> tuple[Array, Array]:
        """Cosines and sines (positions, size/2).

        Angles are float32, as in the reference: models were trained with them, and at position 8,000 their cosines
        differ by up to 4e-4 from those of exact angles. The cosines of these angles are computed in float64 and rounded
        once, because NumPy's own in float32 differ between processors. All engines use these tables.
        """
        angles = np.arange(positions, dtype=np.float32)[:, None] * self.speeds
        exact = angles.astype(np.float64)
        scale = np.float32(self.scale)
        return np.cos(exact).astype(np.float32) * scale, np.sin(exact).astype(np.float32) * scale


def rotary_speeds(theta: float, size: int) -> Array:
    """1 / theta^(2i/size), for each pair of numbers of a head."""
    steps = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    # The power in float64, rounded once: in float32 the last bit often differs from torch's, and positions multiply it.
    speeds: Array = np.float32(1) / np.power(theta, steps.astype(np.float64)).astype(np.float32)
    return speeds


@dataclass(frozen=True, eq=False)
class RelativeTables:
    """Disentangled attention (DeBERTa, arXiv 2006.03654): vectors of the position of a query relative to a key.

    score(i, j) = q_i · k_j + q_i · keys[row(i - j)] + k_j · queries[row(i - j)], all of them already scaled.
    """

    keys: Array | None
    """(heads, rows, head size)"""
    queries: Array | None
    """(heads, rows, head size)"""


@dataclass(frozen=True)
class Heads:
    """How an attention is divided."""

    queries: int
    keys: int
    """Heads of keys, and of values: each is shared by several heads of queries."""
    size: int
    """Numbers per head."""
    scale: float
    """Factor on the products of queries and keys."""


@dataclass(frozen=True, eq=False)
class WordStep:
    """A third step that reads the word vectors w again (Gemma's per-layer embeddings), after the feed-forward step.

    h = h + norm(out(act(gate(h)) * words_norm(words(w)))), with the activation of the network.
    """

    words: Linear
    """(p, d)"""
    words_norm: Norm
    gate: Linear
    """(p, d)"""
    out: Linear
    """(d, p)"""
    norm: Norm


@dataclass(frozen=True, eq=False)
class Convolution:
    """A step beside a block (DeBERTa v2): norm(block(h) + act(weights of the neighbors of h)).

    Tokens before the first and after the last of a text are zeros.
    """

    linear: Linear
    """(d, n d): the columns of the token (n - 1) / 2 before, then those of the next token, and so on."""
    norm: Norm
    activation: Activation

    @property
    def tokens(self) -> int:
        """How many neighbors there are, the token itself included: an odd number."""
        outputs, inputs = self.linear.shape
        return inputs // outputs


@dataclass(frozen=True, eq=False)
class Block:
    """One attention step and one feed-forward step. Equal objects are shared weights (ALBERT)."""

    qkv: Linear
    """The rows of the heads of the queries, then those of the keys, then those of the values."""
    out: Linear
    attention_norm: Norm | None
    """After the residual sum (post-norm) or before the attention (pre-norm; None where the model has none)."""
    up: Linear
    """(f, d), or (2 f, d) when gated: the rows to activate first, then the rows that multiply."""
    down: Linear
    ffn_norm: Norm
    rotary: Rotary | None = None
    window: int | None = None
    """Tokens see others at most this many positions away, to each side; None: all."""
    causal: bool = False
    """Tokens see themselves and those before them only."""
    query_norm: Norm | None = None
    """Of each head of the queries, before it is rotated."""
    key_norm: Norm | None = None
    value_norm: Norm | None = None
    attention_out_norm: Norm | None = None
    """Of the result of the attention, before it is added (Gemma)."""
    ffn_out_norm: Norm | None = None
    relative: RelativeTables | None = None
    relative_bias: Array | None = None
    """(heads, 2 * max_positions - 1): added to the score of query i and key j at column j - i + max_positions - 1."""
    heads: Heads | None = None
    """None: those of the network."""
    word_step: WordStep | None = None
    """Pre-norm blocks only."""
    convolution: Convolution | None = None
    """Post-norm blocks only."""
    scale: float = 1.0
    """What leaves the block is multiplied by it (Gemma 4); pre-norm blocks only."""

    @property
    def linears(self) -> dict[str, Linear]:
        """Every linear layer, by its name."""
        layers = {"qkv": self.qkv, "out": self.out, "up": self.up, "down": self.down}
        if (step := self.word_step) is not None:
            layers |= {"words": step.words, "gate": step.gate, "words_out": step.out}
        if self.convolution is not None:
            layers["convolution"] = self.convolution.linear
        return layers


@dataclass(frozen=True, eq=False)
class Padding:
    """The padding token where it is part of a text (no engine pads): it takes no position from the tokens after it."""

    id: int
    position: Array
    """(e,): what is added to it instead of a row of `positions`."""


@dataclass(frozen=True, eq=False)
class Network:
    """All weights of an encoder, by role. Arrays may be views of a memory-mapped file: read only."""

    word: Array
    """(vocabulary, e)"""
    positions: Array | None
    """(max_positions, e): what is added to the i-th token, token-type row included; None: nothing is."""
    embedding_norm: Norm | None
    projection: Linear | None
    blocks: tuple[Block, ...]
    heads: int
    activation: Activation
    max_positions: int
    prenorm: bool = False
    gated: bool = False
    final_norm: Norm | None = None
    kv_heads: int | None = None
    """Heads of keys and values, each shared by several heads of queries; None: as many as `heads`."""
    head_size: int | None = None
    """Numbers per head; None: the width divided among the heads."""
    attention_scale: float | None = None
    """Factor on the products of queries and keys; None: 1 / sqrt(head size)."""
    word_scale: float = 1.0
    """Word vectors are multiplied by it (Gemma)."""
    relative_rows: NDArray[np.int32] | None = None
    """(2 * max_positions - 1,): the row of the blocks' `relative` tables at query - key + max_positions - 1."""
    padding: Padding | None = None
    """A token that takes no position of its own (RoBERTa, MPNet); None: every token takes the next one."""
    output: Linear | None = None
    """After `final_norm`: a projection to another width (EmbeddingGemma 2)."""

    @property
    def inner_width(self) -> int:
        """Numbers per token between the blocks."""
        return self.blocks[0].qkv.shape[1]

    @property
    def width(self) -> int:
        """Numbers per token that leave the network."""
        return self.output.shape[0] if self.output else self.inner_width

    def heads_of(self, block: Block) -> Heads:
        """The heads of one of its blocks."""
        if block.heads is not None:
            return block.heads
        size = self.head_size or self.inner_width // self.heads
        scale = size**-0.5 if self.attention_scale is None else self.attention_scale
        return Heads(self.heads, self.kv_heads or self.heads, size, scale)

    @property
    def linears(self) -> set[Linear]:
        """Every linear layer once, also where blocks share them."""
        layers = {linear for block in self.blocks for linear in block.linears.values()}
        return layers | {linear for linear in (self.projection, self.output) if linear}

    @property
    def ffn_width(self) -> int:
        """Numbers per token inside the feed-forward step; both parts of a gated one."""
        return self.blocks[0].up.shape[0]

    @property
    def vocabulary(self) -> int:
        return int(self.word.shape[0])


def has_padding(network: Network, ids: Ids) -> NDArray[np.bool_]:
    """(b,) which texts contain the padding token, in a network where it takes no position."""
    if network.padding is None or network.positions is None:
        return np.zeros(len(ids), dtype=np.bool_)
    return np.asarray((ids == network.padding.id).any(axis=1))


def position_rows(network: Network, ids: Ids) -> Array:
    """(b, t, e), or (t, e) where all texts take the same rows: what is added to each token."""
    assert network.positions is not None
    if not has_padding(network, ids).any():
        return network.positions[: ids.shape[1]]
    assert network.padding is not None
    counted = ids != network.padding.id
    rows = network.positions[np.maximum(counted.cumsum(axis=1) - 1, 0)]
    return np.where(counted[..., None], rows, network.padding.position)
