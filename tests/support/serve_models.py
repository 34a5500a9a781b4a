"""Tiny models for the server's tests, made without torch: a cross-encoder, and a model with a classification head."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file
from tests.encoder.test_classification_head import head

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.checkpoint.write import write_checkpoint
from tiny import SPECIAL_TOKENS, tiny_bert


def light_cross(folder: Path, *, labels: int = 1) -> gemel.CrossModel:
    """A BERT of random numbers that scores pairs, or has `labels` classes."""
    tiny_bert(folder)
    for name in ("modules.json", "sentence_bert_config.json", "config_sentence_transformers.json"):
        (folder / name).unlink()
    config = json.loads((folder / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"]}
    config |= {"id2label": {str(n): f"LABEL_{n}" for n in range(labels)}}
    (folder / "config.json").write_text(json.dumps(config))
    random, width = np.random.default_rng(3), config["hidden_size"]
    weights = {f"bert.{name}": weight for name, weight in load_file(folder / "model.safetensors").items()}
    for name, outputs in (("bert.pooler.dense", width), ("classifier", labels)):
        weights[f"{name}.weight"] = random.normal(0, width**-0.5, (outputs, width)).astype(np.float32)
        weights[f"{name}.bias"] = random.normal(0, 0.1, outputs).astype(np.float32)
    save_file(weights, folder / "model.safetensors")
    special_tokens = dict(
        zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL_TOKENS, strict=True)
    )
    names = ["input_ids", "token_type_ids", "attention_mask"]
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 48,
        "model_input_names": names,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps({**settings, **special_tokens}))
    return gemel.load_cross(folder)


def related_model(folder: Path) -> gemel.Model:
    """A model with a classification head: entailment, neutral and contradiction."""
    plain = read_checkpoint(tiny_bert(folder / "plain"))
    return gemel.load(write_checkpoint(plain, folder / "kept", relation=head(bias=True)))
