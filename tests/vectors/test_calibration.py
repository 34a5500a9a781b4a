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
