"""Tiny random checkpoints in the sentence-transformers layout: milliseconds to write, nothing to download.

`tiny_bert` needs numpy, safetensors and tokenizers only. `tiny_checkpoint` makes any architecture, through
transformers. Norms and biases are random too, so that a missing one is noticed.
"""

from __future__ import annotations

import json
import string
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import save_file

SPECIAL_TOKENS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
TEXT = (
    "the a man woman cat dog is was are playing sleeping running guitar flute street sofa rain stock market "
    "fell rose sharply today how do i reset my password refund not received hello world and in on of to"
)
POOLINGS = {
    "cls": "pooling_mode_cls_token",
    "mean": "pooling_mode_mean_tokens",
    "max": "pooling_mode_max_tokens",
    "mean-sqrt-len": "pooling_mode_mean_sqrt_len_tokens",
    "weighted-mean": "pooling_mode_weightedmean_tokens",
    "last": "pooling_mode_lasttoken",
}


def tiny_vocabulary() -> list[str]:
    """Special tokens, printable ASCII characters alone and inside a word, some letters beyond ASCII, some words."""
    characters = sorted(set(string.printable) - set(string.whitespace) - set(string.ascii_uppercase))
    characters += list("éüñß日本語שלוםمرحبا😀")
    characters = list(dict.fromkeys(characters))
    words = [word for word in TEXT.split() if word not in characters]
    return [*SPECIAL_TOKENS, *characters, *(f"##{character}" for character in characters), *words, "##ing"]


def tiny_tokenizer(path: Path, vocabulary: Sequence[str] | None = None) -> None:
    """A lower-casing WordPiece tokenizer that puts [CLS] before a text and [SEP] after it."""
    from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, processors
    from tokenizers.models import WordPiece

    ids = {piece: number for number, piece in enumerate(vocabulary or tiny_vocabulary())}
    tokenizer = Tokenizer(WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True, strip_accents=False)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])],
    )
    tokenizer.add_special_tokens(SPECIAL_TOKENS)
    tokenizer.save(str(path))


