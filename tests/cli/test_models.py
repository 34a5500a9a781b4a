"""`gemel models`, as typed."""

from __future__ import annotations

import json

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file
from tests.checkpoint.test_sources import make_wheel

import gemel
from gemel.checkpoint import wheels
from gemel.cli.verbs import models
from gemel.encoder.canary import pack_vectors
from gemel.errors import GemelError, ModelError
from tiny import tiny_bert, tiny_tokenizer, tiny_vocabulary
from tiny_sparse import tiny_sparse


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
    files = [*(tmp_path / "mine").rglob("*.safetensors")]
    parameters = sum(array.size for path in files for array in load_file(path).values())
    assert facts == {
        "name": "mine",
        "folder": "mine",
        "kind": "transformer",
        "architecture": "bert",
        "dim": 8,
        "layers": 2,
        "parameters": parameters,
        "max_length": 64,
        "pooling": ["cls", "mean"],
        "dense": [{"inputs": 64, "outputs": 8, "activation": "tanh"}],
        "normalize": True,
        "lowercase": False,
        "prompts": {"query": "q: "},
        "default_prompt_name": None,
        "similarity": "cosine",
        "labels": [],
        "license": None,
        "non_commercial": False,
        "canaries": [],
        "notes": [],
    }


def test_a_terminal_shows_a_card_of_ten_lines(tmp_path, terminal):
    tiny_bert(tmp_path / "mine", dense=8, prompts={"query": "q: "})
    lines = run("show", "mine").splitlines()
    assert len(lines) == 10
    for line in (
        "name          mine",
        "architecture  bert, 2 layers, 28.4 k parameters",
        "max length    64 tokens",
        "dimensions    8",
        "pooling       mean, 32 → 8 tanh, normalized",
        "similarity    cosine",
        "prompts       query 'q: '",
        "license       not stated: there is no model card (README.md) that names it",
    ):
        assert line in lines


@pytest.mark.parametrize(
    ("matter", "shown"),
    [
        ("license: apache-2.0", "apache-2.0"),
        ("tags:\n- x\nlicense: cc-by-nc-4.0", "cc-by-nc-4.0 - warning: no commercial use"),
        ("license: other\nlicense_name: jina-nc-1", "jina-nc-1 - warning: no commercial use"),
        ("license: 'mit'\nlicense_link: LICENSE", "mit"),
        ("tags: x", "not stated"),
    ],
)
def test_the_license_of_the_model_card_is_shown_with_a_warning(tmp_path, terminal, matter, shown):
    folder = tiny_bert(tmp_path / "mine")
    (folder / "README.md").write_text(f"---\n{matter}\n---\n# A model\n\nlicense: not this one\n")
    assert f"license       {shown}" in run("show", "mine")


def checked(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(models.command, ["check", *words], catch_exceptions=False)
    return result.exit_code, result.stdout


def test_check_says_what_reads_a_model(tmp_path, terminal):
    tiny_bert(tmp_path / "mine")
    code, text = checked("mine")
    assert code == 0
    assert text.startswith("mine: will be read. bert sentence encoder, engine native, float32")
    result = json.loads(checked("mine", "--json")[1])
    assert (result["readable"], result["engine"], result["reason"], result["notes"]) == (
        True,
        "native",
        None,
        [],
    )


def test_show_and_check_say_whether_the_canaries_hold(tmp_path, terminal, monkeypatch):
    monkeypatch.setenv("GEMEL_CANARIES", "1")
    folder = tiny_bert(tmp_path / "mine")
    gemel.load(folder).encode(["the"])
    assert len(run("show", "mine").splitlines()) == 11
    assert "canaries      native float32: recorded 20" in run("show", "mine")
    assert run("show", "mine").rstrip().endswith("; holds")
    code, text = checked("mine", "--canaries")
    assert (code, "largest difference 0.0e+00, smallest cosine 1.000000" in text) == (0, True)
    (path,) = (folder / ".gemel").iterdir()
    content = json.loads(path.read_text())
    (recorded,) = content["sets"]
    recorded["vectors"] = pack_vectors(np.ones((4, 32), np.float32))
    recorded["environments"][0]["gemel"] = "0.0.9"
    path.write_text(json.dumps(content))
    assert "not compared with the versions here" in run("show", "mine")
    assert json.loads(run("show", "mine", "--json"))["canaries"][0]["by"]["gemel"] == "0.0.9"
    code, text = checked("mine", "--canaries")
    assert (code, "Then: gemel 0.0.9; now: gemel" in text) == (1, True)
    assert "changed once before; holds" in run("show", "mine")
    code, text = checked("mine", "--canaries", "--json")
    assert (code, json.loads(text)["canaries"][0]["holds"]) == (0, True)


def test_check_says_why_a_model_is_not_read(tmp_path, terminal):
    folder = tiny_bert(tmp_path / "mine")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": 48}))
    code, text = checked("./mine")
    assert code == 1
    assert "will not be read. the weight 'embeddings.position_embeddings.weight' has shape (128, 32)" in text
    (folder / "model.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"")
    code, text = checked("./mine", "--json")
    assert (code, json.loads(text)["readable"]) == (1, False)
    assert "gemel models convert" in json.loads(text)["reason"]


def test_check_knows_cross_encoders_and_static_tables(tmp_path):
    table = np.ones((len(tiny_vocabulary()), 4), np.float32)
    folder = tmp_path / "table"
    folder.mkdir()
    save_file({"embeddings": table}, folder / "model.safetensors")
    tiny_tokenizer(folder / "tokenizer.json")
    (folder / "config.json").write_text(json.dumps({"model_type": "model2vec"}))
    result = json.loads(checked("./table")[1])
    assert (result["engine"], result["architecture"], result["kind"]) == ("static", None, "sentence encoder")
    cross = tiny_bert(tmp_path / "cross")
    (cross / "modules.json").unlink()
    config = json.loads((cross / "config.json").read_text())
    config |= {"architectures": ["BertForSequenceClassification"], "num_labels": 1}
    (cross / "config.json").write_text(json.dumps(config))
    code, text = checked("./cross")
    assert (code, json.loads(text)["kind"]) == (1, "cross-encoder")
    assert "classifier" in json.loads(text)["reason"]


def test_check_and_show_know_sparse_encoders(tmp_path, terminal):
    tiny_sparse(tmp_path / "sparse", "router")
    code, text = checked("./sparse")
    assert code == 0
    assert "will be read. bert sparse encoder, engine native" in text
    assert "queries are encoded by the engine static" in text
    assert "gemel.load_sparse" in run("show", "./sparse")


def test_a_list_on_a_terminal_has_columns(terminal):
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


@pytest.mark.parametrize("verb", ["list", "pull", "show", "check", "remove", "convert"])
def test_every_help_has_an_example(verb):
    assert f"gemel models {verb}" in run(verb, "--help")
