"""Checkpoints that were published with code of their own: the network is that of transformers, and no code runs."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tests.encoder.test_architectures import read_folder, some_ids

import gemel
from gemel.checkpoint.folder import read_checkpoint
from gemel.encoder.engines.reference import PlainNetwork
from gemel.encoder.weights import read_network
from gemel.errors import InputError, ModelError
from remote_code import SPELLINGS, TASKS, add_adapters, respell, tiny_jina
from tiny import ARCHITECTURES, tiny_checkpoint
from tiny_cross import their_logits, tiny_cross

TEXTS = ["a man is playing a guitar", "rain", "how do i reset my password"]


@pytest.fixture(scope="module", params=SPELLINGS)
def folders(request, tmp_path_factory):
    """The same weights as transformers writes them, and as the code of the checkpoint does."""
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    parent = tmp_path_factory.mktemp(request.param)
    source = tiny_checkpoint(parent / "native", request.param)
    return source, respell(source, parent / "remote")


def test_transformers_renames_the_weights_to_the_same_network(folders):
    """So the names of the tiny model are those that transformers knows of the published ones."""
    import torch
    import transformers

    source, remote = folders
    config = transformers.AutoConfig.from_pretrained(source)
    name, _ = ARCHITECTURES[config.model_type]
    model = getattr(transformers, name.replace("Config", "Model"))
    renamed, native = model.from_pretrained(remote, config=config), model.from_pretrained(source)
    for (left, ours), (right, theirs) in zip(
        renamed.named_parameters(), native.named_parameters(), strict=True
    ):
        assert left == right
        assert torch.equal(ours, theirs), left


def test_both_spellings_give_the_same_vectors(folders):
    source, remote = folders
    vectors = gemel.load(source).encode(TEXTS)
    assert np.array_equal(gemel.load(remote).encode(TEXTS), vectors)


def changed(folder, **settings):
    config, weights = read_folder(folder)
    return {**config, **settings}, weights


@pytest.fixture(scope="module")
def nomic(tmp_path_factory):
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    parent = tmp_path_factory.mktemp("nomic")
    return respell(tiny_checkpoint(parent / "native", "nomic_bert"), parent / "remote")


@pytest.fixture(scope="module")
def gte(tmp_path_factory):
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    parent = tmp_path_factory.mktemp("gte")
    return respell(tiny_checkpoint(parent / "native", "gte"), parent / "remote")


def test_a_gte_beside_a_classifier_of_tokens_is_read(gte, tmp_path):
    """As gte-multilingual-base is published: its sparse vectors are of a layer that no dense vector depends on."""
    folder = shutil.copytree(gte, tmp_path / "model")
    weights = {
        f"new.{name.removeprefix('new.')}": weight
        for name, weight in load_file(gte / "model.safetensors").items()
    }
    layer = {"classifier.weight": np.ones((1, 32), np.float32), "classifier.bias": np.ones(1, np.float32)}
    save_file({**weights, **layer}, folder / "model.safetensors", metadata={"format": "pt"})
    config, _ = changed(gte, architectures=["NewForTokenClassification"])
    (folder / "config.json").write_text(json.dumps(config))
    assert np.array_equal(gemel.load(folder).encode(TEXTS), gemel.load(gte).encode(TEXTS))


def test_a_nomic_bert_has_as_many_positions_as_its_code_gives_it(nomic):
    assert read_network(*changed(nomic)).max_positions == 128
    both = {"max_position_embeddings": 64, "hidden_size": 32, "rope_parameters": {"rope_theta": 1000.0}}
    assert read_network(*changed(nomic, **both)).max_positions == 128


def test_a_nomic_bert_with_dynamic_scaling_reads_up_to_the_trained_length(nomic):
    """From there on, positions would depend on the length of the text."""
    network = read_network(*changed(nomic, rotary_scaling_factor=2, max_trained_positions=96))
    assert network.max_positions == 96
    ids = some_ids(2, 9)
    plain = PlainNetwork(read_network(*changed(nomic)))
    assert np.array_equal(PlainNetwork(network).hidden(ids), plain.hidden(ids))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"moe_every_n_layers": 2, "activation_function": "gelu"}, "a mixture of experts"),
        ({"prenorm": True}, "'prenorm' to True"),
        ({"rotary_emb_fraction": 0.5}, "'rotary_emb_fraction' to 0.5"),
        ({"rotary_emb_interleaved": True}, "'rotary_emb_interleaved' to True"),
        ({"scale_attn_weights": False}, "'scale_attn_weights' to False"),
        ({"qkv_proj_bias": True}, "Wqkv.bias' is missing"),
    ],
)
def test_variants_of_a_nomic_bert_are_refused(nomic, setting, message):
    with pytest.raises(ModelError, match=message):
        read_network(*changed(nomic, **setting))


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("activation_function", "gelu"),
        ("activation_function", "geglu"),
        ("n_embd", 64),
        ("rotary_emb_base", 500.0),
        ("rotary_emb_scale_base", 512),
    ],
)
def test_settings_of_a_nomic_bert_that_contradict_are_refused(nomic, tmp_path, key, value):
    folder = shutil.copytree(nomic, tmp_path / "model")
    both = {"hidden_act": "silu", "hidden_size": 32, "rope_parameters": {"rope_theta": 1000.0}}
    config = {**json.loads((nomic / "config.json").read_text()), **both}
    (folder / "config.json").write_text(json.dumps(config))
    assert np.array_equal(gemel.load(folder).encode(TEXTS), gemel.load(nomic).encode(TEXTS))
    config[key] = value
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=f"'{key}'"):
        gemel.load(folder)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"layer_norm_type": "rms_norm"}, "'layer_norm_type' to 'rms_norm'"),
        ({"logn_attention_scale": True}, "'logn_attention_scale' to True"),
        ({"pack_qkv": False}, "'pack_qkv' to False"),
        ({"position_embedding_type": "absolute"}, "'position_embedding_type' to 'absolute'"),
        ({"rope_scaling": {"type": "ntk", "factor": 8.0, "mixed_b": 0.6}}, "'mixed_b'"),
    ],
)
def test_variants_of_a_gte_are_refused(gte, setting, message):
    with pytest.raises(ModelError, match=message):
        read_network(*changed(gte, **setting))


def test_a_reranker_of_the_type_new_gives_the_scores_of_transformers(tmp_path):
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    source = tiny_cross(tmp_path / "native", "gte")
    remote = respell(source, tmp_path / "remote")
    assert "new.pooler.dense.weight" in load_file(remote / "model.safetensors")
    left, right = TEXTS, TEXTS[::-1]
    logits = gemel.load_cross(remote).logits(left, right)
    np.testing.assert_allclose(logits, their_logits(source, left, right), atol=1e-5)


def test_the_scaling_of_gte_is_another_base_and_a_slower_turn(gte):
    """transformers has no name for it, but for its two parts: kexue.fm/archives/9706, formula 6."""
    size, factor = 8, 8.0  # heads of 8 numbers
    ntk = changed(gte, rope_theta=20.0, rope_scaling={"type": "ntk", "factor": factor})
    parts = {"rope_type": "linear", "rope_theta": 20.0 * factor, "factor": factor ** (2 / size)}
    ours = read_network(*ntk).blocks[0].rotary
    theirs = read_network(*changed(gte, rope_theta=None, rope_parameters=parts)).blocks[0].rotary
    assert np.array_equal(ours.speeds, theirs.speeds)
    # The slowest pair of numbers turns `factor` times slower than without the scaling, the fastest hardly.
    plain = read_network(*changed(gte, rope_theta=20.0)).blocks[0].rotary.speeds
    assert plain[-1] / ours.speeds[-1] == pytest.approx(factor)


# Jina Embeddings v3: an adapter per task.


@pytest.fixture(scope="module")
def jina(tmp_path_factory):
    """The folder with adapters, and for each task one of transformers with its changes in the weights."""
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    parent = tmp_path_factory.mktemp("jina")
    remote = tiny_jina(parent)
    source = parent / "native"
    plain = load_file(parent / "plain" / "model.safetensors")
    folders = {"none": source}
    for task, changes in add_adapters(plain)[1].items():
        folders[task] = shutil.copytree(parent / "plain", parent / task)
        folded = {name: weight + changes.get(name, np.float32(0)) for name, weight in plain.items()}
        save_file(folded, folders[task] / "model.safetensors", metadata={"format": "pt"})
        (folders[task] / "config.json").write_bytes((source / "config.json").read_bytes())
    return remote, folders


@pytest.mark.parametrize("task", [*TASKS, "none"])
def test_the_adapter_of_a_task_is_folded_into_the_weights(jina, task):
    import torch
    from transformers import JinaEmbeddingsV3Model

    remote, folders = jina
    reference = JinaEmbeddingsV3Model.from_pretrained(folders[task]).eval()
    engine = gemel.load(remote, task=task).engine
    folded = gemel.load(folders[task]).engine
    for tokens in (1, 9, 40):
        ids = some_ids(3, tokens)
        with torch.no_grad():
            wanted = reference(input_ids=torch.from_numpy(ids).long()).last_hidden_state.numpy()
        np.testing.assert_allclose(engine.hidden(ids), wanted, rtol=0, atol=1e-5)
        assert np.array_equal(engine.hidden(ids), folded.hidden(ids))


def test_the_prompt_of_the_task_is_used(jina):
    remote, _ = jina
    model = gemel.load(remote, task="retrieval.query")
    wanted = model.encode([f"how do i {text}" for text in TEXTS], prompt="")
    assert np.array_equal(model.encode(TEXTS), wanted)
    assert np.array_equal(model.encode_query(TEXTS), wanted)
    either = gemel.load(remote, task="text-matching")
    assert np.array_equal(either.encode_query(TEXTS), either.encode_document(TEXTS))


def test_a_task_is_part_of_the_fingerprint(jina):
    remote, _ = jina
    prints = {gemel.load(remote, task=task).fingerprint.weights for task in TASKS}
    assert len(prints) == len(TASKS)


@pytest.mark.parametrize("precision", ["float32", "int8"])
def test_one_model_encodes_queries_and_documents_each_for_their_task(jina, precision):
    remote, folders = jina
    model = gemel.load(remote, precision=precision)
    query, document = (gemel.load(folders[task], precision=precision) for task in TASKS[:2])
    questions = [f"how do i {text}" for text in TEXTS]
    np.testing.assert_array_equal(model.encode_query(TEXTS), query.encode(questions))
    np.testing.assert_array_equal(model.encode_document(TEXTS), document.encode(TEXTS))
    for task in TASKS[:2]:  # the task decides only about a text without a side
        chosen = gemel.load(remote, task=task, precision=precision)
        np.testing.assert_array_equal(chosen.encode_query(TEXTS), model.encode_query(TEXTS))
        np.testing.assert_array_equal(chosen.encode_document(TEXTS), model.encode_document(TEXTS))
        plain = {"retrieval.query": chosen.encode_query, "retrieval.passage": chosen.encode_document}[task]
        np.testing.assert_array_equal(chosen.encode(TEXTS), plain(TEXTS))
    found = gemel.search_texts(model, TEXTS, TEXTS, k=2)
    expected = gemel.search(model.encode_query(TEXTS), model.encode_document(TEXTS), 2)
    np.testing.assert_array_equal(found.hits.index, expected.index)


def test_a_side_is_opened_at_the_first_text_for_it(jina):
    model = gemel.load(jina[0])
    query = model._query
    assert query is not None
    assert query.tokenizer is model.tokenizer
    assert (model._engines._opened, query._engines._opened) == ({}, {})
    model.encode_query(["the"])
    assert (model._engines._opened, list(query._engines._opened)) == ({}, ["float32"])
    chosen = gemel.load(
        jina[0], task="retrieval.query"
    )  # whose weights are read by load, as those of any model
    assert chosen._engines._opened == {}
    assert chosen.engine is chosen._query._engines["float32"]


def test_both_sides_say_that_a_text_needs_one(jina):
    model = gemel.load(jina[0])
    with pytest.raises(
        InputError, match=r"different adapters. Use encode_query .* or load it for another task"
    ):
        model.encode(TEXTS)
    with pytest.raises(InputError, match="the prompt 'text-matching' names neither"):
        model.encode(TEXTS, prompt_name="text-matching")
    assert np.array_equal(model.encode(TEXTS, prompt_name="retrieval.query"), model.encode_query(TEXTS))
    assert model.fingerprint.weights == gemel.load(jina[0], task="retrieval.passage").fingerprint.weights


def test_a_side_without_an_adapter_is_refused(jina, tmp_path):
    folder = shutil.copytree(jina[0], tmp_path / "half")
    config = json.loads((folder / "config.json").read_text())
    tasks = ["retrieval.query", "separation", "text-matching"]
    (folder / "config.json").write_text(json.dumps({**config, "lora_adaptations": tasks}))
    model = gemel.load(folder, task="retrieval.query")
    assert len(model.encode_query(TEXTS)) == len(TEXTS)
    with pytest.raises(
        ModelError, match=r"a document needs 'retrieval.passage', for which it has no adapter"
    ):
        model.encode_document(TEXTS)
    with pytest.raises(ModelError, match=r"vectors depend on the task. Choose one: .*task='retrieval.query'"):
        gemel.load(folder)


def test_an_index_remembers_the_task(jina, tmp_path):
    pytest.importorskip("lance")
    for task in (None, "text-matching"):
        model = gemel.load(jina[0], task=task)
        with gemel.open_index(tmp_path / f"{task}", model=model) as index:
            index.add(TEXTS, ids=[str(row) for row in range(len(TEXTS))])
        expected = gemel.search(model.encode_query(TEXTS[:1]), model.encode_document(TEXTS), 2)
        with gemel.open_index(tmp_path / f"{task}") as index:
            assert [hit.id for hit in index.search(TEXTS[0], k=2)] == [str(row) for row in expected.index[0]]


def test_another_pooling_is_that_of_both_sides(jina):
    model = gemel.load(jina[0], pooling="cls")
    assert np.array_equal(
        model.encode_query(TEXTS), gemel.load(jina[0], task=TASKS[0], pooling="cls").encode(TEXTS)
    )
    assert np.abs(model.encode_query(TEXTS) - gemel.load(jina[0]).encode_query(TEXTS)).max() > 0.01


def test_a_pickled_model_keeps_its_task(jina):
    for task in (None, *TASKS):
        model = gemel.load(jina[0], task=task)
        again = pickle.loads(pickle.dumps(model))
        assert np.array_equal(again.encode_query(TEXTS), model.encode_query(TEXTS))
        assert again.fingerprint == model.fingerprint


def test_a_task_must_have_an_adapter(jina, tmp_path):
    remote, folders = jina
    with pytest.raises(ModelError, match=r"no adapter for the task 'poetry'. Known: 'retrieval.query', "):
        gemel.load(remote, task="poetry")
    with pytest.raises(ModelError, match=r"has no adapters for tasks, task='text-matching' was requested"):
        gemel.load(folders["none"], task="text-matching")
    chosen = shutil.copytree(remote, tmp_path / "chosen")
    config = {**json.loads((remote / "config.json").read_text()), "default_task": "text-matching"}
    (chosen / "config.json").write_text(json.dumps(config))
    wanted = gemel.load(remote, task="text-matching").encode(TEXTS)
    assert np.array_equal(gemel.load(chosen).encode(TEXTS), wanted)


def test_a_saved_model_keeps_its_task(jina, tmp_path):
    for task in ("retrieval.query", "text-matching", None):
        model = gemel.load(jina[0], task=task)
        saved = gemel.load(model.save(tmp_path / f"{task}"))
        for side in ("encode_query", "encode_document"):
            assert np.array_equal(getattr(saved, side)(TEXTS), getattr(model, side)(TEXTS))
        assert saved.fingerprint == model.fingerprint
        assert saved.checkpoint.task == task


def test_a_missing_adapter_is_named(jina):
    remote, _ = jina
    config, weights = read_folder(remote)
    name = "roberta.encoder.layers.1.mlp.fc1.parametrizations.weight.0.lora_B"
    del weights[name]
    with pytest.raises(ModelError, match=f"'{name}' is missing"):
        read_network({**config, "default_task": TASKS[0]}, weights).blocks[1].up.read()


def test_the_module_of_other_code_is_refused(jina, tmp_path):
    folder = shutil.copytree(jina[0], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    config["auto_map"]["AutoModel"] = "someone/else--modeling.Model"
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"unknown module 'custom_st.Transformer'"):
        gemel.load(folder)


JUNK: tuple[object, ...] = (None, True, 0, -1, 10**12, 0.5, "x", [], [1], {}, {"factor": []})


def test_a_damaged_config_gives_vectors_or_an_error_of_ours(folders, tmp_path):
    folder = shutil.copytree(folders[1], tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    refused = 0
    for key in [*config, "default_task", "max_trained_positions", "rotary_scaling_factor", "rope_scaling"]:
        for junk in JUNK:
            (folder / "config.json").write_text(json.dumps({**config, key: junk}))
            try:
                read_network(read_checkpoint(folder).config, read_checkpoint(folder).weights)
            except ModelError:
                refused += 1
    assert refused > 2 * len(JUNK)


def test_adapters_that_do_not_fit_are_refused(jina):
    config, weights = read_folder(jina[0])
    name = "roberta.encoder.layers.0.mixer.out_proj.parametrizations.weight.0.lora_A"
    for damaged in (weights[name][:2], weights[name][0], weights[name][:, :1]):
        network = read_network({**config, "default_task": TASKS[0]}, {**weights, name: damaged})
        with pytest.raises(ModelError, match=r"the adapters of 'roberta.*out_proj.weight' have the shapes"):
            network.blocks[0].out.read()
