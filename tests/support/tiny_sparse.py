"""Tiny sparse encoders of random numbers, in the layouts that gemel reads; nothing here needs torch."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file, save_file

from tiny import SPECIAL_TOKENS, tiny_bert, tiny_vocabulary

TYPES = "sentence_transformers.sparse_encoder.modules"


def tiny_sparse(folder: Path, layout: str = "splade", *, pooling: str = "max", **settings: Any) -> Path:
    """`layout`: splade, plain (without modules.json), router (a table for queries) or csr."""
    tiny_bert(folder, pooling="mean", normalize=False, max_length=32)
    for name in ("modules.json", "config_sentence_transformers.json", "sentence_bert_config.json"):
        (folder / name).unlink()
    if layout != "csr":
        shutil.rmtree(folder / "1_Pooling")
        add_masked_head(folder)
    special = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), SPECIAL_TOKENS, strict=True))
    tokenizer = {"tokenizer_class": "PreTrainedTokenizerFast", "model_max_length": 32, **special}
    write(folder / "tokenizer_config.json", tokenizer)
    if layout == "plain":
        return folder
    pool = {"pooling_strategy": pooling, "activation_function": "relu", "embedding_dimension": None}
    own = {"prompts": {"query": "", "document": ""}, "default_prompt_name": None}
    write(folder / "config_sentence_transformers.json", {"model_type": "SparseEncoder", **own, **settings})
    if layout != "csr":
        modality = {"text": {"method": "forward", "method_output_name": "logits"}}
        task = {"transformer_task": "fill-mask", "modality_config": modality}
        write(folder / "sentence_bert_config.json", {**task, "module_output_name": "token_embeddings"})
    if layout == "splade":
        _modules(folder, [("Transformer", ""), ("SpladePooling", "1_SpladePooling")])
        write(folder / "1_SpladePooling" / "config.json", pool)
    elif layout == "router":
        _router(folder, pool)
    else:
        _modules(
            folder,
            [("Transformer", ""), ("Pooling", "1_Pooling"), ("SparseAutoEncoder", "2_SparseAutoEncoder")],
        )
        _auto_encoder(folder / "2_SparseAutoEncoder")
    return folder


def add_masked_head(folder: Path) -> None:
    """The head of a BertForMaskedLM, whose table is that of the embeddings; most of its numbers are below zero."""
    random, path = np.random.default_rng(5), folder / "model.safetensors"
    weights = {f"bert.{name}": value for name, value in load_file(path).items()}
    words, at = len(tiny_vocabulary()), "cls.predictions"
    shapes = {f"{at}.transform.dense.weight": (32, 32), f"{at}.transform.dense.bias": (32,)}
    shapes |= {f"{at}.transform.LayerNorm.weight": (32,), f"{at}.transform.LayerNorm.bias": (32,)}
    for name, shape in shapes.items():
        weights[name] = random.normal(0, 0.4, shape).astype(np.float32)
    weights[f"{at}.bias"] = random.normal(-1.5, 0.5, words).astype(np.float32)
    save_file(weights, path)
    config = json.loads((folder / "config.json").read_text())
    write(folder / "config.json", {**config, "architectures": ["BertForMaskedLM"]})


def _router(folder: Path, pool: dict[str, Any]) -> None:
    network, table = folder / "document_0_Transformer", folder / "query_0_SparseStaticEmbedding"
    for path in (network, table):
        path.mkdir()
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(folder / name, table / name)
    for name in ("config.json", "model.safetensors", "sentence_bert_config.json"):
        shutil.move(folder / name, network / name)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.move(folder / name, network / name)
    write(folder / "document_1_SpladePooling" / "config.json", pool)
    write(table / "config.json", {"frozen": False})
    weights = np.random.default_rng(6).random(len(tiny_vocabulary())).astype(np.float32)
    save_file({"weight": weights}, table / "model.safetensors")
    names = {
        "query": ["query_0_SparseStaticEmbedding"],
        "document": ["document_0_Transformer", "document_1_SpladePooling"],
    }
    types = {name: f"{TYPES}.{name.rpartition('_')[2]}" for side in names.values() for name in side}
    parameters = {"default_route": "document", "allow_empty_key": True, "route_mappings": {}}
    write(folder / "router_config.json", {"types": types, "structure": names, "parameters": parameters})
    _modules(folder, [("Router", "")])


def _auto_encoder(folder: Path) -> None:
    random = np.random.default_rng(7)
    config = {"input_dim": 32, "hidden_dim": 64, "k": 8, "k_aux": 16, "normalize": True, "dead_threshold": 30}
    write(folder / "config.json", config)
    weights: dict[str, Any] = {
        "pre_bias": random.normal(0, 0.1, 32).astype(np.float32),
        "latent_bias": random.normal(0, 0.1, 64).astype(np.float32),
        "decoder.linear.weight": random.normal(0, 0.2, (64, 32)).astype(np.float32),
        "stats_last_nonzero": np.zeros(64, dtype=np.int64),
    }
    save_file(weights, folder / "model.safetensors")


def _modules(folder: Path, modules: Sequence[tuple[str, str]]) -> None:
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": _type(kind)}
        for number, (kind, path) in enumerate(modules)
    ]
    write(folder / "modules.json", listed)


def _type(kind: str) -> str:
    return (
        "sentence_transformers.sentence_transformer.modules.Pooling"
        if kind == "Pooling"
        else f"{TYPES}.{kind}"
    )


def write(path: Path, content: object) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content), encoding="utf-8")
