"""GGUF files give the hidden states of the safetensors that they were made from."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.errors import InputError, ModelError
from tiny import tiny_checkpoint, tiny_vocabulary

gguf = pytest.importorskip("gguf")
TEXTS = ["A man is playing a guitar.", "the", "a dog and a cat"]
KINDS = {"bert": "bert", "qwen3": "qwen3", "gemma3_text": "gemma-embedding"}
TYPES = gguf.GGMLQuantizationType


def write_gguf(source: Path, path: Path, kind: str, stored: str = "F32", **more: object) -> Path:
    """The checkpoint of `source` as llama.cpp's converter writes it; `stored`: the type of matrices."""
    config, weights = (
        json.loads((source / "config.json").read_text()),
        load_file(source / "model.safetensors"),
    )
    writer = gguf.GGUFWriter(path, KINDS[kind])
    writer.add_context_length(48)
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_head_count(config["num_attention_heads"])
    if kind == "bert":
        writer.add_layer_norm_eps(config["layer_norm_eps"])
        writer.add_pooling_type(gguf.PoolingType.MEAN)
        words = [f"\u2581{word}" if not word.startswith(("##", "[")) else word for word in tiny_vocabulary()]
        words = [word.removeprefix("##") if word.startswith("##") else word for word in words]
        writer.add_tokenizer_model("bert")
        writer.add_token_list(words)
    else:
        writer.add_head_count_kv(config["num_key_value_heads"])
        writer.add_key_length(config["head_dim"])
        writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
        rope = config["rope_parameters"]
        if kind == "gemma3_text":
            writer.add_sliding_window(config["sliding_window"])
            writer.add_rope_freq_base(rope["full_attention"]["rope_theta"])
            writer.add_float32("gemma-embedding.rope.freq_base_swa", rope["sliding_attention"]["rope_theta"])
        else:
            writer.add_rope_freq_base(rope["rope_theta"])
        _add_tokenizer(writer, kind)
    for key, value in more.items():
        writer.add_bool(f"tokenizer.ggml.{key}", value)
    names = gguf.get_tensor_name_map(
        {each: number for number, each in gguf.MODEL_ARCH_NAMES.items()}[KINDS[kind]],
        config["num_hidden_layers"],
    )
    for name, weight in weights.items():
        if "pooler" not in name:
            _add(writer, names, name, weight + (kind == "gemma3_text") * name.endswith("norm.weight"), stored)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer, names, name: str, weight: np.ndarray, stored: str) -> None:
    own = names.get_name(name, (".weight", ".bias")) or names.get_name(f"model.{name}", (".weight", ".bias"))
    weight = np.ascontiguousarray(weight, dtype=np.float32)
    kind = TYPES[stored] if weight.ndim == 2 and name.endswith("weight") and "norm" not in name else TYPES.F32
    writer.add_tensor(own, gguf.quants.quantize(weight, kind), raw_dtype=kind)


def _add_tokenizer(writer, kind: str) -> None:
    size = len(tiny_vocabulary())
    if kind == "qwen3":
        words = [*"abcdefgh", "\u0120", "ab", "<eos>"]
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("qwen2")
        writer.add_token_merges(["a b"])
    else:
        words = ["<unk>", *"abcdefgh", "\u2581", "ab", "<eos>"]
        writer.add_tokenizer_model("llama")
        writer.add_token_scores([0.0] * 10 + [-1.0] + [0.0] * (size - 11))
        writer.add_unk_token_id(0)
        writer.add_add_space_prefix(False)
    words += [f"<{number}>" for number in range(size - len(words))]
    writer.add_token_list(words)
    writer.add_token_types([3 if word == "<eos>" else 1 for word in words])
    writer.add_eos_token_id(words.index("<eos>"))
    writer.add_bos_token_id(words.index("a"))


def source(folder: Path, kind: str) -> Path:
    kinds = ["sliding_attention"] * 3  # of six layers the last is full, and there are three
    if kind == "gemma3_text":
        return tiny_checkpoint(folder, kind, layer_types=kinds, query_pre_attn_scalar=12)
    return tiny_checkpoint(folder, kind)


