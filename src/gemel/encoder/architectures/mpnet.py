"""MPNet (arXiv 2004.09297): learned positions as in RoBERTa, and an attention bias by distance."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.bert import CONFIG_KEYS, padding_token
from gemel.encoder.architectures.config import activation_of, epsilon_of, heads_of, layers_of, positive
from gemel.encoder.network import Array, Block, Network
from gemel.encoder.weights import CheckpointWeights
from gemel.errors import ModelError

_PADDING = 1  # fixed by the architecture, whatever the config says; positions start after it
_BUCKETS = 32  # of the bias table: 16 for keys up to the query, 16 for keys after it
_FARTHEST = 128  # from this distance on all share the last bucket


def read(config: Config, weights: Mapping[str, Array]) -> Network:
    """One bias table serves all blocks; here it is spread out to one column per distance."""
    take = CheckpointWeights(weights)
    width, rows = positive(config, "hidden_size"), positive(config, "max_position_embeddings")
    heads, epsilon = heads_of(config, width), epsilon_of(config)
    table = take.array("embeddings.position_embeddings.weight", rows, width)
    positions = table[_PADDING + 1 :]
    buckets = positive(config, "relative_attention_num_buckets", _BUCKETS)
    if buckets < _BUCKETS:
        raise ModelError(
            f"config.json gives relative_attention_num_buckets as {buckets}: an MPNet looks up {_BUCKETS} of them, "
            "whatever its config says. The checkpoint cannot be run"
        )
    # As in the reference, rows after these are never used.
    bias = take.array("encoder.relative_attention_bias.weight", buckets, heads)
    distances = np.arange(1 - len(positions), len(positions))
    return Network(
        word=take.word(width),
        positions=positions,
        embedding_norm=take.norm("embeddings.LayerNorm", width, epsilon),
        projection=None,
        blocks=tuple(_block(config, take, layer) for layer in range(layers_of(config))),
        heads=heads,
        activation=activation_of(config),
        max_positions=len(positions),
        padding=padding_token(_PADDING, table),
        relative_bias=np.ascontiguousarray(bias[bucket_of(distances)].T),
    )


def bucket_of(distances: NDArray[np.int64]) -> NDArray[np.int64]:
    """The row of the bias table for key position minus query position: exact up to 7, then logarithmic."""
    half = _BUCKETS // 2
    exact, away = half // 2, np.abs(distances)
    # In float32, as the reference does: on a border between buckets the last bit decides.
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    wide = ratio / np.float32(math.log(_FARTHEST / exact)) * np.float32(half - exact)
    far = np.minimum(exact + wide.astype(np.int64), half - 1)
    return np.where(away < exact, away, far) + np.where(distances > 0, half, 0)


def _block(config: Config, weights: CheckpointWeights, layer: int) -> Block:
    d, f = positive(config, "hidden_size"), positive(config, "intermediate_size")
    at, epsilon = f"encoder.layer.{layer}", epsilon_of(config)
    return Block(
        qkv=weights.stacked([f"{at}.attention.attn.{role}" for role in "qkv"], d, d),
        out=weights.linear(f"{at}.attention.attn.o", d, d),
        attention_norm=weights.norm(f"{at}.attention.LayerNorm", d, epsilon),
        up=weights.linear(f"{at}.intermediate.dense", f, d),
        down=weights.linear(f"{at}.output.dense", d, f),
        ffn_norm=weights.norm(f"{at}.output.LayerNorm", d, epsilon),
    )


def _head(config: Config) -> HeadLayout:
    return HeadLayout("mpnet.", "classifier.dense", "classifier.out_proj", "tanh")


ARCHITECTURES.add("mpnet")(
    Architecture(
        read,
        _head,
        class_prefix="MPNet",
        config_keys=CONFIG_KEYS | {"relative_attention_num_buckets"},
        positions_after_padding=True,
        token_types=False,
    )
)
