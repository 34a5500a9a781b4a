"""A transformer encoder as data: what an architecture file reads out of a checkpoint, and what an engine runs.

Every encoder of the BERT family is this data with some fields left out. Architectures know the names of weights,
engines know arithmetic; neither knows the other.

    h  = norm(word[ids] + positions[0:t])            then `projection`, if the table is narrower than the network
    post-norm block   h = norm(h + out(attention(qkv(h))));  h = norm(h + down(act(up(h))))
    pre-norm block    h = h + out(attention(qkv(norm(h))));  h = h + down(act(up(norm(h))))
    h  = final_norm(h)                               pre-norm networks only
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from gemel.types import Ids

Array = NDArray[np.float32]

Activation = Literal["gelu", "gelu-tanh", "relu", "silu"]


@dataclass(frozen=True, eq=False)
class Linear:
    """x -> x @ weight.T + bias, the layout of the checkpoints: weight (out, in), bias (out,)."""

    weight: Array
    bias: Array | None = None


@dataclass(frozen=True, eq=False)
class Norm:
    """Layer normalization over the last axis."""

    weight: Array
    bias: Array | None
    epsilon: float


@dataclass(frozen=True, eq=False)
class Block:
    """One attention step and one feed-forward step. Equal objects are shared weights (ALBERT)."""

    qkv: Linear
    """(3 d, d): the rows of query, then key, then value."""
    out: Linear
    attention_norm: Norm | None
    """After the residual sum (post-norm) or before the attention (pre-norm; None where the model has none)."""
    up: Linear
    """(f, d), or (2 f, d) when gated: the rows to activate first, then the rows that multiply."""
    down: Linear
    ffn_norm: Norm
    rotary_theta: float | None = None
    """Base of the rotary position angles; None: no rotary positions."""
    window: int | None = None
    """Tokens see others at most this many positions away, to each side; None: all."""


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
    relative_bias: Array | None = None
    """(heads, 2 * max_positions - 1): added to the score of query i and key j at column j - i + max_positions - 1."""
    padding: Padding | None = None
    """A token that takes no position of its own (RoBERTa, MPNet); None: every token takes the next one."""

    @property
    def width(self) -> int:
        """Numbers per token that leave the network."""
        return int(self.blocks[0].qkv.weight.shape[1])

    @property
    def vocabulary(self) -> int:
        return int(self.word.shape[0])


def rotary_tables(theta: float, size: int, positions: int) -> tuple[Array, Array]:
    """Cosines and sines (positions, size/2) of position / theta^(2i/size) (RoFormer, arXiv 2104.09864).

    In float32, as the reference computes them: models were trained with these angles, and at position 8,000 their
    cosines differ by up to 4e-4 from the exact ones. All engines use these tables, and so the same bits.
    """
    steps = np.arange(0, size, 2, dtype=np.float32) / np.float32(size)
    # The power in float64, rounded once: in float32 the last bit often differs from torch's, and positions multiply it.
    speeds = np.float32(1) / np.power(theta, steps.astype(np.float64)).astype(np.float32)
    angles = np.arange(positions, dtype=np.float32)[:, None] * speeds
    return np.cos(angles), np.sin(angles)


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
