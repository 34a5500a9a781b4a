"""Tiny checkpoints as the code of their authors (`trust_remote_code`) wrote them: other names for the same network."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from tiny import tiny_checkpoint

Weights = dict[str, NDArray[np.float32]]
Settings = dict[str, Any]
QKV = ("q_proj", "k_proj", "v_proj")


def respell(source: Path, target: Path) -> Path:
    """The checkpoint `source`, which transformers wrote, in the spelling of its own code."""
    shutil.copytree(source, target)
    config = json.loads((source / "config.json").read_text())
    config, names = SPELLINGS[config["model_type"]](config)
    (target / "config.json").write_text(json.dumps(config))
    weights = load_file(source / "model.safetensors")
    save_file(renamed(weights, names), target / "model.safetensors", metadata={"format": "pt"})
    return target


def renamed(weights: Weights, names: dict[str, str]) -> Weights:
    """Names are replaced by `names`; weights that get the same one are put together, in the order of `names`."""
    order = [pattern for pattern in names if "_proj" in pattern]
    parts: dict[str, list[tuple[int, NDArray[np.float32]]]] = {}
    for name, weight in weights.items():
        new = name
        for pattern, replacement in names.items():
            new = re.sub(pattern, replacement, new)
        rank = next((n for n, pattern in enumerate(order) if re.search(pattern, name)), 0)
        parts.setdefault(new, []).append((rank, weight))
    return {
        name: np.concatenate([weight for _, weight in sorted(found, key=lambda part: part[0])])
        for name, found in parts.items()
    }


def _nomic(config: Settings) -> tuple[Settings, dict[str, str]]:
    """As nomic-embed-text-v1 was published."""
    spelled = {
        "activation_function": "swiglu",
        "architectures": ["NomicBertModel"],
        "attn_pdrop": 0.0,
        "auto_map": {"AutoModel": "nomic-ai/nomic-bert-2048--modeling_hf_nomic_bert.NomicBertModel"},
        "bos_token_id": None,
        "causal": False,
        "dense_seq_output": True,
        "embd_pdrop": 0.0,
        "eos_token_id": None,
        "fused_bias_fc": True,
        "fused_dropout_add_ln": True,
        "initializer_range": 0.02,
        "layer_norm_epsilon": config["layer_norm_eps"],
        "max_trained_positions": 2048,
        "mlp_fc1_bias": False,
        "mlp_fc2_bias": False,
        "model_type": "nomic_bert",
        "n_embd": config["hidden_size"],
        "n_head": config["num_attention_heads"],
        "n_inner": config["intermediate_size"],
        "n_layer": config["num_hidden_layers"],
        "n_positions": 128,
        "pad_vocab_size_multiple": 64,
        "parallel_block": False,
        "parallel_block_tied_norm": False,
        "prenorm": False,
        "qkv_proj_bias": False,
        "reorder_and_upcast_attn": False,
        "resid_pdrop": 0.0,
        "rotary_emb_base": config["rope_parameters"]["rope_theta"],
        "rotary_emb_fraction": 1.0,
        "rotary_emb_interleaved": False,
        "rotary_emb_scale_base": None,
        "rotary_scaling_factor": None,
        "scale_attn_by_inverse_layer_idx": False,
        "scale_attn_weights": True,
        "summary_first_dropout": 0.1,
        "summary_proj_to_labels": True,
        "summary_type": "cls_index",
        "summary_use_proj": True,
        "torch_dtype": "float32",
        "transformers_version": "4.34.0",
        "type_vocab_size": config["type_vocab_size"],
        "use_cache": True,
        "use_flash_attn": True,
        "use_rms_norm": False,
        "use_xentropy": True,
        "vocab_size": config["vocab_size"],
    }
    return spelled, {
        r"^layers\.": "encoder.layers.",
        r"embeddings\.LayerNorm": "emb_ln",
        **{rf"self_attn\.{name}": "attn.Wqkv" for name in QKV},
        r"self_attn\.o_proj": "attn.out_proj",
        r"mlp\.up_proj": "mlp.fc11",
        r"mlp\.gate_proj": "mlp.fc12",
        r"mlp\.down_proj": "mlp.fc2",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }


def _gte(config: Settings) -> tuple[Settings, dict[str, str]]:
    """As gte-multilingual-base was published, without the scaling of its rotary positions."""
    kept = {
        key: value for key, value in config.items() if key not in ("rope_parameters", "tie_word_embeddings")
    }
    spelled = {
        **kept,
        "architectures": [name.replace("Gte", "New") for name in config["architectures"]],
        "auto_map": {"AutoModel": "Alibaba-NLP/new-impl--modeling.NewModel"},
        "layer_norm_type": "layer_norm",
        "logn_attention_clip1": False,
        "logn_attention_scale": False,
        "model_type": "new",
        "pack_qkv": True,
        "position_embedding_type": "rope",
        "rope_scaling": None,
        "rope_theta": config["rope_parameters"]["rope_theta"],
        "unpad_inputs": False,
        "use_memory_efficient_attention": False,
    }
    return spelled, {
        r"^gte\.": "new.",
        r"(^|(?<=\.))layers\.": "encoder.layer.",
        **{rf"self_attn\.{name}": "attention.qkv_proj" for name in QKV},
        r"self_attn\.o_proj": "attention.o_proj",
        r"mlp\.(up_proj)": "mlp.up_gate_proj",
        r"mlp\.(gate_proj)": "mlp.up_gate_proj",
        "post_attention_layernorm": "attn_ln",
        "post_mlp_layernorm": "mlp_ln",
    }


TASKS = ["retrieval.query", "retrieval.passage", "text-matching"]
LORA_ALPHA, LORA_RANK = 3, 2


def _jina(config: Settings) -> tuple[Settings, dict[str, str]]:
    """As jina-embeddings-v3 was published; its adapters are added by `add_adapters`."""
    dropped = ("rope_parameters", "tie_word_embeddings")
    spelled = {
        **{key: value for key, value in config.items() if key not in dropped},
        "architectures": ["XLMRobertaModel"],
        "auto_map": {"AutoModel": "jinaai/xlm-roberta-flash-implementation--modeling_lora.XLMRobertaLoRA"},
        "emb_pooler": None,
        "load_trained_adapters": True,
        "lora_adaptations": TASKS,
        "lora_alpha": LORA_ALPHA,
        "lora_dropout_p": 0.0,
        "lora_main_params_trainable": False,
        "lora_rank": LORA_RANK,
        "matryoshka_dimensions": [8, 16, 32],
        "model_type": "xlm-roberta",
        "output_past": True,
        "position_embedding_type": "rotary",
        "rotary_emb_base": config["rope_parameters"]["rope_theta"],
        "task_instructions": dict.fromkeys(TASKS, "some words: "),
        "truncate_dim": None,
        "use_flash_attn": True,
    }
    return spelled, {
        r"^layers\.": "encoder.layers.",
        r"embeddings\.LayerNorm": "emb_ln",
        **{rf"self_attn\.{name}": "mixer.Wqkv" for name in QKV},
        r"self_attn\.o_proj": "mixer.out_proj",
        "post_attention_layernorm": "norm1",
        "post_mlp_layernorm": "norm2",
    }


def add_adapters(weights: Weights) -> tuple[Weights, dict[str, Weights]]:
    """The weights of `_jina` with an adapter per task, and for each task the changes, by the names of weights."""
    random = np.random.default_rng(1)
    stored: Weights = {}
    changes: dict[str, Weights] = {task: {} for task in TASKS}
    for name, weight in weights.items():
        if weight.ndim != 2:
            stored[f"roberta.{name}"] = weight
            continue
        rows, columns = weight.shape
        start, table = f"roberta.{name.removesuffix('.weight')}", "embeddings" in name
        shapes = [(rows, LORA_RANK), (LORA_RANK, columns)]
        left, right = (random.normal(0, 0.15, (len(TASKS), *shape)).astype(np.float32) for shape in shapes)
        stored[f"{start}.parametrizations.weight.original"] = weight
        stored[f"{start}.parametrizations.weight.0.lora_A"] = left if table else right
        stored[f"{start}.parametrizations.weight.0.lora_B"] = right if table else left
        for number, task in enumerate(TASKS):
            changes[task][name] = left[number] @ right[number] * np.float32(LORA_ALPHA / LORA_RANK)
    return stored, changes


SPELLINGS: dict[str, Callable[[Settings], tuple[Settings, dict[str, str]]]] = {
    "gte": _gte,
    "jina_embeddings_v3": _jina,
    "nomic_bert": _nomic,
}
"""For each model type of transformers: config.json, and patterns of names with their replacements."""


def tiny_jina(parent: Path) -> Path:
    """A folder `remote` in the layout of jina-embeddings-v3, with an adapter and perhaps a prompt per task.

    Beside it are `plain`, without adapters, and `native`, as transformers writes it.
    """
    plain = respell(tiny_checkpoint(parent / "native", "jina_embeddings_v3"), parent / "plain")
    remote = shutil.copytree(plain, parent / "remote")
    stored, _ = add_adapters(load_file(plain / "model.safetensors"))
    save_file(stored, remote / "model.safetensors", metadata={"format": "pt"})
    modules = json.loads((remote / "modules.json").read_text())
    modules[0]["type"] = "custom_st.Transformer"
    (remote / "modules.json").write_text(json.dumps(modules))
    prompts = {"prompts": {"retrieval.query": "how do i ", "text-matching": ""}}
    (remote / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return remote
