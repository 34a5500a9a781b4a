"""Tiny checkpoints as GGUF files, as llama.cpp's converter writes them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from safetensors.numpy import load_file

from tiny import tiny_checkpoint, tiny_vocabulary

SOURCES = {
    "bert": "bert",
    "nomic-bert": "nomic_bert",
    "modern-bert": "modernbert",
    "llama": "llama",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "gemma3": "gemma3_text",
    "gemma-embedding": "gemma3_text",
}
"""Architectures of GGUF files, and what transformers calls them."""

ENCODERS = ("bert", "nomic-bert", "modern-bert")
CONTEXT = 48


def gguf_source(folder: Path, kind: str, **settings: Any) -> Path:
    """A checkpoint of transformers with what a GGUF file of this architecture can say."""
    own: dict[str, Any] = {}
    if kind.startswith("gemma"):
        # Of six layers the last is full, and there are three; the scale of scores follows from the size of a head.
        own = {"layer_types": ["sliding_attention"] * 3, "query_pre_attn_scalar": 12}
        own["use_bidirectional_attention"] = kind == "gemma-embedding"
    elif kind == "modern-bert":
        own = {"norm_bias": False}
    elif kind == "nomic-bert":
        own = {"hidden_act": "silu"}
    return tiny_checkpoint(folder, SOURCES[kind], **{**own, **settings})


def write_gguf(
    source: Path,
    path: Path,
    kind: str,
    stored: str = "F32",
    *,
    rope_freqs: np.ndarray | None = None,
    **more: Any,
) -> Path:
    """The checkpoint of `source`; `stored` is the type of matrices, `more` are settings by key."""
    config, weights = (
        json.loads((source / "config.json").read_text()),
        load_file(source / "model.safetensors"),
    )
    writer = gguf.GGUFWriter(path, kind)
    _add_sizes(writer, config)
    _add_rotary(writer, config, kind)
    if kind in ENCODERS:
        writer.add_causal_attention(False)
        writer.add_pooling_type(gguf.PoolingType.MEAN)
    if kind in ("bert", "nomic-bert"):
        add_wordpiece(writer, tiny_vocabulary())
    elif kind.startswith("gemma"):
        add_pieces(writer, len(tiny_vocabulary()))
    else:
        add_byte_bpe(writer, len(tiny_vocabulary()), "qwen2" if kind.startswith("qwen") else "gpt-2")
    for key, value in more.items():
        add_setting(writer, key, value)
    if rope_freqs is not None:
        writer.add_tensor("rope_freqs.weight", rope_freqs)
    for name, weight in _renamed(kind, config, weights).items():
        _add(writer, name, weight, stored)
    return closed(writer, path)


def closed(writer: gguf.GGUFWriter, path: Path) -> Path:
    """The file, written."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_setting(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    """Any value, by its type; a key without a dot is one of the tokenizer."""
    key = key if "." in key else f"tokenizer.ggml.{key}"
    writer.kv_data[0].pop(key, None)
    if key == "general.alignment":
        writer.add_custom_alignment(value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bytes | list):
        writer.add_array(key, value)


def add_wordpiece(writer: gguf.GGUFWriter, vocabulary: list[str]) -> None:
    """The start of a word is marked, and the rest of one is not."""
    special = [word.startswith("[") and word.endswith("]") for word in vocabulary]
    words = [
        word if alone else word[2:] if word.startswith("##") else f"\u2581{word}"
        for word, alone in zip(vocabulary, special, strict=True)
    ]
    writer.add_tokenizer_model("bert")
    writer.add_token_list(words)
    writer.add_token_types([3 if alone else 1 for alone in special])
    writer.add_token_type_count(2)
    writer.add_bos_token_id(words.index("[CLS]"))
    writer.add_sep_token_id(words.index("[SEP]"))
    writer.add_unk_token_id(words.index("[UNK]"))
    writer.add_pad_token_id(words.index("[PAD]"))


def add_byte_bpe(writer: gguf.GGUFWriter, size: int, pre: str) -> None:
    words = [*"abcdefgh", "\u0120", "ab", "<eos>"]
    _add_words(writer, "gpt2", words, size)
    writer.add_tokenizer_pre(pre)
    writer.add_token_merges(["a b"])


def add_pieces(writer: gguf.GGUFWriter, size: int) -> None:
    words = ["<unk>", *"abcdefgh", "\u2581", "ab", "<eos>"]
    _add_words(writer, "llama", words, size)
    writer.add_token_scores([0.0] * 10 + [-1.0] + [0.0] * (size - 11))
    writer.add_unk_token_id(0)
    writer.add_add_space_prefix(False)


def _add_words(writer: gguf.GGUFWriter, model: str, words: list[str], size: int) -> None:
    writer.add_tokenizer_model(model)
    every = words + [f"<{number}>" for number in range(size - len(words))]
    writer.add_token_list(every)
    writer.add_token_types([3 if word == "<eos>" else 1 for word in every])
    writer.add_bos_token_id(every.index("a"))
    writer.add_eos_token_id(every.index("<eos>"))


def _add_sizes(writer: gguf.GGUFWriter, config: dict[str, Any]) -> None:
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if "rms_norm_eps" in config:
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        writer.add_head_count_kv(config["num_key_value_heads"])
        head = config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"]
        writer.add_key_length(head)
        writer.add_value_length(head)
    else:
        writer.add_layer_norm_eps(config.get("layer_norm_eps") or config["norm_eps"])


def _add_rotary(writer: gguf.GGUFWriter, config: dict[str, Any], kind: str) -> None:
    rotary = config.get("rope_parameters") or {}
    if "full_attention" in rotary:
        writer.add_rope_freq_base(rotary["full_attention"]["rope_theta"])
        writer.add_float32(f"{kind}.rope.freq_base_swa", rotary["sliding_attention"]["rope_theta"])
        writer.add_sliding_window(config.get("sliding_window") or config["local_attention"])
    elif rotary:
        writer.add_rope_freq_base(rotary["rope_theta"])
    if rotary.get("rope_type") in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rotary["rope_type"]))
        writer.add_rope_scaling_factor(rotary["factor"])
        writer.add_rope_scaling_orig_ctx_len(rotary.get("original_max_position_embeddings", CONTEXT))


def _renamed(kind: str, config: dict[str, Any], weights: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The arrays by their names in GGUF files, changed as the converter changes them."""
    names = gguf.get_tensor_name_map(
        {each: number for number, each in gguf.MODEL_ARCH_NAMES.items()}[kind], config["num_hidden_layers"]
    )
    result = {}
    for name, weight in weights.items():
        if "pooler" not in name:
            ends = (".weight", ".bias")
            own = names.get_name(name, ends) or names.get_name(f"model.{name}", ends)
            assert own is not None, name
            result[own] = _changed(kind, config, name, weight)
    return result


def _changed(kind: str, config: dict[str, Any], name: str, weight: np.ndarray) -> np.ndarray:
    if kind == "llama" and (match := re.search(r"self_attn\.([qk])_proj", name)):
        heads = config["num_attention_heads" if match[1] == "q" else "num_key_value_heads"]
        halves = weight.reshape(heads, 2, len(weight) // heads // 2, -1)
        return halves.swapaxes(1, 2).reshape(weight.shape)
    return weight + 1 if kind.startswith("gemma") and name.endswith("norm.weight") else weight


def _add(writer: gguf.GGUFWriter, name: str, weight: np.ndarray, stored: str) -> None:
    weight = np.ascontiguousarray(weight, dtype=np.float32)
    small = weight.ndim == 2 and name.endswith("weight") and "norm" not in name
    kind = gguf.GGMLQuantizationType[stored if small else "F32"]
    writer.add_tensor(name, gguf.quants.quantize(weight, kind), raw_dtype=kind)
