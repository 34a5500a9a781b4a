"""Task sts: correlations by hand, subsets in three ways, errors, and the published score of a model."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from gemel.errors import InputError, ModelError
from gemel.evaluation.metrics import spearman
from gemel.evaluation.tasks.sts import load

DATA = Path(os.environ.get("GEMEL_DATA", Path(__file__).parents[3] / "shared" / "data")) / "sts"


class Angles:
    """A text is an angle in degrees, its vector the direction: the cosine of two texts is known."""

    dim = 2
    name = "angles"

    def __init__(self, scale=1.0):
        self.scale = scale

    def encode(self, texts):
        radians = np.radians([float(text) for text in texts])
        return (self.scale * np.stack([np.cos(radians), np.sin(radians)], axis=1)).astype(np.float32)


class Constant:
    dim = 2

    def encode(self, texts):
        return np.ones((len(texts), 2), dtype=np.float32)


class OneShort(Constant):
    def encode(self, texts):
        return np.ones((len(texts) - 1, 2), dtype=np.float32)


def table(path, rows, head="sentence1\tsentence2\tscore"):
    path.write_text("\n".join([head, *("\t".join(map(str, row)) for row in rows)]) + "\n", encoding="utf-8")
    return path


PAIRS = [(0, 0, 5), (0, 30, 3), (0, 60, 4), (0, 90, 1)]


def score(path, encoder=None, **settings):
    [task] = load(path, **{"rounds": 50, **settings})
    return task.score(encoder or Angles())


def test_spearman_and_pearson_by_hand(tmp_path):
    scores = score(table(tmp_path / "a.tsv", PAIRS))
    assert scores.values["spearman"].value == pytest.approx(80, abs=1e-5)  # 1 - 6 * 2 / (4 * 15)
    cosines = np.cos(np.radians([0, 30, 60, 90]))
    assert scores.values["pearson"].value == pytest.approx(
        100 * np.corrcoef(cosines, [5, 3, 4, 1])[0, 1], abs=1e-4
    )
    assert (scores.main, scores.dataset, scores.items, scores.unit) == ("spearman", "a", 4, "pairs")
    assert scores.protocol["metric"] == "cosine"
    assert scores.protocol["rounds"] == 50


@pytest.mark.parametrize("head", ["left\tright\tscore", "sentence1\tsentence2\tscore"])
def test_both_names_of_the_columns_are_accepted(tmp_path, head):
    assert score(table(tmp_path / "a.tsv", PAIRS, head)).values["spearman"].value == pytest.approx(80)


def test_the_number_lies_in_its_interval_and_repeats(tmp_path):
    random = np.random.default_rng(0)
    rows = [
        (0, int(angle), round(5 - angle / 20 + random.normal(), 2)) for angle in random.integers(1, 90, 80)
    ]
    path = table(tmp_path / "a.tsv", rows)
    first = score(path, rounds=200).values["spearman"]
    assert first.low < first.value < first.high
    assert score(path, rounds=200).values["spearman"] == first
    assert score(path, rounds=200, seed=1).values["spearman"].low != first.low
    assert score(path, rounds=0).values["spearman"].low is None


def test_similarities_side_by_side(tmp_path):
    rows = [(0, 10, 3), (5, 100, 1), (7, 20, 2)]
    scores = score(table(tmp_path / "a.tsv", rows), metric="all")
    names = [f"{kind}-{metric}" for kind in ("spearman", "pearson") for metric in ("cosine", "dot")]
    assert set(names) <= set(scores.values)
    assert scores.values["spearman"] == scores.values["spearman-cosine"]
    for metric in ("cosine", "dot", "euclidean", "manhattan"):  # nearer is always higher
        assert scores.values[f"spearman-{metric}"].value == pytest.approx(100), metric


def test_an_unknown_similarity_is_refused_with_those_that_exist(tmp_path):
    with pytest.raises(InputError, match=r"unknown metric 'cosin'. Did you mean 'cosine'"):
        load(table(tmp_path / "a.tsv", PAIRS), metric="cosin")


def test_a_year_is_aggregated_in_three_ways(tmp_path):
    """Two subsets, each in perfect order, with different offsets of the scale."""
    rows = [
        *(("one", 0, angle, gold) for angle, gold in [(0, 3), (10, 2), (20, 1)]),
        *(("two", 0, angle, gold) for angle, gold in [(30, 6), (40, 5), (50, 4), (60, 4.5)]),
    ]
    scores = score(table(tmp_path / "sts-year.tsv", rows, "subset\tsentence1\tsentence2\tscore"))
    gold = [row[3] for row in rows]
    assert scores.values["spearman"].value == pytest.approx(100 * spearman(gold, [-row[2] for row in rows]))
    assert scores.values["spearman"].value < 0
    assert scores.values["spearman-mean"].value == pytest.approx((100 + 80) / 2)
    assert scores.values["spearman-wmean"].value == pytest.approx((3 * 100 + 4 * 80) / 7)
    assert [(part.dataset, part.items) for part in scores.parts] == [("one", 3), ("two", 4)]
    assert "sub-sets" in scores.protocol["aggregation"]


def test_a_sub_set_without_a_correlation_leaves_the_means_undefined(tmp_path):
    rows = [("one", 0, 10, 1), ("one", 0, 20, 1), ("two", 0, 0, 3), ("two", 0, 9, 2)]
    scores = score(table(tmp_path / "a.tsv", rows, "subset\tsentence1\tsentence2\tscore"))
    assert scores.values["spearman"].value is not None
    assert scores.values["spearman-mean"].value is None
    assert "sub-set one" in scores.values["spearman-mean"].note


@pytest.mark.parametrize(
    ("rows", "encoder", "note"),
    [
        (PAIRS, Constant(), "all similarities are equal"),
        (PAIRS[:1], None, "two pairs or more"),
        ([(0, 1, 2), (0, 2, 2)], None, "all gold scores are equal"),
    ],
    ids=["constant predictions", "one row", "constant gold"],
)
def test_undefined_metrics_are_none_with_a_reason(tmp_path, rows, encoder, note):
    scores = score(table(tmp_path / "a.tsv", rows), encoder)
    for value in scores.values.values():
        assert value.value is None
        assert note in value.note


def test_an_encoder_that_loses_a_row_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"for 8 texts it returned the shape \(7, 2\)"):
        score(table(tmp_path / "a.tsv", PAIRS), OneShort())


def test_a_missing_column_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"needs a column 'score'; it has sentence1, sentence2, gold"):
        load(table(tmp_path / "a.tsv", PAIRS, "sentence1\tsentence2\tgold"))


def test_a_score_that_is_no_number_is_refused_with_its_line(tmp_path):
    with pytest.raises(InputError, match=r"a\.tsv:3: 'much' is not a number"):
        load(table(tmp_path / "a.tsv", [(0, 1, 2), (0, 1, "much")]))


def test_rounds_below_zero_are_refused(tmp_path):
    with pytest.raises(InputError, match="rounds must be 0"):
        load(table(tmp_path / "a.tsv", PAIRS), rounds=-1)


def test_a_folder_gives_its_test_sets_and_reports_what_it_skipped(tmp_path):
    for name in ("stsb-test", "stsb-train", "sickr-dev", "sickr-test", "notes-test"):
        table(tmp_path / f"{name}.tsv", PAIRS)
    tasks = load(tmp_path, rounds=0)
    assert [task.dataset for task in tasks] == ["sickr-test", "stsb-test"]
    assert tasks[0].protocol["left_out"] == ["sickr-dev", "stsb-train"]


def test_the_data_has_a_fingerprint(tmp_path):
    one, same, other = (
        load(table(tmp_path / f"{name}.tsv", rows))[0].protocol["data"]
        for name, rows in [("a", PAIRS), ("b", PAIRS), ("c", PAIRS[::-1])]
    )
    assert one == same != other


@pytest.mark.skipif(
    not (DATA / "stsb-test.tsv.gz").exists(), reason="the STS benchmark is not on this machine"
)
def test_all_minilm_has_its_published_score_on_the_sts_benchmark():
    import gemel

    try:
        model = gemel.load("all-MiniLM-L6-v2", offline=True)
    except ModelError:
        pytest.skip("all-MiniLM-L6-v2 is not in the cache. Fetch it with: gemel models pull all-MiniLM-L6-v2")
    scores = score(DATA / "stsb-test.tsv.gz", model, rounds=100)
    assert scores.items == 1379
    assert scores.values["spearman"].value == pytest.approx(82.03, abs=0.05)
    assert scores.values["spearman"].low < 82.03 < scores.values["spearman"].high
