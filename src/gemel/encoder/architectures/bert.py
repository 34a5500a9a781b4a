"""BERT (arXiv 1810.04805)."""

from __future__ import annotations

from collections.abc import Mapping

from gemel.encoder.architectures.bert_family import read_bert_like
from gemel.encoder.architectures.config import positive
from gemel.encoder.architectures.table import ARCHITECTURES, Config
from gemel.encoder.network import Array, Network
from gemel.encoder.weights import CheckpointWeights


@ARCHITECTURES.add("bert")
def read(config: Config, weights: Mapping[str, Array]) -> Network:
    """Learned positions counted from 0; the word table is as wide as the network."""
    return read_bert_like(config, CheckpointWeights(weights), embedding=positive(config, "hidden_size"))
