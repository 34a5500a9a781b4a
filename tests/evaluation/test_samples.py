"""Bootstrap intervals and the paired test: properties, and cases with a known answer."""

from __future__ import annotations

import json

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.evaluation.metrics import spearman
from gemel.evaluation.statistics import (
    CorrelationSample,
    MeanSample,
    NamedComparison,
    PairedComparison,
    WeightedSample,
    compare,
    interval,
)
from gemel.evaluation.task import Bootstrap, Score, Scores


@pytest.fixture
def pairs():
    random = np.random.default_rng(0)
    gold = np.round(random.uniform(0, 5, 300), 1)
    return gold, gold + random.normal(0, 1, 300), gold + random.normal(0, 3, 300)


def test_a_bootstrap_draw_is_ranked_again(pairs):
    gold, predicted, _ = pairs
    rows = np.random.default_rng(1).integers(0, 300, 300)
    assert CorrelationSample(gold, predicted).number(rows) == pytest.approx(
        spearman(gold[rows], predicted[rows]), abs=1e-12
    )


def test_an_interval_contains_the_value_and_is_reproducible_by_seed(pairs):
    sample = CorrelationSample(pairs[0], pairs[1])
    ends = interval(sample, rounds=300, seed=3)
    assert ends.low < sample.number(np.arange(300)) < ends.high
    assert interval(sample, rounds=300, seed=3) == ends
    assert interval(sample, rounds=300, seed=4) != ends


def test_the_interval_of_a_mean_is_that_of_its_normal_distribution():
    values = np.random.default_rng(0).integers(0, 2, 2000).astype(float)
    ends = interval(MeanSample(values), rounds=2000)
    spread = 1.96 * np.sqrt(values.mean() * (1 - values.mean()) / 2000)
    assert ends.low == pytest.approx(values.mean() - spread, abs=0.003)
    assert ends.high == pytest.approx(values.mean() + spread, abs=0.003)


def test_one_item_has_no_interval():
    assert interval(MeanSample(np.array([1.0])), rounds=10) is None


def test_a_number_that_is_rarely_defined_has_no_interval():
    assert interval(CorrelationSample(np.array([1.0, 1, 1]), np.array([1.0, 2, 3])), rounds=50) is None


def test_a_score_is_in_points_with_its_interval(pairs):
    score = Bootstrap(100).score(MeanSample(np.array([1.0, 0, 1, 1])))
    assert score.value == 75.0
    assert 0 <= score.low <= 75 <= score.high <= 100


def test_a_score_that_is_not_defined_says_why():
    score = Bootstrap().score(CorrelationSample(np.ones(3), np.arange(3.0)), undefined="all equal")
    assert score == Score(None, note="all equal")


def test_no_rounds_no_interval():
    assert Bootstrap(0).score(MeanSample(np.array([1.0, 0]))) == Score(50.0)


def test_a_weighted_sample_is_the_mean_of_its_parts():
    parts = (MeanSample(np.array([1.0, 1, 0, 0])), MeanSample(np.array([1.0, 1])))
    every = np.arange(6)
    assert WeightedSample(parts, (1, 1)).number(every) == 0.75
    assert WeightedSample(parts, (4, 2)).number(every) == pytest.approx(4 / 6)
    assert WeightedSample(parts, (1, 1)).items == 6
    assert WeightedSample(parts, (1, 1)).number(np.array([5, 0, 2, 4])) == 0.75  # rows in any order


def test_a_weighted_sample_draws_from_each_part_its_own_size():
    parts = (MeanSample(np.zeros(5)), MeanSample(np.zeros(3)))
    for seed in range(20):
        rows = WeightedSample(parts, (1, 1)).draw(np.random.default_rng(seed))
        assert (rows < 5).sum() == 5
        assert ((rows >= 5) & (rows < 8)).sum() == 3


def test_a_weighted_sample_of_an_undefined_part_is_undefined():
    parts = (MeanSample(np.ones(2)), CorrelationSample(np.ones(2), np.arange(2.0)))
    assert WeightedSample(parts, (1, 1)).number(np.arange(4)) is None


def test_the_better_model_is_found_and_the_difference_turns_its_sign(pairs):
    gold, good, bad = pairs
    result = compare(CorrelationSample(gold, bad), CorrelationSample(gold, good), rounds=500)
    assert result.sure
    assert result.low < result.difference < result.high
    assert result.p_value < 0.01
    turned = compare(CorrelationSample(gold, good), CorrelationSample(gold, bad), rounds=500)
    assert turned.difference == -result.difference
    assert (turned.low, turned.high) == (pytest.approx(-result.high), pytest.approx(-result.low))


def test_a_model_is_not_better_than_itself(pairs):
    sample = CorrelationSample(pairs[0], pairs[1])
    result = compare(sample, sample, rounds=200)
    assert (result.difference, result.p_value, result.sure) == (0, 1, False)


def test_equally_good_models_rarely_differ_significantly():
    """A test at 5 % may be wrong in about 5 % of cases; 20 cases with more than 4 wrong would be a broken test."""
    random = np.random.default_rng(0)
    wrong = 0
    for case in range(20):
        gold = random.normal(size=60)
        one, two = gold + random.normal(size=60), gold + random.normal(size=60)
        result = compare(CorrelationSample(gold, one), CorrelationSample(gold, two), rounds=100, seed=case)
        wrong += result.p_value < 0.05
    assert wrong <= 4


def test_pairing_makes_a_small_but_consistent_difference_significant():
    values = np.random.default_rng(0).uniform(0, 0.9, 200)
    result = compare(MeanSample(values), MeanSample(values + 0.01), rounds=200)
    assert result.sure
    assert result.difference == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("first", "second", "message"),
    [
        (MeanSample(np.zeros(3)), MeanSample(np.zeros(4)), "3 and 4"),
        (MeanSample(np.zeros(1)), MeanSample(np.zeros(1)), "needs two items"),
        (CorrelationSample(np.ones(3), np.arange(3.0)), MeanSample(np.zeros(3)), "not defined"),
    ],
)
def test_results_that_cannot_be_compared_are_refused(first, second, message):
    with pytest.raises(InputError, match=message):
        compare(first, second, rounds=10)


def test_a_verdict_names_the_better_model_only_if_significant():
    sure, unsure = PairedComparison(-2, -3, -1, 0.001, 9, 9), PairedComparison(1, -1, 3, 0.4, 9, 9)
    assert NamedComparison("a", "b", "sts", "d", sure).better == "a"
    assert NamedComparison("a", "b", "sts", "d", unsure).better == ""
    content = NamedComparison("a", "b", "sts", "d", sure).to_json()
    assert (content["task"], content["dataset"], content["better"]) == ("sts", "d", "a")


def test_scores_as_json_have_the_main_number_at_the_top():
    scores = Scores(
        task="sts",
        dataset="d",
        main="spearman",
        values={"spearman": Score(82.03456, 79.0, 85.0), "pearson": Score(None, note="why")},
        items=7,
        unit="pairs",
        model="m",
    )
    content = json.loads(json.dumps(scores.to_json(), allow_nan=False))
    assert content["spearman"] == 82.0346
    assert (content["low"], content["high"], content["pairs"]) == (79.0, 85.0, 7)
    assert content["pearson"] is None
    assert content["values"]["pearson"]["note"] == "why"
