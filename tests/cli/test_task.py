"""`--task` of the commands that load a model: the adapter to use, of a model with one for each of several tasks."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner

import gemel
from gemel.cli.main import cli
from gemel.errors import GemelError
from remote_code import tiny_jina

TEXTS = ["a man is playing a guitar", "rain", "how do i reset my password"]


@pytest.fixture(scope="module")
def jina(tmp_path_factory):
    pytest.importorskip("transformers", reason="the tiny model is made by transformers")
    return tiny_jina(tmp_path_factory.mktemp("jina"))


@pytest.fixture(autouse=True)
def texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "texts.txt").write_text("\n".join(TEXTS) + "\n")


def run(*words: object) -> list[dict[str, object]]:
    result = CliRunner().invoke(cli, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return [json.loads(line) for line in result.stdout.splitlines()]


def test_encode_takes_the_adapter_of_the_task(jina):
    for task in ("retrieval.passage", "text-matching"):
        rows = run("encode", "texts.txt", "--model", jina, "--task", task)
        vectors = np.array([row["vector"] for row in rows], dtype=np.float32)
        np.testing.assert_allclose(vectors, gemel.load(jina, task=task).encode(TEXTS), atol=1e-6)
    with pytest.raises(GemelError, match=r"different adapters. Use encode_query"):
        run("encode", "texts.txt", "--model", jina)


def test_search_takes_both_sides_or_the_task(jina):
    for task, model in (
        ((), gemel.load(jina)),
        (("--task", "text-matching"), gemel.load(jina, task="text-matching")),
    ):
        rows = run("search", "texts.txt", "rain", "-k", 3, "--model", jina, *task, "--json")
        scores = gemel.search(model.encode_query(["rain"]), model.encode_document(TEXTS), 3).score[0]
        np.testing.assert_allclose([row["score"] for row in rows], scores, atol=1e-5)


def test_an_index_is_created_for_the_task(jina):
    pytest.importorskip("lance")
    run("index", "create", "notes", "--model", jina, "--task", "text-matching", "--json")
    with gemel.open_index("notes") as index:
        assert index.model.checkpoint.task == "text-matching"


def test_evaluate_has_another_name_for_it(jina, tmp_path):
    (tmp_path / "sts.tsv").write_text(
        "sentence1\tsentence2\tscore\n"
        + "".join(f"{a}\t{b}\t{len(a + b) % 5}\n" for a in TEXTS for b in TEXTS)
    )
    (row,) = run(
        *("evaluate", jina, "--task", "sts", "--data", "sts.tsv", "--model-task", "text-matching"),
        *("--rounds", 10, "--json"),
    )
    assert row["model"] == "remote"
