"""The heads of cross-encoders: the token vectors of a pair to one number per label, before any activation.

All have one form: pooling (the first token or the mean), a layer, an activation, in one case a norm, and a last layer;
`Architecture.head` has the names of their weights. Token types need no support in engines: they become a second half of
the word table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from gemel.checkpoint.architecture import ARCHITECTURES, Config, HeadLayout
from gemel.checkpoint.head import Dense
from gemel.encoder.head import finish
from gemel.encoder.network import Array, Network, Norm
from gemel.encoder.pooling import POOLINGS
from gemel.encoder.weights import CheckpointWeights, positive
from gemel.errors import ModelError
from gemel.types import Vectors


@dataclass(frozen=True, eq=False)
class CrossHead:
    """What follows the network: pooling, then layers."""

    pooling: str
    layers: tuple[Dense | Norm, ...]
    token_layer: Dense | None = None
    """Runs on every token before the pooling."""

    def pool(self, hidden: Vectors) -> Vectors:
        """(b, t, d) -> (b, d)"""
        if self.token_layer is not None:
            hidden = _linear(self.token_layer, hidden.reshape(-1, hidden.shape[-1])).reshape(hidden.shape)
        return POOLINGS[self.pooling](hidden)

    def logits(self, pooled: Vectors) -> Vectors:
        """(n, d) -> (n, labels); the bits of a row do not depend on the other rows."""
        for layer in self.layers:
            pooled = _norm(layer, pooled) if isinstance(layer, Norm) else _linear(layer, pooled)
        if not np.isfinite(pooled).all():
            raise ModelError(
                "the cross-encoder gives scores that are not numbers: its weights hold NaN or infinite values, or it "
                "overflows. Fetch or train the model again"
            )
        return pooled


def layout_of(config: Config) -> HeadLayout:
    """The layout of the head of this architecture, which must be one that gemel reads itself."""
    head = ARCHITECTURES[config["model_type"]].head
    return head if isinstance(head, HeadLayout) else head(config)


def read_head(config: Config, weights: Mapping[str, Array], labels: int) -> CrossHead:
    """The head of a checkpoint with so many labels."""
    layout = layout_of(config)
    d = positive(config, ARCHITECTURES[config["model_type"]].width_key)
    take = CheckpointWeights(weights, word=f"{layout.last}.weight")
    last = take.linear(layout.last, labels, d, bias=layout.last_bias)
    layers: list[Dense | Norm] = []
    token_layer = None
    if layout.inner is not None:
        inner = take.linear(layout.inner, d, d, bias=layout.inner_bias)
        dense = Dense(inner.read(), inner.bias, layout.activation)
        token_layer = dense if layout.pooled_after_inner else None
        layers += [] if layout.pooled_after_inner else [dense]
    if layout.norm is not None:
        layers.append(take.norm(layout.norm, d, layout.epsilon, bias=layout.norm_bias))
    return CrossHead(layout.pooling, (*layers, Dense(last.read(), last.bias, "identity")), token_layer)


def _linear(layer: Dense, vectors: Vectors) -> Vectors:
    return finish(vectors, [layer], unit=False, dim=None)


def _norm(norm: Norm, vectors: Vectors) -> Vectors:
    out = np.empty_like(vectors)
    for row, vector in zip(out, vectors, strict=True):
        centered = vector - vector.mean()
        row[:] = centered / np.sqrt(np.square(centered).mean() + np.float32(norm.epsilon)) * norm.weight
    return out if norm.bias is None else out + norm.bias


def with_token_types(network: Network, config: Config, weights: Mapping[str, Array]) -> Network:
    """The network with a word table of twice the rows: ids from `network.vocabulary` on are words of type 1.

    `Network.positions` includes the row of type 0, so row v + i of a table of v words is row i plus the difference.
    """
    types, width = positive(config, "type_vocab_size", 2), network.word.shape[1]
    table = CheckpointWeights(weights).array("embeddings.token_type_embeddings.weight", types, width)
    return replace(network, word=np.concatenate([network.word, network.word + (table[1] - table[0])]))
