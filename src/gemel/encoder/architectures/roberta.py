"""RoBERTa (arXiv 1907.11692), XLM-RoBERTa and CamemBERT: BERT whose positions start after the padding id."""

from __future__ import annotations

from gemel.checkpoint.architecture import ARCHITECTURES, Architecture, Config, HeadLayout
from gemel.encoder.architectures.bert import CONFIG_KEYS, read_bert_like
from gemel.encoder.network import Network
from gemel.encoder.weights import CheckpointWeights, token_id


def read(config: Config, weights: CheckpointWeights) -> Network:
    """The rows up to the padding id are never used, so 514 rows make room for 512 tokens."""
    padding = token_id(config, "pad_token_id")
    return read_bert_like(config, weights, padding=1 if padding is None else padding)


for _name, _prefix in {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}.items():
    ARCHITECTURES.add(_name)(
        Architecture(
            read,
            HeadLayout("roberta.", "classifier.dense", "classifier.out_proj", "tanh"),
            class_prefix=_prefix,
            config_keys=CONFIG_KEYS,
            positions_after_padding=True,
            packed_training=True,
        )
    )
