"""JinaBERT (jina-embeddings-v2), which transformers does not have: the engines equal a reference written from papers.

BERT (arXiv 1810.04805) with ALiBi (arXiv 2108.12409), to both sides and without learned positions, and with gated
feed-forward layers (GLU variants, arXiv 2002.05202).
"""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from safetensors.numpy import save_file
from tests.encoder.test_architectures import LENGTHS, mean_cosine, some_ids

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.architectures.bert import alibi_slopes
from gemel.encoder.engines import native
from gemel.encoder.engines.onnx import OnnxEngine
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.weights import read_network
from gemel.errors import ModelError
from tiny import tiny_bert

WIDTH, INNER, LAYERS, POSITIONS, WORDS = 48, 80, 2, 128, 212
SHAPES = {4: "geglu", 6: "geglu", 12: "reglu"}


def config_of(heads, form):
    return {
        "architectures": ["JinaBertModel"],
        "auto_map": {"AutoModel": "jinaai/jina-bert-implementation--modeling_bert.JinaBertModel"},
        "emb_pooler": "mean",
        "feed_forward_type": form,
        "hidden_act": "gelu",
        "hidden_size": WIDTH,
        "intermediate_size": INNER,
        "layer_norm_eps": 1e-12,
        "max_position_embeddings": POSITIONS,
        "model_max_length": POSITIONS,
        "model_type": "bert",
        "num_attention_heads": heads,
        "num_hidden_layers": LAYERS,
        "pad_token_id": 0,
        "position_embedding_type": "alibi",
        "type_vocab_size": 2,
        "vocab_size": WORDS,
    }


def random_weights(seed=0):
    random = np.random.default_rng(seed)
    weights = {
        "embeddings.word_embeddings.weight": random.normal(0, 0.5, (WORDS, WIDTH)),
        "embeddings.token_type_embeddings.weight": random.normal(0, 0.5, (2, WIDTH)),
    }

    def linear(name, outputs, inputs, bias=True):
        weights[f"{name}.weight"] = random.normal(0, inputs**-0.5, (outputs, inputs))
        if bias:
            weights[f"{name}.bias"] = random.normal(0, 0.1, outputs)

    def norm(name):
        weights[f"{name}.weight"] = random.normal(1, 0.1, WIDTH)
        weights[f"{name}.bias"] = random.normal(0, 0.1, WIDTH)

    norm("embeddings.LayerNorm")
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        for name in ("self.query", "self.key", "self.value", "output.dense"):
            linear(f"{at}.attention.{name}", WIDTH, WIDTH)
        norm(f"{at}.attention.output.LayerNorm")
        linear(f"{at}.mlp.gated_layers", 2 * INNER, WIDTH, bias=False)
        linear(f"{at}.mlp.wo", WIDTH, INNER)
        norm(f"{at}.mlp.layernorm")
    return {name: weight.astype(np.float32) for name, weight in weights.items()}


def reference(weights, ids, heads, form):
    """(b, t) ids -> (b, t, width) hidden states, in float64."""
    weights = {name: weight.astype(np.float64) for name, weight in weights.items()}
    b, t = ids.shape
    activate = {"geglu": np.vectorize(gelu), "reglu": lambda x: np.maximum(x, 0)}[form]
    positions = np.arange(t)
    bias = -slopes(heads)[:, None, None] * np.abs(positions[:, None] - positions[None, :])

    def linear(name, x):
        return x @ weights[f"{name}.weight"].T + weights.get(f"{name}.bias", 0)

    def norm(name, x):
        x = x - x.mean(-1, keepdims=True)
        return (
            x / np.sqrt((x * x).mean(-1, keepdims=True) + 1e-12) * weights[f"{name}.weight"]
            + weights[f"{name}.bias"]
        )

    x = norm(
        "embeddings.LayerNorm",
        weights["embeddings.word_embeddings.weight"][ids]
        + weights["embeddings.token_type_embeddings.weight"][0],
    )
    for layer in range(LAYERS):
        at = f"encoder.layer.{layer}"
        q, k, v = (
            linear(f"{at}.attention.self.{name}", x).reshape(b, t, heads, -1).transpose(0, 2, 1, 3)
            for name in ("query", "key", "value")
        )
        scores = np.exp(q @ k.transpose(0, 1, 3, 2) / math.sqrt(WIDTH // heads) + bias)
        seen = (scores / scores.sum(-1, keepdims=True)) @ v
        seen = linear(f"{at}.attention.output.dense", seen.transpose(0, 2, 1, 3).reshape(b, t, WIDTH))
        x = norm(f"{at}.attention.output.LayerNorm", x + seen)
        active, gate = np.split(linear(f"{at}.mlp.gated_layers", x), 2, axis=-1)
        x = norm(f"{at}.mlp.layernorm", x + linear(f"{at}.mlp.wo", activate(active) * gate))
    return x


def gelu(x):
    return 0.5 * x * (1 + math.erf(x / math.sqrt(2)))


def slopes(heads):
    """As the appendix of the paper gives them: a geometric sequence, filled up from the one of twice the heads."""

    def sequence(n):
        start = 2 ** (-(2 ** -(math.log2(n) - 3)))
        return [start ** (i + 1) for i in range(n)]

    power = 2 ** math.floor(math.log2(heads))
    return np.array((sequence(power) + sequence(2 * power)[0::2])[:heads])


@pytest.fixture(params=SHAPES.items(), ids=str)
def model(request):
    heads, form = request.param
    weights = random_weights()
    return weights, heads, form, read_network(config_of(heads, form), weights)


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 16])
def test_slopes_are_those_of_the_paper(heads):
    np.testing.assert_allclose(alibi_slopes(heads), slopes(heads), rtol=1e-12)


