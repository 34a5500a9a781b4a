"""Gemma 3 (arXiv 2503.19786) and EmbeddingGemma (arXiv 2509.20354): a decoder with four norms per block.

Most layers see a window only and have rotary positions of their own. EmbeddingGemma turns the causal mask off.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout, key_set
from gemel.encoder.architectures.llama import (
    CONFIG_KEYS,
    WORD_TABLE,
    attention_step,
    check_kinds,
    feed_forward_step,
    head_norms,
    head_size,
    is_causal,
    key_heads,
)
from gemel.encoder.architectures.rotary import number, rotary_of
from gemel.encoder.network import Block, Network, Norm, Rotary
from gemel.encoder.weights import (
    MAX_POSITIONS,
    CheckpointWeights,
    activation_of,
    epsilon_of,
    layers_of,
    positive,
    unsupported,
)

_THETAS = {
    "full_attention": ("rope_theta", 1_000_000.0),
    "sliding_attention": ("rope_local_base_freq", 10_000.0),
}


def read(config: Config, weights: CheckpointWeights) -> Network:
    """Word vectors are multiplied by the root of the width; scores are divided by that of `query_pre_attn_scalar`."""
    if config.get("attn_logit_softcapping") is not None:
        raise unsupported("config.json sets 'attn_logit_softcapping', which is not followed")
    width, epsilon = positive(config, "hidden_size"), epsilon_of(config, "rms_norm_eps", 1e-6)
    heads = positive(config, "num_attention_heads")
    head = head_size(config, width) if config.get("head_dim") else 256
    kinds = layer_kinds(config)
    rotary = {kind: _rotary(config, head, kind) for kind in set(kinds)}
    windows = {"full_attention": None, "sliding_attention": _window(config)}

    def norm(name: str) -> Norm:
        return _grown(weights.norm(name, width, epsilon, rms=True))

    def block(layer: int, kind: str) -> Block:
        at = f"layers.{layer}"
        attention = attention_step(config, weights, at, heads, head)
        attention["query_norm"], attention["key_norm"] = map(_grown, head_norms(config, weights, at, head))
        return Block(
            **attention,
            **feed_forward_step(config, weights, at),
            attention_norm=norm(f"{at}.input_layernorm"),
            attention_out_norm=norm(f"{at}.post_attention_layernorm"),
            ffn_norm=norm(f"{at}.pre_feedforward_layernorm"),
            ffn_out_norm=norm(f"{at}.post_feedforward_layernorm"),
            rotary=rotary[kind],
            window=windows[kind],
            causal=is_causal(config),
        )

    return Network(
        word=weights.word(width),
        positions=None,
        embedding_norm=None,
        projection=None,
        blocks=tuple(block(layer, kind) for layer, kind in enumerate(kinds)),
        heads=heads,
        kv_heads=key_heads(config, heads),
        head_size=head,
        attention_scale=number(config, "query_pre_attn_scalar", 256) ** -0.5,
        word_scale=float(np.float32(width**0.5)),
        activation=activation_of(config, "hidden_activation", "gelu_pytorch_tanh"),
        max_positions=positive(config, "max_position_embeddings", most=MAX_POSITIONS),
        prenorm=True,
        gated=True,
        final_norm=norm("norm"),
    )


def _grown(norm: Norm) -> Norm:
    """Its weights are stored as their difference from 1."""
    return replace(norm, weight=norm.weight + np.float32(1))


def layer_kinds(config: Config) -> list[str]:
    """Full or sliding attention of each layer; older configs give only how often a layer is full."""
    layers, every = layers_of(config), positive(config, "sliding_window_pattern", 6)
    default = ["sliding_attention" if (layer + 1) % every else "full_attention" for layer in range(layers)]
    kinds = config.get("layer_types") or default
    check_kinds(kinds, layers)
    return list(kinds)


def _window(config: Config) -> int:
    """Positions that a token sees to each side: back from it the window includes the token itself."""
    window = positive(config, "sliding_window", 4096)
    return window - 1 if is_causal(config) else window // 2


def _rotary(config: Config, size: int, kind: str) -> Rotary:
    """The positions of one kind of layer; a scaling under the older name is for the full layers."""
    older, theta = _THETAS[kind]
    theta = number(config, older, theta, least=1.0)
    settings = {key: value for key, value in config.items() if key != "rope_theta"}
    if kind == "sliding_attention":
        settings.pop("rope_scaling", None)
    return rotary_of(settings, size, kind=kind, theta=theta)


ARCHITECTURES.add("gemma3_text")(
    Architecture(
        read,
        HeadLayout("model.", None, "score", "identity", pooling="last", last_bias=False),
        class_prefix="Gemma3Text",
        config_keys=CONFIG_KEYS
        | key_set(
            "attn_logit_softcapping final_logit_softcapping hidden_activation layer_types query_pre_attn_scalar",
            "rope_local_base_freq sliding_window sliding_window_pattern _sliding_window_pattern",
        ),
        token_types=False,
        word_table=WORD_TABLE,
    )
)
