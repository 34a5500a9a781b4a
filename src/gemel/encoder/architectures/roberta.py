"""RoBERTa (arXiv 1907.11692), XLM-RoBERTa and CamemBERT: BERT whose positions start after the padding id."""

from __future__ import annotations

from gemel.checkpoint.architecture import (
    ARCHITECTURES,
    Architecture,
    Config,
    HeadLayout,
    MaskedLayout,
)
from gemel.encoder.architectures.bert import CONFIG_KEYS, read_bert_like
from gemel.encoder.network import Network
from gemel.encoder.weights import CheckpointWeights, epsilon_of, token_id


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


def masked(config: Config) -> MaskedLayout:
    """The head of RoBERTa and of MPNet; its activation does not depend on config.json."""
    names = "lm_head.dense", "lm_head.layer_norm", "lm_head.decoder.weight", "lm_head.bias"
    return MaskedLayout(*names, "gelu", epsilon_of(config))


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
            masked=masked,
        )
    )
