"""The ONNX Runtime engine and the torch engine: threads, odd sizes, int8, devices, errors."""

from __future__ import annotations

import json
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from safetensors.numpy import load_file

from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.engines.engine import open_engine
from gemel.encoder.engines.onnx import MultiplyInt8, OnnxEngine, choose_provider, safe_weight_bits
from gemel.encoder.engines.onnx_graph import LOWEST, Nodes
from gemel.encoder.engines.torch import TorchEngine
from gemel.encoder.int8 import smoothing_factors
from gemel.encoder.network import Linear
from gemel.encoder.weights import read_network
from gemel.errors import InputError, MissingExtra, ModelError
from tiny import tiny_bert, tiny_vocabulary

VOCABULARY = len(tiny_vocabulary())


def make_network(folder, **options):
    tiny_bert(folder, **options)
    return read_network(
        json.loads((folder / "config.json").read_text()), load_file(folder / "model.safetensors")
    )


@pytest.fixture(scope="module")
def network(tmp_path_factory):
    return make_network(tmp_path_factory.mktemp("bert"))


def some_ids(texts, tokens, seed=0):
    return np.random.default_rng(seed).integers(4, VOCABULARY, (texts, tokens)).astype(np.int32)


def test_the_engine_describes_itself(network):
    engine = OnnxEngine(network)
    assert (engine.name, engine.width) == ("onnxruntime", 32)
    hidden = engine.hidden(some_ids(3, 7))
    assert hidden.shape == (3, 7, 32) and hidden.dtype == np.float32


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize(("width", "heads"), [(20, 4), (21, 3), (132, 4)])
def test_batch_invariance_holds_for_odd_widths(tmp_path, precision, width, heads):
    engine = OnnxEngine(make_network(tmp_path, width=width, heads=heads), precision=precision)
    for tokens in (1, 2, 5, 13):
        ids = some_ids(23, tokens)
        together = engine.hidden(ids)
        for row in range(len(ids)):
            assert np.array_equal(engine.hidden(ids[row : row + 1])[0], together[row])


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_threads_that_share_an_engine_do_not_disturb_each_other(network, precision):
    engine = OnnxEngine(network, precision=precision)
    batches = [some_ids(1 + seed % 5, 1 + seed % 11, seed) for seed in range(40)]
    alone = [engine.hidden(ids) for ids in batches]
    with ThreadPoolExecutor(4) as pool:
        assert all(map(np.array_equal, pool.map(engine.hidden, batches), alone))


def test_the_engine_works_after_the_network_is_deleted(tmp_path):
    network = make_network(tmp_path)
    ids, kept = some_ids(2, 6), OnnxEngine(network)
    before = kept.hidden(ids)
    del network
    noise = [np.random.default_rng(seed).random((64, 64)) for seed in range(50)]
    assert np.array_equal(kept.hidden(ids), before) and len(noise) == 50


def test_the_longest_text_fits_and_one_token_more_is_refused(network):
    engine = OnnxEngine(network)
    assert engine.hidden(some_ids(1, 128)).shape == (1, 128, 32)
    with pytest.raises(InputError, match="129 tokens, the network has 128 positions"):
        engine.hidden(some_ids(1, 129))


@pytest.mark.parametrize("shape", [(0, 4), (4, 0), (3,)])
def test_no_texts_or_no_tokens_are_refused(network, shape):
    with pytest.raises(InputError, match="at least one of each"):
        OnnxEngine(network).hidden(np.zeros(shape, np.int32))


@pytest.mark.parametrize("wrong", [-1, VOCABULARY, 2**31 - 1])
def test_an_id_outside_the_vocabulary_is_named(network, wrong):
    ids = some_ids(2, 3)
    ids[1, 2] = wrong
    with pytest.raises(InputError, match=f"token id {wrong} is outside the vocabulary"):
        OnnxEngine(network).hidden(ids)


