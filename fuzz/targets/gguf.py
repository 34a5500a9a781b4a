"""GGUF files: the whole file as bytes, and its settings, vocabulary and shapes as a JSON tree, packed correctly."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fuzz.target import Job, WrongAnswerError, target

READERS = ("gemel.checkpoint.gguf", "gemel.checkpoint.gguf_file", "gemel.checkpoint.gguf_file")
TEXTS = ["a man is playing", "", "the cat \U0001f600 [SEP] <s>", "hello world " * 20]
WIDTH, INNER, HEADS = 8, 16, 2
ONES = struct.pack("<16f", *[1.0] * 16)
DATA = ONES + bytes(range(60)) * 200  # small numbers, whatever they are read as


def _encoded(path: Path) -> None:
    import numpy as np

    import gemel

    model = gemel.load(path)
    vectors = model.encode(TEXTS, on_long="truncate")
    if vectors.shape != (len(TEXTS), model.dim) or vectors.dtype != np.float32:
        raise WrongAnswerError(
            f"vectors of shape {vectors.shape} and type {vectors.dtype}, dim is {model.dim}"
        )


@target("gguf", "bytes", *READERS)
def whole_file(folder: Path) -> Job:
    return _job(folder, [packed(tree) for tree in trees()], lambda data: data)


@target("gguf-settings", "json", *READERS)
def settings(folder: Path) -> Job:
    """The header as JSON, with correct lengths and types, and enough bytes after it."""

    def file(data: bytes) -> bytes:
        try:
            return packed(json.loads(data))
        except (ValueError, RecursionError, struct.error):  # no tree, or numbers that no file can have
            return data

    return _job(folder, [json.dumps(tree).encode() for tree in trees()], file)


def _job(folder: Path, seeds: list[bytes], file: Callable[[bytes], bytes]) -> Job:
    path = folder / "model.gguf"

    def once(data: bytes) -> None:
        path.unlink(missing_ok=True)  # a file that is still mapped must not change
        path.write_bytes(file(data))
        _encoded(path)

    return Job(seeds, once)


def packed(tree: object) -> bytes:
    """A GGUF file with these settings and arrays (name to shape and type)."""
    settings, arrays = (tree.get(key) if isinstance(tree, dict) else {} for key in ("settings", "arrays"))
    settings, arrays = (part if isinstance(part, dict) else {} for part in (settings, arrays))
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(arrays), len(settings))]
    for key, value in settings.items():
        kind, content = _value(value)
        parts += [_text(key), struct.pack("<I", kind), content]
    for name, given in arrays.items():
        shape, kind, offset = given if isinstance(given, list) and len(given) == 3 else ([1], 0, 0)
        sizes = [size for size in (shape if isinstance(shape, list) else []) if isinstance(size, int)]
        parts += [_text(name), struct.pack("<I", len(sizes)), *(_number(size) for size in reversed(sizes))]
        parts += [_number(kind)[:4], _number(offset)]
    header = b"".join(parts)
    return header + bytes(-len(header) % 32) + DATA


def _value(value: object) -> tuple[int, bytes]:
    """The number of its type, and its bytes."""
    match value:
        case bool():
            return 7, bytes([value])
        case int():
            return 4, _number(value)[:4]
        case float():
            return 12, struct.pack("<d", value)
        case list():
            return 9, _list(value)
    return 8, _text(value if isinstance(value, str) else json.dumps(value))


def _list(values: list[Any]) -> bytes:
    kinds = {type(value) for value in values} or {str}
    if kinds <= {int, bool}:
        return struct.pack("<IQ", 11, len(values)) + b"".join(_number(value) for value in values)
    if kinds <= {int, float}:
        return struct.pack("<IQ", 12, len(values)) + struct.pack(f"<{len(values)}d", *values)
    texts = [value if isinstance(value, str) else json.dumps(value) for value in values]
    return struct.pack("<IQ", 8, len(values)) + b"".join(map(_text, texts))


def _text(text: str) -> bytes:
    content = text.encode("utf-8", "surrogatepass")
    return struct.pack("<Q", len(content)) + content


def _number(value: object) -> bytes:
    return ((value if isinstance(value, int) else 1) % 2**64).to_bytes(8, "little")


# Good files: each kind of tokenizer, and each way to name layers.


def trees() -> list[Any]:
    """Small models as trees."""
    return [
        _bert("bert", {"position_embd.weight": (16, WIDTH)}, separate=True),
        _bert("nomic-bert", {}, separate=False),
        _modern(),
        _decoder("llama", _byte_bpe("llama-bpe")),
        _decoder("qwen2", _byte_bpe("qwen2"), biases=True),
        _decoder("llama", _pieces("t5")),
        _gemma(),
    ]


def _model(kind: str, vocabulary: dict[str, Any], shapes: dict[str, Any], **own: Any) -> dict[str, Any]:
    sizes = {
        "context_length": 16,
        "embedding_length": WIDTH,
        "feed_forward_length": INNER,
        "block_count": 1,
        "attention.head_count": HEADS,
        **{key.replace("__", "."): value for key, value in own.items()},
    }
    words = len(vocabulary["tokenizer.ggml.tokens"])
    shapes = {**shapes, "token_embd.weight": (words, WIDTH)}
    settings = {"general.architecture": kind, **{f"{kind}.{key}": value for key, value in sizes.items()}}
    return {
        "settings": {**settings, **vocabulary},
        "arrays": {
            name: [list(shape), 0, 32 * number] for number, (name, shape) in enumerate(shapes.items())
        },
    }


def _block(*names: str, inner: int = INNER) -> dict[str, tuple[int, ...]]:
    """Arrays of the first block by the ends of their names."""
    known = {
        "attn_qkv": (3 * WIDTH, WIDTH),
        "ffn_up": (inner, WIDTH),
        "ffn_gate": (inner, WIDTH),
        "ffn_down": (WIDTH, INNER),
    }
    square = ("attn_q", "attn_k", "attn_v", "attn_output")
    return {
        f"blk.0.{name}.weight": known.get(name, (WIDTH, WIDTH) if name in square else (WIDTH,))
        for name in names
    }


def _with_biases(shapes: dict[str, tuple[int, ...]]) -> dict[str, tuple[int, ...]]:
    return {**shapes, **{name.replace(".weight", ".bias"): shape[:1] for name, shape in shapes.items()}}


def _bert(kind: str, more: dict[str, Any], *, separate: bool) -> dict[str, Any]:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "\u2581a", "\u2581man", "\u2581cat", "\u2581the", "s", "ing"]
    vocabulary = {
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [3] * 4 + [1] * 6,
        "tokenizer.ggml.seperator_token_id": 3,
    }
    norms = _with_biases(
        {"token_embd_norm.weight": (WIDTH,), **_block("attn_output_norm", "layer_output_norm")}
    )
    layers = _block("attn_q", "attn_k", "attn_v", "attn_output", "ffn_up", "ffn_down")
    plain = _block("attn_qkv", "attn_output", "ffn_up", "ffn_gate", "ffn_down")
    shapes = {
        "token_types.weight": (2, WIDTH),
        **more,
        **norms,
        **(_with_biases(layers) if separate else plain),
    }
    return _model(kind, vocabulary, shapes, attention__layer_norm_epsilon=1e-5, pooling_type=1)


def _modern() -> dict[str, Any]:
    shapes = {"token_embd_norm.weight": (WIDTH,), "output_norm.weight": (WIDTH,)}
    shapes |= _block("attn_qkv", "attn_output", "ffn_norm", "ffn_up", "ffn_down", inner=2 * INNER)
    vocabulary = {**_byte_bpe("modern-bert"), "tokenizer.ggml.add_bos_token": True}
    return _model("modern-bert", vocabulary, shapes, attention__layer_norm_epsilon=1e-5, pooling_type=2)


def _decoder(kind: str, vocabulary: dict[str, Any], *, biases: bool = False) -> dict[str, Any]:
    attention = _block("attn_q", "attn_k", "attn_v")
    shapes = {
        "output_norm.weight": (WIDTH,),
        **(_with_biases(attention) if biases else attention),
        **_block("attn_output", "attn_norm", "ffn_norm", "ffn_up", "ffn_gate", "ffn_down"),
    }
    if kind == "llama":
        shapes = {"rope_freqs.weight": (WIDTH // HEADS // 2,), **shapes}
    return _model(kind, vocabulary, shapes, attention__layer_norm_rms_epsilon=1e-5, rope__freq_base=100.0)


def _gemma() -> dict[str, Any]:
    tree = _decoder("gemma3", _pieces("llama"))
    size = [WIDTH // HEADS]
    arrays = {f"blk.0.{name}.weight": [size, 0, 0] for name in ("attn_q_norm", "attn_k_norm")}
    arrays |= {f"blk.0.{name}.weight": [[WIDTH], 0, 0] for name in ("post_attention_norm", "post_ffw_norm")}
    settings = {"gemma3.attention.sliding_window": 4, "gemma3.attention.sliding_window_pattern": 2}
    return {"settings": {**tree["settings"], **settings}, "arrays": {**tree["arrays"], **arrays}}


def _byte_bpe(pre: str) -> dict[str, Any]:
    words = [*"abcdefghijklmnopqrstuvwxyz", "\u0120", "ab", "in", "ing", "<s>"]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": pre,
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [1] * 30 + [3],
        "tokenizer.ggml.merges": ["a b", "i n", "in g"],
        "tokenizer.ggml.bos_token_id": 30,
    }


def _pieces(model: str) -> dict[str, Any]:
    words = ["<unk>", "<s>", "</s>", "<0x0A>", "\u2581", *"abcdefghimnopwlt", "\u2581a", "in", "the"]
    return {
        "tokenizer.ggml.model": model,
        "tokenizer.ggml.tokens": words,
        "tokenizer.ggml.token_type": [2, 3, 3, 6] + [1] * (len(words) - 5) + [4],
        "tokenizer.ggml.scores": [-float(number) for number in range(len(words))],
        "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.precompiled_charsmap": [],
    }
