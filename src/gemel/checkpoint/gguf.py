"""GGUF files of llama.cpp to a `Checkpoint` (extra `gguf`): weights, settings and tokenizer are all in the one file.

The arrays keep the names of transformers, so that the architectures read them as those of any other checkpoint; each is
made float32 when it is read. Special tokens are added as the file says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import AddedToken, Regex, Tokenizer, decoders, normalizers, pre_tokenizers, processors
from tokenizers.models import BPE, WordPiece

from gemel.checkpoint.files import Tensors, is_finite
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.head import Dense, PoolingConfig
from gemel.errors import MissingExtra, ModelError

_POOLINGS = {1: "mean", 2: "cls", 3: "last"}

_CONTROL, _USER_DEFINED = 3, 4  # kinds of tokens that stand in a text as they are

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
"""Where the tokenizers of Qwen 2 and 3 split a text first."""

_SPACE = "\u2581"


def read_gguf(path: Path, *, name: str | None = None) -> Checkpoint:
    """The embedding model in a GGUF file."""
    file = GgufFile(path)
    kind = file.get("general.architecture")
    if kind not in _KINDS:
        raise ModelError(f"{path} has the architecture {kind!r}. Read from GGUF files: {', '.join(_KINDS)}")
    layout = _KINDS[kind]
    weights = GgufTensors(file, layout)
    pooling = file.own("pooling_type", layout.pooling)
    if pooling not in _POOLINGS:
        raise ModelError(
            f"{path}: the pooling type {pooling!r} is not supported. Is it a model for embeddings?"
        )
    dense = [
        Dense(file.array(f"{each}.weight"), None, "identity")
        for each in layout.dense
        if f"{each}.weight" in file
    ]
    return Checkpoint(
        folder=path.parent,
        name=name or path.stem,
        kind="transformer",
        config=layout.config(file),
        weights=weights,
        tokenizer_file=path,
        lowercase=False,
        max_length=file.own("context_length"),
        pooling=PoolingConfig((_POOLINGS[pooling],)),
        dense=tuple(dense),
        normalize=True,
        prompts={},
        default_prompt_name=None,
        similarity="cosine",
        notes=(
            "GGUF files have no prompts and no Normalize module: vectors are normalized, as llama.cpp does",
        ),
        parts=(path,),
    )


class GgufFile:
    """Settings and arrays of one file."""

    def __init__(self, path: Path) -> None:
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise MissingExtra("reading a GGUF file", "gguf", "gguf") from error
        if not path.is_file():
            raise ModelError(f"no file {path}. Give an existing GGUF file")
        self.path = path
        try:
            self._reader = GGUFReader(path)
            self._arrays = {tensor.name: tensor for tensor in self._reader.tensors}
        except Exception as error:  # its parser trusts the numbers of the file: any kind of error
            raise ModelError(
                f"{path} is not a complete GGUF file ({error}). Fetch or copy it again"
            ) from error

    def __contains__(self, name: str) -> bool:
        return name in self._arrays

    @property
    def names(self) -> list[str]:
        return list(self._arrays)

    def get(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - any value of the file
        """A setting; the default where the file does not have it."""
        field = self._reader.get_field(key)
        return default if field is None else field.contents()

    def own(self, key: str, default: Any = None) -> Any:  # noqa: ANN401 - any value of the file
        """A setting of the architecture; without a default it must be there."""
        kind = self.get("general.architecture")
        value = self.get(f"{kind}.{key}", default)
        if value is None:
            raise ModelError(f"{self.path} does not say {kind}.{key}: it is not complete, or not a model")
        return value

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(int(size) for size in reversed(self._arrays[name].shape))

    def array(self, name: str) -> NDArray[np.float32]:
        """An array as float32, whatever it is stored as."""
        from gguf.quants import dequantize

        tensor = self._arrays[name]
        try:
            numbers = dequantize(tensor.data, tensor.tensor_type)
        except NotImplementedError as error:
            kind = tensor.tensor_type.name
            raise ModelError(f"{self.path}: {name!r} is stored as {kind}, which is not supported") from error
        return np.array(numbers, dtype=np.float32).reshape(self.shape(name))


@dataclass(frozen=True)
class _Layout:
    """How the files of one architecture are to be read."""

    config: Callable[[GgufFile], dict[str, Any]]
    names: Mapping[str, str]
    """Names of arrays to those of transformers; {} is the number of the block."""
    pooling: int = 1
    """Its number in GGUF files, where the file does not say it."""
    grown_norms: bool = False
    """The file has the weights of norms with 1 added (Gemma)."""
    dense: tuple[str, ...] = ()


class GgufTensors(Tensors):
    """The arrays of a GGUF file under the names of transformers."""

    def __init__(self, file: GgufFile, layout: _Layout) -> None:
        self.files = (file.path,)
        self._file, self._grown = file, layout.grown_norms
        self._names: dict[str, str] = {}
        dense = {f"{name}.weight" for name in layout.dense}
        for stored in file.names:
            if stored not in dense and not stored.startswith(("rope_freqs", "output.", "cls.")):
                self._names[self._renamed(stored, layout)] = stored

    def __getitem__(self, name: str) -> NDArray[np.float32]:
        return self.read(name)

    def read(self, name: str) -> NDArray[np.float32]:
        array = self._file.array(self._names[name])
        return array - np.float32(1) if self._grown and name.endswith("norm.weight") else array

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

    def _renamed(self, stored: str, layout: _Layout) -> str:
        stem, _, end = stored.rpartition(".")
        number = ""
        if stem.startswith("blk."):
            _, number, stem = stem.split(".", 2)
            stem = f"blk.{stem}"
        if stem not in layout.names:
            raise ModelError(f"{self._file.path}: the array {stored!r} is not known for this architecture")
        return f"{layout.names[stem].format(number)}.{end}"


def _sizes(file: GgufFile) -> dict[str, Any]:
    return {
        "hidden_size": file.own("embedding_length"),
        "intermediate_size": file.own("feed_forward_length"),
        "num_hidden_layers": file.own("block_count"),
        "num_attention_heads": file.own("attention.head_count"),
        "max_position_embeddings": file.own("context_length"),
    }


def _bert(file: GgufFile) -> dict[str, Any]:
    tables = ("position_embd.weight", "token_types.weight")
    if missing := next((name for name in tables if name not in file), None):
        raise ModelError(
            f"{file.path} has no array {missing!r}: only BERT with positions and token types is read"
        )
    positions, types = (file.shape(name)[0] for name in tables)
    return {
        "model_type": "bert",
        **_sizes(file),
        "layer_norm_eps": file.own("attention.layer_norm_epsilon"),
        "max_position_embeddings": positions,
        "type_vocab_size": types,
    }


def _qwen3(file: GgufFile) -> dict[str, Any]:
    if file.get("qwen3.rope.scaling.type") not in (None, "none"):
        raise ModelError(f"{file.path}: scaled rotary positions are not supported in GGUF files")
    sizes = _sizes(file)
    return {
        "model_type": "qwen3",
        **sizes,
        "num_key_value_heads": file.own("attention.head_count_kv", sizes["num_attention_heads"]),
        "head_dim": file.own("attention.key_length", sizes["hidden_size"] // sizes["num_attention_heads"]),
        "rms_norm_eps": file.own("attention.layer_norm_rms_epsilon"),
        "rope_theta": file.own("rope.freq_base", 10_000.0),
        "hidden_act": "silu",
        "is_causal": file.own("attention.causal", True),
    }


_GEMMA_EVERY = 6  # of six layers the last sees the whole text


def _gemma(file: GgufFile) -> dict[str, Any]:
    sizes = _sizes(file)
    head = file.own("attention.key_length", 256)
    return {
        "model_type": "gemma3_text",
        **sizes,
        "num_key_value_heads": file.own("attention.head_count_kv", sizes["num_attention_heads"]),
        "head_dim": head,
        "query_pre_attn_scalar": head,
        "rms_norm_eps": file.own("attention.layer_norm_rms_epsilon"),
        "rope_theta": file.own("rope.freq_base", 1_000_000.0),
        "rope_local_base_freq": file.own("rope.freq_base_swa", 10_000.0),
        "sliding_window": file.own("attention.sliding_window"),
        "sliding_window_pattern": _GEMMA_EVERY,
        "use_bidirectional_attention": True,
    }


_DECODER_NAMES = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "blk.attn_norm": "layers.{}.input_layernorm",
    "blk.attn_q": "layers.{}.self_attn.q_proj",
    "blk.attn_k": "layers.{}.self_attn.k_proj",
    "blk.attn_v": "layers.{}.self_attn.v_proj",
    "blk.attn_q_norm": "layers.{}.self_attn.q_norm",
    "blk.attn_k_norm": "layers.{}.self_attn.k_norm",
    "blk.attn_output": "layers.{}.self_attn.o_proj",
    "blk.ffn_norm": "layers.{}.post_attention_layernorm",
    "blk.ffn_gate": "layers.{}.mlp.gate_proj",
    "blk.ffn_up": "layers.{}.mlp.up_proj",
    "blk.ffn_down": "layers.{}.mlp.down_proj",
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

_GEMMA_NAMES = {
    **_DECODER_NAMES,
    "blk.post_attention_norm": "layers.{}.post_attention_layernorm",
    "blk.ffn_norm": "layers.{}.pre_feedforward_layernorm",
    "blk.post_ffw_norm": "layers.{}.post_feedforward_layernorm",
}

_KINDS = {
    "bert": _Layout(_bert, _BERT_NAMES),
    "qwen3": _Layout(_qwen3, _DECODER_NAMES, pooling=3),
    "gemma-embedding": _Layout(_gemma, _GEMMA_NAMES, grown_norms=True, dense=("dense_2", "dense_3")),
}


def gguf_tokenizer(path: Path) -> Tokenizer:
    """The tokenizer of a file: WordPiece, byte-level BPE, or SentencePiece with scores."""
    file = GgufFile(path)
    kind = file.get("tokenizer.ggml.model")
    tokens = file.get("tokenizer.ggml.tokens")
    if kind not in _TOKENIZERS or not isinstance(tokens, list):
        raise ModelError(
            f"{path} has a tokenizer of the kind {kind!r}. Read from GGUF files: {', '.join(_TOKENIZERS)}"
        )
    tokenizer, first, last = _TOKENIZERS[kind](file, tokens)
    kinds = file.get("tokenizer.ggml.token_type") or []
    added = [
        (token, each) for token, each in zip(tokens, kinds, strict=False) if each in (_CONTROL, _USER_DEFINED)
    ]
    tokenizer.add_special_tokens([token for token, each in added if each == _CONTROL])
    tokenizer.add_tokens(
        [AddedToken(token, normalized=False) for token, each in added if each == _USER_DEFINED]
    )
    ends = [None if number is None else (tokens[number], number) for number in (first, last)]
    named = [end for end in ends if end is not None]
    if named:
        before, after = ([] if end is None else [end[0]] for end in ends)
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[*before, "$A", *after], pair=[*before, "$A", *after, "$B", *after], special_tokens=named
        )
    return tokenizer


def _ends(file: GgufFile, *, before: bool, after: bool) -> tuple[int | None, int | None]:
    """Ids of the tokens before and after each text, as the file says; the defaults are those of llama.cpp."""
    first = (
        file.get("tokenizer.ggml.bos_token_id") if file.get("tokenizer.ggml.add_bos_token", before) else None
    )
    last = (
        file.get("tokenizer.ggml.eos_token_id") if file.get("tokenizer.ggml.add_eos_token", after) else None
    )
    return first, last


_Opened = tuple[Tokenizer, int | None, int | None]


def _wordpiece(file: GgufFile, tokens: list[str]) -> _Opened:
    """llama.cpp writes the start of a word as a mark, and the rest of one without the ## of BERT."""

    kinds = file.get("tokenizer.ggml.token_type") or [0] * len(tokens)

    def original(token: str, kind: int) -> str:
        if kind == _CONTROL or (token.startswith("[") and token.endswith("]")):
            return token
        return token[1:] if token.startswith(_SPACE) else f"##{token}"

    words = [original(token, kind) for token, kind in zip(tokens, kinds, strict=True)]
    special = [word for word, token in zip(words, tokens, strict=True) if word == token]
    cased = any(word != word.lower() for word in set(words) - set(special))
    unknown = words[
        file.get("tokenizer.ggml.unknown_token_id", words.index("[UNK]") if "[UNK]" in words else 0)
    ]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = Tokenizer(WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=not cased)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    first = file.get("tokenizer.ggml.cls_token_id", vocabulary.get("[CLS]"))
    last = file.get("tokenizer.ggml.seperator_token_id", vocabulary.get("[SEP]"))
    known = [word for word in ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]") if word in vocabulary]
    tokenizer.add_special_tokens(known)
    return tokenizer, first, last


