"""BERT (arXiv 1810.04805), and what RoBERTa, ELECTRA, ALBERT and MPNet share with it, weight names included."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.config import (
    activation_of,
    epsilon_of,
    heads_of,
    layers_of,
    positive,
    refuse_variants,
)
from gemel.encoder.network import Array, Block, Linear, Network, Padding
from gemel.encoder.weights import CheckpointWeights
from gemel.errors import ModelError

CONFIG_KEYS = frozenset(
    {
        "add_cross_attention",
        "attention_probs_dropout_prob",
        "hidden_act",
        "hidden_dropout_prob",
        "hidden_size",
        "intermediate_size",
        "is_decoder",
        "layer_norm_eps",
        "max_position_embeddings",
        "num_attention_heads",
        "num_hidden_layers",
        "pad_token_id",
        "position_embedding_type",
        "type_vocab_size",
        "vocab_size",
    }
)
"""Keys of config.json that all of them have."""


def read(config: Config, weights: Mapping[str, Array]) -> Network:
    """Learned positions counted from 0; the word table is as wide as the network."""
    return read_bert_like(config, CheckpointWeights(weights), embedding=positive(config, "hidden_size"))


def read_bert_like(
    config: Config,
    weights: CheckpointWeights,
    *,
    embedding: int,
    projection: Linear | None = None,
    padding: int | None = None,
) -> Network:
    """A BERT with a word table `embedding` wide.

    `padding` (RoBERTa): the id of the token that takes no position; the first token takes the row after that number.
    """
    refuse_variants(config)
    width, epsilon = positive(config, "hidden_size"), epsilon_of(config)
    table = position_table(config, weights, embedding)
    positions = table if padding is None else table[padding + 1 :]
    return Network(
        word=weights.word(embedding),
        positions=positions,
        embedding_norm=weights.norm("embeddings.LayerNorm", embedding, epsilon),
        projection=projection,
        blocks=tuple(_block(config, weights, layer) for layer in range(layers_of(config))),
        heads=heads_of(config, width),
        activation=activation_of(config),
        max_positions=len(positions),
        padding=None if padding is None else padding_token(padding, table),
    )


def padding_token(padding: int, table: Array) -> Padding:
    """The padding token of a network whose table of positions has a row for it."""
    if not 0 <= padding < len(table) - 1:
        raise ModelError(
            f"config.json gives 'pad_token_id' as {padding}, which leaves no position of {len(table)} for a token"
        )
    return Padding(padding, np.ascontiguousarray(table[padding]))


def position_table(config: Config, weights: CheckpointWeights, embedding: int) -> Array:
    """Position rows with the row of token type 0 added: a single text has no other type."""
    rows, types = positive(config, "max_position_embeddings"), positive(config, "type_vocab_size", 2)
    positions = weights.array("embeddings.position_embeddings.weight", rows, embedding)
    first_type: Array = weights.array("embeddings.token_type_embeddings.weight", types, embedding)[0]
    return np.add(positions, first_type)


def _block(config: Config, weights: CheckpointWeights, layer: int) -> Block:
    d, f = positive(config, "hidden_size"), positive(config, "intermediate_size")
    at, epsilon = f"encoder.layer.{layer}", epsilon_of(config)
    return Block(
        qkv=weights.stacked([f"{at}.attention.self.{role}" for role in ("query", "key", "value")], d, d),
        out=weights.linear(f"{at}.attention.output.dense", d, d),
        attention_norm=weights.norm(f"{at}.attention.output.LayerNorm", d, epsilon),
        up=weights.linear(f"{at}.intermediate.dense", f, d),
        down=weights.linear(f"{at}.output.dense", d, f),
        ffn_norm=weights.norm(f"{at}.output.LayerNorm", d, epsilon),
    )


def _head(config: Config) -> HeadLayout:
    return HeadLayout("bert.", "bert.pooler.dense", "classifier", "tanh")


ARCHITECTURES.add("bert")(
    Architecture(
        read,
        _head,
        class_prefix="Bert",
        config_keys=CONFIG_KEYS,
        tokenizer_types=True,
        wordpiece_vocabulary=True,
        packed_training=True,
    )
)
