"""BERT (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Mapping

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.bert_family import CONFIG_KEYS, read_bert_like
from gemel.encoder.architectures.config import positive
from gemel.encoder.network import Array, Network
from gemel.encoder.weights import CheckpointWeights


def read(config: Config, weights: Mapping[str, Array]) -> Network:
    """Learned positions counted from 0; the word table is as wide as the network."""
    return read_bert_like(config, CheckpointWeights(weights), embedding=positive(config, "hidden_size"))


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
