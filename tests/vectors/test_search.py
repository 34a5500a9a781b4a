"""Search compared with simple brute force, by every scanner that this machine supports."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemel.errors import InputError
from gemel.vectors import search as nearest
from gemel.vectors.scan import native_scanner
from gemel.vectors.scan.exact import exact_scores, squares
from gemel.vectors.scan.native_scanner import levels
from gemel.vectors.search import quantize, rescore, search
from gemel.vectors.similarity import METRICS, scores

SCANNERS = [(levels()[0], False), *((level, True) for level in levels())]  # only the best may have int8


@pytest.fixture(params=SCANNERS, ids=lambda p: f"{p[0]}{'' if p[1] else '-plain'}")
def scanner(request, monkeypatch):
    monkeypatch.setenv("GEMEL_SCAN", request.param[0])
    monkeypatch.setattr(nearest, "_FEW", 1)
    return request.param[1]


def brute(queries, corpus, k, metric):
    queries, corpus = np.asarray(queries, np.float32), np.asarray(corpus, np.float32)
    i, j = (grid.ravel() for grid in np.indices((len(queries), len(corpus))))
    weights = tuple(map(inverse_lengths, (queries, corpus))) if metric == "cosine" else (None, None)
    kernel = METRICS[metric].kernel
    table = exact_scores(kernel, queries, corpus, i, j, weights).reshape(len(queries), len(corpus))
    order = np.argsort(-table, axis=1, kind="stable")[:, :k]
    return order, np.take_along_axis(table, order, axis=1)


def inverse_lengths(rows):
    length = np.sqrt(squares(rows))
    return np.where(length > 0, 1 / np.where(length > 0, length, 1), 0)


@pytest.fixture
def small_blocks(monkeypatch):
    """Groups of a few queries and rows, so that a small test crosses many block boundaries."""
    monkeypatch.setattr(nearest, "_QUERIES", 3)
    monkeypatch.setattr("gemel.vectors.scan.native_scanner._STREAM", 5)
    monkeypatch.setattr("gemel.vectors.scan.scanner._RIGHT", 5)


def test_search_by_hand():
    hits = search(np.array([[1.0, 0.1]]), np.eye(2), k=2)
    assert hits.index.tolist() == [[0, 1]]
    assert hits.index.dtype == np.int64
    assert hits.score.dtype == np.float32
    assert hits.score[0, 0] > hits.score[0, 1]
    assert len(hits) == 1


@pytest.mark.parametrize("metric", METRICS)
@given(seed=st.integers(0, 10**6), queries=st.integers(0, 8), corpus=st.integers(0, 40), k=st.integers(1, 45))
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_search_equals_brute_force_with_many_ties(scanner, small_blocks, metric, seed, queries, corpus, k):
    generator = np.random.default_rng(seed)
    left, right = generator.integers(-1, 2, (queries, 3)), generator.integers(-1, 2, (corpus, 3))
    index, score = brute(left, right, k, metric)
    hits = search(left, right, k=k, metric=metric, prune=scanner)
    assert hits.index.tolist() == index.tolist()
    assert hits.score.tolist() == score.tolist()


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("offset", [0, 40])
def test_search_equals_brute_force_to_the_bit(scanner, metric, offset):
    generator = np.random.default_rng(3)
    centers = generator.normal(size=(9, 40)) + offset
    corpus = centers[generator.integers(0, 9, 900)] + 0.3 * generator.normal(size=(900, 40))
    queries = centers[generator.integers(0, 9, 70)] + 0.3 * generator.normal(size=(70, 40))
    corpus[100:120], corpus[700:720] = 0, corpus[:20]
    index, score = brute(queries, corpus, 13, metric)
    hits = search(queries, corpus, k=13, metric=metric, prune=scanner, threads=2)
    assert hits.index.tolist() == index.tolist()
    assert hits.score.tolist() == score.tolist()


@pytest.mark.parametrize("metric", ["cosine", "euclidean", "dot"])
def test_a_search_that_stops_using_bounds_finds_the_same(monkeypatch, metric):
    generator = np.random.default_rng(6)
    rows = (generator.normal(size=(900, 40)) * 0.01 + 1).astype(np.float32)
    expected = search(rows[:100], rows, metric=metric, prune=False)
    monkeypatch.setattr(native_scanner, "_PATIENCE", 10**9)
    monkeypatch.setattr(native_scanner, "_STREAM", 150)
    hits = search(rows[:100], rows, metric=metric, threads=2)
    assert hits.index.tolist() == expected.index.tolist()
    assert hits.score.tolist() == expected.score.tolist()


@pytest.mark.parametrize("form", ["booleans", "positions"])
def test_a_filter_leaves_the_positions_of_the_corpus(scanner, form):
    generator = np.random.default_rng(5)
    queries, corpus = generator.normal(size=(6, 20)), generator.normal(size=(400, 20))
    kept = generator.random(400) < 0.2
    where = kept if form == "booleans" else generator.permutation(np.flatnonzero(kept))
    index, score = brute(queries, corpus[kept], 7, "cosine")
    hits = search(queries, corpus, k=7, where=where, prune=scanner)
    assert hits.index.tolist() == np.flatnonzero(kept)[index].tolist()
    assert hits.score.tolist() == score.tolist()


def test_a_filter_that_keeps_few_or_no_rows_gives_few_or_no_hits():
    assert search(np.eye(3), np.eye(3), k=5, where=[2]).index.tolist() == [[2], [2], [2]]
    assert search(np.eye(3), np.eye(3), k=5, where=[]).index.shape == (3, 0)
    assert search(np.eye(3), np.eye(3), k=5, where=[False] * 3).index.shape == (3, 0)


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ([True, False], "where has 2 booleans but the corpus has 3 rows"),
        ([0, 3], "where asks for row 3, but the corpus has 3 rows"),
        ([-1], "where asks for row -1"),
        ([0.5], "where must be booleans or positions, got an array of float64"),
        ([[0]], "where must be a list of booleans or positions, got the shape"),
    ],
)
def test_a_wrong_filter_is_refused(where, message):
    with pytest.raises(InputError, match=message):
        search(np.eye(3), np.eye(3), where=where)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"threads": -1}, "threads must be a whole number"),
        ({"memory": "a lot"}, "memory must be bytes"),
        ({"metric": "manhatten"}, "Did you mean 'manhattan'"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        search(np.eye(3), np.eye(3), **options)


def test_little_memory_and_many_threads_change_nothing():
    rows = np.random.default_rng(2).normal(size=(300, 16))
    answers = [search(rows, rows, memory=m, threads=t) for m, t in ((1000, 1), ("1GB", 3))]
    assert answers[0].index.tolist() == answers[1].index.tolist()
    assert answers[0].score.tolist() == answers[1].score.tolist()


def test_a_row_that_is_not_finite_is_named(scanner):
    bad = np.eye(3)
    bad[1, 2] = np.nan
    with pytest.raises(InputError, match="queries must be finite, but row 1 has NaN or infinity"):
        search(bad, np.eye(3))
    with pytest.raises(InputError, match="corpus must be finite, but row 1"):
        search(np.eye(3), bad)


def test_progress_is_shown_on_request(capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    search(np.eye(5), np.eye(5), progress=True)
    assert "5 of 5 queries" in capsys.readouterr().err


def test_ties_break_on_the_lower_position(scanner, small_blocks):
    assert search(np.ones((1, 2)), np.ones((23, 2)), k=7).index.tolist() == [list(range(7))]


@pytest.mark.parametrize("k", [1, 3, 12])
def test_a_corpus_with_rising_scores_is_searched_correctly(scanner, small_blocks, k):
    # The worst case for a running threshold: every block replaces everything.
    corpus = np.arange(1, 31, dtype=np.float32)[:, None]
    assert search([[1.0]], corpus, k=k, metric="dot").index[0].tolist() == list(range(29, 29 - k, -1))


def test_real_sizes_find_the_same_rows_as_brute_force():
    generator = np.random.default_rng(3)
    queries, corpus = generator.normal(size=(7, 32)), generator.normal(size=(9000, 32))
    hits = search(queries, corpus, k=10)
    index, _ = brute(queries, corpus, 10, "cosine")
    assert hits.index.tolist() == index.tolist()
    table = np.take_along_axis(scores(queries, corpus), index, axis=1)
    np.testing.assert_allclose(hits.score, table, atol=1e-6)


def test_more_hits_than_rows_gives_all_rows():
    assert search(np.eye(2), np.eye(2), k=10).index.shape == (2, 2)


def test_an_empty_corpus_or_no_queries_give_empty_hits():
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


def test_one_query_vector_is_refused_with_what_to_write():
    with pytest.raises(InputError, match=r"For one vector write queries\[None\]"):
        search(np.ones(3), np.eye(3))


@pytest.mark.parametrize("output", ["float32", "float16", "int8", "binary"])
def test_a_rescored_pair_does_not_depend_on_other_pairs(output):
    random = np.random.default_rng(2)
    queries, corpus = (random.normal(size=(n, 384)).astype(np.float32) for n in (2, 101))
    corpus[-1] = corpus[0]
    small = quantize(corpus, output)
    together = rescore(queries, small, np.tile(np.arange(101), (2, 1)))
    for at in (0, 50, 100):
        assert np.array_equal(rescore(queries, small, np.full((2, 1), at))[:, 0], together[:, at])
    assert np.array_equal(together[:, 0], together[:, -1])
    assert not rescore(queries, np.zeros_like(corpus), np.zeros((2, 1), np.int64)).any()


def test_rescored_candidates_have_the_bits_of_an_exact_search():
    random = np.random.default_rng(1)
    queries, corpus = (random.normal(size=(n, 384)).astype(np.float32) for n in (8, 50))
    exact = search(queries, corpus, 50)
    assert np.array_equal(rescore(queries, corpus, exact.index), exact.score)


def test_a_large_search_keeps_to_its_memory():
    random = np.random.default_rng(4)
    queries, corpus = (random.normal(size=(n, 16)).astype(np.float32) for n in (3000, 300))
    much = search(queries, corpus, k=80, threads=2)
    tracemalloc.start()
    little = search(queries, corpus, k=80, threads=2, memory="2MB")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert np.array_equal(little.index, much.index)
    assert np.array_equal(little.score, much.score)
    assert peak < 8_000_000  # the answer is 2.9 MB; all queries at once take 24


class Lengths:
    """An encoder of two numbers, with a side for queries."""

    dim = 2

    def encode(self, texts):
        return np.array([[len(text), 1.0] for text in texts], np.float32)

    encode_document = encode

    def encode_query(self, texts):
        return self.encode(texts) * 2


@pytest.mark.parametrize("queries", ["music", ["music"], np.array(["music"])])
def test_texts_are_encoded_if_there_is_a_model(queries):
    corpus = ["a", "music", "a very long text"]
    hits = search(queries, corpus, k=1, model=Lengths(), metric="cosine")
    assert hits.index.tolist() == [[1]]
    same = search(Lengths().encode(["music"]), corpus, k=1, model=Lengths())
    assert same.index.tolist() == [[1]]


@pytest.mark.parametrize("call", [lambda: search("music", ["a"]), lambda: search(np.eye(2), ["a"])])
def test_texts_without_a_model_say_encode_first(call):
    with pytest.raises(InputError, match=r"must be numbers, got texts\. Encode them first: model\.encode"):
        call()


def test_the_name_of_a_model_is_not_a_model():
    with pytest.raises(InputError, match=r"got str\. Use gemel\.load\(name\)"):
        search("music", ["a"], model="all-MiniLM-L6-v2")