def hidden(model: gemel.Model, ids: np.ndarray) -> np.ndarray:
    return model.engine.hidden(ids)


@pytest.mark.parametrize("kind", KINDS)
def test_hidden_states_are_those_of_the_safetensors(tmp_path, kind):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    folder = source(tmp_path / "model", kind)
    model = gemel.load(write_gguf(folder, tmp_path / "model.gguf", kind))
    ids = np.random.default_rng(0).integers(0, 20, (3, 14)).astype(np.int32)
    np.testing.assert_allclose(hidden(model, ids), hidden(gemel.load(folder), ids), rtol=0, atol=1e-6)
    assert model.max_length == 48
    assert model.checkpoint.pooling.modes == ("last" if kind == "qwen3" else "mean",)
    assert gemel.load(str(tmp_path / "model.gguf")).weights_hash == model.weights_hash
    with pytest.raises(ModelError, match="Copy the file"):
        model.save(tmp_path / "saved")


@pytest.mark.parametrize("stored", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1"])
def test_small_numbers_are_those_of_gguf(tmp_path, stored):
    pytest.importorskip("transformers")
    folder = source(tmp_path / "model", "bert")
    model = gemel.load(write_gguf(folder, tmp_path / "model.gguf", "bert", stored))
    weights, kind = load_file(folder / "model.safetensors"), TYPES[stored]
    for name, weight in weights.items():
        if weight.ndim == 2 and "LayerNorm" not in name:
            weights[name] = gguf.quants.dequantize(gguf.quants.quantize(weight, kind), kind).reshape(
                weight.shape
            )
    save_file(weights, folder / "model.safetensors")
    plain = gemel.load(folder)
    np.testing.assert_allclose(model.encode(TEXTS), plain.encode(TEXTS), rtol=0, atol=1e-6)
    assert [piece.id for piece in model.tokenizer.pieces(TEXTS[0])] == [
        piece.id for piece in plain.tokenizer.pieces(TEXTS[0])
    ]
    np.testing.assert_allclose(
        model.encode(TEXTS, precision="int8"), plain.encode(TEXTS, precision="int8"), rtol=0, atol=1e-5
    )


@pytest.mark.parametrize("stored", ["Q4_K", "Q6_K"])
def test_blocks_of_256_numbers_are_read(tmp_path, stored):
    from gemel.checkpoint.gguf_file import GgufFile

    kind = TYPES[stored]
    _, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = np.random.default_rng(0).integers(0, 60, (4, size), dtype=np.uint8)
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "bert")
    writer.add_tensor("x", blocks, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    array = GgufFile(tmp_path / "x.gguf").array("x")
    assert array.shape == (4, 256)
    np.testing.assert_array_equal(array, gguf.quants.dequantize(blocks, kind))


@pytest.mark.parametrize("kind", ["qwen3", "gemma3_text"])
@pytest.mark.parametrize(
    "ends", [{}, {"add_eos_token": True}, {"add_bos_token": True, "add_eos_token": True}], ids=str
)
def test_special_tokens_are_added_as_the_file_says(tmp_path, kind, ends):
    pytest.importorskip("transformers")
    model = gemel.load(write_gguf(source(tmp_path / "model", kind), tmp_path / "model.gguf", kind, **ends))
    tokens = [piece.token for piece in model.tokenizer.pieces("ab cab")]
    before = ["a"] if ends.get("add_bos_token", kind == "gemma3_text") else []
    space = "\u0120" if kind == "qwen3" else "\u2581"
    assert tokens == [*before, "ab", space, "c", "ab", *["<eos>"] * ends.get("add_eos_token", False)]


def test_other_files_are_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelError, match="is not a complete GGUF file"):
        read_checkpoint(tmp_path / "model.gguf")
    writer = gguf.GGUFWriter(tmp_path / "other.gguf", "mamba")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(
        ModelError, match=r"the architecture 'mamba'\. Read from GGUF files: bert, nomic-bert"
    ):
        read_checkpoint(tmp_path / "other.gguf")
    with pytest.raises((ModelError, InputError), match=r"absent\.gguf"):
        gemel.load("absent.gguf")
