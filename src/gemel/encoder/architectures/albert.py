"""ALBERT (arXiv 1909.11942): one block, or a few, run repeatedly over a narrow word table."""

from __future__ import annotations

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout, key_set
from gemel.encoder.architectures.bert import CONFIG_KEYS, read_bert_like
from gemel.encoder.network import Network
from gemel.encoder.weights import (
    MAX_LAYERS,
    BlockNames,
    CheckpointWeights,
    epsilon_of,
    layers_of,
    positive,
)
from gemel.errors import ModelError

_NAMES = BlockNames(
    ("attention.query", "attention.key", "attention.value"),
    out="attention.dense",
    attention_norm="attention.LayerNorm",
    up="ffn",
    down="ffn_output",
    ffn_norm="full_layer_layer_norm",
)


def read(config: Config, weights: CheckpointWeights) -> Network:
    """Layers of one group are the same Block object, so an engine stores their weights once."""
    width, embedding = positive(config, "hidden_size"), positive(config, "embedding_size", 128)
    sizes = width, positive(config, "intermediate_size"), epsilon_of(config)
    layers, groups = layers_of(config), layers_of(config, "num_hidden_groups", 1)
    inner = layers_of(config, "inner_group_num", 1)
    if layers * inner > MAX_LAYERS:
        raise ModelError(f"config.json asks for {layers} times {inner} layers, at most {MAX_LAYERS} are run")
    prefix = "encoder.albert_layer_groups"
    shared = [
        [weights.block(f"{prefix}.{group}.albert_layers.{part}", _NAMES, *sizes) for part in range(inner)]
        for group in range(groups)
    ]
    return read_bert_like(
        config,
        weights,
        embedding=embedding,
        projection=weights.linear("encoder.embedding_hidden_mapping_in", width, embedding),
        # The groups divide the layers into equal shares.
        blocks=tuple(block for layer in range(layers) for block in shared[int(layer / (layers / groups))]),
        activation="gelu_new",
    )


ARCHITECTURES.add("albert")(
    Architecture(
        read,
        HeadLayout("albert.", "albert.pooler", "classifier", "tanh"),
        class_prefix="Albert",
        config_keys=CONFIG_KEYS
        | key_set(
            "embedding_size num_hidden_groups inner_group_num classifier_dropout_prob",
            "net_structure_type num_memory_blocks gap_size down_scale_factor",
        ),
        tokenizer_types=True,
        packed_training=True,
    )
)
