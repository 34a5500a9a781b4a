"""Weights that are not finite, and weights that changed: an error that names them, and no vectors of older weights."""

from __future__ import annotations

import json
import os

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gemel
from gemel.encoder.engines.native import levels
from gemel.encoder.int8 import quick_digest
from gemel.errors import ModelError
from gemel.options import EncodeOptions
from tiny import tiny_bert, tiny_tokenizer, tiny_vocabulary

WEIGHTS = [
    "embeddings.word_embeddings.weight",
    "embeddings.position_embeddings.weight",
    "embeddings.LayerNorm.weight",
    "encoder.layer.0.attention.self.query.weight",
    "encoder.layer.1.output.LayerNorm.bias",
    "encoder.layer.1.output.dense.weight",
]
INT8 = pytest.mark.skipif(not levels(), reason="no kernel was compiled")


def spoil(path, name, value):
    weights = dict(load_file(path))
    array = weights[name].copy()
    if array.ndim == 2 and "embeddings" in name:
        array[2 if "word" in name else 0, 1] = value  # the row of [CLS], or of the first position
    else:
        array.reshape(-1)[0] = value
    save_file({**weights, name: array}, path)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("engine", ["auto", "onnxruntime"])
@pytest.mark.parametrize("name", WEIGHTS)
def test_a_weight_that_is_not_finite_is_an_error(tmp_path, name, engine, precision):
    folder = tiny_bert(tmp_path / "model", normalize=False)
    spoil(folder / "model.safetensors", name, np.nan if "0" in name else np.inf)
    with (
        pytest.raises(ModelError, match=r"NaN or infinite values|cannot be stored in int8"),
        np.errstate(all="ignore"),
    ):
        gemel.load(folder, engine=engine, precision=precision).encode(["a man", "the cat is"])


def test_the_weight_is_named(tmp_path):
    for number, name in enumerate(WEIGHTS):
        folder = tiny_bert(tmp_path / str(number), normalize=False)
        spoil(folder / "model.safetensors", name, np.nan)
        with pytest.raises(ModelError, match=repr(name)):
            gemel.load(folder).encode(["a man"])


@pytest.mark.parametrize("normalize", [True, False])
@pytest.mark.parametrize("output", ["float32", "int8", "binary"])
def test_every_output_and_every_way_to_it_is_checked(tmp_path, output, normalize):
    folder = tiny_bert(tmp_path / "model", normalize=normalize)
    spoil(folder / "model.safetensors", WEIGHTS[0], np.nan)
    model, options = gemel.load(folder), EncodeOptions(output=output)
    ways = [
        lambda: model.encode(["a man"], options),
        lambda: list(model.encode_stream(["a man"], options)),
        lambda: model.run(model.prepare(["a man"], options)),
        lambda: model.tokens(["a man"]),
    ]
    for way in ways:
        with pytest.raises(ModelError, match=repr(WEIGHTS[0])):
            way()


def test_a_static_table_with_a_nan_row_is_an_error(tmp_path):
    folder = tmp_path / "static"
    folder.mkdir()
    table = np.ones((len(tiny_vocabulary()), 8), np.float32)
    table[tiny_vocabulary().index("man"), 3] = np.inf
    save_file({"embeddings": table}, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    tiny_tokenizer(folder / "tokenizer.json")
    model = gemel.load(folder)
    assert np.isfinite(model.encode(["the cat"])).all()
    with pytest.raises(ModelError, match="its weight 'embeddings' holds NaN or infinite values"):
        model.encode(["the cat", "a man"], output="int8")


def test_overflow_has_its_own_error(tmp_path):
    folder = tiny_bert(tmp_path / "model", normalize=False, dense=4)
    weights = dict(load_file(folder / "2_Dense" / "model.safetensors"))
    config = json.loads((folder / "2_Dense" / "config.json").read_text())
    config["activation_function"] = "torch.nn.modules.linear.Identity"
    (folder / "2_Dense" / "config.json").write_text(json.dumps(config))
    save_file(
        {n: np.sign(w) * np.float32(3e38) for n, w in weights.items()},
        folder / "2_Dense" / "model.safetensors",
    )
    with pytest.raises(ModelError, match="overflow float32"), np.errstate(all="ignore"):
        gemel.load(folder).encode(["a man is playing in the rain"])


# The int8 weights that are cached next to a model.


def same_size_and_date(path, source):
    """The content of `source` in `path`, which keeps its size and its date, as archives with fixed dates do."""
    before = path.stat()
    content = source.read_bytes()
    assert len(content) == before.st_size
    path.write_bytes(content)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@INT8
def test_other_weights_of_the_same_size_and_date_are_quantized_again(tmp_path):
    folder, other = tiny_bert(tmp_path / "model"), tiny_bert(tmp_path / "other", seed=1)
    first = gemel.load(folder, precision="int8").encode(["a man"])
    same_size_and_date(folder / "model.safetensors", other / "model.safetensors")
    wanted = gemel.load(other, precision="int8").encode(["a man"])
    result = gemel.load(folder, precision="int8").encode(["a man"])
    assert np.array_equal(result, wanted) and not np.allclose(result, first, atol=1e-2)


@INT8
def test_a_change_between_the_sampled_bytes_is_detected(tmp_path):
    folder = tiny_bert(tmp_path / "model", width=128, layers=6)
    path = folder / "model.safetensors"
    gemel.load(folder, precision="int8").encode(["a man"])
    quick, content = quick_digest([path]), bytearray(path.read_bytes())
    name = "encoder.layer.5.output.dense.weight"
    start = len(content) // 2 + 40_000  # four bytes that no sample holds
    start -= (start - 8 - int.from_bytes(content[:8], "little")) % 4
    content[start : start + 4] = np.float32(30).tobytes()
    other = tmp_path / "other.safetensors"
    other.write_bytes(bytes(content))
    same_size_and_date(path, other)
    assert quick_digest([path]) == quick, name
    kept = folder / ".gemel"
    fresh = tiny_bert(tmp_path / "fresh", width=128, layers=6)
    (fresh / "model.safetensors").write_bytes(bytes(content))
    wanted = gemel.load(fresh, precision="int8").encode(["a man"])
    assert np.array_equal(gemel.load(folder, precision="int8").encode(["a man"]), wanted)
    assert len(list(kept.glob("*.safetensors"))) == 1  # replaced by a new one


@INT8
def test_untouched_weights_are_compared_in_full_once(tmp_path, monkeypatch):
    from gemel.encoder import int8 as int8_weights

    folder = tiny_bert(tmp_path / "model")
    first = gemel.load(folder, precision="int8").encode(["a man"])
    calls, full = [], int8_weights.full_digest
    monkeypatch.setattr(int8_weights, "full_digest", lambda sources: calls.append(1) or full(sources))
    assert np.array_equal(gemel.load(folder, precision="int8").encode(["a man"]), first)
    assert not calls  # noted when it was made
    os.utime(folder / "model.safetensors")
    assert np.array_equal(gemel.load(folder, precision="int8").encode(["a man"]), first)
    gemel.load(folder, precision="int8")
    assert len(calls) == 1
