"""`gemel models`, as typed."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from tests.checkpoint.test_sources import make_wheel

from gemel.checkpoint import wheels
from gemel.cli.verbs import models
from gemel.errors import GemelError, ModelError
from tiny import tiny_bert


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    wheel, row = make_wheel(tmp_path)
    monkeypatch.setattr(wheels, "CARRIED", {"tiny": row})
    monkeypatch.setattr(wheels, "download", lambda *_: wheel)
    return tmp_path / "cache"


def run(*words: str) -> str:
    result = CliRunner().invoke(models.command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(models, "_wants_json", lambda as_json: as_json)


def test_list_pull_show_remove(home):
    (row,) = (json.loads(line) for line in run("list").splitlines())
    assert (row["name"], row["cached"], row["folder"]) == ("tiny", False, None)
    folder = home / "models" / "tiny"
    assert run("pull", "tiny").strip() == str(folder)
    (row,) = (json.loads(line) for line in run("list", "--json").splitlines())
    assert (row["cached"], row["folder"]) == (True, str(folder))
    assert json.loads(run("show", "org/tiny"))["name"] == "tiny"
    run("remove", "tiny")
    assert not folder.exists()


def test_show_prints_everything_as_json(tmp_path):
    tiny_bert(tmp_path / "mine", dense=8, pooling=("cls", "mean"), prompts={"query": "q: "})
    facts = json.loads(run("show", "mine", "--json"))
    assert len(facts.pop("weights_hash")) == 64
    assert facts.pop("size") > 1000
    assert facts == {
        "name": "mine",
        "folder": "mine",
        "kind": "transformer",
        "architecture": "bert",
        "dim": 8,
        "layers": 2,
        "max_length": 64,
        "pooling": ["cls", "mean"],
        "dense": [{"inputs": 64, "outputs": 8, "activation": "tanh"}],
        "normalize": True,
        "lowercase": False,
        "prompts": {"query": "q: "},
        "default_prompt_name": None,
        "similarity": "cosine",
        "labels": [],
        "notes": [],
    }


def test_a_terminal_shows_columns(tmp_path, terminal):
    tiny_bert(tmp_path / "mine", dense=8, prompts={"query": "q: "})
    lines = run("show", "mine").splitlines()
    for line in (
        "kind                 transformer",
        "dense                32 → 8 tanh",
        "prompts              query 'q: '",
        "normalize            yes",
        "notes                -",
    ):
        assert line in lines
    assert run("list").split()[:1] == ["tiny"]
    assert run("list").endswith(" MB  can be fetched\n")


def test_show_fetches_nothing():
    with pytest.raises(ModelError, match="gemel models pull tiny"):
        run("show", "tiny")


@pytest.mark.parametrize(
    "words", [("show", "./absent"), ("remove", "absent"), ("convert", "absent"), ("pull", "a/b/c")]
)
def test_wrong_requests_raise_our_errors(words):
    with pytest.raises(GemelError):
        run(*words)


def test_convert_prints_what_it_wrote(tmp_path):
    torch = pytest.importorskip("torch", reason="converting needs the train extra")
    from safetensors.torch import load_file

    folder = tiny_bert(tmp_path / "old")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    assert run("convert", "old") == ""
    (folder / "model.safetensors").unlink()
    assert run("convert", "old", "-o", "new").split() == ["new/model.safetensors"]
    assert run("convert", "old").split() == ["old/model.safetensors"]


@pytest.mark.parametrize("verb", ["list", "pull", "show", "remove", "convert"])
def test_every_help_has_an_example(verb):
    assert f"gemel models {verb}" in run(verb, "--help")
