"""GGUF files give the hidden states of the safetensors that they were made from."""

from __future__ import annotations

import json
import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.cli.main import main
from gemel.errors import InputError, ModelError

gguf = pytest.importorskip("gguf", reason="needs the extra gguf")

from gemel.checkpoint.gguf_file import GgufFile  # noqa: E402 - after the skip
from gguf_models import SOURCES, add_setting, closed, gguf_source, write_gguf  # noqa: E402 - after the skip

TEXTS = ["A man is playing a guitar.", "the", "a dog and a cat"]
TYPES = gguf.GGMLQuantizationType
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}


def hidden(model: gemel.Model) -> np.ndarray:
    ids = np.random.default_rng(0).integers(0, 20, (3, 14)).astype(np.int32)
    return model.engine.hidden(ids)


def small_file(path: Path, kind: str = "bert", **settings: Any) -> Path:
    """A file with settings and no arrays."""
    writer = gguf.GGUFWriter(path, kind)
    for key, value in settings.items():
        add_setting(writer, key, value)
    return closed(writer, path)


@pytest.mark.parametrize("kind", SOURCES)
def test_hidden_states_are_those_of_the_safetensors(tmp_path, kind):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    folder = gguf_source(tmp_path / "model", kind)
    model = gemel.load(write_gguf(folder, tmp_path / "model.gguf", kind))
    np.testing.assert_allclose(hidden(model), hidden(gemel.load(folder)), rtol=0, atol=1e-6)
    assert model.max_length == 48
    causal = kind in ("llama", "qwen2", "qwen3", "gemma3")
    assert model.checkpoint.pooling.modes == ("last" if causal else "mean",)
    assert gemel.load(str(tmp_path / "model.gguf")).weights_hash == model.weights_hash
    with pytest.raises(ModelError, match="Copy the file"):
        model.save(tmp_path / "saved")


def test_a_model_of_a_gguf_file_is_pickled_and_shown(tmp_path, capsys):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    folder, path = gguf_source(tmp_path / "model", "bert"), tmp_path / "model.gguf"
    model = gemel.load(write_gguf(folder, path, "bert", **{"general.license": "cc-by-nc-4.0"}))
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(
        again.encode(TEXTS, precision="int8"), model.encode(TEXTS, precision="int8")
    )
    assert main(["models", "show", str(path), "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert shown["size"] == path.stat().st_size
    assert "cc-by-nc-4.0" in json.dumps(shown["license"])


@pytest.mark.parametrize(
    ("kind", "settings", "more"),
    [
        ("llama", {"attention_bias": True, "mlp_bias": True}, {}),
        ("llama", {"rope_parameters": {"rope_type": "linear", "rope_theta": 90.0, "factor": 3.0}}, {}),
        ("qwen2", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 100.0, "factor": 4.0,
                                       "original_max_position_embeddings": 16}}, {}),
        ("llama", {"is_causal": False}, {"llama.attention.causal": False}),
        ("gemma3", {"layer_types": ["full_attention", "sliding_attention", "full_attention"]},
         {"gemma3.attention.sliding_window_pattern": [False, True, False]}),
        ("modern-bert", {"hidden_activation": "silu"}, {"modern-bert.hidden_act": "silu"}),
    ],
    ids=["biases", "linear", "yarn", "not-causal", "layer-types", "activation"],
)  # fmt: skip
def test_settings_are_followed(tmp_path, kind, settings, more):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    folder = gguf_source(tmp_path / "model", kind, **settings)
    model = gemel.load(write_gguf(folder, tmp_path / "model.gguf", kind, **more))
    np.testing.assert_allclose(hidden(model), hidden(gemel.load(folder)), rtol=0, atol=1e-6)


