"""Calibration: what a score means, on corpora with a known answer."""

import json

import numpy as np
import pytest

import gemel
from gemel.vectors.similarity import scores


def directions(rows, dim=64, seed=0):
    return np.random.default_rng(seed).normal(size=(rows, dim)).astype(np.float32)


def all_scores(vectors, metric="cosine"):
    return scores(vectors, vectors, metric)[np.triu_indices(len(vectors), 1)]


def with_duplicates(vectors, count):
    """The first `count` rows become near-copies of the next `count`."""
    changed = vectors.copy()
    noise = np.random.default_rng(1).normal(size=(count, vectors.shape[1]))
    changed[:count] = changed[count : 2 * count] + 0.05 * noise
    return changed


@pytest.mark.parametrize("metric", ["cosine", "dot", "euclidean", "manhattan"])
def test_a_threshold_passes_about_the_expected_number_of_random_pairs(metric):
    vectors = directions(1500)
    result = gemel.calibrate(vectors, metric=metric)
    real = all_scores(vectors, metric)
    for expected in (300_000, 10_000, 1000, 100):
        count = (real >= result.threshold(expected)).sum()
        assert expected / 1.6 < count < expected * 1.6, (metric, expected, count)


def test_the_tail_is_right_far_beyond_the_sample():
    vectors = directions(6000, dim=48)
    result = gemel.calibrate(vectors, sample=100_000)  # of 18 million pairs
    count = len(gemel.similar_pairs(vectors, min_score=result.threshold(50), threads=1))
    assert 50 / 3 < count < 50 * 3


def test_pairs_that_belong_together_hardly_move_the_threshold():
    vectors = directions(1500)
    clean, duplicates = gemel.calibrate(vectors), gemel.calibrate(with_duplicates(vectors, 300))
    spread = clean.threshold(1) - clean.threshold(100)
    assert duplicates.threshold(1) == pytest.approx(clean.threshold(1), abs=0.25 * spread)
    assert clean.threshold(1) < 0.75  # and the duplicates, at 0.99, are above it


def test_expected_false_and_threshold_are_inverse():
    result = gemel.calibrate(directions(300))
    for expected in (1e-3, 1, 50, 2000, 30_000):
        assert result.expected_false(result.threshold(expected)) == pytest.approx(expected, rel=1e-6)


def test_expected_false_grows_with_the_corpus():
    result = gemel.calibrate(directions(300))
    one = result.expected_false(0.4)
    assert result.expected_false(0.4, n=300) == pytest.approx(one)
    assert result.expected_false(0.4, n=3000) == pytest.approx(one * 3000 * 2999 / (300 * 299))


def test_percentiles_never_fall_and_match_counts():
    vectors = directions(400)
    result, real = gemel.calibrate(vectors), all_scores(vectors)
    grid = np.linspace(-1, 1, 401)
    percentiles = [result.percentile(score) for score in grid]
    assert np.all(np.diff(percentiles) >= 0)
    assert result.percentile(-1) == pytest.approx(0)
    assert result.percentile(1) == pytest.approx(100)
    assert result.percentile(0.1) == pytest.approx(100 * (real < 0.1).mean(), abs=0.1)


def test_two_sets_are_calibrated_across():
    left, right = directions(200), directions(500, seed=3)
    result = gemel.calibrate(left, other=right)
    assert (result.rows, result.total, result.sampled) == ((200, 500), 100_000, 100_000)
    count = (scores(left, right) >= result.threshold(1000)).sum()
    assert 700 < count < 1400


def test_every_pair_is_sampled_once_where_pairs_are_few():
    vectors = directions(333)
    result, real = gemel.calibrate(vectors), all_scores(vectors)
    assert result.sampled == result.total == len(real)
    assert result.mean == pytest.approx(real.mean(), abs=1e-6)
    assert result.deviation == pytest.approx(real.std(), abs=1e-6)


def test_the_same_seed_gives_the_same_answer():
    vectors = directions(2000)
    one = gemel.calibrate(vectors, sample=50_000, seed=5)
    assert one == gemel.calibrate(vectors, sample=50_000, seed=5)
    assert one != gemel.calibrate(vectors, sample=50_000, seed=6)


def labeled(count, seed=0):
    random = np.random.default_rng(seed)
    values = random.uniform(0, 1, count)
    return [(float(score), int(random.uniform() < score)) for score in values]


