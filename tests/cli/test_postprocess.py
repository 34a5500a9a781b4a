"""`gemel postprocess`, as typed."""

import json

import numpy as np
import pytest
from tests.checkpoint.test_write import MANY
from tests.project.test_without_torch import python

import gemel
from gemel.cli.main import main
from gemel.texts.whitening import METHODS
from tiny import tiny_bert


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_bert(tmp_path / "model")
    (tmp_path / "texts.txt").write_text("\n".join([*MANY, MANY[0]]) + "\n", encoding="utf-8")
    return tmp_path


def run(capsys, *words):
    code = main(["postprocess", *words])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_a_terminal_shows_what_was_done_and_the_isotropy(workspace, capsys):
    code, out, _ = run(capsys, "model", "--data", "texts.txt", "-o", "new", "--dim", "6")
    assert code == 0
    first, before, after = out.splitlines()
    assert first == f"new: whitening fitted on {len(MANY)} texts, 6 dimensions"
    assert before.startswith("before: mean cosine 0.")
    assert after.startswith("after:  mean cosine -0.")
    assert gemel.load("new").encode(["hello world"]).shape == (1, 6)


def test_json_is_one_object(workspace, capsys):
    code, out, _ = run(capsys, "model", "--method", "centering", "--data", "texts.txt", "-o", "new", "--json")
    assert code == 0
    result = json.loads(out)
    assert set(result) == {"folder", "method", "texts", "dim", "before", "after", "note"}
    assert (result["method"], result["texts"], result["dim"]) == ("centering", len(MANY), 32)
    assert abs(result["after"]["mean_cosine"]) < result["before"]["mean_cosine"]


def test_texts_of_several_columns(workspace, capsys):
    rows = [f"{left}\t{right}\t1" for left, right in zip(MANY[::2], MANY[1::2], strict=True)]
    (workspace / "pairs.tsv").write_text("\n".join(["one\ttwo\tscore", *rows]) + "\n", encoding="utf-8")
    columns = ("--text-column", "one", "--text-column", "two")
    code, out, _ = run(capsys, "model", "--data", "pairs.tsv", *columns, "-o", "new", "--json")
    assert code == 0
    assert json.loads(out)["texts"] == len(MANY)


def test_a_flow_is_trained_with_torch_and_used_without_it(workspace, capsys):
    pytest.importorskip("torch", reason="training a flow needs the extra train")
    flow = ("--method", "flow", "--epochs", "1")
    code, out, _ = run(capsys, "model", "--data", "texts.txt", "-o", "new", *flow)
    assert code == 0
    assert "log-likelihood" in out
    np.save("expected.npy", gemel.load("new").encode(MANY))
    program = """
    import gemel, json, numpy
    vectors = gemel.load("new").encode(json.loads(sys.argv[1]))
    assert numpy.array_equal(vectors, numpy.load("expected.npy"))
    assert "torch" not in sys.modules
    """
    python(program, json.dumps(MANY))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("model", "--data", "texts.txt"), "Missing option '-o'"),
        (("model", "--data", "no.txt", "-o", "new"), "no file at no.txt"),
        (("model", "--data", "texts.txt", "-o", "model"), "exists and is not empty"),
        (("model", "--data", "texts.txt", "-o", "new", "--dim", "33"), "dim must be from 1 to 32"),
        (
            ("model", "--data", "texts.txt", "-o", "new", "--method", "flow", "--dim", "3"),
            "'flow' has no setting 'dim'",
        ),
        (("nowhere", "--data", "texts.txt", "-o", "new"), "nowhere"),
    ],
)
def test_a_wrong_request_ends_with_2_and_one_line(workspace, capsys, monkeypatch, words, message):
    monkeypatch.setenv("GEMEL_CACHE", str(workspace / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    code, out, err = run(capsys, *words)
    assert code == 2
    assert not out
    assert err.startswith("gemel postprocess: ")
    assert len(err.splitlines()) == 1
    assert message in err
    assert not (workspace / "new").exists()


def test_overwrite_replaces_the_model(workspace, capsys):
    for dim in ("4", "5"):
        assert run(capsys, "model", "--data", "texts.txt", "-o", "new", "--dim", dim, "--overwrite")[0] == 0
    assert gemel.load("new").dim == 5


def test_help_names_every_method_and_has_two_examples(capsys):
    code, out, _ = run(capsys, "--help")
    assert code == 0
    for name in METHODS:
        assert name in out
    assert out.count("gemel postprocess ./my-model") == 2
