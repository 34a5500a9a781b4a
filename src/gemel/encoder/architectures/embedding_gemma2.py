"""EmbeddingGemma 2: the text network of an encoder for texts, images and sounds, of which only the texts are encoded.

As Gemma 3, with heads of another size in the layers that see the whole text, norms of the values, a step in every block
that reads the word vectors again, and a projection of every token at the end.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, key_set
from gemel.encoder.architectures.gemma3 import layer_kinds
from gemel.encoder.architectures.llama import (
    CONFIG_KEYS,
    WORD_TABLE,
    attention_step,
    feed_forward_step,
    head_norms,
    key_heads,
)
from gemel.encoder.architectures.rotary import rotary_of
from gemel.encoder.network import Block, Heads, Linear, Network, Norm, Rotary, WordStep
from gemel.encoder.weights import CheckpointWeights, activation_of, epsilon_of, positive, unsupported
from gemel.errors import ModelError

POSITIONS = 8192
"""Tokens of a text at most: what it was trained for. config.json gives 32 times as many, with a table of 800 MB."""

_THETAS = {"full_attention": 1_000_000.0, "sliding_attention": 10_000.0}

_PARTS = key_set(
    "audio_config audio_token_id boa_token_id boi_token_id eoa_token_id eoa_token_index eoi_token_id image_token_id",
    "text_config video_token_id vision_config",
)
"""Of config.json around that of the text network: the other networks, and tokens that stand for their results."""

_LAYER_KEYS = ("head_dim", "num_key_value_heads")


def read(config: Config, weights: CheckpointWeights) -> Network:
    """Scores are not scaled: the norms of queries and keys have learned how large they are."""
    width, epsilon = positive(config, "hidden_size"), epsilon_of(config, "rms_norm_eps", 1e-6)
    kinds = layer_kinds(config)
    if kinds[-1] != "full_attention":
        raise unsupported("config.json gives a sliding window to the last layer, which sees the whole text")
    sizes = [_heads(config, layer, kind) for layer, kind in enumerate(kinds)]
    used = dict.fromkeys(zip(kinds, (heads.size for heads in sizes), strict=True))
    rotary = {(kind, size): _rotary(config, size, kind) for kind, size in used}
    windows = {"full_attention": None, "sliding_attention": positive(config, "sliding_window", 512)}
    word_inputs = _word_inputs(config, weights, len(kinds))

    def norm(name: str) -> Norm:
        return weights.norm(name, width, epsilon, rms=True)

    def block(layer: int, kind: str, heads: Heads) -> Block:
        at = f"layers.{layer}"
        own = {**config, "num_key_value_heads": heads.keys}
        attention = attention_step(own, weights, at, heads.queries, heads.size)
        attention["query_norm"], attention["key_norm"] = head_norms(config, weights, at, heads.size)
        return Block(
            **attention,
            **feed_forward_step(config, weights, at),
            value_norm=Norm(np.ones(heads.size, np.float32), None, epsilon, rms=True),
            attention_norm=norm(f"{at}.input_layernorm"),
            attention_out_norm=norm(f"{at}.post_attention_layernorm"),
            ffn_norm=norm(f"{at}.pre_feedforward_layernorm"),
            ffn_out_norm=norm(f"{at}.post_feedforward_layernorm"),
            rotary=rotary[kind, heads.size],
            window=windows[kind],
            heads=heads,
            word_step=_word_step(config, weights, at, word_inputs[layer]),
            scale=float(weights.array(f"{at}.layer_scalar", 1)[0]),
        )

    output = positive(config, "embedding_dim", 768)
    return Network(
        word=weights.word(width),
        positions=None,
        embedding_norm=None,
        projection=None,
        blocks=tuple(
            block(layer, kind, heads) for layer, (kind, heads) in enumerate(zip(kinds, sizes, strict=True))
        ),
        heads=sizes[0].queries,
        word_scale=float(np.float32(width**0.5)),
        activation=activation_of(config, "hidden_activation", "gelu_pytorch_tanh"),
        max_positions=positive(config, "max_position_embeddings", POSITIONS),
        prenorm=True,
        gated=True,
        final_norm=norm("norm"),
        output=weights.linear("embedding_projection", output, width, bias=False),
    )


def _heads(config: Config, layer: int, kind: str) -> Heads:
    """Of one layer: `per_layer_config` changes the sizes of some, by their number."""
    given = config.get("per_layer_config")
    if given is None:
        names = ("global_head_dim", "num_global_key_value_heads")
        values = (positive(config, name, default) for name, default in zip(names, (512, 1), strict=True))
        own = dict(zip(_LAYER_KEYS, values, strict=True)) if kind == "full_attention" else {}
    else:
        own = _layer_settings(given, layer)
    heads = positive(config, "num_attention_heads", 4)
    merged = {"head_dim": 256, "num_key_value_heads": 2, **config, **own}
    return Heads(heads, key_heads(merged, heads), positive(merged, "head_dim"), 1.0)


def _layer_settings(given: object, layer: int) -> dict[str, Any]:
    entries: dict[str, Any] = given if isinstance(given, dict) else {"": given}
    if not all(key.isdecimal() and isinstance(entry, dict) for key, entry in entries.items()):
        raise ModelError(
            f"config.json must give 'per_layer_config' as an object by numbers of layers, got {given!r:.60}"
        )
    own: dict[str, Any] = next((entry for key, entry in entries.items() if int(key) == layer), {})
    unknown = next((key for key in own if key not in _LAYER_KEYS), None)
    if unknown is not None:
        raise unsupported(f"config.json sets {unknown!r} of layer {layer} alone, which is not followed")
    return own


def _rotary(config: Config, size: int, kind: str) -> Rotary:
    return rotary_of(config, size, kind=kind, theta=_THETAS[kind])


def _word_inputs(config: Config, weights: CheckpointWeights, layers: int) -> list[Linear]:
    """What each layer takes from the word vectors: one weight has the rows of all layers."""
    width, inner = positive(config, "hidden_size"), positive(config, "hidden_size_per_layer_input", 512)
    rows = weights.array("ple.per_layer_model_projection.weight", layers * inner, width)
    return [Linear(part) for part in np.split(rows, layers)]


def _word_step(config: Config, weights: CheckpointWeights, at: str, words: Linear) -> WordStep:
    inner, width = words.shape
    epsilon = epsilon_of(config, "rms_norm_eps", 1e-6)
    # The products are divided by the root of the width before this norm: the same as a larger epsilon.
    norm = weights.norm("ple.per_layer_projection_norm", inner, epsilon, rms=True)
    return WordStep(
        words=words,
        words_norm=replace(norm, epsilon=epsilon * width),
        gate=weights.linear(f"{at}.ple_block.per_layer_input_gate", inner, width, bias=False),
        out=weights.linear(f"{at}.ple_block.per_layer_projection", width, inner, bias=False),
        norm=weights.norm(f"{at}.ple_block.post_per_layer_input_norm", width, epsilon, rms=True),
    )


def _native(config: Config) -> Config:
    """The settings of the text network, which a published config.json has inside."""
    inside = config.get("text_config")
    native = dict(config)
    if isinstance(inside, dict):
        native = {key: value for key, value in config.items() if key not in _PARTS} | inside
    native["model_type"] = "embedding_gemma2_text"
    if isinstance(native.get("max_position_embeddings"), int):
        native["max_position_embeddings"] = min(native["max_position_embeddings"], POSITIONS)
    return native


ARCHITECTURES.add("embedding_gemma2_text")(
    Architecture(
        read,
        None,
        class_prefix="EmbeddingGemma2",
        config_keys=CONFIG_KEYS
        | key_set(
            "embedding_dim global_head_dim hidden_activation hidden_size_per_layer_input layer_types",
            "num_global_key_value_heads per_layer_config sliding_window sliding_window_pattern",
        ),
        native=_native,
        token_types=False,
        word_table=WORD_TABLE,
        positions=POSITIONS,
        width_key="embedding_dim",
    )
)
