"""`gemel cluster`, as typed."""

import json
import re

import pytest

from gemel.cli.main import main
from gemel.groups.cluster import Clusters
from tiny import tiny_bert

PETS = [f"the cat is sleeping {word}" for word in ("now", "here", "there", "again")]
NEWS = [f"stock market fell {word} today" for word in ("far", "fast", "hard", "much")]


@pytest.fixture
def workspace(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny_bert(tmp_path / "model")
    rows = [f"t{number}\t{text}" for number, text in enumerate([*PETS, *NEWS])]
    (tmp_path / "texts.tsv").write_text("\n".join(["name\ttext", *rows]) + "\n", encoding="utf-8")
    return tmp_path


def run(capsys, *words):
    code = main(["cluster", *words, "--model", "model", "--threads", "1"])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_clusters_are_json_lines_when_piped(workspace, capsys):
    code, out, err = run(capsys, "texts.tsv", "--k", "2")
    assert code == 0
    result = [json.loads(line) for line in out.splitlines()]
    assert [item["id"] for item in result] == [0, 1]
    assert sum(item["size"] for item in result) == 8
    assert {"size", "inside", "nearest", "outside", "text", "keywords", "name", "centre"} <= set(result[0])
    assert "2 clusters of 8 texts, 0 in none" in err


def test_the_folder_has_every_documented_file(workspace, capsys):
    code, out, err = run(capsys, "texts.tsv", "--k", "2", "--id-column", "name", "-o", "c", "--map", "pca")
    assert (code, out) == (0, "")
    assert err.startswith("c: 2 clusters")
    names = {path.name for path in (workspace / "c").iterdir()}
    assert names == {
        "assignments.tsv",
        "clusters.json",
        "clusters.npz",
        "map.html",
        "run.json",
        "vectors.npy",
    }
    lines = (workspace / "c" / "assignments.tsv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "id\tcluster\tname\ttext"
    assert lines[1].startswith("t0\t")
    assert lines[1].endswith(f"\t{PETS[0]}")
    assert len(lines) == 9
    page = (workspace / "c" / "map.html").read_text(encoding="utf-8")
    assert "Clusters of texts.tsv" in page


def test_texts_are_added_to_an_earlier_folder(workspace, capsys):
    assert run(capsys, "texts.tsv", "--min-score", "0.8", "-o", "c", "--map", "none")[0] == 0
    first = Clusters.load("c")
    (workspace / "new.txt").write_text(f"{PETS[0]}\nsomething else\n", encoding="utf-8")
    code, _, err = run(capsys, "new.txt", "--earlier", "c", "-o", "c", "--map", "pca")
    assert code == 0, err
    grown = Clusters.load("c")
    assert grown.labels[:8].tolist() == first.labels.tolist()
    assert len(grown.labels) == 10
    lines = (workspace / "c" / "assignments.tsv").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 11
    assert [line.split("\t")[0] for line in lines[-2:]] == ["8", "9"]
    assert (workspace / "c" / "map.html").exists()


def test_vectors_of_two_models_are_not_mixed(workspace, capsys):
    assert run(capsys, "texts.tsv", "--k", "2", "-o", "c", "--map", "none")[0] == 0
    tiny_bert(workspace / "other", seed=5)
    code = main(["cluster", "texts.tsv", "--earlier", "c", "--model", "other"])
    assert code == 2
    assert "vectors cannot be compared" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("texts.tsv", "--k", "0"), "0 is not in the range x>=1"),
        (("texts.tsv", "--k", "9"), "k=9 clusters of 8 different vectors"),
        (("texts.tsv", "--method", "dbscan"), "'dbscan' is not one of"),
        (("missing.tsv",), "no file at missing.tsv"),
        (("texts.tsv", "--earlier", "nowhere"), "no clusters in nowhere"),
        (("texts.tsv", "--earlier", "c", "--k", "3"), "takes the method and its settings from that folder"),
    ],
)
def test_a_wrong_request_exits_2_with_one_line(workspace, capsys, words, message):
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert message in err
    assert len(err.splitlines()) == 1


def test_an_empty_file_is_an_error(workspace, capsys):
    (workspace / "empty.txt").write_text("", encoding="utf-8")
    code, out, err = run(capsys, "empty.txt", "-o", "c")
    assert (code, out) == (2, "")
    assert err == "gemel cluster: empty.txt is empty: there are no rows to read [GEM-302]\n"


def test_a_terminal_gets_a_table(workspace, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    code, out, _ = run(capsys, "texts.tsv", "--k", "2")
    assert code == 0
    assert "central text" in out


@pytest.mark.parametrize("columns", [80, 60, 140])
def test_the_table_keeps_its_columns_at_any_width(workspace, capsys, monkeypatch, columns):
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("COLUMNS", str(columns))
    code, out, _ = run(capsys, "texts.tsv", "--k", "2")
    assert code == 0
    lines = re.sub(r"\x1b\[[0-9;]*m", "", out).splitlines()
    assert max(map(len, lines)) <= columns
    head = next(line for line in lines if "nearest" in line).split()
    assert head == ["id", "texts", "inside", "nearest", "name", "central", "text"] or head[4] == "name,"
    first = next(at for at, line in enumerate(lines) if line.split()[:2] == ["0", "4"])
    rows = "".join(lines[first : first + 2])
    assert any(text[:20] in rows for text in [*PETS, *NEWS])
    assert "market" in out


def test_names_have_no_stop_words(workspace, capsys):
    _, out, _ = run(capsys, "texts.tsv", "--k", "2")
    names = " ".join(json.loads(line)["name"] for line in out.splitlines()).replace(",", "").split()
    assert not {"the", "is", "a", "now", "here", "there"} & set(names)
