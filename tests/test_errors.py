"""Habits from sentence-transformers in the wrong place: they work, or the error says what to write."""

import os
import subprocess
import sys
from inspect import signature
from pathlib import Path

import numpy as np
import pytest

import gemel
from gemel import errors
from gemel.errors import InputError, did_you_mean
from gemel.evaluation.task import TASKS
from gemel.groups import cluster
from gemel.training.objectives.base import OBJECTIVES, make_objective
from gemel.vectors import search
from tiny import tiny_bert


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


@pytest.mark.parametrize("name", ["SentenceTransformer", "CrossEncoder", "InputExample", "util", "losses"])
def test_a_name_of_sentence_transformers_is_that_of_compat(name):
    assert getattr(gemel, name) is getattr(gemel.compat, name)
    assert name not in gemel.__all__


def test_packages_are_attributes_after_import_gemel():
    code = "import gemel; print(gemel.compat.SentenceTransformer.__name__, gemel.evaluation.__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["SentenceTransformer", "gemel.evaluation"]


def test_import_gemel_loads_no_other_module_of_it():
    code = "import sys, gemel; print([name for name in sys.modules if name.startswith(('gemel.', 'numpy'))])"
    source = {**os.environ, "PYTHONPATH": str(Path(gemel.__file__).parents[1])}
    run = [sys.executable, "-S", "-c", code]  # -S: site-packages may load modules at the start
    done = subprocess.run(run, capture_output=True, text=True, check=True, env=source)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("models", "pooling='mean'"),
        ("SentenceTransformerTrainer", r"gemel\.train"),
        ("semantic_search", r"gemel\.search"),
        ("paraphrase_mining", r"gemel\.find_pairs"),
        ("serch", "Did you mean 'search'"),
    ],
)
def test_a_name_that_gemel_does_not_have_is_mapped(name, way):
    with pytest.raises(AttributeError, match=way):
        getattr(gemel, name)


def test_an_evaluator_in_the_package_of_tasks_is_mapped():
    with pytest.raises(AttributeError, match=r"gemel\.compat\.evaluation\.TripletEvaluator"):
        _ = gemel.evaluation.TripletEvaluator


def test_every_other_name_means_something_that_exists():
    objectives = {name: other for name, other in errors.OTHER_NAMES.items() if name.endswith("Loss")}
    tasks = {name: other for name, other in errors.OTHER_NAMES.items() if name.endswith("Evaluator")}
    assert set(objectives.values()) <= set(OBJECTIVES)
    assert set(tasks.values()) <= set(TASKS)
    assert set(errors.SAME_LOSSES.items()) <= set(objectives.items())


def test_a_wrong_name_is_mapped_before_similar_ones_are_looked_for():
    assert did_you_mean("TripletLoss", ["triplet", "TripletLos"]) == " Did you mean 'triplet'?"
    with pytest.raises(InputError, match="Did you mean 'classification'"):
        make_objective("SoftmaxLoss")
    with pytest.raises(InputError, match="Did you mean 'sts'"):
        gemel.evaluate(None, "EmbeddingSimilarityEvaluator", "file.tsv")


@pytest.mark.parametrize(
    ("keywords", "way"),
    [
        ({"batch_size": 32}, "Leave it out: batches are made by length"),
        ({"show_progress_bar": True}, "Did you mean 'progress'"),
        ({"normalize_embeddings": True}, "Did you mean 'normalize'"),
        ({"convert_to_tensor": True}, r"torch\.from_numpy"),
        ({"device": "cuda"}, r"gemel\.load\(name, device='cuda'\)"),
        ({"max_seq_length": 128}, "Did you mean 'max_length'"),
        ({"truncate_dim": 64}, "Did you mean 'dim'"),
    ],
)
def test_a_keyword_of_their_encode_is_mapped(folder, keywords, way):
    with pytest.raises(InputError, match=way):
        gemel.load(folder).encode(["a"], **keywords)


def test_a_keyword_of_their_search_is_mapped():
    with pytest.raises(
        InputError, match=r"search has no argument 'top_k'\. Did you mean 'k'\? It has queries"
    ):
        gemel.search(np.eye(3), np.eye(3), top_k=2)
    with pytest.raises(InputError, match=r"cluster has no argument 'threshold'\. Did you mean 'min_score'"):
        gemel.cluster(np.eye(3), threshold=0.8)
    with pytest.raises(InputError, match="memory is bounded"):
        gemel.search(np.eye(3), np.eye(3), corpus_chunk_size=2)


def test_the_named_arguments_in_these_errors_are_those_of_the_functions():
    for function, names in ((gemel.search, search._ARGUMENTS), (gemel.cluster, cluster._ARGUMENTS)):
        assert [*names, "others"] == list(signature(function).parameters)


@pytest.mark.parametrize(
    ("name", "way"),
    [
        ("get_sentence_embedding_dimension", r"model\.dim"),
        ("max_seq_length", "max_length=128"),
        ("fit", r"gemel\.train"),
        ("to", "device='cuda'"),
        ("start_multi_process_pool", "one process uses all cores"),
        ("tokenize", "pieces"),
        ("similarity_pairwise", r"gemel\.normalize"),
    ],
)
def test_a_member_of_their_model_is_mapped(folder, name, way):
    model = gemel.load(folder)
    assert not hasattr(model, name)
    with pytest.raises(AttributeError, match=f"(?i){way}"):
        getattr(model, name)


def test_no_member_of_a_model_is_called_missing(folder):
    settable = {"max_length"}  # exists, and cannot be set
    assert {name for name in errors.NOT_MEMBERS if hasattr(gemel.load(folder), name)} == settable