def run_multiply(multiply, x, linear, low=None):
    """One linear layer as its own session."""
    import onnxruntime

    nodes = Nodes()
    graph = nodes.finish(multiply(nodes, "words", linear, low), ("r", x.shape[1]), ("r", linear.shape[0]))
    options = onnxruntime.SessionOptions()
    values = [onnxruntime.OrtValue.ortvalue_from_numpy(array) for array in graph.arrays.values()]
    options.add_external_initializers(list(graph.arrays), values)
    session = onnxruntime.InferenceSession(graph.model, options, providers=["CPUExecutionProvider"])
    return session.run(None, {"words": x})[0]


@pytest.fixture
def layer():
    random = np.random.default_rng(5)
    weight, bias = random.normal(size=(24, 48)).astype(np.float32), random.normal(size=24).astype(np.float32)
    return Linear(weight, bias)


@pytest.mark.parametrize("low", [None, 0.0])
def test_a_row_of_zeros_gives_the_bias(layer, low):
    x = np.zeros((3, 48), np.float32)
    got = run_multiply(MultiplyInt8(7), x, layer, low)
    assert np.array_equal(got, np.broadcast_to(layer.bias, (3, 24)))


def test_weights_of_zeros_are_handled(layer):
    x = np.ones((2, 48), np.float32)
    got = run_multiply(MultiplyInt8(8), x, Linear(np.zeros_like(layer.weight), layer.bias))
    assert np.array_equal(got, np.broadcast_to(layer.bias, (2, 24)))


def test_a_lower_bound_makes_int8_more_accurate(layer):
    low = LOWEST["gelu"]
    x = np.random.default_rng(6).exponential(0.5, (200, 48)).astype(np.float32) + np.float32(low)
    exact = x @ layer.weight.T + layer.bias
    multiply = MultiplyInt8(8)
    plain = np.abs(run_multiply(multiply, x, layer) - exact).mean()
    shifted = np.abs(run_multiply(multiply, x, layer, low) - exact).mean()
    assert shifted < 0.8 * plain


def test_smoothing_makes_int8_more_accurate_with_outlier_channels(tmp_path):
    network = make_network(tmp_path)
    loud = network.embedding_norm.weight.copy()
    loud[3] = 60.0
    network = replace(network, embedding_norm=replace(network.embedding_norm, weight=loud))
    multiply = MultiplyInt8(8, smoothing_factors(network))
    qkv = network.blocks[0].qkv
    x = np.random.default_rng(7).normal(size=(200, 32)).astype(np.float32) * loud
    exact = x @ qkv.read().T + qkv.bias
    smooth = np.abs(run_multiply(multiply, x, qkv) - exact).mean()
    rough = np.abs(run_multiply(MultiplyInt8(8), x, qkv) - exact).mean()
    assert multiply.factors[qkv].argmax() == 3 and smooth < 0.5 * rough


def test_smoothing_factors_are_powers_of_two(network):
    factors = smoothing_factors(network)
    assert set(factors) == {linear for block in network.blocks for linear in (block.qkv, block.up)}
    for factor in factors.values():
        assert (np.log2(factor) % 1 == 0).all()


def test_no_activation_goes_below_its_bound():
    torch = pytest.importorskip("torch", reason="the activations are compared with torch")
    x = torch.linspace(-20, 5, 1_000_001)
    functions = torch.nn.functional
    lowest = {
        "gelu": functions.gelu(x).min(),
        "gelu-tanh": functions.gelu(x, approximate="tanh").min(),
        "relu": functions.relu(x).min(),
        "silu": functions.silu(x).min(),
    }
    assert all(LOWEST[name] <= float(value) <= LOWEST[name] + 1e-3 for name, value in lowest.items())


@pytest.mark.parametrize(("bits", "largest"), [(7, 63), (8, 127)])
def test_weights_use_all_of_their_bits_and_no_more(layer, bits, largest):
    multiply = MultiplyInt8(bits)
    got = run_multiply(multiply, np.eye(48, dtype=np.float32), layer) - layer.bias
    steps = got.T / (np.abs(layer.weight).max(axis=1, keepdims=True) / largest)
    np.testing.assert_allclose(steps, np.rint(steps), rtol=0, atol=1e-3)
    assert (np.abs(np.rint(steps)).max(axis=1) == largest).all()


