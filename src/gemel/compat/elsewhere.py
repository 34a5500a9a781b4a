"""What sentence-transformers has and `gemel.compat` has not, and what to write instead."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemel.errors import InputError

LOADING = {
    "modules": "gemel reads finished checkpoints. A new one comes from gemel.train(bert, data, pooling=...)",
    "trust_remote_code": "gemel runs no code of a checkpoint. Leave it out",
    "cache_folder": "Set the environment variable GEMEL_CACHE",
    "token": "Set the environment variable HF_TOKEN",
    "use_auth_token": "Set the environment variable HF_TOKEN",
    "model_kwargs": "Precision and engine: gemel.load(name, precision='int8', engine=...)",
    "processor_kwargs": "The tokenizer is the checkpoint's. Its length: max_seq_length",
    "tokenizer_kwargs": "The tokenizer is the checkpoint's. Its length: max_seq_length",
    "config_kwargs": "The configuration is the checkpoint's",
    "model_card_data": "gemel.train writes a model card",
}
"""Arguments of the class."""

_THREADS = "One process uses all cores: gemel.load(name).encode(texts, threads=...)"
_TRAIN = "Train with gemel.train(model, data, objective=..., out=...): docs/training.md"
_HUB = "Write a folder with save(path) and upload that with the package huggingface_hub"
_TOKENS = (
    "Tokens of a text: gemel.load(name).tokenizer.pieces(text); their number: encode_report(texts).tokens"
)
_NETWORK = "There is no torch module. Hidden states: gemel.load(name).tokens(texts)"

MEMBERS = {
    "pool": _THREADS,
    "chunk_size": _THREADS,
    "start_multi_process_pool": _THREADS,
    "stop_multi_process_pool": _THREADS,
    "encode_multi_process": _THREADS,
    "fit": _TRAIN,
    "train": _TRAIN,
    "old_fit": _TRAIN,
    "gradient_checkpointing_enable": _TRAIN,
    "add_adapter": _TRAIN,
    "evaluate": "Score a model with gemel.evaluate(model, task=..., data=...): docs/evaluation.md",
    "push_to_hub": _HUB,
    "save_to_hub": _HUB,
    "tokenize": _TOKENS,
    "preprocess": _TOKENS,
    "tokenizer": _TOKENS,
    "processor": _TOKENS,
    "forward": _NETWORK,
    "transformers_model": _NETWORK,
    "modules": _NETWORK,
    "parameters": _NETWORK,
    "state_dict": _NETWORK,
    "half": "Smaller numbers: gemel.load(name, precision='int8'), or encode(texts, output='float16')",
    "bfloat16": "Smaller numbers: gemel.load(name, precision='int8'), or encode(texts, output='float16')",
    "quantize": "Smaller numbers: gemel.load(name, precision='int8')",
    "compile": "The native engine is compiled. Leave it out",
    "cuda": "Load for a device: SentenceTransformer(name, device='cuda')",
}
"""Members of the class, and arguments of its methods."""


def refuse(given: Mapping[str, Any], known: Mapping[str, str]) -> None:
    """An error for the first argument that was given a value; those left at None or False ask for nothing."""
    for name, value in given.items():
        if name not in known:
            raise InputError(f"unknown argument {name!r}. What gemel.compat takes: docs/migrating.md")
        if value is not None and value is not False:
            raise InputError(f"{name} is not supported by gemel.compat. {known[name]}")