def tiny_bert(
    folder: Path,
    *,
    seed: int = 0,
    layers: int = 2,
    width: int = 32,
    heads: int = 4,
    pooling: str | Sequence[str] = "mean",
    dense: int | None = None,
    normalize: bool = True,
    prompts: Mapping[str, str] | None = None,
    max_length: int | None = 64,
    max_positions: int = 128,
    vocabulary: Sequence[str] | None = None,
    similarity: str | None = "cosine",
) -> Path:
    """A BERT of random numbers; `dense` adds a Tanh layer of that many outputs. Returns `folder`."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = list(vocabulary or tiny_vocabulary())
    config = {
        "architectures": ["BertModel"],
        "model_type": "bert",
        "hidden_act": "gelu",
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": max_positions,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "pad_token_id": 0,
        "position_embedding_type": "absolute",
        "type_vocab_size": 2,
        "vocab_size": len(vocabulary),
    }
    _write_json(folder / "config.json", config)
    save_file(_bert_weights(config, seed), folder / "model.safetensors")
    tiny_tokenizer(folder / "tokenizer.json", vocabulary)
    _write_modules(folder, width, pooling=pooling, dense=dense, normalize=normalize, seed=seed)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": max_length, "do_lower_case": False})
    _write_json(
        folder / "config_sentence_transformers.json",
        {"prompts": dict(prompts or {}), "default_prompt_name": None, "similarity_fn_name": similarity},
    )
    return folder


def _bert_weights(config: Mapping[str, Any], seed: int) -> dict[str, NDArray[np.float32]]:
    random = np.random.default_rng(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    weights: dict[str, NDArray[np.float32]] = {}

    def table(name: str, rows: int) -> None:
        weights[f"{name}.weight"] = random.normal(0, 0.5, (rows, width)).astype(np.float32)

    def linear(name: str, outputs: int, inputs: int) -> None:
        weights[f"{name}.weight"] = random.normal(0, inputs**-0.5, (outputs, inputs)).astype(np.float32)
        weights[f"{name}.bias"] = random.normal(0, 0.1, outputs).astype(np.float32)

    def norm(name: str) -> None:
        weights[f"{name}.weight"] = random.normal(1, 0.1, width).astype(np.float32)
        weights[f"{name}.bias"] = random.normal(0, 0.1, width).astype(np.float32)

    table("embeddings.word_embeddings", config["vocab_size"])
    table("embeddings.position_embeddings", config["max_position_embeddings"])
    table("embeddings.token_type_embeddings", config["type_vocab_size"])
    norm("embeddings.LayerNorm")
    for layer in range(config["num_hidden_layers"]):
        start = f"encoder.layer.{layer}"
        for role in ("query", "key", "value"):
            linear(f"{start}.attention.self.{role}", width, width)
        linear(f"{start}.attention.output.dense", width, width)
        norm(f"{start}.attention.output.LayerNorm")
        linear(f"{start}.intermediate.dense", inner, width)
        linear(f"{start}.output.dense", width, inner)
        norm(f"{start}.output.LayerNorm")
    return weights


def _write_modules(
    folder: Path, width: int, *, pooling: str | Sequence[str], dense: int | None, normalize: bool, seed: int
) -> None:
    """modules.json and the folders of the steps after the transformer."""
    modes = [pooling] if isinstance(pooling, str) else list(pooling)
    pooled = width * len(modes)
    modules = [("Transformer", ""), ("Pooling", "1_Pooling")]
    flags = {key: mode in modes for mode, key in POOLINGS.items()}
    (folder / "1_Pooling").mkdir(exist_ok=True)
    _write_json(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": width, **flags})
    if dense is not None:
        module_folder = f"{len(modules)}_Dense"
        modules.append(("Dense", module_folder))
        (folder / module_folder).mkdir(exist_ok=True)
        function = "torch.nn.modules.activation.Tanh"
        _write_json(
            folder / module_folder / "config.json",
            {"in_features": pooled, "out_features": dense, "bias": True, "activation_function": function},
        )
        random = np.random.default_rng(seed + 1)
        layer = {
            "linear.weight": random.normal(0, pooled**-0.5, (dense, pooled)).astype(np.float32),
            "linear.bias": random.normal(0, 0.1, dense).astype(np.float32),
        }
        save_file(layer, folder / module_folder / "model.safetensors")
    if normalize:
        modules.append(("Normalize", f"{len(modules)}_Normalize"))
        (folder / modules[-1][1]).mkdir(exist_ok=True)
    listed = [
        {"idx": number, "name": str(number), "path": path, "type": f"sentence_transformers.models.{kind}"}
        for number, (kind, path) in enumerate(modules)
    ]
    _write_json(folder / "modules.json", listed)


def _write_json(path: Path, content: object) -> None:
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")


# For each HF model_type: the config class of transformers and settings of its tiny model.
_SMALL = {"vocab_size": 212, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
_BERT = {**_SMALL, "intermediate_size": 64, "max_position_embeddings": 64}
_MARK_IDS = {"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 2, "eos_token_id": 3, "sep_token_id": 3}
_DECODER = {**_BERT, "num_key_value_heads": 2, "pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
_DISENTANGLED = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"]}
_T5 = {"vocab_size": 212, "d_model": 32, "d_kv": 12, "d_ff": 64, "num_layers": 2, "num_heads": 4}
ARCHITECTURES: dict[str, tuple[str, dict[str, Any]]] = {
    "albert": (
        "AlbertConfig",
        {**_BERT, "num_hidden_layers": 4, "embedding_size": 16, "num_hidden_groups": 2},
    ),
    "bert": ("BertConfig", {**_BERT}),
    "camembert": ("CamembertConfig", {**_BERT, "pad_token_id": 1, "hidden_act": "gelu_new"}),
    "deberta": ("DebertaConfig", {**_BERT, **_DISENTANGLED, "type_vocab_size": 2}),
    "deberta-v2": (
        "DebertaV2Config",
        # As version 3: 8 buckets for distances of 1, 2 and 3, then logarithmically up to 63.
        {
            **_BERT,
            **_DISENTANGLED,
            "position_buckets": 8,
            "share_att_key": True,
            "norm_rel_ebd": "layer_norm",
            "position_biased_input": False,
        },
    ),
    "distilbert": (
        "DistilBertConfig",
        {
            "vocab_size": 212,
            "dim": 32,
            "hidden_dim": 64,
            "n_layers": 2,
            "n_heads": 4,
            "max_position_embeddings": 64,
        },
    ),
    "electra": ("ElectraConfig", {**_BERT, "embedding_size": 16}),
    "embedding_gemma2_text": (
        "EmbeddingGemma2TextConfig",
        # One full layer of three, with larger heads; in the others a token sees 4 neighbors to a side.
        {
            **_DECODER,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "global_head_dim": 20,
            "num_global_key_value_heads": 1,
            "sliding_window": 4,
            "sliding_window_pattern": 3,
            "hidden_size_per_layer_input": 16,
            "embedding_dim": 24,
        },
    ),
    "eurobert": ("EuroBertConfig", {**_DECODER}),
    "gemma3_text": (
        "Gemma3TextConfig",
        # One full layer of three; in the others a token sees 4 neighbors to a side.
        {
            **_DECODER,
            "num_hidden_layers": 3,
            "head_dim": 12,
            "sliding_window": 8,
            "sliding_window_pattern": 3,
            "query_pre_attn_scalar": 20,
            "use_bidirectional_attention": True,
        },
    ),
    "gte": ("GteConfig", {**_BERT, "pad_token_id": 0}),
    "jina_embeddings_v3": ("JinaEmbeddingsV3Config", {**_BERT, "pad_token_id": 0}),
    "llama": ("LlamaConfig", {**_DECODER}),
    "mistral": ("MistralConfig", {**_DECODER, "sliding_window": 6}),
    "modernbert": (
        "ModernBertConfig",
        # Two local layers of four, where a token sees 4 neighbors to a side.
        {**_BERT, "num_hidden_layers": 4, "local_attention": 8, "norm_bias": True, **_MARK_IDS},
    ),
    "mt5": ("MT5Config", {**_T5}),
    "mpnet": ("MPNetConfig", {**_BERT, "hidden_act": "relu"}),
    "nomic_bert": ("NomicBertConfig", {**_BERT}),
    "qwen2": ("Qwen2Config", {**_DECODER}),
    "qwen3": ("Qwen3Config", {**_DECODER, "head_dim": 16}),
    "roberta": ("RobertaConfig", {**_BERT, "pad_token_id": 1}),
    "t5": ("T5Config", {**_T5}),
    "umt5": ("UMT5Config", {**_T5}),
    "xlm-roberta": ("XLMRobertaConfig", {**_BERT, "pad_token_id": 0, "hidden_act": "silu"}),
}


_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
_YARN = {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0, "original_max_position_embeddings": 16}
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama biases": ("llama", {"attention_bias": True, "mlp_bias": True, "head_dim": 10}),
    "llama linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 90.0, "factor": 3.0}},
    ),
    "llama dynamic": (
        "llama",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 90.0, "factor": 3.0}},
    ),
    "llama llama3": ("llama", {"rope_parameters": _LLAMA3}),
    "llama yarn": ("llama", {"rope_parameters": _YARN}),
    "llama yarn with factors": (
        "llama",
        {
            "rope_parameters": {
                **_YARN,
                "beta_fast": 8.0,
                "beta_slow": 2.0,
                "mscale": 1.2,
                "mscale_all_dim": 0.7,
            }
        },
    ),
    "llama not causal": ("llama", {"is_causal": False}),
    "mistral without window": ("mistral", {"sliding_window": None}),
    "mistral not causal": ("mistral", {"is_causal": False, "sliding_window": 5}),
    "qwen2 windows": ("qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}),
    "qwen3 windows": (
        "qwen3",
        {
            "use_sliding_window": True,
            "sliding_window": 5,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "qwen3 not causal": ("qwen3", {"is_causal": False, "attention_bias": True}),
    "gte without types": ("gte", {"type_vocab_size": 0, "hidden_act": "gelu_new"}),
    "gte linear": ("gte", {"rope_parameters": {"rope_type": "linear", "rope_theta": 90.0, "factor": 1.5}}),
    "jina_embeddings_v3 base": (
        "jina_embeddings_v3",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "layer_norm_eps": 1e-3},
    ),
    "nomic_bert base": (
        "nomic_bert",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 50.0}, "type_vocab_size": 1},
    ),
    "deberta one product": ("deberta", {"pos_att_type": ["p2c"], "max_relative_positions": 12}),
    "deberta no relative": ("deberta", {"relative_attention": False, "type_vocab_size": 0}),
    "deberta-v2 own projections": (
        "deberta-v2",
        {"share_att_key": False, "type_vocab_size": 2, "norm_rel_ebd": "none", "position_biased_input": True},
    ),
    "deberta-v2 c2p": ("deberta-v2", {"pos_att_type": ["c2p"], "share_att_key": False}),
    "deberta-v2 p2c": ("deberta-v2", {"pos_att_type": "p2c", "position_buckets": -1}),
    "deberta-v2 no product": ("deberta-v2", {"pos_att_type": None}),
    "deberta-v2 near": ("deberta-v2", {"position_buckets": -1, "max_relative_positions": 6}),
    "deberta-v2 no relative": ("deberta-v2", {"relative_attention": False, "norm_rel_ebd": "none"}),
    "deberta-v2 convolution": ("deberta-v2", {"conv_kernel_size": 3, "conv_act": "gelu"}),
    "t5 gated": ("t5", {"feed_forward_proj": "gated-gelu"}),
    "t5 gated silu": ("t5", {"feed_forward_proj": "gated-silu", "num_decoder_layers": 1}),
    "mt5 buckets": (
        "mt5",
        {
            "feed_forward_proj": "relu",
            "relative_attention_num_buckets": 12,
            "relative_attention_max_distance": 20,
        },
    ),
    "gemma3_text causal": ("gemma3_text", {"use_bidirectional_attention": False}),
    "gemma3_text linear": (
        "gemma3_text",
        {
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 8.0},
                "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
            },
        },
    ),
}
"""Settings of config.json that published checkpoints use, beside those of `ARCHITECTURES`."""


def reference_network(folder: Path) -> Any:
    """The network of transformers that computes hidden states: of a T5, its encoder."""
    import transformers

    kind = json.loads((folder / "config.json").read_text())["model_type"]
    auto = transformers.AutoModelForTextEncoding if kind in ("t5", "mt5", "umt5") else transformers.AutoModel
    return auto.from_pretrained(folder).eval()


def randomize(model: Any, seed: int, *, norms: float = 1.0) -> None:
    """Random numbers for every weight of a torch model; those of norms are around `norms`."""
    import torch

    random = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for label, weight in model.named_parameters():
            spread = weight.shape[-1] ** -0.5 if weight.dim() == 2 else 0.1
            weight.normal_(norms if "norm.weight" in label.lower() else 0.0, spread, generator=random)


def _as_trained(model: Any) -> None:
    """EmbeddingGemma 2: the scales of blocks are buffers, and those of scores are in the norms of the heads."""
    import torch

    with torch.no_grad():
        for number, layer in enumerate(model.layers):
            layer.layer_scalar.fill_(0.5 + number / 4)
            for norm in (layer.self_attn.q_norm, layer.self_attn.k_norm):
                norm.weight.mul_(layer.self_attn.head_dim**-0.25)


def tiny_checkpoint(folder: Path, model_type: str, *, seed: int = 0, **settings: Any) -> Path:
    """Any architecture, made by transformers with random numbers; `settings` go to its config."""
    import transformers

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    name, own = ARCHITECTURES[model_type]
    model = transformers.AutoModel.from_config(getattr(transformers, name)(**{**own, **settings}))
    # Gemma 3 stores the weights of norms as their differences from 1.
    randomize(model, seed, norms=0.0 if model_type == "gemma3_text" else 1.0)
    if model_type == "embedding_gemma2_text":
        _as_trained(model)
    model.save_pretrained(folder)
    tiny_tokenizer(folder / "tokenizer.json")
    config = json.loads((folder / "config.json").read_text())
    width = int(config.get("embedding_dim", config.get("hidden_size", 32)))
    _write_modules(folder, width, pooling="mean", dense=None, normalize=True, seed=seed)
    _write_json(folder / "sentence_bert_config.json", {"max_seq_length": 48, "do_lower_case": False})
    _write_json(folder / "config_sentence_transformers.json", {"prompts": {}, "default_prompt_name": None})
    return folder
