"""Decoders of the Llama family: Llama, Mistral, Qwen2, Qwen3; and EuroBERT, which is one without the causal mask.

jina-embeddings-v5 (arXiv 2602.15547) is a Qwen3 or a EuroBERT with adapters for several tasks.

Pre-norm blocks with RMS norms, gated feed-forward layers, rotary positions, and heads of queries that share heads of
keys and values. Checkpoints made for embeddings may turn the causal mask off.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TypedDict

from gemel.checkpoint.adapter import chosen_task
from gemel.checkpoint.architecture import (
    ARCHITECTURES,
    Architecture,
    Config,
    HeadLayout,
    has_task_folders,
    key_set,
)
from gemel.encoder.architectures.rotary import KEYS, rotary_of
from gemel.encoder.network import Array, Block, Linear, Network, Norm
from gemel.encoder.weights import (
    MAX_POSITIONS,
    CheckpointWeights,
    activation_of,
    epsilon_of,
    heads_of,
    layers_of,
    positive,
    unsupported,
)
from gemel.errors import ModelError

WORD_TABLE = "embed_tokens.weight"

_ATTENTION = ("q_proj", "k_proj", "v_proj")
_HEAD_NORM_NAMES = ("q_norm", "k_norm")

_HEAD_NORMED = ("qwen3",)
"""Model types whose heads of queries and keys are normalized."""

_KINDS = ("full_attention", "sliding_attention")

CONFIG_KEYS = key_set(
    "attention_bias attention_dropout head_dim hidden_act hidden_size intermediate_size is_causal",
    "max_position_embeddings mlp_bias num_attention_heads num_hidden_layers num_key_value_heads",
    "pad_token_id pretraining_tp rms_norm_eps use_bidirectional_attention vocab_size",
    KEYS,
)
_WINDOWS = "layer_types max_window_layers sliding_window use_sliding_window"


def read(config: Config, weights: CheckpointWeights) -> Network:
    """The network of any of them; what they differ in is told by config.json and the names of the weights."""
    width, epsilon = positive(config, "hidden_size"), epsilon_of(config, "rms_norm_eps", 1e-6)
    heads = positive(config, "num_attention_heads")
    head = head_size(config, width)
    rotary = rotary_of(config, head)
    windows = layer_windows(config)
    return Network(
        word=weights.word(width),
        positions=None,
        embedding_norm=None,
        projection=None,
        blocks=tuple(
            Block(
                **attention_step(config, weights, f"layers.{layer}", heads, head),
                **feed_forward_step(config, weights, f"layers.{layer}"),
                attention_norm=weights.norm(f"layers.{layer}.input_layernorm", width, epsilon, rms=True),
                ffn_norm=weights.norm(f"layers.{layer}.post_attention_layernorm", width, epsilon, rms=True),
                rotary=rotary,
                window=window,
                causal=is_causal(config),
            )
            for layer, window in enumerate(windows)
        ),
        heads=heads,
        kv_heads=key_heads(config, heads),
        head_size=head,
        activation=activation_of(config, default="silu"),
        max_positions=positive(config, "max_position_embeddings", most=MAX_POSITIONS),
        prenorm=True,
        gated=True,
        final_norm=weights.norm("norm", width, epsilon, rms=True),
    )


class AttentionStep(TypedDict):
    """The fields of a block that belong to its attention."""

    qkv: Linear
    out: Linear
    query_norm: Norm | None
    key_norm: Norm | None


class FeedForwardStep(TypedDict):
    """The fields of a block that belong to its feed-forward step."""

    up: Linear
    down: Linear


def attention_step(
    config: Config, weights: CheckpointWeights, at: str, heads: int, head: int
) -> AttentionStep:
    """The attention of the block `at`."""
    width, keys = positive(config, "hidden_size"), key_heads(config, heads)
    here, kind = f"{at}.self_attn", config["model_type"]
    query_norm, key_norm = head_norms(config, weights, at, head) if kind in _HEAD_NORMED else (None, None)
    return {
        "qkv": weights.stacked(
            [f"{here}.{name}" for name in _ATTENTION],
            [heads * head, keys * head, keys * head],
            width,
            bias=kind == "qwen2" or has_bias(config, "attention_bias"),
        ),
        "out": weights.linear(f"{here}.o_proj", width, heads * head, bias=has_bias(config, "attention_bias")),
        "query_norm": query_norm,
        "key_norm": key_norm,
    }


def head_norms(config: Config, weights: CheckpointWeights, at: str, head: int) -> tuple[Norm, Norm]:
    """The norms of each head of the queries and of the keys."""
    epsilon = epsilon_of(config, "rms_norm_eps", 1e-6)
    queries, keys = (
        weights.norm(f"{at}.self_attn.{name}", head, epsilon, rms=True) for name in _HEAD_NORM_NAMES
    )
    return queries, keys


def has_bias(config: Config, key: str) -> bool:
    """Whether the layers have biases, by config.json; Mistral and Qwen2 have no setting for it, and none."""
    return config["model_type"] not in ("mistral", "qwen2") and bool(config.get(key))


def feed_forward_step(config: Config, weights: CheckpointWeights, at: str) -> FeedForwardStep:
    """The gated feed-forward step of the block `at`."""
    width, inner = positive(config, "hidden_size"), positive(config, "intermediate_size")
    bias = config["model_type"] in ("llama", "eurobert") and has_bias(config, "mlp_bias")
    names = [f"{at}.mlp.gate_proj", f"{at}.mlp.up_proj"]
    return {
        "up": weights.stacked(names, [inner, inner], width, bias=bias),
        "down": weights.linear(f"{at}.mlp.down_proj", width, inner, bias=bias),
    }


def head_size(config: Config, width: int) -> int:
    """Numbers per head: as config.json says, or the width divided among the heads."""
    return positive(config, "head_dim") if config.get("head_dim") else width // heads_of(config, width)


def key_heads(config: Config, heads: int) -> int:
    """Heads of keys and values, which must divide those of the queries."""
    keys = positive(config, "num_key_value_heads") if config.get("num_key_value_heads") else heads
    if heads % keys:
        raise ModelError(
            f"config.json gives {keys} heads of keys, which do not divide {heads} heads of queries"
        )
    return keys


def is_causal(config: Config) -> bool:
    """Whether a token sees only those before it; checkpoints for embeddings turn that off by one of two keys."""
    if config.get("model_type") == "eurobert" or config.get("use_bidirectional_attention"):
        return False
    return config.get("is_causal") is not False


def layer_windows(config: Config) -> list[int | None]:
    """How many positions back each layer sees; None: all."""
    layers, window = layers_of(config), config.get("sliding_window")
    kinds = config.get("layer_types")
    if window is None or (config.get("model_type") != "mistral" and not config.get("use_sliding_window")):
        if kinds is not None and _KINDS[1] in kinds:
            raise unsupported("config.json names layers with a sliding window, but no window is in use")
        return [None] * layers
    if kinds is None:
        full = 0 if config["model_type"] == "mistral" else positive(config, "max_window_layers", 28)
        kinds = [_KINDS[layer >= full] for layer in range(layers)]
    check_kinds(kinds, layers)
    # Back from a token the window includes the token itself; to both sides it does not.
    reach = positive(config, "sliding_window") - is_causal(config)
    return [reach if kind == _KINDS[1] else None for kind in kinds]


def check_kinds(kinds: object, layers: int) -> None:
    """Refuse a list of layer types that does not fit the layers."""
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in _KINDS for kind in kinds):
        raise ModelError(
            f"config.json must give {layers} layer_types out of {', '.join(_KINDS)}, got {kinds!r:.200}"
        )


# ...ForSequenceClassification of all of them: one layer over the last token.
_HEAD = HeadLayout("model.", None, "score", "identity", pooling="last", last_bias=False)


def _eurobert_head(config: Config) -> HeadLayout:
    """ "late" pools the outputs of all tokens; the last layer is linear, so it can as well come after the mean."""
    poolings = {"bos": "cls", "mean": "mean", "late": "mean"}
    named = config.get("classifier_pooling", config.get("clf_pooling", "late"))
    if named not in poolings:
        raise ModelError(f"config.json asks for classifier_pooling {named!r}. Known: {', '.join(poolings)}")
    return HeadLayout(
        "model.", "dense", "classifier", "gelu", pooling=poolings[named], pooled_after_inner=named == "late"
    )


def _architecture(
    prefix: str, *keys: str, head: HeadLayout | Callable[[Config], HeadLayout] = _HEAD
) -> Architecture:
    known = CONFIG_KEYS | key_set(*keys)
    return Architecture(
        read, head, class_prefix=prefix, config_keys=known, token_types=False, word_table=WORD_TABLE
    )


ARCHITECTURES.add("llama")(_architecture("Llama"))
ARCHITECTURES.add("mistral")(_architecture("Mistral", "sliding_window"))
ARCHITECTURES.add("qwen2")(_architecture("Qwen2", _WINDOWS))


# jina-embeddings-v5.

_TASKS = "default_task task_names"
_OF_EUROBERT = ("clf_pooling", "classifier_pooling", "mlp_bias")


def _native_jina(config: Config) -> Config:
    """The network of its config.json; `checkpoint/adapter.py` adds the adapter of the task to the weights."""
    if config.get("model_type") != "jina_embeddings_v5":
        return config
    both_ways = config.get("is_decoder") is False or any(key in config for key in _OF_EUROBERT)
    return {**config, "model_type": "eurobert" if both_ways else "qwen3"}


def _with_task(config: Config, weights: Mapping[str, Array]) -> Mapping[str, Array]:
    """The weights, which are those for the chosen task."""
    if has_task_folders(config):
        chosen_task(config, "task_names")
    return weights


ARCHITECTURES.add("qwen3")(
    replace(_architecture("Qwen3", _WINDOWS, _TASKS), native=_native_jina, adapt=_with_task)
)
ARCHITECTURES.add("eurobert")(
    replace(
        _architecture("EuroBert", "classifier_pooling clf_pooling", _TASKS, head=_eurobert_head),
        adapt=_with_task,
    )
)
