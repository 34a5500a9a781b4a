"""Special tokens written in a text: read as the reference reads them, in every architecture and engine."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.engines.native import NativeEngine, levels
from gemel.encoder.engines.onnx import OnnxEngine
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.weights import read_network
from tiny import ARCHITECTURES, reference_network, tiny_bert, tiny_checkpoint

IDS = np.array([[2, 9, 0, 0, 40, 12, 0, 3], [2, 9, 10, 11, 40, 12, 13, 3]], dtype=np.int32)


@pytest.fixture(scope="module")
def roberta(tmp_path_factory):
    """A RoBERTa whose padding token has the id 0, made without transformers."""
    folder = tiny_bert(tmp_path_factory.mktemp("pad") / "roberta")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "roberta"}))
    return folder


def engines(network):
    yield "numpy", PlainNetwork(network)
    yield "onnxruntime", OnnxEngine(network)
    for level in levels():
        yield level, NativeEngine(network, level=level)


def test_a_padding_token_in_a_text_takes_no_position(roberta):
    checkpoint = read_checkpoint(roberta)
    network = read_network(checkpoint.config, checkpoint.weights)
    table = checkpoint.weights["embeddings.position_embeddings.weight"]
    types = checkpoint.weights["embeddings.token_type_embeddings.weight"][0]
    # Row 0 belongs to the padding; the others are counted without it.
    rows = table[[1, 2, 0, 0, 3, 4, 0, 5]] + types
    wanted = PlainNetwork(replace(network, positions=rows, padding=None)).hidden(IDS[:1])[0]
    for name, engine in engines(network):
        np.testing.assert_allclose(engine.hidden(IDS[:1])[0], wanted, atol=3e-6, err_msg=name)


def test_a_padding_token_does_not_move_the_bits_of_other_texts(roberta):
    checkpoint = read_checkpoint(roberta)
    network = read_network(checkpoint.config, checkpoint.weights)
    usual = dict(engines(replace(network, padding=None)))
    for name, engine in engines(network):
        if name == "numpy":
            continue
        both = engine.hidden(IDS)
        for row in range(2):
            assert np.array_equal(engine.hidden(IDS[row : row + 1])[0], both[row]), name
        assert np.array_equal(usual[name].hidden(IDS)[1], both[1]), name


def test_a_text_with_a_padding_token_has_the_same_bits_in_any_batch(roberta):
    model = gemel.load(roberta)
    texts = [
        "a [PAD] man [PAD] [PAD] is",
        "the cat",
        "[PAD]",
        "a man is playing in the rain",
        "a [PAD] cat is on",
    ]
    alone = np.concatenate([model.encode([text]) for text in texts])
    assert np.array_equal(alone, model.encode(texts))
    assert not np.allclose(model.encode(["a [PAD] man"]), model.encode(["a man"]), atol=1e-3)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_an_exported_graph_counts_positions_in_the_same_way(roberta, tmp_path, precision):
    from gemel.export import export
    from gemel.export.write import feed, onnx_run, ready_tokenizer

    model = gemel.load(roberta)
    export(model, tmp_path / "out.onnx", precision=precision)
    texts = ["a [PAD] man [PAD] [PAD] is", "the cat is on the sofa and the dog is in the rain", "[PAD] a"]
    inputs = ("input_ids", "attention_mask")
    given = onnx_run(tmp_path / "out.onnx")(feed(ready_tokenizer(model.checkpoint), texts, inputs))
    least = 1 - 1e-6 if precision == "float32" else 0.97
    assert ((given * model.encode(texts)).sum(axis=1) > least).all()


@pytest.mark.parametrize("kind", sorted(ARCHITECTURES))
def test_hidden_states_of_special_tokens_equal_the_reference(tmp_path, kind):
    torch = pytest.importorskip("torch")

    folder = tiny_checkpoint(tmp_path / kind, kind)
    checkpoint = read_checkpoint(folder)
    network = read_network(checkpoint.config, checkpoint.weights)
    theirs = reference_network(folder)
    ids = np.array([[2, 1, 0, 9, 40, 1, 1, 3, 0, 0, 12, 2, 3]], dtype=np.int32)
    with torch.inference_mode():
        tokens = torch.from_numpy(ids.astype(np.int64))
        wanted = theirs(input_ids=tokens, attention_mask=torch.ones_like(tokens)).last_hidden_state[0].numpy()
    for name, engine in engines(network):
        np.testing.assert_allclose(engine.hidden(ids)[0], wanted, atol=5e-5, err_msg=name)


@pytest.mark.parametrize("kind", ["bert", "mpnet", "roberta", "xlm-roberta"])
def test_the_reference_package_reads_special_tokens_in_the_same_way(tmp_path, kind):
    package = pytest.importorskip("sentence_transformers")
    folder = tiny_checkpoint(tmp_path / kind, kind)
    plain = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    (folder / "tokenizer_config.json").write_text(json.dumps(plain))
    texts = [
        "a [PAD] man [UNK] is [SEP] the [CLS]",
        "[PAD][PAD] the cat",
        "[SEP]",
        "a man is playing in the rain",
    ]
    theirs = package.SentenceTransformer(str(folder), device="cpu", local_files_only=True).encode(texts)
    np.testing.assert_allclose(gemel.load(folder).encode(texts), theirs, atol=1e-5)
