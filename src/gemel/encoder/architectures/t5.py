"""The encoders of T5 (arXiv 1910.10683), mT5 (arXiv 2010.11934) and UMT5 (arXiv 2304.09151), as in Sentence-T5 and GTR.

Pre-norm blocks with RMS norms and no biases. A token's position is known by one bias table alone, which all blocks
share: it is stored with the first. In UMT5 each block has its own. Scores are not scaled. The decoder of a whole
checkpoint is left out.
"""

from __future__ import annotations

from typing import TypedDict

import numpy as np

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, key_set
from gemel.encoder.architectures.mpnet import bucket_of
from gemel.encoder.network import Array, Block, Linear, Network
from gemel.encoder.weights import CheckpointWeights, activation_of, epsilon_of, layers_of, positive
from gemel.errors import ModelError

POSITIONS = 4096
"""Tokens of a text at most. Nothing in the network limits them, but the bias is spread out to a column per distance."""

_PROJECTIONS = {
    "t5": "relu",
    "mt5": "gated-gelu",
    "umt5": "gated-gelu",
}  # where config.json has no feed_forward_proj


def read(config: Config, weights: CheckpointWeights) -> Network:
    """The encoder; `shared.weight` is its word table."""
    width, epsilon = positive(config, "d_model"), epsilon_of(config, "layer_norm_epsilon", 1e-6)
    heads, head = positive(config, "num_heads"), positive(config, "d_kv", 64)
    layers = layers_of(config, "num_layers")
    own = config["model_type"] == "umt5"
    biases = [_bias(config, weights, heads, layer) for layer in range(layers if own else 1)]
    weights.ignore("encoder.embed_tokens.weight")  # the word table once more, in some checkpoints

    def block(layer: int) -> Block:
        at = f"encoder.block.{layer}.layer"
        names = [f"{at}.0.SelfAttention.{name}" for name in "qkv"]
        return Block(
            qkv=weights.stacked(names, [heads * head] * 3, width, bias=False),
            out=weights.linear(f"{at}.0.SelfAttention.o", width, heads * head, bias=False),
            attention_norm=weights.norm(f"{at}.0.layer_norm", width, epsilon, rms=True),
            **_feed_forward(config, weights, f"{at}.1.DenseReluDense"),
            ffn_norm=weights.norm(f"{at}.1.layer_norm", width, epsilon, rms=True),
            relative_bias=biases[layer if own else 0],
        )

    activation = {"hidden_act": config.get("dense_act_fn") or _projection(config)[1]}
    return Network(
        word=weights.word(width),
        positions=None,
        embedding_norm=None,
        projection=None,
        blocks=tuple(block(layer) for layer in range(layers)),
        heads=heads,
        head_size=head,
        attention_scale=1.0,
        activation=activation_of(activation),
        max_positions=POSITIONS,
        prenorm=True,
        gated=_projection(config)[0],
        final_norm=weights.norm("encoder.final_layer_norm", width, epsilon, rms=True),
    )


class _FeedForward(TypedDict):
    up: Linear
    down: Linear


def _feed_forward(config: Config, weights: CheckpointWeights, at: str) -> _FeedForward:
    width, inner = positive(config, "d_model"), positive(config, "d_ff")
    names = [f"{at}.wi_0", f"{at}.wi_1"] if _projection(config)[0] else [f"{at}.wi"]
    return {
        "up": weights.stacked(names, [inner] * len(names), width, bias=False),
        "down": weights.linear(f"{at}.wo", width, inner, bias=False),
    }


def _projection(config: Config) -> tuple[bool, str]:
    """Whether the feed-forward layers are gated, and their activation."""
    named = config.get("feed_forward_proj", _PROJECTIONS[config["model_type"]])
    gate, dash, activation = str(named).rpartition("-")
    if gate != ("gated" if dash else ""):
        raise ModelError(
            f"config.json must give 'feed_forward_proj' as relu or gated-gelu, got {named!r:.60}"
        )
    # "gated-gelu" is the older name for the approximation by tanh.
    return bool(gate), "gelu_new" if named == "gated-gelu" else activation


def _bias(config: Config, weights: CheckpointWeights, heads: int, layer: int) -> Array:
    """One column per distance from the query to the key."""
    buckets = positive(config, "relative_attention_num_buckets", 32)
    farthest = positive(config, "relative_attention_max_distance", 128)
    if buckets < 4 or farthest <= buckets // 4:
        raise ModelError(
            f"config.json gives {buckets} buckets for distances up to {farthest}: one of them is wrong"
        )
    name = f"encoder.block.{layer}.layer.0.SelfAttention.relative_attention_bias.weight"
    table = weights.array(name, buckets, heads)
    return np.ascontiguousarray(table[bucket_of(np.arange(1 - POSITIONS, POSITIONS), buckets, farthest)].T)


def _add(model_type: str, prefix: str) -> None:
    ARCHITECTURES.add(model_type)(
        Architecture(
            read,
            None,
            class_prefix=prefix,
            config_keys=key_set(
                "d_ff d_kv d_model dense_act_fn dropout_rate feed_forward_proj is_decoder is_encoder_decoder",
                "is_gated_act layer_norm_epsilon n_positions num_decoder_layers num_heads num_layers pad_token_id",
                "relative_attention_max_distance relative_attention_num_buckets scalable_attention",
                "scale_decoder_outputs vocab_size",
            ),
            word_table="shared.weight",
            width_key="d_model",
            token_types=False,
            positions=POSITIONS,
        )
    )


_add("t5", "T5")
_add("mt5", "MT5")
_add("umt5", "UMT5")
