"""Models whose queries and documents have modules of their own (Router of sentence-transformers)."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.errors import InputError, ModelError
from tiny import tiny_bert, tiny_tokenizer, tiny_vocabulary

TEXTS = ["A man is playing a guitar.", "the", "a dog and a cat"]
THEIRS = "sentence_transformers.base.modules."


def listed(*modules: tuple[str, str]) -> str:
    return json.dumps(
        [{"idx": n, "name": str(n), "path": path, "type": kind} for n, (kind, path) in enumerate(modules)]
    )


def static_folder(folder: Path, width: int = 32, seed: int = 5) -> Path:
    folder.mkdir(parents=True)
    table = np.random.default_rng(seed).normal(0, 1, (len(tiny_vocabulary()), width)).astype(np.float32)
    save_file({"embedding.weight": table}, folder / "model.safetensors")
    tiny_tokenizer(folder / "tokenizer.json")
    return folder


def routed(folder: Path, *, prompts: dict[str, str] | None = None, width: int = 32) -> Path:
    """Documents through a transformer, queries through a table of token vectors."""
    document = tiny_bert(folder / "document_0_Transformer")
    shutil.move(document / "1_Pooling", folder / "document_1_Pooling")
    shutil.rmtree(document / "2_Normalize")
    for name in ("modules.json", "config_sentence_transformers.json"):
        (document / name).unlink()
    static_folder(folder / "query_0_StaticEmbedding", width)
    config = {
        "types": {
            "query_0_StaticEmbedding": "sentence_transformers.models.StaticEmbedding",
            "document_0_Transformer": f"{THEIRS}transformer.Transformer",
            "document_1_Pooling": "sentence_transformers.models.Pooling",
        },
        "structure": {
            "query": ["query_0_StaticEmbedding"],
            "document": ["document_0_Transformer", "document_1_Pooling"],
        },
        "parameters": {"default_route": "document", "allow_empty_key": True, "route_mappings": {}},
    }
    (folder / "router_config.json").write_text(json.dumps(config))
    (folder / "modules.json").write_text(
        listed((f"{THEIRS}router.Router", ""), (f"{THEIRS}normalize.Normalize", "1_Normalize"))
    )
    settings = {"prompts": prompts or {}, "default_prompt_name": None, "similarity_fn_name": "cosine"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(settings))
    return folder


def asymmetric(folder: Path) -> Path:
    """The older form: one transformer, then a dense layer for each side."""
    tiny_bert(folder, dense=8, normalize=False)
    (folder / "2_Asym").mkdir()
    shutil.move(folder / "2_Dense", folder / "2_Asym" / "one")
    shutil.copytree(folder / "2_Asym" / "one", folder / "2_Asym" / "two")
    weight = np.random.default_rng(9).normal(0, 0.2, (8, 32)).astype(np.float32)
    save_file({"linear.weight": weight}, folder / "2_Asym" / "two" / "model.safetensors")
    dense = "sentence_transformers.models.Dense"
    config = {
        "types": {"one": dense, "two": dense},
        "structure": {"query": ["one"], "doc": ["two"]},
        "parameters": {"allow_empty_key": True},
    }
    (folder / "2_Asym" / "config.json").write_text(json.dumps(config))
    names = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Asym", "2_Asym")]
    (folder / "modules.json").write_text(
        listed(*((f"sentence_transformers.models.{kind}", path) for kind, path in names))
    )
    return folder


def test_each_side_has_its_own_modules(tmp_path):
    model = gemel.load(routed(tmp_path / "model"))
    document = gemel.load(tiny_bert(tmp_path / "document"))
    (tmp_path / "query" / "2_Normalize").mkdir(parents=True)
    static_folder(tmp_path / "query" / "0_StaticEmbedding")
    kinds = (("StaticEmbedding", "0_StaticEmbedding"), ("Normalize", "2_Normalize"))
    (tmp_path / "query" / "modules.json").write_text(
        listed(*((f"sentence_transformers.models.{kind}", path) for kind, path in kinds))
    )
    query = gemel.load(tmp_path / "query")
    np.testing.assert_array_equal(model.encode_query(TEXTS), query.encode(TEXTS))
    np.testing.assert_array_equal(model.encode_document(TEXTS), document.encode(TEXTS))
    np.testing.assert_array_equal(model.encode(TEXTS, prompt_name="query"), query.encode(TEXTS))
    np.testing.assert_array_equal(
        model.encode_query(TEXTS, prompt="the "), query.encode(TEXTS, prompt="the ")
    )
    assert len(model.tokens(["the dog"], prompt_name="query")[0].tokens) == 2
    expected = gemel.search(query.encode(TEXTS), document.encode(TEXTS), 3)
    found = gemel.search_texts(model, TEXTS, TEXTS, k=3)
    np.testing.assert_array_equal(found.hits.index, expected.index)
    np.testing.assert_allclose(found.hits.score, expected.score, rtol=1e-6)


def test_an_index_uses_both_sides(tmp_path):
    pytest.importorskip("lance")
    model = gemel.load(routed(tmp_path / "model", prompts={"query": "the "}))
    expected = gemel.search(model.encode_query(["the dog"]), model.encode_document(TEXTS), 3)
    with gemel.open_index(tmp_path / "index", model=model) as index:
        index.add(TEXTS, ids=["0", "1", "2"])
        answer = index.search("the dog", k=3)
    assert [hit.id for hit in answer] == [str(row) for row in expected.index[0]]


@pytest.mark.parametrize("call", ["encode", "tokens"])
def test_without_a_side_the_model_says_that_one_is_needed(tmp_path, call):
    model = gemel.load(routed(tmp_path / "model", prompts={"passage": "", "clustering": "a "}))
    with pytest.raises(
        InputError, match="Use encode_query or encode_document, or prompt_name='query' or 'passage'"
    ):
        getattr(model, call)(TEXTS)
    with pytest.raises(InputError, match="the prompt 'clustering' names neither"):
        model.encode_query(TEXTS, prompt_name="clustering")


def test_the_older_form_shares_the_transformer(tmp_path):
    model = gemel.load(asymmetric(tmp_path / "model"))
    query, document = model.encode_query(TEXTS), model.encode_document(TEXTS)
    pooled = gemel.load(tiny_bert(tmp_path / "plain", normalize=False)).encode(TEXTS)
    weight = np.random.default_rng(9).normal(0, 0.2, (8, 32)).astype(np.float32)
    np.testing.assert_allclose(document, np.tanh(pooled @ weight.T), rtol=1e-4, atol=1e-5)
    assert np.abs(query - document).max() > 0.01
    assert model._query is not None
    assert model._query.engine is model.engine


def test_the_fingerprint_depends_on_both_sides(tmp_path):
    one, other = (routed(tmp_path / name) for name in ("one", "other"))
    save = other / "query_0_StaticEmbedding" / "model.safetensors"
    save_file({"embedding.weight": np.ones((len(tiny_vocabulary()), 32), np.float32)}, save)
    models = [gemel.load(folder) for folder in (one, other)]
    assert models[0].weights_hash != models[1].weights_hash
    assert models[0].fingerprint != models[1].fingerprint
    assert models[0].fingerprint == models[0].fingerprint_for(models[0].options_for("document"))
    query = models[0].fingerprint_for(models[0].options_for("query"))
    assert query.weights == models[0].weights_hash


def test_what_needs_one_side_refuses_two(tmp_path):
    model = gemel.load(routed(tmp_path / "model"))
    with pytest.raises(ModelError, match="cannot be saved as one model"):
        model.save(tmp_path / "saved")
    with pytest.raises(InputError, match="cannot be replaced"):
        gemel.load(tmp_path / "model", pooling="cls")
    with pytest.raises(ModelError, match="vectors of queries have 16 numbers and those of documents 32"):
        read_checkpoint(routed(tmp_path / "wide", width=16))


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"structure": {"query": ["query_0_StaticEmbedding"]}}, "no route 'document'"),
        ({"structure": {"text": [], "image": []}}, "no route"),
        ({"types": {}}, "unknown module None"),
        ({"parameters": {"route_mappings": {"('query', 'text')": "x"}}}, "the key 'route_mappings'"),
        ({"structure": []}, "no route"),
        ({"structure": [1]}, "must be objects"),
    ],
)
def test_routes_of_another_kind_are_refused(tmp_path, changes, reason):
    folder = routed(tmp_path / "model")
    path = folder / "router_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    with pytest.raises(ModelError, match=reason):
        read_checkpoint(folder)
