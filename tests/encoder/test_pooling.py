"""Poolings: properties that hold for every registered one, in NumPy, in torch and as ONNX nodes."""

import numpy as np
import pytest

from gemel.encoder.pooling import POOLINGS, pool, pool_each

LENGTHS = [1, 2, 9, 9, 30]
WIDTH = 20


def hidden(b, t, d=WIDTH, seed=0):
    return np.random.default_rng(seed).normal(size=(b, t, d)).astype(np.float32)


TEXTS = [hidden(1, length, seed=length + 100 * row)[0] for row, length in enumerate(LENGTHS)]


def in_numpy(name, texts):
    return np.concatenate([POOLINGS[name](text[None]) for text in texts])


def in_torch(name, texts):
    torch = pytest.importorskip("torch", reason="the torch form is in the train extra")
    from gemel.training.packing import pack, pool_packed

    packed = pack([np.zeros(len(text), np.int32) for text in texts], torch.device("cpu"))
    order = np.argsort([-len(text) for text in texts], kind="stable")
    rows = torch.from_numpy(np.concatenate([texts[row] for row in order]))
    return pool_packed(rows, packed, (name,)).numpy()


def in_a_graph(name, texts):
    runtime = pytest.importorskip("onnxruntime")
    from gemel.encoder.engines.onnx_graph import FLOAT, OPSET, Value, model_file, tensor
    from gemel.export.graph import PortableNodes

    nodes = PortableNodes()
    out = POOLINGS[name].graph_form(nodes, "hidden", "mask")
    parts = model_file(
        "pooling",
        nodes.nodes,
        inputs=[Value("hidden", FLOAT, ("b", "t", WIDTH)), Value("mask", FLOAT, ("b", "t", 1))],
        outputs=[Value(out, FLOAT, ("b", WIDTH))],
        constants=[tensor(name, array) for name, array in nodes.arrays.items()],
        domains={"": OPSET},
    )
    session = runtime.InferenceSession(b"".join(parts), providers=["CPUExecutionProvider"])
    longest = max(map(len, texts))
    states = np.full((len(texts), longest, WIDTH), 7.0, np.float32)  # padding must not matter
    mask = np.zeros((len(texts), longest, 1), np.float32)
    for row, text in enumerate(texts):
        states[row, : len(text)], mask[row, : len(text)] = text, 1
    return session.run(None, {"hidden": states, "mask": mask})[0]


FORMS = [in_numpy, in_torch, in_a_graph]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", list(POOLINGS))
def test_texts_do_not_affect_each_other_in_any_form(name, form):
    together = form(name, TEXTS)
    assert together.shape == (len(TEXTS), WIDTH) and together.dtype == np.float32
    for row, text in enumerate(TEXTS):
        np.testing.assert_allclose(form(name, [text])[0], together[row], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(form(name, TEXTS[::-1])[::-1], together, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS[1:])
@pytest.mark.parametrize("name", list(POOLINGS))
def test_all_forms_compute_the_same(name, form):
    np.testing.assert_allclose(form(name, TEXTS), in_numpy(name, TEXTS), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", list(POOLINGS))
def test_linear_says_whether_a_pooling_is_linear(name, form):
    first, second = [[text, hidden(1, len(text), seed=9)[0]] for text in TEXTS[2:4]]
    sums = form(name, [2 * a + b for a, b in zip(first, second, strict=True)])
    expected = 2 * form(name, first) + form(name, second)
    assert np.allclose(sums, expected, rtol=1e-4, atol=1e-5) == POOLINGS[name].linear


@pytest.mark.parametrize("name", list(POOLINGS))
@pytest.mark.parametrize("tokens", [1, 2, 9, 64])
def test_rows_of_a_batch_have_the_bits_of_a_single_text(name, tokens):
    states = hidden(7, tokens)
    together = POOLINGS[name](states)
    assert together.shape == (7, 20) and together.dtype == np.float32
    assert all(np.array_equal(POOLINGS[name](states[i : i + 1])[0], together[i]) for i in range(7))


def test_poolings_by_hand():
    states = np.array([[[1, 8], [3, 4], [5, 0]]], np.float32)
    expected = {
        "mean": [3, 4],
        "cls": [1, 8],
        "max": [5, 8],
        "last": [5, 0],
        "mean-sqrt-len": [9 / 3**0.5, 12 / 3**0.5],
        "weighted-mean": [(1 + 6 + 15) / 6, (8 + 8) / 6],
    }
    assert sorted(expected) == list(POOLINGS)
    for name, vector in expected.items():
        np.testing.assert_allclose(POOLINGS[name](states)[0], vector, rtol=1e-6)


def test_joined_poolings_and_a_skipped_prompt():
    states = hidden(2, 5)
    joined = pool(states, ("cls", "mean"))
    assert np.array_equal(joined, np.concatenate([POOLINGS["cls"](states), POOLINGS["mean"](states)], axis=1))
    assert np.array_equal(pool(states, ("mean",), skip=2), POOLINGS["mean"](states[:, 2:]))
    assert not pool(states, ("mean",), skip=9).any()


def test_positions_of_a_weighted_mean_count_a_skipped_prompt():
    states = np.array([[[100.0], [3], [5]]], np.float32)
    np.testing.assert_allclose(pool(states, ("weighted-mean",), skip=1), [[(2 * 3 + 3 * 5) / 5]], rtol=1e-6)


def test_each_row_can_skip_its_own_number_of_tokens():
    states = hidden(3, 5)
    out = pool_each(states, ("mean", "last"), np.array([0, 2, 0]))
    for row, skip in enumerate((0, 2, 0)):
        assert np.array_equal(out[row], pool(states[row : row + 1], ("mean", "last"), skip)[0])