def _byte_bpe(file: GgufFile, tokens: list[str]) -> _Opened:
    kind = file.get("tokenizer.ggml.pre")
    if kind != "qwen2":
        raise ModelError(f"{file.path}: the pre-tokenizer {kind!r} is not supported, only 'qwen2'")
    merges = [tuple(merge.split(" ", 1)) for merge in file.get("tokenizer.ggml.merges", [])]
    tokenizer = Tokenizer(BPE({token: number for number, token in enumerate(tokens)}, merges))
    tokenizer.normalizer = normalizers.NFC()
    split = pre_tokenizers.Split(Regex(_QWEN2), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    return (tokenizer, *_ends(file, before=False, after=False))


def _pieces(file: GgufFile, tokens: list[str]) -> _Opened:
    """BPE whose merges are the pairs of pieces that make a piece, those with the best score first."""
    vocabulary = {token: number for number, token in enumerate(tokens)}
    scores = file.get("tokenizer.ggml.scores") or []
    if len(scores) != len(tokens):
        raise ModelError(f"{file.path}: {len(tokens)} tokens, but {len(scores)} scores")
    merges: list[tuple[float, int, int, str, str]] = []
    for token, score in zip(tokens, scores, strict=True):
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in vocabulary and right in vocabulary:
                merges.append((-score, vocabulary[left], vocabulary[right], left, right))
    merges.sort(key=lambda each: each[0])
    unknown = file.get("tokenizer.ggml.unknown_token_id")
    model = BPE(
        vocabulary,
        [(left, right) for *_, left, right in merges],
        unk_token=None if unknown is None else tokens[unknown],
        fuse_unk=True,
        byte_fallback=True,
    )
    tokenizer = Tokenizer(model)
    first = [normalizers.Prepend(_SPACE)] if file.get("tokenizer.ggml.add_space_prefix", True) else []
    tokenizer.normalizer = normalizers.Sequence([*first, normalizers.Replace(" ", _SPACE)])
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace(_SPACE, " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    return (tokenizer, *_ends(file, before=True, after=False))


_TOKENIZERS: Mapping[str, Callable[[GgufFile, list[str]], _Opened]] = {
    "bert": _wordpiece,
    "gpt2": _byte_bpe,
    "llama": _pieces,
}