def test_labels_give_a_probability_that_never_falls():
    result = gemel.calibrate(directions(100), labels=labeled(2000))
    grid = [result.probability(score) for score in np.linspace(-0.2, 1.2, 141)]
    assert np.all(np.diff(grid) >= 0)
    assert result.probability(0.5) == pytest.approx(0.5, abs=0.12)
    assert result.probability(0.9) == pytest.approx(0.9, abs=0.12)


def test_the_curve_is_that_of_scikit_learn():
    isotonic = pytest.importorskip("sklearn.isotonic", reason="the reference is scikit-learn")
    labels = [*labeled(80, seed=2), (0.5, 1), (0.5, 0), (0.5, 1)]
    result = gemel.calibrate(directions(100)).with_labels(labels)
    x, y = np.array(labels).T
    reference = isotonic.IsotonicRegression(out_of_bounds="clip").fit(x, y)
    grid = np.linspace(0, 1, 101)
    np.testing.assert_allclose(
        [result.probability(score) for score in grid], reference.predict(grid), atol=1e-9
    )


@pytest.mark.parametrize("labels", [[], [(0.5, 1)] * 9, [(0.5, 1)] * 20, [(0.5, 0)] * 20])
def test_too_few_labels_are_refused(labels):
    with pytest.raises(gemel.InputError, match="at least 10 labels with both 0 and 1"):
        gemel.calibrate(directions(100), labels=labels)


@pytest.mark.parametrize("labels", [[(0.5, 2)] * 20, [("a", "b")] * 20, [(float("nan"), 1)] * 20, [1] * 20])
def test_labels_must_be_scores_with_0_or_1(labels):
    with pytest.raises(gemel.InputError, match="labels must be pairs"):
        gemel.calibrate(directions(100), labels=labels)


def test_a_probability_without_labels_is_refused():
    with pytest.raises(gemel.InputError, match="no labels were given"):
        gemel.calibrate(directions(100)).probability(0.5)


def test_calibration_round_trips_through_json():
    result = gemel.calibrate(directions(100), labels=labeled(50))
    assert gemel.Calibration.from_json(json.loads(json.dumps(result.to_json()))) == result


def test_json_of_something_else_is_refused():
    with pytest.raises(gemel.InputError, match="not a calibration"):
        gemel.Calibration.from_json({"score": 1})
    with pytest.raises(gemel.InputError, match="version 99"):
        gemel.Calibration.from_json({**gemel.calibrate(directions(100)).to_json(), "version": 99})


def test_the_summary_has_thresholds():
    lines = gemel.calibrate(directions(100), labels=labeled(50)).summary().splitlines()
    assert lines[0].startswith("100 texts, 4,950 pairs, 4,950 sampled: random pairs score ")
    assert lines[1].startswith("score above which so many random pairs are expected: 0.")
    assert lines[2] == "probabilities from 50 labels"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"vectors": np.eye(5)}, "at least 1,000 pairs"),
        ({"vectors": np.ones((100, 4))}, "same score"),
        ({"vectors": np.full((100, 4), np.nan)}, "row 0 has NaN"),
        ({"vectors": directions(100), "metric": "nearness"}, "unknown metric"),
        ({"vectors": directions(100), "sample": 3}, "sample must be"),
        ({"vectors": directions(100), "other": directions(100, dim=8)}, "dimensions"),
    ],
)
def test_bad_input_is_refused(arguments, words):
    with pytest.raises(gemel.InputError, match=words):
        gemel.calibrate(**arguments)


def test_bad_questions_are_refused():
    result = gemel.calibrate(directions(100))
    for bad in (0, -1, 1e9, float("nan")):
        with pytest.raises(gemel.InputError, match="expected_false"):
            result.threshold(bad)
    with pytest.raises(gemel.InputError, match="score must be a finite number"):
        result.percentile(float("inf"))
    with pytest.raises(gemel.InputError, match="at least 2 texts"):
        result.expected_false(0.5, n=1)


# a threshold for a requested precision


def spread(count, seed=0):
    """Scores of pairs whose probability to be correct is their score, and labels of all of them."""
    random = np.random.default_rng(seed)
    scores = np.sort(random.uniform(0, 1, count))
    return scores, random.uniform(size=count) < scores


