"""Similar pairs against a brute force over all of them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemel.pairs as module
from gemel.errors import InputError
from gemel.pairs import similar_pairs
from gemel.similarity import METRICS, scores


def brute(rows, metric, k=None, min_score=None):
    table = scores(rows, rows, metric)
    found = [(-table[i, j], i, j) for i in range(len(rows)) for j in range(i + 1, len(rows))]
    kept = sorted(pair for pair in found if min_score is None or -pair[0] >= min_score)[:k]
    return [(float(-score), i, j) for score, i, j in kept]


def as_list(pairs):
    return list(zip(pairs.score.tolist(), pairs.left.tolist(), pairs.right.tolist(), strict=True))


def test_pairs_that_fit_on_paper():
    pairs = similar_pairs(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), k=1)
    assert as_list(pairs) == [(1.0, 0, 2)]
    assert pairs.compared == 3
    assert pairs.complete
    assert len(pairs) == 1


@pytest.mark.parametrize("metric", METRICS)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 25),
    k=st.none() | st.integers(1, 60),
    min_score=st.none() | st.integers(-3, 3),
)
@settings(max_examples=50, deadline=None)
def test_pairs_equal_brute_force_with_many_ties(metric, seed, n, k, min_score):
    if k is None and min_score is None:
        k = 5
    rows = np.random.default_rng(seed).integers(-1, 2, (n, 3))
    if metric == "cosine":
        rows = rows * [1, 0, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_BLOCK", 4)
        pairs = similar_pairs(rows, k=k, min_score=min_score, metric=metric)
    assert as_list(pairs) == brute(rows, metric, k, min_score)
    assert pairs.compared == n * (n - 1) // 2


def test_real_sizes_find_the_same_pairs_as_brute_force():
    rows = np.random.default_rng(4).normal(size=(2500, 8)).astype(np.float32)
    pairs = similar_pairs(rows, k=50)
    table = np.triu(scores(rows, rows), 1)
    expected = np.sort(table[np.triu_indices(2500, 1)])[::-1][:50]
    np.testing.assert_allclose(pairs.score, expected, atol=1e-6)
    np.testing.assert_allclose(table[pairs.left, pairs.right], pairs.score, atol=1e-6)
    assert (pairs.left < pairs.right).all()


def test_min_score_alone_gives_all_such_pairs_and_k_cuts_them():
    rows = np.random.default_rng(5).normal(size=(300, 4)).astype(np.float32)
    every, some = similar_pairs(rows, min_score=0.9), similar_pairs(rows, min_score=0.9, k=10)
    assert len(every) > 10
    assert (every.score >= np.float32(0.9)).all()
    assert as_list(every)[:10] == as_list(some)


def test_equal_rows_give_the_first_pairs():
    pairs = similar_pairs(np.ones((5000, 2)), k=3)
    assert as_list(pairs) == [(pairs.score[0], 0, 1), (pairs.score[0], 0, 2), (pairs.score[0], 0, 3)]


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_rows_have_no_pairs(n):
    pairs = similar_pairs(np.ones((n, 3)), k=5)
    assert (len(pairs), pairs.compared, pairs.complete) == (0, 0, True)


def test_a_request_without_a_limit_is_refused():
    with pytest.raises(InputError, match=r"needs k .how many., min_score .how near., or both"):
        similar_pairs(np.eye(3))


@pytest.mark.parametrize(("k", "min_score"), [(0, None), (2.5, None), (True, None), (None, float("nan"))])
def test_wrong_limits_are_refused(k, min_score):
    with pytest.raises(InputError, match="must be a"):
        similar_pairs(np.eye(3), k=k, min_score=min_score)
