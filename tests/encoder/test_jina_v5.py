"""jina-embeddings-v5: a Qwen3 or a EuroBERT with an adapter for each task, in folders of their own."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer

import gemel
from gemel.errors import ModelError
from tiny import tiny_checkpoint

TEXTS = ["a man is playing a guitar", "rain", "how do i reset my password"]
TASKS = ["retrieval", "text-matching"]
KINDS = {"qwen3": {"use_sliding_window": False}, "eurobert": {"is_decoder": False}}
CODE = "modeling_jina_embeddings_v5.JinaEmbeddingsV5Model"
RANK, ALPHA = 4, 8


@pytest.fixture(scope="module", params=KINDS)
def folders(request, tmp_path_factory):
    """The checkpoint as it is published, and for each task the plain network with the adapter in its weights."""
    pytest.importorskip("transformers", reason="the tiny models are made by transformers")
    parent = tmp_path_factory.mktemp(request.param)
    plain = tiny_checkpoint(parent / "none", request.param)
    (plain / "modules.json").unlink()  # pooling is set below
    published, folded = shutil.copytree(plain, parent / "published"), {"none": plain}
    for seed, task in enumerate(TASKS):
        folded[task] = shutil.copytree(plain, parent / task)
        weights = load_file(plain / "model.safetensors")
        save_file(
            _add_adapter(weights, published / "adapters" / task, seed), folded[task] / "model.safetensors"
        )
    for folder in folded.values():
        modules = ["Transformer", "Pooling", "Normalize"]
        listed = [{"path": f"{n}_{name}" if n else "", "type": f"sentence_transformers.models.{name}"}
                  for n, name in enumerate(modules)]  # fmt: skip
        (folder / "modules.json").write_text(json.dumps(listed))
        pooling = {
            "word_embedding_dimension": 32,
            "pooling_mode_lasttoken": True,
            "pooling_mode_mean_tokens": False,
        }
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
        (folder / "2_Normalize").mkdir(exist_ok=True)
    config = json.loads((plain / "config.json").read_text())
    names = {"architectures": ["JinaEmbeddingsV5Model"], "auto_map": {"AutoModel": CODE}, "task_names": TASKS}
    own = {**config, **KINDS[request.param], **names, "model_type": "jina_embeddings_v5"}
    (published / "config.json").write_text(json.dumps(own))
    (published / "modules.json").write_text(json.dumps([{"path": "", "type": "custom_st.Transformer"}]))
    prompts = {"prompts": {"query": "how ", "document": "the "}}
    (published / "config_sentence_transformers.json").write_text(json.dumps(prompts))
    return published, folded


def _add_adapter(weights, folder, seed):
    """Write an adapter, and give the weights with it added."""
    random = np.random.default_rng(seed)
    folder.mkdir(parents=True)
    config = {"peft_type": "LORA", "base_model_name_or_path": "jinaai/x", "r": RANK, "lora_alpha": ALPHA}
    (folder / "adapter_config.json").write_text(json.dumps({**config, "task_type": "FEATURE_EXTRACTION"}))
    matrices, added = {}, dict(weights)
    for name in [name for name in weights if "_proj." in name]:
        a, b = (random.normal(0, 0.3, shape).astype(np.float32) for shape in ((RANK, weights[name].shape[1]),
                                                                          (len(weights[name]), RANK)))  # fmt: skip
        layer = name.removesuffix(".weight")
        matrices |= {
            f"base_model.model.{layer}.lora_A.weight": a,
            f"base_model.model.{layer}.lora_B.weight": b,
        }
        added[name] = weights[name] + b @ a * np.float32(ALPHA / RANK)
    save_file(matrices, folder / "adapter_model.safetensors")
    return added


@pytest.mark.parametrize("task", [*TASKS, "none"])
@pytest.mark.parametrize("engine", ["native", "onnxruntime"])
def test_the_adapter_of_the_task_is_added_to_the_weights(folders, task, engine):
    published, folded = folders
    model = gemel.load(published, task=task, engine=engine)
    wanted = gemel.load(folded[task], engine=engine)
    assert np.array_equal(model.encode(TEXTS, prompt=""), wanted.encode(TEXTS))


def test_the_vector_is_that_of_the_last_token_of_the_reference(folders):
    import torch
    import transformers

    published, folded = folders
    model = gemel.load(published, task="retrieval")
    reference = transformers.AutoModel.from_pretrained(folded["retrieval"]).eval()
    tokenizer = Tokenizer.from_file(str(published / "tokenizer.json"))
    ids = np.array([tokenizer.encode(TEXTS[0]).ids])
    with torch.no_grad():
        wanted = reference(input_ids=torch.from_numpy(ids).long()).last_hidden_state[0, -1].numpy()
    np.testing.assert_allclose(
        model.encode(TEXTS[:1], prompt="")[0], wanted / np.linalg.norm(wanted), rtol=0, atol=1e-5
    )


def test_both_sides_of_a_search_have_their_prompt(folders):
    model = gemel.load(folders[0], task="retrieval")
    assert np.array_equal(model.encode_query(["rain"]), model.encode(["how rain"], prompt=""))
    assert np.array_equal(model.encode_document(["rain"]), model.encode(["the rain"], prompt=""))


def test_a_folder_without_modules_json_gives_the_same_vectors(folders, tmp_path):
    alone = shutil.copytree(folders[0], tmp_path / "alone")
    (alone / "modules.json").unlink()
    load = [gemel.load(folder, task="retrieval") for folder in (alone, folders[0])]
    assert np.array_equal(*(model.encode(TEXTS, prompt="") for model in load))


@pytest.mark.parametrize("task", [TASKS[0], "none"])
def test_what_is_saved_needs_no_task(folders, tmp_path, task):
    model = gemel.load(folders[0], task=task)
    model.save(tmp_path / "saved")
    again = gemel.load(tmp_path / "saved")
    assert np.array_equal(again.encode(TEXTS, prompt=""), model.encode(TEXTS, prompt=""))
    on_torch = gemel.load(tmp_path / "saved", engine="torch").encode(TEXTS, prompt="")
    np.testing.assert_allclose(on_torch, again.encode(TEXTS, prompt=""), rtol=0, atol=1e-5)
    config = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert config["model_type"] in KINDS and "task_names" not in config


def test_a_pickled_model_keeps_its_task(folders):
    model = gemel.load(folders[0], task="text-matching")
    again = pickle.loads(pickle.dumps(model))
    assert np.array_equal(again.encode(TEXTS, prompt=""), model.encode(TEXTS, prompt=""))


def test_tasks_have_different_fingerprints(folders):
    prints = {gemel.load(folders[0], task=task).fingerprint.weights for task in [*TASKS, "none"]}
    assert len(prints) == 3


def test_a_task_must_be_chosen(folders):
    with pytest.raises(ModelError, match=r"Choose one: gemel.load\(..., task='retrieval'\).*'none'"):
        gemel.load(folders[0])
    with pytest.raises(ModelError, match=r"no adapter for the task 'summary'. Known: 'retrieval'"):
        gemel.load(folders[0], task="summary")
    with pytest.raises(ModelError, match="has no adapters for tasks"):
        gemel.load(folders[1]["none"], task="retrieval")


def test_an_adapter_that_was_not_fetched_is_named(folders, tmp_path):
    partial = shutil.copytree(folders[0], tmp_path / "partial")
    shutil.rmtree(partial / "adapters" / "retrieval")
    with pytest.raises(ModelError, match=r"adapters.retrieval"):
        gemel.load(partial, task="retrieval")
