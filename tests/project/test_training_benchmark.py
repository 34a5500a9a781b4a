"""The comparison of trainers: its intervals, that sides start alike, and that a stopped run is resumed."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import few_shot
import trainers

pytest.importorskip("scipy", reason="intervals need scipy")


def score(value):
    return {"stsb_dev": value, "pairs_per_cpu_second": 10.0}


def test_an_interval_is_that_of_student():
    result = trainers.interval([1.0, 2.0, 3.0])
    assert (result["n"], result["mean"], result["deviation"]) == (3, 2.0, 1.0)
    assert result["high"] - result["mean"] == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert trainers.interval([1.0]) == {"n": 1, "mean": 1.0}
    assert trainers.interval([]) == {"n": 0}


def test_differences_are_of_the_seeds_that_both_sides_have():
    runs = {
        "grouped": {"0": score(40.0), "1": score(41.0)},
        "gemel": {"1": score(44.0), "0": score(41.0), "2": score(90.0)},
    }
    result = trainers.summary(runs)
    assert result["sides"]["gemel"]["stsb_dev"]["n"] == 3
    difference = result["differences"]["gemel - grouped"]
    assert (difference["n"], difference["mean"]) == (2, 2.0)


def test_a_run_that_is_in_the_file_is_not_done_again(tmp_path):
    job, other = trainers.Job("default", 3, "grouped"), trainers.Job("high-rate", 3, "grouped")
    trainers.Results(tmp_path / "r.json", {}).add(job, score(40.0))
    again = trainers.Results(tmp_path / "r.json", {})
    assert job in again and other not in again
    cell = json.loads((tmp_path / "r.json").read_text())["cells"]["default"]
    assert (
        cell["summary"]["sides"]["grouped"]
        and cell["learning_rate"] == trainers.CELLS["default"].learning_rate
    )


def test_the_peer_starts_from_the_order_and_the_head_of_a_run_of_gemel(tmp_path):
    pytest.importorskip("torch", reason="training needs torch")
    pytest.importorskip("accelerate", reason="training needs accelerate")
    import numpy as np

    import gemel
    from tiny import tiny_bert

    model = tiny_bert(tmp_path / "model", seed=0, layers=1, width=16, heads=2, normalize=False)
    labels = ("entailment", "neutral", "contradiction")
    lines = [f"a cat {number}\ta dog {number}\t{labels[number % 3]}" for number in range(12)]
    rows = tmp_path / "rows.tsv"
    rows.write_text("\n".join(["premise\thypothesis\tlabel", *lines]) + "\n", encoding="utf-8")
    cell = trainers.Cell(4, 3, 1e-12, 0.0)
    trainers.write_start(tmp_path / "start.npz", rows, cell, 5, model)
    start = np.load(tmp_path / "start.npz")
    assert sorted(start["order"].tolist()) == list(range(12)) and start["order"].tolist() != list(range(12))
    settings = {"batch_size": 4, "max_steps": 1, "learning_rate": cell.learning_rate, "seed": 5}
    gemel.train(model, rows, objective="classification", out=tmp_path / "out", device="cpu", **settings)
    trained = gemel.load(tmp_path / "out").checkpoint.relation.weight
    np.testing.assert_allclose(trained, start["weight"], atol=1e-6)


def test_few_shot_examples_are_never_test_texts():
    rows = [(f"text {number}", "ab"[number % 2]) for number in range(1300)]
    job = few_shot.Job("model", "cr", 8, 0, "head")
    first, again = few_shot.sample(rows, None, job), few_shot.sample(rows, None, job)
    assert first == again
    assert (len(first.texts), len(first.test_texts)) == (16, few_shot.TESTED)
    assert sorted(first.labels) == ["a"] * 8 + ["b"] * 8
    assert not set(first.texts) & set(first.test_texts)
    other = few_shot.sample(rows, None, few_shot.Job("model", "cr", 8, 1, "head"))
    assert other.test_texts == first.test_texts and other.texts != first.texts
    split = few_shot.sample(rows, rows[:50], job)
    assert len(split.test_texts) == 50 and not set(split.texts) & set(split.test_texts)


def test_few_shot_sides_are_compared_draw_by_draw():
    def result(accuracy, seconds):
        return {"accuracy": accuracy, "cpu_seconds": seconds}

    runs = {
        "m cr 8 0 head": result(0.70, 0.1),
        "m cr 8 1 head": result(0.72, 0.1),
        "m cr 8 0 tuned": result(0.74, 60.0),
        "m cr 8 1 tuned": result(0.74, 120.0),
        "m cr 8 1 setfit": result(0.75, 300.0),
    }
    [row] = few_shot.summary(runs)
    assert (row["data"], row["examples"]) == ("cr", 8)
    assert row["sides"]["tuned"]["minutes"] == 1.5
    assert row["differences"]["tuned - head"]["mean"] == pytest.approx(3.0)
    assert row["differences"]["tuned - setfit"]["n"] == 1
