"""The comparison of ways to make batches: its intervals, and that a stopped run is resumed."""

import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import train_grouping

pytest.importorskip("scipy", reason="intervals need scipy")


def score(value):
    return {"stsb_dev": value, "pairs_per_cpu_second": 10.0}


def test_an_interval_is_that_of_student():
    result = train_grouping.interval([1.0, 2.0, 3.0])
    assert (result["n"], result["mean"], result["deviation"]) == (3, 2.0, 1.0)
    assert result["high"] - result["mean"] == pytest.approx(4.30265 / 3**0.5, rel=1e-5)
    assert train_grouping.interval([1.0]) == {"n": 1, "mean": 1.0}
    assert train_grouping.interval([]) == {"n": 0}


def test_differences_are_of_the_seeds_that_both_sides_have():
    runs = {
        "grouped": {"0": score(40.0), "1": score(41.0)},
        "shuffled": {"1": score(44.0), "0": score(41.0), "2": score(90.0)},
    }
    result = train_grouping.summary(runs)
    assert result["sides"]["shuffled"]["stsb_dev"]["n"] == 3
    difference = result["differences"]["shuffled - grouped"]
    assert (difference["n"], difference["mean"]) == (2, 2.0)


def test_a_run_that_is_in_the_file_is_not_done_again(tmp_path):
    job, other = train_grouping.Job(16, 3, "grouped"), train_grouping.Job(64, 3, "grouped")
    train_grouping.Results(tmp_path / "r.json").add(job, score(40.0))
    again = train_grouping.Results(tmp_path / "r.json")
    assert job in again and other not in again
    assert json.loads((tmp_path / "r.json").read_text())["batches"]["16"]["summary"]["sides"]["grouped"]
