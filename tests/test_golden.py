"""Five numbers of a published model, and what sentence-transformers gives for the same texts."""

import shutil

import numpy as np
import pytest

import gemel
import golden
from gemel.checkpoint.sources import find_model
from gemel.errors import GemelError

HELLO_WORLD = [-0.034478, 0.03102, 0.00673, 0.02611, -0.039362]


@pytest.fixture(scope="module")
def folder():
    try:
        return find_model("all-MiniLM-L6-v2", offline=True)
    except GemelError:
        pytest.skip("all-MiniLM-L6-v2 is not in the cache. Fetch it with: gemel models pull all-MiniLM-L6-v2")


@pytest.mark.parametrize("engine", ["auto", "onnxruntime"])
def test_hello_world_starts_as_it_should(folder, engine):
    vector = gemel.load(folder, engine=engine).encode(["hello world"])[0]
    np.testing.assert_allclose(vector[:5], HELLO_WORLD, atol=1e-5)


@pytest.mark.parametrize("engine", ["auto", "onnxruntime"])
def test_int8_stays_near(folder, engine):
    texts = ["hello world", "A man is playing a guitar.", "The stock market fell today."]
    exact = gemel.load(folder).encode(texts)
    small = gemel.load(folder, precision="int8", engine=engine).encode(texts)
    assert (exact * small).sum(axis=1).min() > 0.99


def test_paraphrases_are_nearer_than_unrelated_texts(folder):
    texts = ["A man is playing a guitar.", "Someone plays an instrument.", "The stock market fell today."]
    vectors = gemel.load(folder).encode(texts)
    assert vectors[0] @ vectors[1] > 0.6
    assert vectors[0] @ vectors[2] < 0.1


@pytest.fixture(scope="module")
def answers(folder, tmp_path_factory):
    # Opening takes a lock file: the answers come from a copy.
    copy = tmp_path_factory.mktemp("golden") / "index"
    shutil.copytree(golden.INDEX, copy)
    return golden.answers(copy)


EXPECTED = dict(np.load(golden.EXPECTED))


@pytest.mark.parametrize("name", EXPECTED)
def test_answers_are_those_of_the_first_version(answers, name):
    """Fifty texts: vectors, pairs, hits, an explanation, a calibration, and an index that an older version wrote."""
    value, expected = answers[name], EXPECTED[name]
    if name == "int8":  # processors differ in how many bits of a weight they use
        assert (value * expected).sum(axis=1).min() > 0.99
    elif expected.dtype.kind == "f":
        np.testing.assert_allclose(value, expected, atol=5e-6)
    else:
        np.testing.assert_array_equal(value, expected)
