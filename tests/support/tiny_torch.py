"""Tiny random checkpoints of architectures that gemel has no file for: the torch engine runs them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tiny import _write_modules, randomize, tiny_tokenizer

_SMALL = {"vocab_size": 212, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_BERT = {**_SMALL, "intermediate_size": 64, "max_position_embeddings": 256}
_CAUSAL = {**_BERT, "num_key_value_heads": 2, "head_dim": 8, "pad_token_id": 0}
_T5 = {"vocab_size": 212, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
_DYNAMIC = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10_000.0}
_LONG = {"rope_type": "longrope", "rope_theta": 10_000.0, "original_max_position_embeddings": 64}
_LONG |= {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4}

OTHERS: dict[str, tuple[str, dict[str, Any]]] = {
    "big_bird": ("BigBirdConfig", {**_BERT, "block_size": 4, "num_random_blocks": 1}),
    "clip": ("CLIPConfig", {"text_config": {**_BERT}, "vision_config": {**_SMALL, "image_size": 32}}),
    "megatron-bert": ("MegatronBertConfig", _BERT),
    "fnet": ("FNetConfig", _BERT),
    "gpt2": ("GPT2Config", {"vocab_size": 212, "n_embd": 32, "n_layer": 2, "n_head": 4}),
    "llama-dynamic": ("LlamaConfig", {**_CAUSAL, "max_position_embeddings": 64, "rope_parameters": _DYNAMIC}),
    "longformer": ("LongformerConfig", {**_BERT, "attention_window": 8, "pad_token_id": 1}),
    "mt5": ("MT5Config", _T5),
    "phi3-long": (
        "Phi3Config",
        {**_CAUSAL, "original_max_position_embeddings": 64, "rope_parameters": _LONG},
    ),
    "qwen3": ("Qwen3Config", _CAUSAL),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        {**_CAUSAL, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    ),
    "reformer": (
        "ReformerConfig",
        {
            "vocab_size": 212,
            "hidden_size": 32,
            "num_attention_heads": 2,
            "attention_head_size": 16,
            "feed_forward_size": 64,
            "axial_pos_embds": False,
            "max_position_embeddings": 256,
        },
    ),
    "t5": ("T5Config", _T5),
    "umt5": ("UMT5Config", _T5),
    "xlnet": ("XLNetConfig", {"vocab_size": 212, "d_model": 32, "n_layer": 2, "n_head": 4, "d_inner": 64}),
}


def tiny_other(folder: Path, name: str, *, auto: str = "AutoModel", seed: int = 0, **settings: Any) -> Path:
    """One of `OTHERS`, saved from the class that `auto` of transformers takes, with a tokenizer."""
    import transformers

    kind, own = OTHERS[name]
    config = getattr(transformers, kind)(**{**own, **settings})
    model = getattr(transformers, auto).from_config(config)
    randomize(model, seed)
    model.save_pretrained(folder)
    tiny_tokenizer(folder / "tokenizer.json")
    return folder


def tiny_sentence_encoder(folder: Path, name: str, **settings: Any) -> Path:
    """The same in the layout of sentence-transformers, averaged and normalized."""
    tiny_other(folder, name, **settings)
    _write_modules(folder, 32, pooling="mean", dense=None, normalize=True, seed=0)
    return folder


def change_config(folder: Path, **values: Any) -> None:
    """Other values in config.json."""
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))