def test_the_threshold_has_the_requested_precision():
    scores, correct = spread(20_000)
    chosen = np.random.default_rng(1).choice(len(scores), 1000, replace=False)
    result = gemel.precision_threshold([(scores[at], correct[at]) for at in chosen], scores, 0.8)
    above = scores >= result.threshold
    assert result.precision >= 0.8
    assert result.pairs == above.sum()
    assert correct[above].mean() == pytest.approx(0.8, abs=0.05)
    assert result.low < correct[above].mean() < result.high
    assert result.labels == (scores[chosen] >= result.threshold).sum()


def test_a_higher_precision_takes_fewer_pairs():
    scores, correct = spread(3000)
    labels = list(zip(scores, correct, strict=True))
    cuts = [gemel.precision_threshold(labels, scores, target) for target in (0.6, 0.7, 0.8, 0.9)]
    assert [cut.pairs for cut in cuts] == sorted((cut.pairs for cut in cuts), reverse=True)
    assert all(cut.precision >= cut.target for cut in cuts)


def test_labels_that_are_more_frequent_among_good_pairs_do_not_raise_the_estimate():
    scores, correct = spread(20_000)
    random = np.random.default_rng(2)
    even = random.choice(len(scores), 2000, replace=False)
    good = random.choice(len(scores), 2000, replace=False, p=scores / scores.sum())
    cuts = [
        gemel.precision_threshold([(scores[at], correct[at]) for at in rows], scores, 0.8)
        for rows in (even, good)
    ]
    assert cuts[0].threshold == pytest.approx(cuts[1].threshold, abs=0.06)


def test_few_labels_give_a_wide_interval():
    labels = [(0.9, 1)] * 8 + [(0.2, 0)] * 8
    result = gemel.precision_threshold(labels, [0.9] * 500, 0.99)
    assert result.precision == 1
    assert (result.low, result.high) == (
        pytest.approx(0.676, abs=0.001),
        pytest.approx(1),
    )  # 8 of 8, by Wilson


def test_the_intervals_contain_the_truth_nearly_always():
    scores, correct = spread(5000)
    inside = 0
    for seed in range(60):
        chosen = np.random.default_rng(seed).choice(len(scores), 150, replace=False)
        cut = gemel.precision_threshold([(scores[at], correct[at]) for at in chosen], scores, 0.7)
        inside += cut.low <= correct[scores >= cut.threshold].mean() <= cut.high
    assert inside >= 54


def test_equal_scores_stand_or_fall_together():
    scores = [0.9] * 10 + [0.5] * 10
    labels = [(0.9, 1)] * 10 + [(0.5, 0)] * 10
    assert gemel.precision_threshold(labels, scores, 0.6).pairs == 10
    assert gemel.precision_threshold(labels, scores, 0.5).pairs == 20


def test_nothing_below_the_lowest_label_is_chosen():
    labels = [(0.6, 0)] + [(0.7 + 0.01 * at, 1) for at in range(15)]
    result = gemel.precision_threshold(labels, np.linspace(0, 1, 200), 0.05)
    assert result.threshold >= 0.6


def test_the_summary_of_a_precision_threshold_is_one_line():
    scores, correct = spread(3000)
    line = gemel.precision_threshold(list(zip(scores, correct, strict=True)), scores, 0.8).summary()
    assert "of which 80% are correct (95 % interval " in line
    assert "\n" not in line


@pytest.mark.parametrize("target", [0, 1, 1.5, float("nan")])
def test_a_target_that_is_no_precision_is_refused(target):
    with pytest.raises(gemel.InputError, match="target must be"):
        gemel.precision_threshold(labeled(50), [0.1, 0.9], target)


def test_a_precision_that_no_score_has_is_refused_with_the_best():
    labels = [(0.1 * at, at % 2) for at in range(10)] + [(0.95, 0)] * 10
    with pytest.raises(
        gemel.InputError, match=r"no score has a precision of 0\.9: by these 20 labels it is 0\.\d\d"
    ):
        gemel.precision_threshold(labels, np.linspace(0, 1, 100), 0.9)


def test_labels_of_another_corpus_are_refused():
    with pytest.raises(gemel.InputError, match="same corpus"):
        gemel.precision_threshold([(0.8, 0), *[(0.9, 1)] * 10], [0.1, 0.2], 0.5)
