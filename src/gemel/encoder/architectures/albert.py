"""ALBERT (arXiv 1909.11942): one block, or a few, run repeatedly over a narrow word table."""

from __future__ import annotations

from collections.abc import Mapping

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.bert import CONFIG_KEYS, position_table
from gemel.encoder.architectures.config import (
    MOST_LAYERS,
    activation_of,
    epsilon_of,
    heads_of,
    layers_of,
    positive,
    refuse_variants,
)
from gemel.encoder.network import Array, Block, Network
from gemel.encoder.weights import CheckpointWeights
from gemel.errors import ModelError


def read(config: Config, weights: Mapping[str, Array]) -> Network:
    """Layers of one group are the same Block object, so an engine stores their weights once."""
    refuse_variants(config)
    take = CheckpointWeights(weights)
    width, embedding = positive(config, "hidden_size"), positive(config, "embedding_size", 128)
    layers, groups = layers_of(config), layers_of(config, "num_hidden_groups", 1)
    inner = layers_of(config, "inner_group_num", 1)
    if layers * inner > MOST_LAYERS:
        raise ModelError(
            f"config.json asks for {layers} times {inner} layers, at most {MOST_LAYERS:,} are run"
        )
    shared = [[_block(config, take, group, part) for part in range(inner)] for group in range(groups)]
    positions = position_table(config, take, embedding)
    return Network(
        word=take.word(embedding),
        positions=positions,
        embedding_norm=take.norm("embeddings.LayerNorm", embedding, epsilon_of(config)),
        projection=take.linear("encoder.embedding_hidden_mapping_in", width, embedding),
        # The groups divide the layers into equal shares.
        blocks=tuple(block for layer in range(layers) for block in shared[int(layer / (layers / groups))]),
        heads=heads_of(config, width),
        activation=activation_of(config, default="gelu_new"),
        max_positions=len(positions),
    )


def _block(config: Config, weights: CheckpointWeights, group: int, part: int) -> Block:
    d, f = positive(config, "hidden_size"), positive(config, "intermediate_size")
    at, epsilon = (
        f"encoder.albert_layer_groups.{group}.albert_layers.{part}",
        epsilon_of(config),
    )
    return Block(
        qkv=weights.stacked([f"{at}.attention.{role}" for role in ("query", "key", "value")], d, d),
        out=weights.linear(f"{at}.attention.dense", d, d),
        attention_norm=weights.norm(f"{at}.attention.LayerNorm", d, epsilon),
        up=weights.linear(f"{at}.ffn", f, d),
        down=weights.linear(f"{at}.ffn_output", d, f),
        ffn_norm=weights.norm(f"{at}.full_layer_layer_norm", d, epsilon),
    )


def _head(config: Config) -> HeadLayout:
    return HeadLayout("albert.", "albert.pooler", "classifier", "tanh")


ARCHITECTURES.add("albert")(
    Architecture(
        read,
        _head,
        class_prefix="Albert",
        config_keys=CONFIG_KEYS
        | {"embedding_size", "num_hidden_groups", "inner_group_num", "classifier_dropout_prob"}
        | {"net_structure_type", "num_memory_blocks", "gap_size", "down_scale_factor"},
        tokenizer_types=True,
        packed_training=True,
    )
)
