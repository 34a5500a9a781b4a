"""GGUF files of llama.cpp to a `Checkpoint` (extra `gguf`): weights, settings and tokenizer are all in the one file.

The arrays keep the names of transformers, so that the architectures read them as those of any other checkpoint; each is
made float32 when it is read. What llama.cpp's converter changes in them is undone: 1 is added to the norms of Gemma,
and the rows of the queries and keys of Llama are in another order. Special tokens are added as the file says.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint.architecture import key_set
from gemel.checkpoint.files import Tensors, is_finite
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.gguf_file import GgufFile
from gemel.checkpoint.head import Dense, PoolingConfig
from gemel.errors import ModelError

_POOLINGS = {1: "mean", 2: "cls", 3: "last"}
_NO_POOLING, _RERANKER = 0, 4

_KEYS = key_set(
    "attention.causal attention.head_count attention.head_count_kv attention.key_length",
    "attention.layer_norm_epsilon attention.layer_norm_rms_epsilon attention.sliding_window",
    "attention.sliding_window_pattern attention.value_length block_count context_length embedding_length",
    "expert_count feed_forward_length hidden_act pooling_type rope.dimension_count rope.dimension_count_swa",
    "rope.freq_base rope.freq_base_swa rope.scaling.factor rope.scaling.original_context_length rope.scaling.type",
)
"""Settings of an architecture: followed."""

_HARMLESS = key_set(
    "classifier.output_labels dense_2_feat_in dense_2_feat_out dense_3_feat_in dense_3_feat_out expert_used_count",
    "final_logit_softcapping rope.scaling.finetuned tensor_data_layout vocab_size",
)
"""Settings of an architecture that change no vector, or that the shapes of arrays show."""

_UNUSED = ("output.", "cls.", "rope_freqs.")
"""Arrays behind the network, and the factors of rotary positions, which become a setting."""


def read_gguf(path: Path, *, name: str | None = None) -> Checkpoint:
    """The embedding model in a GGUF file."""
    file = GgufFile(path)
    kind = file.architecture
    if kind not in _LAYOUTS:
        raise ModelError(
            f"{path} has the architecture {kind!r:.60}. Read from GGUF files: {', '.join(_LAYOUTS)}."
            f"{' Models with experts (MoE) are not supported.' if 'moe' in kind else ''}"
            " Take another model, or the safetensors of this one"
        )
    _check_settings(file)
    layout = _LAYOUTS[kind]
    config = layout.config(file)
    pooling, notes = _pooling(file, layout)
    dense = [
        Dense(file.array(f"{each}.weight"), None, "identity")
        for each in layout.dense
        if f"{each}.weight" in file
    ]
    return Checkpoint(
        folder=path,  # with which it is loaded again, such as in another process
        name=name or path.stem,
        kind="transformer",
        config=config,
        weights=GgufTensors(file, layout),
        tokenizer_file=path,
        lowercase=False,
        max_length=file.size("context_length"),
        pooling=PoolingConfig((pooling,)),
        dense=tuple(dense),
        normalize=True,
        prompts={},
        default_prompt_name=None,
        similarity="cosine",
        notes=(
            "GGUF files have no prompts and no Normalize module: vectors are normalized, as llama.cpp does",
            *notes,
        ),
        parts=(path,),
    )


def _check_settings(file: GgufFile) -> None:
    """Refuse a setting that is not followed, a network with experts, and a part of a split file."""
    start = f"{file.architecture}."
    unknown = [
        key for key in file.keys if key.startswith(start) and key[len(start) :] not in _KEYS | _HARMLESS
    ]
    if unknown:
        raise ModelError(
            f"{file.path} sets {unknown[0]!r}, which is not followed. Take the safetensors of the model"
        )
    if file.own("expert_count", 0) != 0:
        raise ModelError(
            f"{file.path} is a model with experts (MoE), which is not supported. Take another model"
        )
    if file.get("split.count", 0) not in (0, 1):
        raise ModelError(
            f"{file.path} is one of {file.get('split.count')} parts of a model. Join them with llama.cpp's "
            "llama-gguf-split --merge, and load the result"
        )


def _pooling(file: GgufFile, layout: _Layout) -> tuple[str, list[str]]:
    """The pooling of a file, and what people should know about it."""
    number = file.own("pooling_type", _NO_POOLING)
    if number == _RERANKER:
        raise ModelError(
            f"{file.path} is a reranker (pooling type {number}), not a model for embeddings. Load its safetensors "
            "with gemel.load_cross"
        )
    notes: list[str] = []
    if isinstance(number, int) and number in _POOLINGS:
        pooling = _POOLINGS[number]
    elif number == _NO_POOLING:
        pooling = layout.pooling
        which = "token vectors are averaged" if pooling == "mean" else "the vector of the last token is taken"
        notes = [f"the file names no pooling: {which} ({pooling})"]
    else:
        raise ModelError(
            f"{file.path}: the pooling type {number!r:.60} is not known. Is it a model for embeddings?"
        )
    key = "tokenizer.ggml.add_eos_token"
    if pooling == "last" and not file.get(key, False):
        says = "does not say" if file.get(key) is None else "forbids"
        notes.append(
            f"the file {says} that a last token is added ({key}), so none is, as in llama.cpp. If the original "
            "tokenizer adds one, the vectors differ from the original: convert the model again"
        )
    return pooling, notes


@dataclass(frozen=True)
class _Layout:
    """How the files of one architecture are to be read."""

    config: Callable[[GgufFile], dict[str, Any]]
    names: Mapping[str, str]
    """Names of arrays to those of transformers; {} is the number of the block."""
    pooling: str = "mean"
    """Where the file does not say it: a causal network has read the whole text only at its last token."""
    grown_norms: bool = False
    """The file has the weights of norms with 1 added (Gemma)."""
    turned: Mapping[str, str] = field(default_factory=dict)
    """Arrays whose rows are in the order of interleaved rotary positions, and the setting with their heads (Llama)."""
    dense: tuple[str, ...] = ()


class GgufTensors(Tensors):
    """The arrays of a GGUF file under the names of transformers."""

    def __init__(self, file: GgufFile, layout: _Layout) -> None:
        self.files = (file.path,)
        self._file, self._layout = file, layout
        self._names: dict[str, str] = {}
        dense = {f"{name}.weight" for name in layout.dense}
        for stored in file.names:
            if stored not in dense and not stored.startswith(_UNUSED):
                self._names[self._renamed(stored)] = stored

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self.read(name)

    def read(self, name: str) -> NDArray[np.float32]:
        array = self._file.array(self._names[name])
        if self._layout.grown_norms and name.endswith("norm.weight"):
            array -= np.float32(1)
        stem = self._names[name].rpartition(".")[0].rpartition(".")[2]
        if stem in self._layout.turned:
            heads = self._file.size(self._layout.turned[stem], self._file.size("attention.head_count"))
            array = _unturned(array, heads, f"{self._file.path}: {self._names[name]!r}")
        return array

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)

    def __contains__(self, name: object) -> bool:
        return name in self._names

    def shape(self, name: str) -> tuple[int, ...]:
        return self._file.shape(self._names[name])

    def metadata(self, path: Path) -> Mapping[str, str]:
        return {}

    def finite(self, name: str) -> bool:
        return is_finite(self.read(name))

    def _renamed(self, stored: str) -> str:
        stem, _, end = stored.rpartition(".")
        number = ""
        parts = stem.split(".", 2)
        if parts[0] == "blk" and len(parts) == 3:
            number, stem = parts[1], f"blk.{parts[2]}"
        if stem not in self._layout.names:
            raise ModelError(
                f"{self._file.path}: the array {stored!r:.100} is not known for the architecture "
                f"{self._file.architecture!r}. Take the safetensors of the model"
            )
        return f"{self._layout.names[stem].format(number)}.{end}"


def _unturned(array: NDArray[np.float32], heads: int, what: str) -> NDArray[np.float32]:
    """Rows of queries or keys in the order of transformers: the first halves of the pairs, then the second ones."""
    rows = len(array) if array.ndim else 0
    if rows % (2 * heads):
        raise ModelError(f"{what} has {rows} rows, which {heads} heads of an even size do not divide")
    return array.reshape(heads, rows // heads // 2, 2, -1).swapaxes(1, 2).reshape(array.shape)


# Settings, as config.json of transformers has them.


def _sizes(file: GgufFile) -> dict[str, Any]:
    return {
        "hidden_size": file.size("embedding_length"),
        "intermediate_size": file.size("feed_forward_length"),
        "num_hidden_layers": file.size("block_count"),
        "num_attention_heads": file.size("attention.head_count"),
        "max_position_embeddings": file.size("context_length"),
    }


def _require(file: GgufFile, key: str, value: object, default: object = None) -> None:
    """Refuse another value of a setting; where the file does not have it, it is the default."""
    given = file.own(key, value if default is None else default)
    if given != value:
        raise ModelError(
            f"{file.path}: {file.architecture}.{key} is {given!r:.60}, only {value!r} is supported. Take the "
            "safetensors of the model"
        )


def _rows(file: GgufFile, name: str) -> int:
    """Rows of a table that the network needs."""
    if name not in file or len(file.shape(name)) != 2:
        raise ModelError(
            f"{file.path} has no table {name!r}, without which {file.architecture!r} is not read"
        )
    return file.shape(name)[0]


def _bert(file: GgufFile) -> dict[str, Any]:
    """BERT, and RoBERTa and XLM-R, whose table of positions the converter makes start at 0."""
    _require(file, "attention.causal", False)
    return {
        "model_type": "bert",
        **_sizes(file),
        "layer_norm_eps": file.number("attention.layer_norm_epsilon"),
        "max_position_embeddings": _rows(file, "position_embd.weight"),
        "type_vocab_size": _rows(file, "token_types.weight"),
    }


def _nomic(file: GgufFile) -> dict[str, Any]:
    _require(file, "attention.causal", False)
    sizes = _sizes(file)
    _require(file, "rope.dimension_count", sizes["hidden_size"] // sizes["num_attention_heads"])
    return {
        "model_type": "nomic_bert",
        **sizes,
        "layer_norm_eps": file.number("attention.layer_norm_epsilon"),
        "type_vocab_size": _rows(file, "token_types.weight"),
        "hidden_act": "silu",
        "rope_theta": file.number("rope.freq_base", 1000.0, over=1.0),
        "rope_scaling": _scaling(file),
    }


def _modern(file: GgufFile) -> dict[str, Any]:
    _require(file, "attention.causal", False)
    _require(file, "rope.scaling.type", "none")
    sizes = _sizes(file)
    return {
        "model_type": "modernbert",
        **sizes,
        "norm_eps": file.number("attention.layer_norm_epsilon"),
        "norm_bias": "output_norm.bias" in file,
        "attention_bias": "blk.0.attn_qkv.bias" in file,
        "mlp_bias": "blk.0.ffn_up.bias" in file,
        "hidden_activation": file.own("hidden_act", "gelu"),
        "global_rope_theta": file.number("rope.freq_base", 160_000.0, over=1.0),
        "local_rope_theta": file.number("rope.freq_base_swa", 10_000.0, over=1.0),
        "local_attention": file.size("attention.sliding_window", 128),
        "layer_types": _layer_types(file, sizes["num_hidden_layers"], 3, full_first=True),
    }


def _decoder(file: GgufFile, model_type: str) -> dict[str, Any]:
    sizes = _sizes(file)
    head = file.size("attention.key_length", max(1, sizes["hidden_size"] // sizes["num_attention_heads"]))
    for key in ("attention.value_length", "rope.dimension_count", "rope.dimension_count_swa"):
        _require(file, key, head)
    return {
        "model_type": model_type,
        **sizes,
        "num_key_value_heads": file.size("attention.head_count_kv", sizes["num_attention_heads"]),
        "head_dim": head,
        "rms_norm_eps": file.number("attention.layer_norm_rms_epsilon"),
        "rope_theta": file.number("rope.freq_base", 10_000.0, over=1.0),
        "rope_scaling": _scaling(file),
        "is_causal": file.flag(f"{file.architecture}.attention.causal", True),
    }


def _llama(file: GgufFile) -> dict[str, Any]:
    config = _decoder(file, "llama")
    if "rope_freqs.weight" in file:
        config["rope_scaling"] = _llama3(file, config)
    biases = {"attention_bias": "blk.0.attn_q.bias" in file, "mlp_bias": "blk.0.ffn_up.bias" in file}
    return {**config, **biases, "hidden_act": "silu"}


def _qwen(file: GgufFile) -> dict[str, Any]:
    return {**_decoder(file, file.architecture), "hidden_act": "silu"}


_GEMMA_EVERY = 6  # of six layers the last sees the whole text
_GEMMA_27B = 62  # layers of the one Gemma 3 whose scores are not divided by the root of the size of a head


def _gemma(file: GgufFile) -> dict[str, Any]:
    config = _decoder(file, "gemma3_text")
    layers, causal = config["num_hidden_layers"], config.pop("is_causal")
    wide = config["hidden_size"] // config["num_attention_heads"]
    return {
        **config,
        "query_pre_attn_scalar": wide if layers == _GEMMA_27B else config["head_dim"],
        "rope_theta": file.number("rope.freq_base", 1_000_000.0, over=1.0),
        "rope_local_base_freq": file.number("rope.freq_base_swa", 10_000.0, over=1.0),
        "sliding_window": file.size("attention.sliding_window"),
        "layer_types": _layer_types(file, layers, _GEMMA_EVERY),
        "use_bidirectional_attention": not causal,
    }


def _embedding_gemma(file: GgufFile) -> dict[str, Any]:
    """llama.cpp reads it without the causal mask whatever the file says, and files do not say."""
    return {**_gemma(file), "use_bidirectional_attention": True}


def _layer_types(file: GgufFile, layers: int, every: int, *, full_first: bool = False) -> list[str]:
    """Full or sliding attention of each layer: every so many is full, or the file has a flag for each."""
    pattern = file.own("attention.sliding_window_pattern", every)
    if isinstance(pattern, list):
        sliding = [bool(each) for each in pattern]
    else:
        every = file.size("attention.sliding_window_pattern", every)
        sliding = [bool((layer if full_first else layer + 1) % every) for layer in range(min(layers, _MOST))]
    return ["sliding_attention" if each else "full_attention" for each in sliding]


_MOST = 4096  # layers: the size of a list before the number of layers is checked


def _scaling(file: GgufFile) -> dict[str, Any] | None:
    """How rotary positions are scaled; None: they are not."""
    kind, factor = file.own("rope.scaling.type", "none"), file.number("rope.scaling.factor", 1.0, over=-1.0)
    if kind == "none" or (kind == "linear" and factor in (0.0, 1.0)):
        return None
    if kind not in ("linear", "yarn"):
        raise ModelError(
            f"{file.path} scales the rotary positions in the way {kind!r:.60}, only linear and yarn are supported"
        )
    original = file.own("rope.scaling.original_context_length", 0)
    more = {"original_max_position_embeddings": original} if kind == "yarn" and original else {}
    return {"rope_type": kind, "factor": factor, **more}


_LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}
_LLAMA3_CONTEXT = 8192


def _llama3(file: GgufFile, config: Mapping[str, Any]) -> dict[str, Any] | None:
    """The scaling of Llama 3.1 and later, whose factors the file has instead of its settings: all are compared."""
    factors = file.array("rope_freqs.weight").ravel().astype(np.float64)
    head, context = config["head_dim"], file.size("rope.scaling.original_context_length", _LLAMA3_CONTEXT)
    factor = float(factors.max(initial=1.0))
    expected = np.array(
        [
            _llama3_factor(config["rope_theta"] ** (-2 * pair / head), factor, context)
            for pair in range(min(head // 2, len(factors)))
        ]
    )
    if factors.shape != (head // 2,) or not np.allclose(factors, expected, rtol=1e-3, atol=0):
        raise ModelError(
            f"{file.path} scales the rotary positions by factors of its own ('rope_freqs.weight'), which are not those "
            "of Llama 3. Take the safetensors of the model"
        )
    if factor == 1.0:
        return None
    return {"rope_type": "llama3", "factor": factor, "original_max_position_embeddings": context, **_LLAMA3}


def _llama3_factor(speed: float, factor: float, context: int) -> float:
    """By how much one rotation is slowed down."""
    turns = context * speed / (2 * math.pi)
    blend = (turns - _LLAMA3["low_freq_factor"]) / (_LLAMA3["high_freq_factor"] - _LLAMA3["low_freq_factor"])
    return 1 / ((1 - min(max(blend, 0.0), 1.0)) / factor + min(max(blend, 0.0), 1.0))


# Names of arrays.

_DECODER_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk.attn_norm": "layers.{}.input_layernorm",
    "blk.attn_q": "layers.{}.self_attn.q_proj",
    "blk.attn_k": "layers.{}.self_attn.k_proj",
    "blk.attn_v": "layers.{}.self_attn.v_proj",
    "blk.attn_output": "layers.{}.self_attn.o_proj",
    "blk.ffn_norm": "layers.{}.post_attention_layernorm",
    "blk.ffn_gate": "layers.{}.mlp.gate_proj",
    "blk.ffn_up": "layers.{}.mlp.up_proj",
    "blk.ffn_down": "layers.{}.mlp.down_proj",
}

_QWEN3_NAMES = {
    **_DECODER_NAMES,
    "blk.attn_q_norm": "layers.{}.self_attn.q_norm",
    "blk.attn_k_norm": "layers.{}.self_attn.k_norm",
}

_GEMMA_NAMES = {
    **_QWEN3_NAMES,
    "blk.post_attention_norm": "layers.{}.post_attention_layernorm",
    "blk.ffn_norm": "layers.{}.pre_feedforward_layernorm",
    "blk.post_ffw_norm": "layers.{}.post_feedforward_layernorm",
}

_BERT_NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "position_embd": "embeddings.position_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "embeddings.LayerNorm",
    "blk.attn_q": "encoder.layer.{}.attention.self.query",
    "blk.attn_k": "encoder.layer.{}.attention.self.key",
    "blk.attn_v": "encoder.layer.{}.attention.self.value",
    "blk.attn_output": "encoder.layer.{}.attention.output.dense",
    "blk.attn_output_norm": "encoder.layer.{}.attention.output.LayerNorm",
    "blk.ffn_up": "encoder.layer.{}.intermediate.dense",
    "blk.ffn_down": "encoder.layer.{}.output.dense",
    "blk.layer_output_norm": "encoder.layer.{}.output.LayerNorm",
}

_NOMIC_NAMES = {
    "token_embd": "embeddings.word_embeddings",
    "token_types": "embeddings.token_type_embeddings",
    "token_embd_norm": "emb_ln",
    "blk.attn_qkv": "encoder.layers.{}.attn.Wqkv",
    "blk.attn_output": "encoder.layers.{}.attn.out_proj",
    "blk.attn_output_norm": "encoder.layers.{}.norm1",
    "blk.ffn_up": "encoder.layers.{}.mlp.fc11",
    "blk.ffn_gate": "encoder.layers.{}.mlp.fc12",
    "blk.ffn_down": "encoder.layers.{}.mlp.fc2",
    "blk.layer_output_norm": "encoder.layers.{}.norm2",
}

_MODERN_NAMES = {
    "token_embd": "embeddings.tok_embeddings",
    "token_embd_norm": "embeddings.norm",
    "output_norm": "final_norm",
    "blk.attn_norm": "layers.{}.attn_norm",
    "blk.attn_qkv": "layers.{}.attn.Wqkv",
    "blk.attn_output": "layers.{}.attn.Wo",
    "blk.ffn_norm": "layers.{}.mlp_norm",
    "blk.ffn_up": "layers.{}.mlp.Wi",
    "blk.ffn_down": "layers.{}.mlp.Wo",
}

_TURNED = {"attn_q": "attention.head_count", "attn_k": "attention.head_count_kv"}

_LAYOUTS = {
    "bert": _Layout(_bert, _BERT_NAMES),
    "nomic-bert": _Layout(_nomic, _NOMIC_NAMES),
    "modern-bert": _Layout(_modern, _MODERN_NAMES),
    "llama": _Layout(_llama, _DECODER_NAMES, pooling="last", turned=_TURNED),
    "qwen2": _Layout(_qwen, _DECODER_NAMES, pooling="last"),
    "qwen3": _Layout(_qwen, _QWEN3_NAMES, pooling="last"),
    "gemma3": _Layout(_gemma, _GEMMA_NAMES, pooling="last", grown_norms=True),
    "gemma-embedding": _Layout(
        _embedding_gemma, _GEMMA_NAMES, grown_norms=True, dense=("dense_2", "dense_3")
    ),
}
"""By `general.architecture`."""
