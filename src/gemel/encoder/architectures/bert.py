"""BERT (arXiv 1810.04805), and what RoBERTa, ELECTRA, ALBERT and MPNet share with it, weight names included.

JinaBERT (jina-embeddings-v2, arXiv 2310.19923) is published as a BERT with code of its own: no learned positions but
ALiBi, and gated feed-forward layers.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from gemel.checkpoint.architecture import (
    ARCHITECTURES,
    Architecture,
    Config,
    HeadLayout,
    MaskedLayout,
    key_set,
)
from gemel.encoder.network import Array, Block, Linear, Network, Padding
from gemel.encoder.weights import (
    BlockNames,
    CheckpointWeights,
    activation_of,
    epsilon_of,
    heads_of,
    layers_of,
    positive,
    unsupported,
)
from gemel.errors import ModelError

CONFIG_KEYS = key_set(
    "add_cross_attention attention_probs_dropout_prob hidden_act hidden_dropout_prob hidden_size",
    "intermediate_size is_decoder layer_norm_eps max_position_embeddings num_attention_heads",
    "num_hidden_layers pad_token_id position_embedding_type type_vocab_size vocab_size",
)
"""Keys of config.json that all of them have."""

_NAMES = BlockNames(
    ("attention.self.query", "attention.self.key", "attention.self.value"),
    out="attention.output.dense",
    attention_norm="attention.output.LayerNorm",
    up="intermediate.dense",
    down="output.dense",
    ffn_norm="output.LayerNorm",
)


def read(config: Config, weights: CheckpointWeights) -> Network:
    """Learned positions counted from 0; the word table is as wide as the network."""
    return read_bert_like(config, weights)


def read_bert_like(
    config: Config,
    weights: CheckpointWeights,
    *,
    embedding: int | None = None,
    projection: Linear | None = None,
    padding: int | None = None,
    token_types: bool = True,
    blocks: tuple[Block, ...] | None = None,
    names: BlockNames = _NAMES,
    activation: str = "gelu",
) -> Network:
    """A BERT with a word table `embedding` wide (None: as wide as the network), and other `blocks` where given.

    `padding` (RoBERTa): the id of the token that takes no position; the first token takes the row after that number.
    `activation`: where config.json names none.
    """
    refuse_variants(config)
    width, epsilon = positive(config, "hidden_size"), epsilon_of(config)
    embedding = embedding or width
    table = _position_table(config, weights, embedding, token_types)
    positions = table if padding is None else table[padding + 1 :]
    if blocks is None:
        inner, layers = positive(config, "intermediate_size"), range(layers_of(config))
        blocks = tuple(weights.block(f"encoder.layer.{n}", names, width, inner, epsilon) for n in layers)
    return Network(
        word=weights.word(embedding),
        positions=positions,
        embedding_norm=weights.norm("embeddings.LayerNorm", embedding, epsilon),
        projection=projection,
        blocks=blocks,
        heads=heads_of(config, width),
        activation=activation_of(config, default=activation),
        max_positions=len(positions),
        padding=None if padding is None else _padding_token(padding, table),
    )


def refuse_variants(config: Config) -> None:
    """Refuse decoders (a token sees only those before it) and relative positions, which are other networks."""
    positions = config.get("position_embedding_type") or "absolute"
    if positions != "absolute":
        raise ModelError(
            f"config.json asks for position_embedding_type {positions!r}, only 'absolute' is known"
        )
    for name in ("is_decoder", "add_cross_attention"):
        if config.get(name):
            raise unsupported(f"config.json sets {name}: that is a decoder, only encoders are read")


def _position_table(config: Config, weights: CheckpointWeights, embedding: int, token_types: bool) -> Array:
    """Position rows, with the row of token type 0 added: a single text has no other type."""
    rows = positive(config, "max_position_embeddings")
    positions = weights.array("embeddings.position_embeddings.weight", rows, embedding)
    if not token_types:
        return positions
    types = positive(config, "type_vocab_size", 2)
    first_type: Array = weights.array("embeddings.token_type_embeddings.weight", types, embedding)[0]
    return np.add(positions, first_type)


def _padding_token(padding: int, table: Array) -> Padding:
    """The padding token of a network whose table of positions has a row for it."""
    if not 0 <= padding < len(table) - 1:
        raise ModelError(
            f"config.json gives 'pad_token_id' as {padding}, which leaves no position of {len(table)} for a token"
        )
    return Padding(padding, np.ascontiguousarray(table[padding]))


# JinaBERT.

_GATES = {"geglu": "gelu", "reglu": "relu"}


def read_jina(config: Config, weights: CheckpointWeights) -> Network:
    """A score is lowered by the distance of its two tokens: ALiBi (arXiv 2108.12409), to both sides."""
    form = config.get("feed_forward_type", "original")
    if not isinstance(form, str) or form not in _GATES:
        known = " and ".join(map(repr, _GATES))
        raise ModelError(
            f"config.json gives feed_forward_type {form!r:.60}, of a JinaBERT only {known} are known"
        )
    if "encoder.layer.0.attention.self.layer_norm_q.weight" in weights:
        raise ModelError(
            "the checkpoint is a JinaBERT that norms all heads of its queries and keys together "
            "(jina-bert-v2-qk-post-norm, as jina-embeddings-v2-base-code is), which is not supported"
        )
    width, epsilon = positive(config, "hidden_size"), epsilon_of(config)
    heads = heads_of(config, width)
    types, positions = positive(config, "type_vocab_size", 2), positive(config, "max_position_embeddings")
    first_type = weights.array("embeddings.token_type_embeddings.weight", types, width)[0]
    blocks = [_jina_block(config, weights, f"encoder.layer.{n}") for n in range(layers_of(config))]
    bias = alibi(heads, positions)
    return Network(
        word=weights.word(width),
        positions=np.broadcast_to(first_type, (positions, width)),
        embedding_norm=weights.norm("embeddings.LayerNorm", width, epsilon),
        projection=None,
        blocks=tuple(replace(block, relative_bias=bias) for block in blocks),
        heads=heads,
        activation=activation_of({"hidden_act": _GATES[form]}),
        max_positions=positions,
        gated=True,
    )


def _jina_block(config: Config, weights: CheckpointWeights, at: str) -> Block:
    width, inner = positive(config, "hidden_size"), positive(config, "intermediate_size")
    epsilon = epsilon_of(config)
    return Block(
        qkv=weights.stacked([f"{at}.{name}" for name in _NAMES.qkv], [width] * 3, width),
        out=weights.linear(f"{at}.{_NAMES.out}", width, width),
        attention_norm=weights.norm(f"{at}.{_NAMES.attention_norm}", width, epsilon),
        up=weights.linear(f"{at}.mlp.gated_layers", 2 * inner, width, bias=False),
        down=weights.linear(f"{at}.mlp.wo", width, inner),
        ffn_norm=weights.norm(f"{at}.mlp.layernorm", width, epsilon),
    )


def alibi(heads: int, positions: int) -> Array:
    """(heads, 2 * positions - 1): minus the slope of the head times the distance."""
    distances = np.abs(np.arange(1 - positions, positions))
    return -np.outer(alibi_slopes(heads), distances).astype(np.float32)


def alibi_slopes(heads: int) -> list[float]:
    """2^(-8/n), 2^(-16/n), ...; heads beyond a power of two take every other slope of the next power."""
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * step / power) for step in range(1, power + 1)]
    between = [2 ** (-8 * step / (2 * power)) for step in range(1, 2 * power + 1, 2)]
    return slopes + between[: heads - power]


def _masked(config: Config) -> MaskedLayout:
    at = "cls.predictions"
    names = f"{at}.transform.dense", f"{at}.transform.LayerNorm", f"{at}.decoder.weight", f"{at}.bias"
    return MaskedLayout(*names, config.get("hidden_act", "gelu"), epsilon_of(config))


_BERT = Architecture(
    read,
    HeadLayout("bert.", "bert.pooler.dense", "classifier", "tanh"),
    class_prefix="Bert",
    config_keys=CONFIG_KEYS,
    tokenizer_types=True,
    wordpiece_vocabulary=True,
    packed_training=True,
    masked=_masked,
)
_JINA = replace(
    _BERT, read=read_jina, config_keys=CONFIG_KEYS | {"feed_forward_type"}, packed_training=False, masked=None
)


def _variant(config: Config) -> Architecture | None:
    return _JINA if config.get("position_embedding_type") == "alibi" else None


ARCHITECTURES.add("bert")(replace(_BERT, variant=_variant))
