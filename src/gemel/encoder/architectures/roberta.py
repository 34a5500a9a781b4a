"""RoBERTa (arXiv 1907.11692), XLM-RoBERTa and CamemBERT: BERT whose positions start after the padding id."""

from __future__ import annotations

from collections.abc import Mapping

from gemel.encoder.architectures.bert_family import read_bert_like
from gemel.encoder.architectures.config import positive, token_id
from gemel.encoder.architectures.table import ARCHITECTURES, Config
from gemel.encoder.network import Array, Network
from gemel.encoder.weights import CheckpointWeights


@ARCHITECTURES.add("roberta", "xlm-roberta", "camembert")
def read(config: Config, weights: Mapping[str, Array]) -> Network:
    """The rows up to the padding id are never used, so 514 rows make room for 512 tokens."""
    padding = token_id(config, "pad_token_id")
    return read_bert_like(
        config,
        CheckpointWeights(weights),
        embedding=positive(config, "hidden_size"),
        padding=1 if padding is None else int(padding),
    )
