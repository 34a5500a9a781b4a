"""Every form of a network in every engine: equal to NumPy, and the same bits alone and in any batch."""

from __future__ import annotations

import numpy as np
import pytest

from gemel.encoder.engines.engine import has_onnxruntime
from gemel.encoder.engines.native import NativeEngine, levels
from gemel.encoder.engines.onnx import OnnxEngine
from gemel.encoder.engines.reference import NumpyEngine, PlainNetwork
from networks import FORMS, POSITIONS, WORDS, random_network

LENGTHS = (1, 2, 5, 17, 49, 90)
FUSING = [level for level in levels() if level != "baseline"]
PORTABLE = ["onnxruntime", "numpy"] if has_onnxruntime() else ["numpy"]
ENGINES = [*PORTABLE, *(f"native-{level}" for level in (*FUSING[:1], *levels()[-1:]))]


@pytest.fixture(scope="module", params=FORMS)
def network(request):
    return random_network(FORMS[request.param])


def open_engine(name, network, precision="float32"):
    if name == "numpy":
        return NumpyEngine(network)
    if name == "onnxruntime":
        return OnnxEngine(network, precision=precision)
    return NativeEngine(network, precision=precision, level=name.partition("-")[2])


def some_ids(texts, tokens, seed=0):
    return np.random.default_rng(seed).integers(0, WORDS, (texts, tokens)).astype(np.int32)


@pytest.mark.parametrize("name", ENGINES)
def test_every_form_equals_numpy(network, name):
    engine, reference = open_engine(name, network), PlainNetwork(network)
    for tokens in LENGTHS:
        ids = some_ids(2, tokens)
        np.testing.assert_allclose(engine.hidden(ids), reference.hidden(ids), rtol=0, atol=2e-5)


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("name", ENGINES)
def test_every_form_has_the_same_bits_in_any_batch(network, name, precision):
    if (name, precision) == ("numpy", "int8"):
        pytest.skip("NumPy computes in float32 only")
    engine = open_engine(name, network, precision)
    for tokens in LENGTHS:
        ids = some_ids(9, tokens, seed=1)
        together = engine.hidden(ids)
        for row in range(len(ids)):
            assert np.array_equal(engine.hidden(ids[row : row + 1])[0], together[row])


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_every_form_has_the_same_bits_on_every_level_that_fuses(network, precision):
    engines = [NativeEngine(network, precision=precision, level=level) for level in FUSING]
    for tokens in LENGTHS:
        ids = some_ids(2, tokens)
        for level, engine in zip(FUSING, engines, strict=True):
            np.testing.assert_array_equal(engine.hidden(ids), engines[0].hidden(ids), err_msg=level)


@pytest.mark.skipif(not levels(), reason="no kernel was compiled")
@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_texts_of_several_lengths_in_one_call_have_the_bits_of_single_calls(network, precision):
    engine = open_engine(f"native-{levels()[0]}", network, precision)
    groups = [some_ids(2, tokens, seed=tokens) for tokens in LENGTHS]
    for ids, hidden in zip(groups, engine.hidden_many(groups, threads=2), strict=True):
        assert np.array_equal(hidden, engine.hidden(ids))


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "numpy"])
def test_int8_is_near_float32_in_every_form(network, name):
    near, exact = open_engine(name, network, "int8"), open_engine(name, network)
    ids = some_ids(8, POSITIONS // 2)
    left, right = near.hidden(ids).mean(axis=1), exact.hidden(ids).mean(axis=1)
    cosines = (left * right).sum(1) / np.linalg.norm(left, axis=1) / np.linalg.norm(right, axis=1)
    assert cosines.min() > 0.98
