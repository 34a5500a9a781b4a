"""The layers after pooling: every activation of a dense layer, and layer norms."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import gemel
from gemel.checkpoint.head import ACTIVATIONS, Dense, LayerNorm
from gemel.encoder.head import finish
from tiny import tiny_bert

TEXTS = ["A man is playing a guitar.", "the", "a dog and a cat"]


def with_module(folder: Path, kind: str, config: dict[str, object], tensors: dict[str, np.ndarray]) -> Path:
    """The model of `folder` with one more module at its end."""
    listed = json.loads((folder / "modules.json").read_text())
    path = f"{len(listed)}_{kind}"
    listed.append(
        {"idx": len(listed), "name": path[0], "path": path, "type": f"sentence_transformers.models.{kind}"}
    )
    (folder / "modules.json").write_text(json.dumps(listed))
    (folder / path).mkdir()
    (folder / path / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / path / "model.safetensors")
    return folder


def with_layer_norm(folder: Path, width: int = 32) -> Path:
    random = np.random.default_rng(3)
    tensors = {
        "norm.weight": random.normal(1, 0.2, width).astype(np.float32),
        "norm.bias": random.normal(0, 0.2, width).astype(np.float32),
    }
    return with_module(folder, "LayerNorm", {"dimension": width}, tensors)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_is_that_of_torch(name):
    torch = pytest.importorskip("torch")
    vectors = np.concatenate([np.linspace(-30, 30, 241), [-0.5, 0.5, 3, -3, 90, -90]]).astype(np.float32)[
        None
    ]
    layer = Dense(np.eye(vectors.shape[1], dtype=np.float32), None, name)
    expected = getattr(torch.nn, ACTIVATIONS[name])()(torch.from_numpy(vectors)).numpy()
    np.testing.assert_allclose(finish(vectors, [layer], unit=False, dim=None), expected, rtol=1e-6, atol=1e-6)


def test_a_layer_norm_is_that_of_torch_and_a_row_does_not_see_the_others():
    torch = pytest.importorskip("torch")
    random = np.random.default_rng(0)
    vectors, weight, bias = (random.normal(0, 2, shape).astype(np.float32) for shape in ((9, 33), 33, 33))
    layer = LayerNorm(weight, bias)
    result = finish(vectors, [layer], unit=False, dim=None)
    x, factors, shift = map(torch.from_numpy, (vectors, weight, bias))
    expected = torch.nn.functional.layer_norm(x, (33,), factors, shift).numpy()
    np.testing.assert_allclose(result, expected, rtol=1e-5, atol=1e-6)
    for row in range(len(vectors)):
        alone = finish(vectors[row : row + 1], [layer], unit=False, dim=None)
        np.testing.assert_array_equal(alone[0], result[row])


def test_a_layer_norm_of_a_folder_is_read_saved_and_hashed(tmp_path):
    plain = tiny_bert(tmp_path / "plain", normalize=False)
    folder = with_layer_norm(tiny_bert(tmp_path / "norm", normalize=False))
    model = gemel.load(folder)
    (layer,) = model.checkpoint.dense
    tensors = load_file(folder / "2_LayerNorm" / "model.safetensors")
    before = gemel.load(plain).encode(TEXTS).astype(np.float64)
    scaled = (before - before.mean(1, keepdims=True)) / np.sqrt(before.var(1, keepdims=True) + 1e-5)
    expected = scaled * tensors["norm.weight"] + tensors["norm.bias"]
    np.testing.assert_allclose(model.encode(TEXTS), expected, rtol=1e-4, atol=1e-5)
    assert (layer.inputs, layer.outputs, model.dim) == (32, 32, 32)
    saved = gemel.load(model.save(tmp_path / "saved"))
    np.testing.assert_array_equal(saved.encode(TEXTS), model.encode(TEXTS))
    assert saved.weights_hash == model.weights_hash != gemel.load(plain).weights_hash


def test_two_dense_layers_without_a_bias_as_in_embedding_gemma(tmp_path):
    folder, random = tiny_bert(tmp_path / "model", normalize=False), np.random.default_rng(1)
    weights = [random.normal(0, 0.2, shape).astype(np.float32) for shape in ((64, 32), (24, 64))]
    for weight in weights:
        config = {
            "in_features": weight.shape[1],
            "out_features": weight.shape[0],
            "bias": False,
            "activation_function": "torch.nn.modules.linear.Identity",
            "module_input_name": "sentence_embedding",
            "module_output_name": None,
        }
        with_module(folder, "Dense", config, {"linear.weight": weight})
    pooled = gemel.load(tiny_bert(tmp_path / "plain", normalize=False)).encode(TEXTS)
    np.testing.assert_allclose(
        gemel.load(folder).encode(TEXTS), pooled @ weights[0].T @ weights[1].T, rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("name", ["silu", "elu", "mish", "leakyrelu", "hardswish", "softsign", "layernorm"])
def test_the_exported_graph_has_the_same_layers(tmp_path, name):
    pytest.importorskip("onnxruntime")
    from gemel.export.write import export

    if name == "layernorm":
        folder = with_layer_norm(tiny_bert(tmp_path / "model", normalize=False))
    else:
        folder = tiny_bert(tmp_path / "model", dense=8, normalize=False)
        config = folder / "2_Dense" / "config.json"
        content = json.loads(config.read_text())
        content["activation_function"] = f"torch.nn.modules.activation.{ACTIVATIONS[name]}"
        config.write_text(json.dumps(content))
    assert export(folder, tmp_path / "out").agreement.difference < 1e-5


def test_layer_norms_and_activations_are_trained_as_they_are_run(tmp_path):
    torch = pytest.importorskip("torch")
    from gemel.checkpoint.folder import read_checkpoint
    from gemel.training.bi_encoder import BiEncoderNetwork
    from gemel.training.options import TrainOptions

    folder = with_layer_norm(tiny_bert(tmp_path / "model", dense=8, normalize=False), 8)
    config = folder / "2_Dense" / "config.json"
    config.write_text(config.read_text().replace("Tanh", "SiLU"))
    network = BiEncoderNetwork(read_checkpoint(folder), TrainOptions(), torch.device("cpu"))
    network.module.eval()
    np.testing.assert_allclose(
        network.encoder().encode(TEXTS), gemel.load(folder).encode(TEXTS), rtol=1e-4, atol=1e-5
    )
    network.write(tmp_path / "out", objective=None, about={})
    np.testing.assert_array_equal(
        gemel.load(tmp_path / "out").encode(TEXTS), gemel.load(folder).encode(TEXTS)
    )
