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


def _native(config: Config) -> Config:
    """Jina Embeddings v3 was published as an XLM-RoBERTa with code of its own."""
    if config.get("model_type") != "xlm-roberta" or config.get("position_embedding_type") != "rotary":
        return config
    kept = {key: value for key, value in config.items() if key != "rotary_emb_base"}
    return {**kept, "model_type": "jina_embeddings_v3", "rope_theta": config.get("rotary_emb_base", 10_000.0)}


for _name, _prefix in {"roberta": "Roberta", "xlm-roberta": "XLMRoberta", "camembert": "Camembert"}.items():
    ARCHITECTURES.add(_name)(
        Architecture(
            read,
            HeadLayout("roberta.", "classifier.dense", "classifier.out_proj", "tanh"),
            class_prefix=_prefix,
            config_keys=CONFIG_KEYS,
            native=_native,
            positions_after_padding=True,
            packed_training=True,
        )
    )
