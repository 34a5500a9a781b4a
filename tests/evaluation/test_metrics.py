"""Correlations and cuts: by hand first, then against scipy and scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest

from gemel.evaluation.metrics import all_cuts, pearson, ranks, ranks_of_codes, spearman, value_codes


def test_ranks_by_hand():
    assert ranks([30, 10, 20]).tolist() == [3, 1, 2]
    assert ranks([5, 5, 1, 5]).tolist() == [3, 3, 1, 3]
    assert ranks([]).tolist() == []


def test_codes_keep_the_order_and_join_equal_values():
    codes = value_codes([0.5, -1.0, 0.5, 7.0])
    assert codes.tolist() == [1, 0, 1, 2]
    assert ranks_of_codes(codes[[3, 3, 1]]).tolist() == [2.5, 2.5, 1]


def test_pearson_by_hand():
    assert pearson([1, 2, 3], [2, 4, 6]) == pytest.approx(1)
    assert pearson([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert pearson([0, 1, 2], [0, 1, 0]) == pytest.approx(0)
    assert pearson([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)


def test_spearman_depends_on_order_only():
    assert spearman([1, 2, 3, 4], [1, 10, 100, 1000]) == pytest.approx(1)
    assert spearman([1, 2, 3, 4], [2, 1, 4, 3]) == pytest.approx(0.6)


@pytest.mark.parametrize(
    ("left", "right"),
    [([], []), ([1], [2]), ([1, 1, 1], [1, 2, 3]), ([1, 2, 3], [0.1, 0.1, 0.1])],
    ids=["none", "one", "left constant", "right constant"],
)
def test_a_correlation_that_is_not_defined_is_none(left, right):
    assert pearson(left, right) is None
    assert spearman(left, right) is None


@pytest.mark.parametrize("seed", range(5))
def test_correlations_are_those_of_scipy(seed):
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(seed)
    gold = np.round(random.uniform(0, 5, 200), 1)  # many ties
    predicted = (gold + random.normal(0, 2, 200)).astype(np.float32)
    assert spearman(gold, predicted) == pytest.approx(stats.spearmanr(gold, predicted).statistic, abs=1e-12)
    assert pearson(gold, predicted) == pytest.approx(stats.pearsonr(gold, predicted).statistic, abs=1e-7)


def test_cuts_by_hand():
    """Scores 4 3 2 1 with labels + - + -: two right at 2, one right at 4."""
    cuts = all_cuts([1, 0, 1, 0], [4, 3, 2, 1])
    assert cuts.average_precision == pytest.approx((1 / 1 + 2 / 3) / 2)
    assert cuts.roc_auc == pytest.approx(3 / 4)
    best = cuts.best_f1
    assert (best.value, best.threshold) == (pytest.approx(0.8), 1.5)
    assert (best.precision, best.recall) == (pytest.approx(2 / 3), 1.0)
    accuracy = cuts.best_accuracy
    assert (accuracy.value, accuracy.threshold) == (0.75, 3.5)  # of two equal cuts the higher


def test_rows_with_equal_scores_stay_together():
    cuts = all_cuts([1, 0, 1, 0], [2, 2, 2, 2])
    assert cuts.average_precision == 0.5
    assert cuts.roc_auc == 0.5
    assert cuts.best_f1.threshold == 2.0


def test_with_few_positives_the_best_accuracy_predicts_none():
    cuts = all_cuts([0, 0, 0, 0, 1], [5, 4, 3, 2, 1])
    best = cuts.best_accuracy
    assert best.value == 0.8
    assert best.threshold > 5
    assert (best.precision, best.recall) == (0.0, 0.0)


def test_without_positives_there_is_no_precision():
    cuts = all_cuts([0, 0], [0.1, 0.2])
    assert cuts.average_precision is None
    assert cuts.roc_auc is None
    assert cuts.best_f1 is None
    assert cuts.best_accuracy.value == 1.0


def test_metrics_of_no_rows_are_undefined():
    cuts = all_cuts([], [])
    assert (cuts.average_precision, cuts.roc_auc, cuts.best_f1, cuts.best_accuracy) == (None,) * 4


@pytest.mark.parametrize("digits", [1, 8])
def test_cuts_are_those_of_scikit_learn(digits):
    sklearn = pytest.importorskip("sklearn.metrics")
    random = np.random.default_rng(digits)
    labels = random.integers(0, 2, 200)
    scores = np.round(labels + random.normal(0, 1, 200), digits)  # one digit: many ties
    cuts = all_cuts(labels, scores)
    assert cuts.average_precision == pytest.approx(sklearn.average_precision_score(labels, scores))
    assert cuts.roc_auc == pytest.approx(sklearn.roc_auc_score(labels, scores))
    best, accuracy = cuts.best_f1, cuts.best_accuracy
    called = scores >= best.threshold
    assert best.value == pytest.approx(sklearn.f1_score(labels, called))
    assert best.precision == pytest.approx(sklearn.precision_score(labels, called))
    assert best.recall == pytest.approx(sklearn.recall_score(labels, called))
    assert accuracy.value == pytest.approx(sklearn.accuracy_score(labels, scores >= accuracy.threshold))
    every = [sklearn.f1_score(labels, scores >= threshold) for threshold in np.unique(scores)[::10]]
    assert best.value >= max(every) - 1e-12
