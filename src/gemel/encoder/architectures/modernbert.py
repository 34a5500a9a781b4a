"""ModernBERT (arXiv 2412.13663): pre-norm, gated feed-forward, rotary positions, mostly local attention."""

from __future__ import annotations

from gemel.checkpoint.architecture import (
    ARCHITECTURES,
    Architecture,
    Config,
    HeadLayout,
    MaskedLayout,
    key_set,
)
from gemel.encoder.architectures.rotary import rope_parameters, rotary_of
from gemel.encoder.network import Block, Network, Rotary
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

_KINDS = ("full_attention", "sliding_attention")
_HEAD_ACTIVATIONS = ("gelu", "relu", "tanh")


def read(config: Config, weights: CheckpointWeights) -> Network:
    """No position table: the position of a token is in the rotation of its query and key."""
    width, epsilon = positive(config, "hidden_size"), epsilon_of(config, "norm_eps", 1e-5)
    norm_bias = bool(config.get("norm_bias", False))
    kinds = layer_kinds(config)
    rotary = {kind: _rotary(config, kind) for kind in set(kinds)}
    return Network(
        word=weights.word(width),
        positions=None,
        embedding_norm=weights.norm("embeddings.norm", width, epsilon, bias=norm_bias),
        projection=None,
        blocks=tuple(_block(config, weights, layer, kind, rotary[kind]) for layer, kind in enumerate(kinds)),
        heads=heads_of(config, width),
        activation=activation_of(config, "hidden_activation"),
        max_positions=positive(config, "max_position_embeddings", most=MAX_POSITIONS),
        prenorm=True,
        gated=True,
        final_norm=weights.norm("final_norm", width, epsilon, bias=norm_bias),
    )


def _block(config: Config, weights: CheckpointWeights, layer: int, kind: str, rotary: Rotary) -> Block:
    d, f, at = positive(config, "hidden_size"), positive(config, "intermediate_size"), f"layers.{layer}"
    attention_bias, mlp_bias = bool(config.get("attention_bias", False)), bool(config.get("mlp_bias", False))
    norm_bias, epsilon = bool(config.get("norm_bias", False)), epsilon_of(config, "norm_eps", 1e-5)
    return Block(
        qkv=weights.linear(f"{at}.attn.Wqkv", 3 * d, d, bias=attention_bias),
        out=weights.linear(f"{at}.attn.Wo", d, d, bias=attention_bias),
        # The embeddings are normalized already, so the first block has no norm of its own.
        attention_norm=weights.norm(f"{at}.attn_norm", d, epsilon, bias=norm_bias) if layer else None,
        up=weights.linear(f"{at}.mlp.Wi", 2 * f, d, bias=mlp_bias),
        down=weights.linear(f"{at}.mlp.Wo", d, f, bias=mlp_bias),
        ffn_norm=weights.norm(f"{at}.mlp_norm", d, epsilon, bias=norm_bias),
        rotary=rotary,
        window=positive(config, "local_attention", 128) // 2 if kind == "sliding_attention" else None,
    )


def layer_kinds(config: Config) -> list[str]:
    """Full or sliding attention of each layer; older configs give only how often a layer is full."""
    layers, every = layers_of(config), positive(config, "global_attn_every_n_layers", 3)
    kinds = config.get("layer_types") or [_KINDS[bool(layer % every)] for layer in range(layers)]
    if not isinstance(kinds, list) or len(kinds) != layers or not all(kind in _KINDS for kind in kinds):
        raise ModelError(
            f"config.json must give {layers} layer_types out of {', '.join(_KINDS)}, got {kinds!r:.200}"
        )
    return list(kinds)


def _rotary(config: Config, kind: str) -> Rotary:
    """The base of the angles is that of the kind of layer, under its newer or its older name."""
    scaling = rope_parameters(config, kind).get("rope_type", "default"), config.get("rope_scaling")
    if scaling != ("default", None):
        raise unsupported(f"config.json scales the rotary positions {scaling}, only the default kind is read")
    world = config.get("global_rope_theta") or 160_000.0
    local = config.get("local_rope_theta", 10_000.0) or world
    size = positive(config, "hidden_size") // positive(config, "num_attention_heads")
    return rotary_of(config, size, kind=kind, theta=world if kind == "full_attention" else local)


def _head(config: Config) -> HeadLayout:
    """The one head that config.json has settings for."""
    pooling, activation = config.get("classifier_pooling", "cls"), config.get("classifier_activation", "gelu")
    if pooling not in ("cls", "mean") or activation not in _HEAD_ACTIVATIONS:
        raise ModelError(
            f"config.json asks for classifier_pooling {pooling!r} and classifier_activation {activation!r}. "
            f"Known: cls, mean; {', '.join(_HEAD_ACTIVATIONS)}"
        )
    return HeadLayout(
        "model.",
        "head.dense",
        "classifier",
        activation,
        norm="head.norm",
        pooling=pooling,
        inner_bias=bool(config.get("classifier_bias", False)),
        norm_bias=bool(config.get("norm_bias", False)),
        epsilon=float(config.get("norm_eps", 1e-5)),
    )


def _masked(config: Config) -> MaskedLayout:
    return MaskedLayout(
        "head.dense",
        "head.norm",
        "decoder.weight",
        "decoder.bias" if config.get("decoder_bias", True) else None,
        config.get("classifier_activation", "gelu"),
        epsilon_of(config, "norm_eps", 1e-5),
        dense_bias=bool(config.get("classifier_bias", False)),
        norm_bias=bool(config.get("norm_bias", False)),
    )


ARCHITECTURES.add("modernbert")(
    Architecture(
        read,
        _head,
        class_prefix="ModernBert",
        config_keys=key_set(
            "attention_bias attention_dropout classifier_activation classifier_bias classifier_pooling",
            "decoder_bias embedding_dropout global_attn_every_n_layers global_rope_theta",
            "hidden_activation hidden_size intermediate_size layer_norm_eps layer_types",
            "local_attention local_rope_theta max_position_embeddings mlp_bias mlp_dropout norm_bias",
            "norm_eps num_attention_heads num_hidden_layers pad_token_id position_embedding_type",
            "rope_parameters rope_scaling vocab_size",
        ),
        word_table="embeddings.tok_embeddings.weight",
        token_types=False,
        masked=_masked,
    )
)
