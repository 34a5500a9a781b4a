"""Models of a published shape with random weights, for measuring speed where the real weights cannot be had.

    python benchmarks/encode.py --shape qwen3-0.6b --only gemel,gemel-int8,st-torch --texts 128 --documents 16

Speed does not depend on the values of weights. The tokenizer is that of all-MiniLM-L6-v2, so that texts have as many
tokens as in the other runs. Weights are float32, as all systems compute in it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

_DECODER = {
    "attention_bias": False,
    "hidden_act": "silu",
    "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1_000_000,
    "tie_word_embeddings": True,
    "use_sliding_window": False,
}
SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-0.6b": {
        "architectures": ["Qwen3Model"],
        "model_type": "qwen3",
        **_DECODER,
        "head_dim": 128,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "num_hidden_layers": 28,
        "num_key_value_heads": 8,
        "vocab_size": 151669,
    },
    "bert-base": {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": 768,
        "intermediate_size": 3072,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": 512,
        "num_attention_heads": 12,
        "num_hidden_layers": 12,
        "pad_token_id": 0,
        "type_vocab_size": 2,
        "vocab_size": 30522,
    },
}


def random_model(shape: str, folder: Path, tokenizer: Path) -> Path:
    """The folder of a sentence-transformers model of this shape; written once."""
    if (folder / "modules.json").is_file():
        return folder
    from safetensors.numpy import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = SHAPES[shape]
    decoder = "head_dim" in config
    weights = _decoder(config) if decoder else _bert(config)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())
    pooling = "lasttoken" if decoder else "mean"
    modules = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    for _, path in modules[1:]:
        (folder / path).mkdir(exist_ok=True)
    _write(folder / "config.json", {**config, "torch_dtype": "float32"})
    _write(
        folder / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]"}
    )
    _write(folder / "sentence_bert_config.json", {"max_seq_length": 256, "do_lower_case": False})
    _write(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": config["hidden_size"], "pooling_mode": pooling},
    )
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(modules)
    ]
    _write(folder / "modules.json", listed)
    return folder


def _decoder(config: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    d, f, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head, config["num_key_value_heads"] * head
    weights = {
        "embed_tokens.weight": _matrix(rng, config["vocab_size"], d),
        "norm.weight": np.ones(d, np.float32),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"layers.{layer}"
        for name, outputs, inputs in (
            ("self_attn.q_proj", q, d), ("self_attn.k_proj", kv, d), ("self_attn.v_proj", kv, d),
            ("self_attn.o_proj", d, q), ("mlp.gate_proj", f, d), ("mlp.up_proj", f, d), ("mlp.down_proj", d, f),
        ):  # fmt: skip
            weights[f"{at}.{name}.weight"] = _matrix(rng, outputs, inputs)
        for name, size in (
            ("input_layernorm", d), ("post_attention_layernorm", d), ("self_attn.q_norm", head),
            ("self_attn.k_norm", head),
        ):  # fmt: skip
            weights[f"{at}.{name}.weight"] = np.ones(size, np.float32)
    return weights


def _bert(config: dict[str, Any]) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    d, f = config["hidden_size"], config["intermediate_size"]
    weights: dict[str, np.ndarray] = {}

    def norm(name: str) -> None:
        weights[f"{name}.weight"], weights[f"{name}.bias"] = np.ones(d, np.float32), np.zeros(d, np.float32)

    for name, rows in (
        ("word", config["vocab_size"]), ("position", config["max_position_embeddings"]), ("token_type", 2),
    ):  # fmt: skip
        weights[f"embeddings.{name}_embeddings.weight"] = _matrix(rng, rows, d)
    norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        at = f"encoder.layer.{layer}"
        for name, outputs, inputs in (
            ("attention.self.query", d, d), ("attention.self.key", d, d), ("attention.self.value", d, d),
            ("attention.output.dense", d, d), ("intermediate.dense", f, d), ("output.dense", d, f),
        ):  # fmt: skip
            weights[f"{at}.{name}.weight"] = _matrix(rng, outputs, inputs)
            weights[f"{at}.{name}.bias"] = np.zeros(outputs, np.float32)
        norm(f"{at}.attention.output.LayerNorm")
        norm(f"{at}.output.LayerNorm")
    return weights


def _matrix(rng: np.random.Generator, outputs: int, inputs: int) -> np.ndarray:
    return rng.standard_normal((outputs, inputs), dtype=np.float32) * np.float32(inputs**-0.5)


def _write(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
