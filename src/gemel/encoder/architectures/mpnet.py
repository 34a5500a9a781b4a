"""MPNet (arXiv 2004.09297): learned positions as in RoBERTa, and an attention bias by distance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.bert import CONFIG_KEYS, read_bert_like
from gemel.encoder.architectures.roberta import masked
from gemel.encoder.network import Network
from gemel.encoder.weights import BlockNames, CheckpointWeights, positive
from gemel.errors import ModelError

_PADDING = 1  # fixed by the architecture, whatever the config says; positions start after it
_BUCKETS = 32  # of the bias table: 16 for keys up to the query, 16 for keys after it
_FARTHEST = 128  # from this distance on all share the last bucket
_NAMES = BlockNames(
    ("attention.attn.q", "attention.attn.k", "attention.attn.v"),
    out="attention.attn.o",
    attention_norm="attention.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    ffn_norm="output.LayerNorm",
)


def read(config: Config, weights: CheckpointWeights) -> Network:
    """One bias table serves all blocks; here it is spread out to one column per distance."""
    network = read_bert_like(config, weights, padding=_PADDING, token_types=False, names=_NAMES)
    buckets = positive(config, "relative_attention_num_buckets", _BUCKETS)
    if buckets < _BUCKETS:
        raise ModelError(
            f"config.json gives relative_attention_num_buckets as {buckets}: an MPNet looks up {_BUCKETS} of them, "
            "whatever its config says. The checkpoint cannot be run"
        )
    # As in the reference, rows after these are never used.
    bias = weights.array("encoder.relative_attention_bias.weight", buckets, network.heads)
    distances = np.arange(1 - network.max_positions, network.max_positions)
    spread = np.ascontiguousarray(bias[bucket_of(distances)].T)
    return replace(network, blocks=tuple(replace(block, relative_bias=spread) for block in network.blocks))


def bucket_of(
    distances: NDArray[np.int64], buckets: int = _BUCKETS, farthest: int = _FARTHEST
) -> NDArray[np.int64]:
    """The row of the bias table for key position minus query position: exact up to 7, then logarithmic (T5)."""
    half = buckets // 2
    exact, away = half // 2, np.abs(distances)
    # In float32, as the reference does: on a border between buckets the last bit decides.
    ratio = np.log(np.maximum(away, 1).astype(np.float32) / np.float32(exact))
    wide = ratio / np.float32(math.log(farthest / exact)) * np.float32(half - exact)
    far = np.minimum(exact + wide.astype(np.int64), half - 1)
    return np.where(away < exact, away, far) + np.where(distances > 0, half, 0)


ARCHITECTURES.add("mpnet")(
    Architecture(
        read,
        HeadLayout("mpnet.", "classifier.dense", "classifier.out_proj", "tanh"),
        class_prefix="MPNet",
        config_keys=CONFIG_KEYS | {"relative_attention_num_buckets"},
        positions_after_padding=True,
        token_types=False,
        masked=masked,
    )
)