def test_the_factors_of_llama_3_are_followed_and_others_refused(tmp_path):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    scaling = {**LLAMA3, "original_max_position_embeddings": 8192}
    folder = gguf_source(tmp_path / "model", "llama", rope_parameters=scaling, max_position_embeddings=8192)
    # Four rotations of a head of 8 numbers: two fast ones, one between, one slow one.
    between = 1 - (8192 * 5e5**-0.5 / (2 * np.pi) - 1) / 3
    factors = np.array([1, 1, 1 / (between / 8 + 1 - between), 8], np.float32)
    path = write_gguf(folder, tmp_path / "model.gguf", "llama", rope_freqs=factors)
    model = gemel.load(path)
    assert model.checkpoint.config["rope_scaling"]["rope_type"] == "llama3"
    np.testing.assert_allclose(hidden(model), hidden(gemel.load(folder)), rtol=0, atol=1e-5)
    write_gguf(folder, path, "llama", rope_freqs=factors * np.float32(1.1))
    with pytest.raises(ModelError, match="factors of its own"):
        gemel.load(path)


@pytest.mark.parametrize("stored", ["F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_small_numbers_are_those_of_gguf(tmp_path, stored):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    folder = gguf_source(tmp_path / "model", "bert")
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


def test_every_type_that_the_package_can_read_is_read(tmp_path):
    path = tmp_path / "x.gguf"
    kinds = [TYPES.F32, TYPES.F16, *gguf.quants._type_traits]
    writer, stored = gguf.GGUFWriter(path, "bert"), {}
    for kind in kinds:
        block, size = gguf.GGML_QUANT_SIZES[kind]
        row = size * (256 // block)
        stored[kind] = np.random.default_rng(0).integers(0, 60, (4, row), dtype=np.uint8)
        writer.add_tensor(kind.name, stored[kind], raw_dtype=kind)
    file = GgufFile(closed(writer, path))
    for kind, numbers in stored.items():
        array = file.array(kind.name)
        assert array.shape == (4, 256)
        assert array.dtype == np.float32
        np.testing.assert_array_equal(array, gguf.quants.dequantize(numbers, kind), err_msg=kind.name)


def test_the_file_is_read_as_by_the_package(tmp_path):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    more = {
        "general.alignment": 64,
        "x.empty": "",
        "x.list": [-1, 2],
        "x.flags": [True, False],
        "x.float": 0.5,
    }
    source = gguf_source(tmp_path / "model", "qwen3")
    path = write_gguf(source, tmp_path / "model.gguf", "qwen3", "Q8_0", **more)
    file, theirs = GgufFile(path), gguf.GGUFReader(path)
    assert {key: file.get(key) for key in file.keys} == {
        key: field.contents() for key, field in theirs.fields.items() if not key.startswith("GGUF.")
    }
    assert file.names == [tensor.name for tensor in theirs.tensors]
    for tensor in theirs.tensors:
        array = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        np.testing.assert_array_equal(file.array(tensor.name), array.reshape(file.shape(tensor.name)))


def test_pooling_comes_from_the_file_and_is_reported(tmp_path, capsys):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    folder, path = gguf_source(tmp_path / "model", "llama"), tmp_path / "model.gguf"
    write_gguf(folder, path, "llama", **{"llama.pooling_type": 1})
    assert gemel.load(path).checkpoint.pooling.modes == ("mean",)
    write_gguf(folder, path, "llama", **{"llama.pooling_type": 0})
    assert main(["models", "show", str(path)]) == 0
    shown = capsys.readouterr().out
    assert "last" in shown
    assert "the file names no pooling" in shown
    assert "does not say that a last token is added" in shown
    write_gguf(folder, path, "llama", add_eos_token=True, **{"llama.pooling_type": 3})
    assert len(gemel.load(path).checkpoint.notes) == 1
    write_gguf(folder, path, "llama", **{"llama.pooling_type": 4})
    with pytest.raises(ModelError, match="is a reranker"):
        gemel.load(path)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"llama.attention.clamp_kqv": 1.0}, r"sets 'llama\.attention\.clamp_kqv', which is not followed"),
        ({"llama.expert_count": 8}, r"experts \(MoE\)"),
        ({"split.count": 2}, "one of 2 parts"),
        ({"llama.rope.dimension_count": 4}, "only 8 is supported"),
        ({"llama.rope.scaling.type": "longrope"}, "'longrope', only linear and yarn"),
        ({"llama.attention.head_count": [4, 4]}, "only one whole number over 0"),
        ({"llama.pooling_type": 9}, "the pooling type 9 is not known"),
    ],
    ids=lambda each: next(iter(each)) if isinstance(each, dict) else "",
)
def test_settings_that_would_change_vectors_are_refused(tmp_path, more, message):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    path = write_gguf(gguf_source(tmp_path / "model", "llama"), tmp_path / "model.gguf", "llama", **more)
    with pytest.raises(ModelError, match=message):
        gemel.load(path).encode("a")


