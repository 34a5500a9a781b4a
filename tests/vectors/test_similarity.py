"""Similarity, by hand and against plain formulas."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

import gemel
from gemel.cli.verbs.evaluate import command as evaluate_command
from gemel.errors import InputError
from gemel.vectors.calibration import calibrate
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.search import search
from gemel.vectors.similarity import METRICS, Metric, normalize, row_scores, scores

MATRICES = hnp.arrays(
    np.float32, st.tuples(st.integers(0, 6), st.just(4)), elements=st.floats(-1e3, 1e3, width=32)
)


def plain(metric, a, b):
    a, b = a.astype(np.float64), b.astype(np.float64)
    if metric == "cosine":
        lengths = np.linalg.norm(a) * np.linalg.norm(b)
        return a @ b / lengths if lengths else 0.0
    return {"dot": a @ b, "euclidean": -np.linalg.norm(a - b), "manhattan": -np.abs(a - b).sum()}[metric]


def test_scores_by_hand():
    left, right = np.array([[3.0, 4.0]]), np.array([[3.0, 0.0], [0.0, 0.0]])
    assert scores(left, right, "cosine").tolist() == [[pytest.approx(0.6), 0.0]]
    assert scores(left, right, "dot").tolist() == [[9.0, 0.0]]
    assert scores(left, right, "euclidean").tolist() == [[-4.0, -5.0]]
    assert scores(left, right, "manhattan").tolist() == [[-4.0, -7.0]]


@pytest.mark.parametrize("metric", METRICS)
@given(left=MATRICES, right=MATRICES)
@settings(max_examples=40, deadline=None)
def test_all_pairs_equal_the_plain_formula(metric, left, right):
    table = scores(left, right, metric)
    assert table.shape == (len(left), len(right))
    assert table.dtype == np.float32
    expected = np.array([[plain(metric, a, b) for b in right] for a in left]).reshape(table.shape)
    size = 1.0 if metric == "cosine" else max(np.abs(left).max(initial=1), np.abs(right).max(initial=1))
    tolerance = 1e-6 * (size**2 if metric == "dot" else size) * 4
    np.testing.assert_allclose(table, expected, rtol=1e-5, atol=tolerance)


@pytest.mark.parametrize("metric", METRICS)
def test_row_scores_are_the_diagonal_of_all_pairs(metric):
    left, right = np.random.default_rng(0).normal(size=(2, 9, 16)).astype(np.float32)
    np.testing.assert_allclose(
        row_scores(left, right, metric), np.diag(scores(left, right, metric)), atol=1e-5
    )


@pytest.mark.parametrize("metric", METRICS)
def test_a_vector_is_nearest_to_itself(metric):
    rows = normalize(np.random.default_rng(1).normal(size=(20, 8)))
    assert scores(rows, rows, metric).argmax(axis=1).tolist() == list(range(20))


@given(hnp.arrays(np.float32, (5, 3), elements=st.floats(allow_nan=False, allow_infinity=False, width=32)))
@settings(max_examples=100, deadline=None)
def test_normalized_rows_have_length_one_or_zero(rows):
    lengths = np.linalg.norm(normalize(rows).astype(np.float64), axis=1)
    np.testing.assert_allclose(lengths, (rows != 0).any(axis=1), atol=1e-6)


@pytest.mark.parametrize("dim", [1, 2, 37, 384, 1000])
def test_normalizing_a_row_alone_gives_the_same_bits(dim):
    rows = np.random.default_rng(2).normal(size=(5000, dim)).astype(np.float32)
    together = normalize(rows)
    for i in (0, 1, 2047, 2048, 4999):
        assert normalize(rows[i : i + 1]).tobytes() == together[i].tobytes()


def test_arguments_are_not_changed():
    rows = np.full((2, 2), 5, dtype=np.float32)
    normalize(rows)
    scores(rows, rows)
    assert (rows == 5).all()


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8, np.uint8])
def test_other_types_are_converted_to_float32(dtype):
    assert normalize(np.array([[0, 2]], dtype=dtype)).dtype == np.float32


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (np.ones((2, 3)), np.ones((2, 4)), "rows of left have 3 dimensions but rows of right have 4"),
        (
            np.ones(3),
            np.ones((2, 3)),
            r"left must have the shape \(n, dim\), got \(3,\). For one vector write",
        ),
        (np.array([["a"]]), np.ones((1, 1)), "left must be numbers"),
        (np.array([[1.0], [np.nan]]), np.ones((1, 1)), "left must be finite, but row 1 has NaN or infinity"),
        (np.ones((1, 1)), np.array([[np.inf]]), "right must be finite, but row 0"),
    ],
)
def test_wrong_arrays_are_named(left, right, message):
    with pytest.raises(InputError, match=message):
        scores(left, right)


def test_row_scores_need_as_many_rows():
    with pytest.raises(InputError, match="left has 2 rows but right has 3"):
        row_scores(np.ones((2, 3)), np.ones((3, 3)))


def test_an_unknown_metric_is_refused_with_the_available_ones():
    with pytest.raises(
        InputError, match=r"unknown metric 'cosin'\. Did you mean 'cosine'\? Known: cosine, dot"
    ):
        scores(np.eye(2), np.eye(2), "cosin")


def test_a_metric_is_one_record_that_scans_pairs_and_calibration_read(monkeypatch):
    def rows(left, right):
        return -np.abs(left - right).max(axis=1).astype(np.float32)

    def table(left, right):
        return -np.abs(left[:, None] - right[None]).max(axis=2).astype(np.float32)

    monkeypatch.setitem(METRICS._entries, "chebyshev", Metric(scores=table, rows=rows, highest=0.0))
    left, right = np.random.default_rng(3).normal(size=(2, 50, 8)).astype(np.float32)
    expected = scores(left, right, "chebyshev")
    hits = search(left, right, k=4, metric="chebyshev")
    assert hits.index.tolist() == np.argsort(-expected, axis=1, kind="stable")[:, :4].tolist()
    pairs = similar_pairs(left, other=right, k=9, metric="chebyshev")
    assert pairs.score.tolist() == np.sort(expected, axis=None)[::-1][:9].tolist()
    with pytest.raises(InputError, match=r"'chebyshev' cannot be calibrated\. Use one of cosine, dot"):
        calibrate(left, metric="chebyshev")


def test_the_help_of_evaluate_names_every_metric():
    (option,) = (each for each in evaluate_command.params if each.name == "metric")
    assert all(name in option.help for name in METRICS)


def test_cosine_takes_rows_or_single_vectors():
    left, right = np.random.default_rng(4).normal(size=(2, 5, 8)).astype(np.float32)
    table = gemel.cosine(left, right)
    assert np.array_equal(table, scores(left, right))
    np.testing.assert_allclose(gemel.cosine(left[0], right), table[0], atol=1e-6)
    np.testing.assert_allclose(gemel.cosine(left, right[1]), table[:, 1], atol=1e-6)
    assert gemel.cosine(left[0], right[1]).shape == () and float(
        gemel.cosine(left[0], left[0])
    ) == pytest.approx(1)
    with pytest.raises(InputError, match="rows of left have 8 dimensions but rows of right have 4"):
        gemel.cosine(left, right[:, :4])


def test_a_single_vector_is_normalized_as_a_row():
    rows = np.random.default_rng(5).normal(size=(3, 8)).astype(np.float32)
    assert np.array_equal(gemel.normalize(rows[1]), gemel.normalize(rows)[1])