def test_slopes_of_twelve_heads():
    wanted = [2.0**-k for k in range(1, 9)] + [2.0**-k for k in (0.5, 1.5, 2.5, 3.5)]
    np.testing.assert_allclose(alibi_slopes(12), wanted, rtol=1e-12)


def engines(network):
    yield PlainNetwork(network)
    yield OnnxEngine(network)
    yield from (native.NativeEngine(network, level=level) for level in native.levels())


def test_every_engine_equals_the_reference(model):
    weights, heads, form, network = model
    for tokens in (*LENGTHS, POSITIONS):
        ids = some_ids(2, tokens)
        wanted = reference(weights, ids, heads, form)
        for engine in engines(network):
            np.testing.assert_allclose(engine.hidden(ids), wanted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_a_row_has_the_same_bits_alone_and_among_others(model, precision):
    network = model[-1]
    found = [OnnxEngine(network, precision=precision)]
    if native.levels():
        found.append(native.NativeEngine(network, precision=precision))
    for engine in found:
        for tokens in LENGTHS:
            ids = some_ids(9, tokens)
            together = engine.hidden(ids)
            for row in range(len(ids)):
                assert np.array_equal(engine.hidden(ids[row : row + 1])[0], together[row])


def test_int8_is_near_float32(model):
    exact, near = OnnxEngine(model[-1]), OnnxEngine(model[-1], precision="int8")
    ids = some_ids(8, 40)
    assert mean_cosine(near.hidden(ids), exact.hidden(ids)).min() > 0.99


@pytest.fixture
def folder(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps(config_of(6, "geglu")))
    save_file(random_weights(), folder / "model.safetensors")
    for path in folder.glob("1_Pooling/config.json"):
        path.write_text(json.dumps({"word_embedding_dimension": WIDTH, "pooling_mode_mean_tokens": True}))
    return folder


def test_a_folder_is_loaded_and_encodes(folder):
    model = gemel.load(folder)
    vectors = model.encode(["a man is playing a guitar", "rain"])
    assert vectors.shape == (2, WIDTH)
    assert np.array_equal(model.encode(["rain"])[0], vectors[1])


@pytest.mark.parametrize("form", ["original", "swiglu", None])
def test_other_feed_forward_layers_are_refused(form):
    config = config_of(4, form)
    config = config if form else {key: value for key, value in config.items() if key != "feed_forward_type"}
    with pytest.raises(ModelError, match="feed_forward_type"):
        read_network(config, random_weights())


def test_norms_of_queries_and_keys_are_refused_by_name():
    weights = random_weights() | {
        "encoder.layer.0.attention.self.layer_norm_q.weight": np.ones(WIDTH, np.float32)
    }
    with pytest.raises(ModelError, match="jina-bert-v2-qk-post-norm"):
        read_network(config_of(4, "geglu"), weights)


def test_a_bert_with_learned_positions_has_no_gates(tmp_path):
    folder = tiny_bert(tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "feed_forward_type": "geglu"}))
    with pytest.raises(ModelError, match="'feed_forward_type'"):
        read_checkpoint(folder)