def test_other_files_are_refused(tmp_path):
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(20))
    with pytest.raises(ModelError, match="is not a complete GGUF file"):
        read_checkpoint(tmp_path / "model.gguf")
    with pytest.raises(
        ModelError, match=r"the architecture 'mamba'\. Read from GGUF files: bert, nomic-bert"
    ):
        read_checkpoint(small_file(tmp_path / "other.gguf", "mamba"))
    with pytest.raises(ModelError, match=r"'nomic-bert-moe'.*with experts \(MoE\) are not supported"):
        read_checkpoint(small_file(tmp_path / "other.gguf", "nomic-bert-moe"))
    with pytest.raises(ModelError, match=r"does not say bert\.embedding_length"):
        read_checkpoint(small_file(tmp_path / "other.gguf"))
    with pytest.raises((ModelError, InputError), match=r"absent\.gguf"):
        gemel.load("absent.gguf")


def test_an_array_of_another_network_is_refused(tmp_path):
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    folder = gguf_source(tmp_path / "model", "llama")
    path = write_gguf(folder, tmp_path / "model.gguf", "qwen2")
    with pytest.raises(ModelError, match="bias"):
        gemel.load(path)
    folder = gguf_source(tmp_path / "other", "qwen3")
    write_gguf(folder, path, "qwen3")
    path.write_bytes(path.read_bytes().replace(b"attn_q_norm", b"attn_x_norm"))
    with pytest.raises(ModelError, match=r"'blk\.0\.attn_x_norm\.weight' is not known"):
        gemel.load(path)


HUGE = 2**62


@pytest.mark.parametrize(
    "body",
    [
        struct.pack("<QQ", HUGE, 0),
        struct.pack("<QQ", 0, HUGE),
        struct.pack("<QQQ", 0, 1, HUGE) + b"key",
        struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 4, HUGE),
        struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 8, HUGE),
        struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<IIQ", 9, 9, HUGE) + bytes(64),
        struct.pack("<QQQ", 0, 1, 1) + b"k" + struct.pack("<I", 77) + bytes(64),
        struct.pack("<QQQ", 1, 0, 1) + b"a" + struct.pack("<I", 2**31) + bytes(64),
        struct.pack("<QQQ", 1, 0, 1) + b"a" + struct.pack("<IQIQ", 1, 2**40, 0, 0) + bytes(64),
        struct.pack("<QQQ", 1, 0, 1) + b"a" + struct.pack("<IQIQ", 1, 1, 0, HUGE) + bytes(64),
        struct.pack("<QQQ", 1, 0, 1) + b"\xff" + struct.pack("<IQIQ", 1, 1, 0, 0) + bytes(64),
        2 * (struct.pack("<Q", 1) + b"\0" * 9),
    ],
    ids=["arrays", "settings", "key", "numbers", "texts", "lists-of-lists", "type", "dimensions", "size", "offset",
         "name", "zeros"],
)  # fmt: skip
def test_damaged_headers_are_refused_at_once(tmp_path, body):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF" + struct.pack("<I", 3) + body)
    with pytest.raises(ModelError, match="is not a complete GGUF file"):
        GgufFile(path)
