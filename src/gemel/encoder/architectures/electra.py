"""ELECTRA (arXiv 2003.10555): BERT with a narrower word table and a layer that widens it."""

from __future__ import annotations

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.bert import CONFIG_KEYS, read_bert_like
from gemel.encoder.network import Network
from gemel.encoder.weights import CheckpointWeights, positive


def read(config: Config, weights: CheckpointWeights) -> Network:
    """The projection is there only where the two widths differ."""
    width, embedding = positive(config, "hidden_size"), positive(config, "embedding_size", 128)
    projection = weights.linear("embeddings_project", width, embedding) if width != embedding else None
    return read_bert_like(config, weights, embedding=embedding, projection=projection)


ARCHITECTURES.add("electra")(
    Architecture(
        read,
        HeadLayout("electra.", "classifier.dense", "classifier.out_proj", "gelu"),
        class_prefix="Electra",
        config_keys=CONFIG_KEYS | {"embedding_size", "generator_size"},
        tokenizer_types=True,
        wordpiece_vocabulary=True,
        packed_training=True,
    )
)
