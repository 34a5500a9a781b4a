"""The head of sparse encoders: compiled and in NumPy, for one text and for many."""

import numpy as np
import pytest

from gemel.checkpoint.sparse import Splade
from gemel.encoder.engines import native
from gemel.encoder.network import Norm
from gemel.encoder.sparse import MaskedHead, WordWeights, word_weights

pytestmark = pytest.mark.skipif(not native.levels(), reason="no kernel was compiled")
FUSING = [level for level in native.levels() if level != "baseline"]
STEPS = [Splade(), Splade("max", 2), Splade("sum", 1), Splade("sum", 2), Splade("max", 0)]


def head_of(words, activation="gelu", *, bias=True, width=40):
    random = np.random.default_rng(words)

    def some(*shape):
        return random.normal(0, 0.5, shape).astype(np.float32)

    norm = Norm(1 + some(width), some(width) if bias else None, 1e-5, False)
    return MaskedHead(
        some(width, width),
        some(width) if bias else None,
        activation,
        norm,
        some(words, width),
        some(words) if bias else None,
    )


def states(texts, tokens, width=40):
    return np.random.default_rng(tokens).normal(0, 1, (texts, tokens, width)).astype(np.float32)


@pytest.mark.parametrize("level", native.levels())
@pytest.mark.parametrize("step", STEPS, ids=str)
def test_the_compiled_head_gives_the_weights_of_numpy(level, step, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, level)
    for words, activation, bias in ((1, "gelu", True), (47, "relu", False), (300, "silu", True)):
        head = head_of(words, activation, bias=bias)
        for texts, tokens in ((1, 1), (3, 9), (2, 300)):
            hidden = states(texts, tokens)
            found = WordWeights(head, step)(hidden)
            expected = [word_weights(head, step, each) for each in hidden]
            np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("level", native.levels())
@pytest.mark.parametrize("precision", ["int8", "bfloat16"])
def test_a_narrow_word_table_gives_nearly_the_same_weights(level, precision, monkeypatch):
    monkeypatch.setenv(native.VARIABLE, level)
    for words, tokens in ((1, 1), (47, 9), (300, 300)):
        head, hidden = head_of(words), states(3, tokens)
        weights = WordWeights(head, Splade(), precision)
        found = weights(hidden)
        np.testing.assert_allclose(found, [word_weights(head, Splade(), each) for each in hidden], atol=0.05)
        assert found.tobytes() == b"".join(weights(hidden[i : i + 1]).tobytes() for i in range(3))


@pytest.mark.parametrize("precision", ["float32", "int8"])
@pytest.mark.parametrize("step", STEPS[1:3], ids=str)
def test_a_text_has_the_same_bits_in_any_batch_and_on_any_processor_that_fuses(step, precision, monkeypatch):
    head, hidden = head_of(300), states(9, 37)
    found = []
    for level in FUSING or native.levels():
        monkeypatch.setenv(native.VARIABLE, level)
        weights = WordWeights(head, step, precision)
        found.append(weights(hidden).tobytes())
        assert found[-1] == weights(hidden, threads=3).tobytes()
        assert found[-1] == b"".join(weights(hidden[i : i + 1]).tobytes() for i in range(9))
    assert len(set(found)) == 1


def test_the_logarithm_is_exact_to_float32():
    width = 8
    ones = np.ones(width, np.float32)
    x = np.concatenate([[0.0], np.geomspace(1e-38, 1e30, 4000), np.linspace(0, 4, 4000)]).astype(np.float32)
    # The norm gives its bias, and a table of one column lets a single number through.
    norm = Norm(0 * ones, np.eye(width, dtype=np.float32)[0], 1.0, False)
    table = np.zeros((len(x), width), np.float32)
    table[:, 0] = x
    head = MaskedHead(np.eye(width, dtype=np.float32), None, "relu", norm, table, None)
    found = WordWeights(head, Splade())(np.ones((1, 1, width), np.float32))[0]
    np.testing.assert_allclose(found, np.log1p(x.astype(np.float64)), rtol=2.5e-7)


@pytest.mark.parametrize("step", STEPS[:3], ids=str)
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_passed_on(step, bad):
    hidden = states(3, 5)
    hidden[1, 2, 3] = bad
    found = WordWeights(head_of(60), step)(hidden)
    assert not np.isfinite(found[1]).any()
    assert np.isfinite(found[[0, 2]]).all()


def test_numpy_is_used_where_nothing_was_compiled(monkeypatch):
    head, hidden = head_of(60), states(2, 5)
    monkeypatch.setattr(native, "levels", list)
    found = WordWeights(head, Splade())(hidden)
    assert found[1].tobytes() == word_weights(head, Splade(), hidden[1]).tobytes()