@pytest.mark.parametrize(
    ("flags", "bits"),
    [("sse avx2 avx512_vnni", 8), ("avx2 avx_vnni", 8), ("avx2 avx512f", 7), (None, 7)],
)
def test_weight_bits_follow_the_processor(tmp_path, monkeypatch, flags, bits):
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    info = tmp_path / "cpuinfo"
    if flags:
        info.write_text(f"processor : 0\nflags\t\t: fpu {flags} sse2\n")
    assert safe_weight_bits(info) == bits
    monkeypatch.setattr("platform.machine", lambda: "arm64")
    assert safe_weight_bits(info) == 8


def test_weight_bits_can_be_chosen(network):
    assert OnnxEngine(network, precision="int8", weight_bits=7).weight_bits == 7
    assert OnnxEngine(network).weight_bits is None


def test_an_unknown_device_is_refused_with_the_available_ones():
    with pytest.raises(InputError, match=r"unknown device 'gpu'\. Known: cpu, coreml, cuda"):
        choose_provider("gpu")
    with pytest.raises(InputError, match="unknown device 'cuda:first'"):
        choose_provider("cuda:first")


def test_an_unavailable_device_is_refused_with_what_to_install(monkeypatch):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CPUExecutionProvider"])
    with pytest.raises(
        InputError, match=r"'cuda' is not available.*knows cpu\. .*pip install onnxruntime-gpu"
    ):
        choose_provider("cuda")


def test_an_available_device_is_used(monkeypatch):
    there = ["CUDAExecutionProvider", "CPUExecutionProvider"]
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: there)
    assert choose_provider("cpu").name == "CPUExecutionProvider"
    assert choose_provider("cuda").options == {}
    assert choose_provider("cuda:1").name == "CUDAExecutionProvider"
    assert choose_provider("cuda:1").options == {"device_id": "1"}


def test_int8_is_for_the_cpu(monkeypatch, network):
    monkeypatch.setattr("onnxruntime.get_available_providers", lambda: ["CUDAExecutionProvider"])
    with pytest.raises(InputError, match="'int8' runs on device 'cpu', not on 'cuda'"):
        OnnxEngine(network, precision="int8", device="cuda")


def test_the_torch_engine_agrees_and_is_batch_invariant(tmp_path):
    pytest.importorskip("transformers", reason="the torch engine is in the train extra")
    network = make_network(tmp_path)
    engine, ids = TorchEngine(read_checkpoint(tmp_path)), some_ids(4, 9)
    hidden = engine.hidden(ids)
    assert (engine.name, engine.width) == ("torch", 32)
    np.testing.assert_allclose(hidden, OnnxEngine(network).hidden(ids), rtol=0, atol=1e-5)
    assert np.array_equal(engine.hidden(ids[1:2])[0], hidden[1])
    with pytest.raises(InputError, match="token ids must be"):
        engine.hidden(np.array([[VOCABULARY]], np.int32))
    with pytest.raises(InputError, match="torch cannot use device 'cuda'"):
        TorchEngine(read_checkpoint(tmp_path), device="cuda")


def test_the_torch_engine_refuses_a_folder_without_safetensors(tmp_path):
    pytest.importorskip("transformers", reason="the torch engine is in the train extra")
    checkpoint = read_checkpoint(tiny_bert(tmp_path))
    (tmp_path / "model.safetensors").rename(tmp_path / "other.bin")
    with pytest.raises(ModelError, match="transformers cannot load"):
        TorchEngine(checkpoint)


def test_without_torch_the_torch_engine_names_the_extra(tmp_path, monkeypatch):
    checkpoint = read_checkpoint(tiny_bert(tmp_path))
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[train\]'"):
        TorchEngine(checkpoint)


@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_an_engine_that_cannot_read_the_architecture_is_refused_and_not_replaced(tmp_path, engine):
    folder = tiny_bert(tmp_path / "tiny")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"model_type": "funnel"}))
    message = f"engine '{engine}' cannot run tiny: gemel cannot read its architecture 'funnel' itself.*engine='torch'"
    with pytest.raises(InputError, match=message):
        open_engine(read_checkpoint(folder), engine=engine)
