"""Exact search against a brute force that anyone can read."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemel import nearest
from gemel.errors import InputError
from gemel.nearest import search
from gemel.similarity import METRICS, scores


def brute(queries, corpus, k, metric):
    table = scores(queries, corpus, metric)
    order = np.argsort(-table, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(table, order, axis=1)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that a small test crosses many borders."""
    monkeypatch.setattr(nearest, "_QUERIES", 3)
    monkeypatch.setattr(nearest, "_CORPUS", 5)


def test_a_search_that_fits_on_paper():
    hits = search(np.array([[1.0, 0.1]]), np.eye(2), k=2)
    assert hits.index.tolist() == [[0, 1]]
    assert hits.index.dtype == np.int64
    assert hits.score.dtype == np.float32
    assert hits.score[0, 0] > hits.score[0, 1]
    assert len(hits) == 1


@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 10**6), queries=st.integers(0, 8), corpus=st.integers(0, 40), k=st.integers(1, 45))
@settings(max_examples=40, deadline=None)
def test_search_equals_brute_force_with_many_ties(metric, seed, queries, corpus, k):
    # Small whole numbers: sums are exact in any order, and equal scores are common.
    generator = np.random.default_rng(seed)
    left, right = generator.integers(-1, 2, (queries, 3)), generator.integers(-1, 2, (corpus, 3))
    if metric == "cosine":  # one number a row: lengths divide out exactly
        left, right = left * [1, 0, 0], right * [1, 0, 0]
    index, score = brute(left, right, k, metric)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nearest, "_QUERIES", 3)
        patch.setattr(nearest, "_CORPUS", 5)
        hits = search(left, right, k=k, metric=metric)
    assert hits.index.tolist() == index.tolist()
    assert hits.score.tolist() == score.tolist()


def test_ties_break_on_the_lower_position(small_blocks):
    assert search(np.ones((1, 2)), np.ones((23, 2)), k=7).index.tolist() == [list(range(7))]


@pytest.mark.parametrize("k", [1, 3, 12])
def test_a_corpus_that_gets_better_all_the_way_is_searched_right(small_blocks, k):
    # The worst case for a running threshold: every block replaces everything.
    corpus = np.arange(1, 31, dtype=np.float32)[:, None]
    assert search([[1.0]], corpus, k=k, metric="dot").index[0].tolist() == list(range(29, 29 - k, -1))


def test_real_sizes_find_the_same_rows_as_brute_force():
    generator = np.random.default_rng(3)
    queries, corpus = generator.normal(size=(7, 32)), generator.normal(size=(9000, 32))
    hits = search(queries, corpus, k=10)
    index, score = brute(queries, corpus, 10, "cosine")
    assert hits.index.tolist() == index.tolist()
    np.testing.assert_allclose(hits.score, score, atol=1e-6)


def test_more_hits_than_rows_gives_all_rows():
    assert search(np.eye(2), np.eye(2), k=10).index.shape == (2, 2)


def test_nothing_to_search_in_and_nothing_to_ask_give_empty_hits():
    assert search(np.ones((2, 3)), np.ones((0, 3)), k=4).index.shape == (2, 0)
    assert search(np.ones((0, 3)), np.ones((5, 3)), k=4).score.shape == (0, 4)


def test_a_zero_vector_scores_zero_and_is_no_nan():
    assert search(np.zeros((1, 2)), np.eye(2), k=2).score.tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("k", [0, -1, 2.5, True])
def test_k_must_be_a_whole_number_of_at_least_one(k):
    with pytest.raises(InputError, match=f"k must be a whole number of at least 1, got {k!r}"):
        search(np.eye(2), np.eye(2), k=k)


def test_different_dimensions_are_refused():
    with pytest.raises(InputError, match="queries have 384 dimensions but corpus rows have 768"):
        search(np.ones((1, 384)), np.ones((1, 768)))


def test_one_query_vector_is_answered_with_what_to_write():
    with pytest.raises(InputError, match=r"For one vector write queries\[None\]"):
        search(np.ones(3), np.eye(3))
