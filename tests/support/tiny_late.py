"""Tiny random models for late interaction in the three layouts that gemel reads; no torch is needed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tiny import SPECIAL_TOKENS, tiny_bert, tiny_vocabulary

IDENTITY = "torch.nn.modules.linear.Identity"
PYLATE = {
    "model_type": "ColBERT",
    "prompts": {"query": "", "document": ""},
    "default_prompt_name": None,
    "similarity_fn_name": "MaxSim",
    "query_prefix": "[Q] ",
    "document_prefix": "[D] ",
    "query_length": 12,
    "document_length": 20,
    "attend_to_expansion_tokens": False,
    "skiplist_words": ["!", ",", "."],
    "do_query_expansion": True,
}


def write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2), encoding="utf-8")


def tiny_late(folder: Path, *, dim: int = 16, seed: int = 0, **settings: Any) -> Path:
    """As PyLate saves a model; `settings` go into config_sentence_transformers.json."""
    _network(folder, seed)
    write(
        folder / "config_sentence_transformers.json",
        {key: value for key, value in {**PYLATE, **settings}.items() if key != "model_type" or value},
    )
    write_modules(
        folder, [("sentence_transformers.models.Transformer", ""), ("pylate.models.Dense.Dense", "1_Dense")]
    )
    weight = np.random.default_rng(seed + 1).normal(0, 32**-0.5, (dim, 32)).astype(np.float32)
    write_dense(folder / "1_Dense", {"linear.weight": weight})
    return folder


def stanford_of(pylate: Path, folder: Path, **metadata: Any) -> Path:
    """The same model in the layout of Stanford's ColBERT."""
    shutil.copytree(pylate, folder)
    projection = load_file(folder / "1_Dense" / "model.safetensors")
    shutil.rmtree(folder / "1_Dense")
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    network = {f"bert.{name}": array for name, array in load_file(folder / "model.safetensors").items()}
    save_file({**network, **projection}, folder / "model.safetensors")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    write(folder / "config.json", {**config, "architectures": ["HF_ColBERT"]})
    own = {"query_token_id": "[unused0]", "doc_token_id": "[unused1]", "query_maxlen": 12, "doc_maxlen": 20}
    write(folder / "artifact.metadata", {**own, "attend_to_mask_tokens": False, **metadata})
    return folder


def write_modules(folder: Path, modules: list[tuple[str, str]]) -> None:
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": kind}
        for number, (kind, path) in enumerate(modules)
    ]
    write(folder / "modules.json", listed)


def write_dense(folder: Path, tensors: Mapping[str, Any], **config: Any) -> None:
    folder.mkdir(exist_ok=True)
    outputs, inputs = tensors["linear.weight"].shape
    sizes = {"in_features": inputs, "out_features": outputs, "bias": "linear.bias" in tensors}
    write(folder / "config.json", {**sizes, "activation_function": IDENTITY, **config})
    save_file(dict(tensors), folder / "model.safetensors")


def _network(folder: Path, seed: int) -> None:
    vocabulary = [*tiny_vocabulary(), "[MASK]", "[Q] ", "[D] ", "[unused0]", "[unused1]"]
    tiny_bert(folder, seed=seed, vocabulary=vocabulary)
    shutil.rmtree(folder / "1_Pooling")
    shutil.rmtree(folder / "2_Normalize")
    special = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL_TOKENS, strict=True))
    write(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "mask_token": "[MASK]",
            "model_max_length": 64,
            **special,
        },
    )
