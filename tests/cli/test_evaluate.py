"""`gemel evaluate` with tiny models: JSON lines, the table on a terminal, comparison, report, errors."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.evaluation.test_sts import table

from gemel.cli.main import main
from gemel.cli.verbs import evaluate as module
from gemel.evaluation.task import TASKS
from tiny import tiny_bert
from tiny_late import tiny_late

WORDS = [
    "man",
    "woman",
    "cat",
    "dog",
    "guitar",
    "flute",
    "street",
    "sofa",
    "rain",
    "stock",
    "market",
    "password",
    "refund",
    "hello",
    "world",
]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return [str(tiny_bert(folder / name, seed=seed)) for seed, name in enumerate(("one", "two"))]


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    folder = tmp_path_factory.mktemp("data")
    random = np.random.default_rng(0)
    for name in ("sts1-test", "sts2-test", "sts2-train"):
        rows = [
            (" ".join(random.choice(WORDS, 3)), " ".join(random.choice(WORDS, 3)), random.integers(0, 6))
            for _ in range(12)
        ]
        table(folder / f"{name}.tsv", rows)
    return folder


@pytest.fixture
def run(capfd):
    def call(*arguments):
        code = main(["evaluate", *map(str, arguments)])
        shown = capfd.readouterr()
        return code, shown.out, shown.err

    return call


@pytest.fixture
def terminal(monkeypatch):
    monkeypatch.setattr(module, "_on_a_terminal", lambda: True)
    monkeypatch.setenv("COLUMNS", "120")


def test_one_json_object_for_each_model_and_data_set(run, models, data):
    code, out, err = run(models[0], "--task", "sts", "--data", data, "--rounds", 20, "--json")
    rows = [json.loads(line) for line in out.splitlines()]
    assert (code, err) == (0, "")
    assert [row["dataset"] for row in rows] == ["sts1-test", "sts2-test", "average"]
    for row in rows:
        assert {"model", "dataset", "spearman", "pearson", "low", "high", "pairs"} <= set(row)
        assert row["low"] <= row["spearman"] <= row["high"]
    assert (rows[0]["model"], rows[0]["pairs"], rows[2]["pairs"]) == ("one", 12, 24)
    assert rows[0]["protocol"]["left_out"] == ["sts2-train"]


def test_two_models_are_compared_in_the_lines_of_the_second(run, models, data):
    code, out, _ = run(*models, "--task", "sts", "--data", data, "--rounds", 20)
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["model"], len(row["compared"])) for row in rows] == [("one", 0)] * 3 + [("two", 1)] * 3
    compared = rows[3]["compared"][0]
    assert [compared[name] for name in ("first", "second", "task", "dataset")] == [
        "one",
        "two",
        "sts",
        "sts1-test",
    ]
    assert compared["difference"] == pytest.approx(rows[3]["spearman"] - rows[0]["spearman"], abs=2e-4)
    assert {"low", "high", "p_value", "sure", "better"} <= set(compared)


def test_two_folders_of_one_name_are_distinguished(run, models, data, tmp_path):
    again = str(tiny_bert(tmp_path / "one", seed=5))
    _, out, _ = run(models[0], again, "--task", "sts", "--data", data / "sts1-test.tsv", "--rounds", 5)
    assert [json.loads(line)["model"] for line in out.splitlines()] == ["one", again]


def test_a_terminal_gets_a_table_with_intervals_and_a_verdict(run, models, data, terminal):
    code, out, _ = run(*models, "--task", "sts", "--data", data, "--rounds", 20, "--no-progress")
    assert code == 0
    for words in ("sts: one", "data set", "spearman", "pearson", "pairs", "sts1-test", "average", "[", "]"):
        assert words in out
    assert "sts: two against one" in out
    assert "no significant difference" in out or "is better" in out
    assert "left out: sts2-train" in out


def test_a_terminal_shows_one_similarity_per_line(run, models, data, terminal):
    _, out, _ = run(
        models[0],
        "--task",
        "sts",
        "--data",
        data / "sts1-test.tsv",
        "--metric",
        "all",
        "--rounds",
        5,
        "--no-progress",
    )
    for metric in ("cosine", "dot", "euclidean", "manhattan"):
        assert f"sts1-test {metric}" in out


def test_a_terminal_says_why_a_number_is_missing(run, models, tmp_path, terminal):
    path = table(tmp_path / "a.tsv", [("a man", "a cat", 3)])
    code, out, _ = run(models[0], "--task", "sts", "--data", path, "--no-progress")
    assert code == 0
    assert "undefined" in out
    assert "a correlation needs two pairs or more" in out


def test_options_of_encoding_are_used_and_reported(run, models, data):
    arguments = ("--task", "sts", "--data", data / "sts1-test.tsv", "--rounds", 5)
    _, plain, _ = run(models[0], *arguments)
    _, cut, _ = run(models[0], *arguments, "--pooling", "cls", "--max-length", 8, "--prompt", "the ")
    assert json.loads(cut)["protocol"]["encoding"] == {"pooling": "cls", "max_length": 8, "prompt": "the "}
    assert json.loads(cut)["pearson"] != json.loads(plain)["pearson"]


def test_a_warning_is_one_line_on_standard_error(run, models, tmp_path):
    path = table(tmp_path / "a.tsv", [("a man " * 60, "a cat", 3), ("a", "dog", 1)])
    code, _, err = run(models[0], "--task", "sts", "--data", path, "--rounds", 5)
    assert code == 0
    assert err.startswith("warning: 1 of 4 texts are longer than")
    assert err.count("\n") == 1


def test_a_folder_gets_the_report(run, models, data, tmp_path):
    pytest.importorskip("gemel.evaluation.report.write")
    code, _, err = run(*models, "--task", "sts", "--data", data, "--rounds", 20, "-o", tmp_path / "report")
    assert code == 0
    assert {path.name for path in (tmp_path / "report").iterdir()} == {
        "results.json",
        "results.md",
        "report.html",
    }
    assert "wrote" in err
    content = json.loads((tmp_path / "report" / "results.json").read_text(encoding="utf-8"))
    assert len(content["results"]) == 6
    assert len(content["comparisons"]) == 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--task", "st", "--data", "DATA"), "unknown task 'st'. Did you mean 'sts'?"),
        (("--task", "sts", "--data", "nowhere"), "no data at nowhere"),
        (("--task", "sts", "--data", "DATA", "--metric", "cosin"), "unknown metric 'cosin'"),
        (("--task", "sts", "--data", "DATA", "--set", "k=3"), "has no setting 'k'"),
        (("--task", "sts", "--data", "DATA", "--set", "k"), "--set takes NAME=VALUE"),
        (("--data", "DATA"), "Missing option '--task'"),
    ],
)
def test_a_wrong_request_is_one_line_and_exit_2(run, models, data, arguments, message):
    code, out, err = run(models[0], *(data if word == "DATA" else word for word in arguments))
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_settings_become_numbers_bools_and_strings():
    assert module._settings(("k=20", "skip-same-id=true", "split=dev")) == {
        "k": 20,
        "skip_same_id": True,
        "split": "dev",
    }


@pytest.fixture
def collection(tmp_path):
    corpus = ["doc_id\ttext", *(f"{number}\t{word} {WORDS[number - 1]}" for number, word in enumerate(WORDS))]
    queries = ["query_id\ttext", *(f"{number}\t{word}" for number, word in enumerate(WORDS))]
    qrels = ["query_id\tdoc_id\trelevance", *(f"{number}\t{number}\t1" for number in range(len(WORDS)))]
    for name, lines in {"corpus": corpus, "queries": queries, "qrels": qrels}.items():
        (tmp_path / f"toy-{name}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return tmp_path


def test_searches_are_compared_with_the_first_in_one_table(
    run, models, collection, tmp_path, terminal, monkeypatch
):
    monkeypatch.setenv("COLUMNS", "220")
    late = tiny_late(tmp_path / "late")
    code, out, _ = run(
        models[0],
        "bm25",
        "--task",
        "retrieval",
        "--data",
        collection / "toy",
        "--hybrid",
        "--weights",
        "1,0.5",
        "--rerank",
        late,
        "--candidates",
        5,
        "--rounds",
        20,
        "--no-progress",
    )
    assert code == 0
    for words in ("retrieval: toy, 15 queries", "ndcg@10", "mrr@10", "recall@100", "difference to one"):
        assert words in out
    for words in (
        "one + 0.5 × bm25",
        "reranked bm25",
        "ms per query",
        "ms per document",
        "bytes per document",
    ):
        assert words in out
    assert "more with --json or -o: map@100" in out


def test_costs_are_in_the_lines_and_in_the_report(run, models, collection, tmp_path):
    code, out, _ = run(
        models[0],
        "bm25",
        "--task",
        "retrieval",
        "--data",
        collection / "toy",
        "--costs",
        "--rounds",
        20,
        "-o",
        tmp_path / "report",
    )
    rows = [json.loads(line) for line in out.splitlines()]
    assert code == 0
    assert [(row["model"], len(row["compared"])) for row in rows] == [("one", 0), ("bm25", 1)]
    assert rows[0]["costs"]["bytes_per_document"] == 128
    assert "Quality and cost" in (tmp_path / "report" / "results.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--weights", "1,2"), "--weights are those of --hybrid"),
        (("--candidates", "5"), "--candidates are sorted by --rerank"),
        (("--late-form", "int8"), "--late-form changes what --costs measures"),
        (("--hybrid", "--weights", "1"), "--weights takes one number for each of 2 models"),
        (("--hybrid", "--weights", "1,x"), "--weights takes one number for each of 2 models"),
        (("--costs", "--task", "sts"), "--costs is for the task 'retrieval', not for 'sts'"),
    ],
)
def test_flags_of_searches_that_do_not_fit_are_refused(run, models, collection, arguments, message):
    code, out, err = run(*models, "--task", "retrieval", "--data", collection / "toy", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_the_help_names_every_task():
    assert module.TASK_NAMES.split(", ") == sorted(TASKS)


def test_a_terminal_shows_alternative_scores_and_details(run, models, tmp_path, terminal):
    random = np.random.default_rng(0)
    rows = [
        (topic, *(" ".join(random.choice(WORDS, 3)) for _ in range(2)), int(random.integers(0, 3)))
        for topic in ("one", "two")
        for _ in range(12)
    ]
    path = table(tmp_path / "args.tsv", rows, "topic\tsentence1\tsentence2\tscore")
    _, out, _ = run(models[0], "--task", "arguments", "--data", path, "--rounds", 5, "--no-progress")
    for words in ("args/10-fold", "args/cross-topic", "f1 macro"):
        assert words in out
    assert "args/cosine" not in out  # the first row says it
    path = table(tmp_path / "pairs.tsv", [(1, "a man", "a cat"), (0, "a dog", "rain")], "label\tleft\tright")
    _, out, _ = run(models[0], "--task", "binary-pairs", "--data", path, "--rounds", 5, "--no-progress")
    assert "f1 threshold" in out
    assert "more with --json or -o: accuracy, accuracy-threshold" in out
