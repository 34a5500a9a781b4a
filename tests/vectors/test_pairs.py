"""Similar pairs compared with brute force, by every scanner that this machine supports."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemel.errors import InputError
from gemel.vectors import pair_scan as walk
from gemel.vectors.pairs import similar_pairs
from gemel.vectors.scan import native_scanner
from gemel.vectors.scan.exact import exact_scores, squares
from gemel.vectors.scan.native_scanner import levels
from gemel.vectors.scan.scanner import numpy_squares
from gemel.vectors.search import search
from gemel.vectors.similarity import METRICS, row_scores, scores

SCANNERS = [(levels()[0], False), *((level, True) for level in levels())]  # only the best may have int8


def brute(left, right, metric, k=None, min_score=None):
    """Scores row by row; `right` None: the left rows among themselves."""
    same, right = right is None, left if right is None else right
    positions = [(i, j) for i in range(len(left)) for j in range(i + 1 if same else 0, len(right))]
    i, j = np.array(positions, dtype=np.int64).reshape(-1, 2).T
    score = one_by_one(np.asarray(left, np.float32), np.asarray(right, np.float32), i, j, metric)
    order = np.lexsort((j, i, -score))
    kept = [at for at in order if min_score is None or score[at] >= np.float32(min_score)][:k]
    return [(float(score[at]), int(i[at]), int(j[at])) for at in kept]


def one_by_one(left, right, i, j, metric):
    kernel = METRICS[metric].kernel
    weights = (None, None)
    if metric == "cosine":
        weights = tuple(inverse_lengths(rows) for rows in (left, right))
    return exact_scores(kernel, left, right, i, j, weights)


def inverse_lengths(rows):
    length = np.sqrt(squares(rows))
    return np.where(length > 0, 1 / np.where(length > 0, length, 1), 0)


def as_list(pairs):
    return list(zip(pairs.score.tolist(), pairs.left.tolist(), pairs.right.tolist(), strict=True))


@pytest.fixture(params=SCANNERS, ids=lambda p: f"{p[0]}{'' if p[1] else '-plain'}")
def scanner(request, monkeypatch):
    monkeypatch.setenv("GEMEL_SCAN", request.param[0])
    return request.param[1]


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few rows, so that a small test crosses many block boundaries."""
    monkeypatch.setattr(walk, "_RIGHT", 100)
    monkeypatch.setattr(walk, "_LEAST", 16)
    return "100KB"


def test_pairs_by_hand():
    pairs = similar_pairs(np.array([[1.0, 0.0], [0.0, 1.0], [2.0, 0.0]]), k=1)
    assert as_list(pairs) == [(1.0, 0, 2)]
    assert pairs.compared == 3
    assert pairs.complete
    assert len(pairs) == 1


@pytest.mark.parametrize("metric", METRICS)
@given(
    seed=st.integers(0, 10**6),
    n=st.integers(0, 25),
    m=st.none() | st.integers(0, 25),
    k=st.none() | st.integers(1, 60),
    min_score=st.none() | st.integers(-3, 3),
)
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_pairs_equal_brute_force_with_many_ties(scanner, metric, seed, n, m, k, min_score):
    if k is None and min_score is None:
        k = 5
    generator = np.random.default_rng(seed)
    rows = generator.integers(-1, 2, (n, 3))
    other = None if m is None else generator.integers(-1, 2, (m, 3))
    pairs = similar_pairs(rows, other=other, k=k, min_score=min_score, metric=metric, prune=scanner)
    assert as_list(pairs) == brute(rows, other, metric, k, min_score)
    assert pairs.compared == (n * (n - 1) // 2 if m is None else n * m)
    assert pairs.complete


def kinds_of_data(dim=40):
    generator = np.random.default_rng(7)
    centers = generator.normal(size=(9, dim))
    clustered = centers[generator.integers(0, 9, 200)] + 0.3 * generator.normal(size=(200, dim))
    return {
        "random": generator.normal(size=(200, dim)),
        "clustered": clustered,
        "offset": clustered + 50,
        "duplicates": np.repeat(generator.normal(size=(20, dim)), 10, axis=0),
        "zeros": generator.normal(size=(200, dim)) * (generator.random((200, 1)) < 0.5),
        "lengths": clustered * np.exp(4 * generator.normal(size=(200, 1))),
        "large": clustered * 1e18,
        "small": clustered * 1e-30,
    }


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("kind", kinds_of_data())
def test_all_kinds_of_data_equal_brute_force(scanner, small_blocks, kind, metric):
    rows = kinds_of_data()[kind].astype(np.float32)
    expected = brute(rows, None, metric)
    every = similar_pairs(rows, k=10**5, metric=metric, prune=scanner, memory="10MB")
    assert as_list(every) == expected
    for k in (1, 100):
        best = similar_pairs(rows, k=k, metric=metric, prune=scanner, memory=small_blocks, threads=2)
        assert as_list(best) == expected[:k]
    floor = expected[500][0]
    reached = similar_pairs(rows, min_score=floor, metric=metric, prune=scanner)
    assert as_list(reached) == [pair for pair in expected if pair[0] >= floor]


@pytest.mark.parametrize("metric", ["cosine", "euclidean"])
def test_rows_too_alike_for_bounds_are_compared_without_them(monkeypatch, metric):
    rows = (np.random.default_rng(6).normal(size=(900, 40)) * 0.01 + 1).astype(np.float32)
    expected = similar_pairs(rows, k=300, metric=metric, prune=False)
    ended = []
    real = native_scanner.NativeScanner._end_int8
    monkeypatch.setattr(native_scanner, "_ROOM", 1)
    monkeypatch.setattr(native_scanner.NativeScanner, "_end_int8", lambda self: (ended.append(1), real(self)))
    assert as_list(similar_pairs(rows, k=300, metric=metric, threads=2)) == as_list(expected)
    if (
        metric == "cosine" and levels()[0] == "avx512vnni"
    ):  # distances are relative to the mean, where the rows are not crowded
        assert ended


@pytest.mark.parametrize("metric", METRICS)
def test_two_sets_of_different_sizes_equal_brute_force(scanner, metric):
    generator = np.random.default_rng(8)
    left, right = generator.normal(size=(70, 20)), 30 * generator.normal(size=(230, 20))
    pairs = similar_pairs(left, other=right, k=90, metric=metric, prune=scanner)
    assert as_list(pairs) == brute(left, right, metric, k=90)
    assert pairs.compared == 70 * 230


def test_every_scanner_and_any_number_of_threads_give_the_same_bits(monkeypatch):
    rows = np.random.default_rng(4).normal(size=(3000, 50)).astype(np.float32)
    answers = set()
    for level, prune in SCANNERS:
        monkeypatch.setenv("GEMEL_SCAN", level)
        for threads in (1, 3):
            pairs = similar_pairs(rows, k=500, threads=threads, prune=prune)
            answers.add(tuple(as_list(pairs)))
    assert len(answers) == 1


@pytest.mark.parametrize("metric", METRICS)
def test_scores_are_those_of_row_scores(metric):
    rows = np.random.default_rng(4).normal(size=(400, 70)).astype(np.float32)
    pairs = similar_pairs(rows, k=50, metric=metric)
    np.testing.assert_allclose(
        pairs.score, row_scores(rows[pairs.left], rows[pairs.right], metric), rtol=1e-6
    )


def test_real_sizes_find_the_same_pairs_as_a_whole_table():
    rows = np.random.default_rng(4).normal(size=(5500, 8)).astype(np.float32)
    pairs = similar_pairs(rows, k=50)
    table = np.triu(scores(rows, rows), 1)
    expected = np.sort(table[np.triu_indices(5500, 1)])[::-1][:50]
    np.testing.assert_allclose(pairs.score, expected, atol=1e-6)
    np.testing.assert_allclose(table[pairs.left, pairs.right], pairs.score, atol=1e-6)


def test_min_score_alone_gives_all_such_pairs_and_k_cuts_them():
    rows = np.random.default_rng(5).normal(size=(300, 4)).astype(np.float32)
    every, some = similar_pairs(rows, min_score=0.9), similar_pairs(rows, min_score=0.9, k=10)
    assert len(every) > 10
    assert (every.score >= np.float32(0.9)).all()
    assert as_list(every)[:10] == as_list(some)


@pytest.mark.parametrize("n", [3000, 40_000])
def test_equal_rows_give_the_first_pairs_and_an_early_stop(n):
    pairs = similar_pairs(np.ones((n, 2)), k=3)
    assert as_list(pairs) == [(1.0, 0, 1), (1.0, 0, 2), (1.0, 0, 3)]


@pytest.mark.parametrize("n", [0, 1])
def test_fewer_than_two_rows_have_no_pairs(scanner, n):
    pairs = similar_pairs(np.ones((n, 3)), k=5)
    assert (len(pairs), pairs.compared, pairs.complete) == (0, 0, True)


def test_more_pairs_than_there_are_gives_all():
    assert as_list(similar_pairs(np.eye(3), k=10**15)) == [(0.0, 0, 1), (0.0, 0, 2), (0.0, 1, 2)]


def test_a_line_of_the_result_says_what_was_done():
    assert similar_pairs(np.eye(4), k=2).summary() == "2 pairs, 6 compared, complete"


def test_the_result_becomes_an_arrow_table():
    pytest.importorskip("pyarrow")
    table = similar_pairs(np.eye(3), k=2).to_arrow()
    assert table.column_names == ["score", "left", "right"]
    assert table["right"].to_pylist() == [1, 2]


def test_the_result_becomes_a_data_frame():
    pytest.importorskip("pandas")
    frame = similar_pairs(np.eye(3), k=2).to_pandas()
    assert frame.to_dict("list") == {"score": [0.0, 0.0], "left": [0, 0], "right": [1, 2]}


def test_a_missing_pandas_names_what_to_install(monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'gemel\[pandas\]'"):
        similar_pairs(np.eye(3), k=2).to_pandas()


def test_progress_is_shown_on_request(capsys, monkeypatch):
    monkeypatch.setattr("gemel.terminal.is_live", lambda: True)
    similar_pairs(np.eye(5), k=2, progress=True)
    assert "10 of 10 pairs" in capsys.readouterr().err


def test_a_threshold_that_matches_everything_requires_a_folder(scanner):
    with pytest.raises(InputError, match=r"more than 1,562 pairs reach min_score=-1.0.*out='pairs'"):
        similar_pairs(np.eye(100), min_score=-1, memory=100_000)


def test_a_request_without_a_limit_is_refused():
    with pytest.raises(InputError, match=r"needs k .how many., min_score .how near., or both"):
        similar_pairs(np.eye(3))


@pytest.mark.parametrize(("k", "min_score"), [(0, None), (2.5, None), (True, None), (None, float("nan"))])
def test_wrong_limits_are_refused(k, min_score):
    with pytest.raises(InputError, match="must be a"):
        similar_pairs(np.eye(3), k=k, min_score=min_score)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("metric", METRICS)
def test_a_row_that_is_not_finite_is_named(scanner, metric, bad):
    rows = np.ones((40, 20))
    rows[37, 18] = bad
    with pytest.raises(InputError, match="vectors must be finite, but row 37 has NaN or infinity"):
        similar_pairs(rows, k=1, metric=metric)
    with pytest.raises(InputError, match="other must be finite, but row 37"):
        similar_pairs(np.ones((3, 20)), other=rows, k=1, metric=metric)


def test_different_dimensions_are_refused():
    with pytest.raises(InputError, match="vectors have 3 dimensions but other have 4"):
        similar_pairs(np.eye(3), other=np.eye(4), k=1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"metric": "cosin"}, "unknown metric 'cosin'. Did you mean 'cosine'"),
        ({"threads": 0}, "threads must be a whole number of at least 1"),
        ({"memory": "much"}, "memory must be bytes or a size"),
        ({"memory": 5}, "need about 1 MB; memory is 5"),
    ],
)
def test_wrong_options_are_refused(options, message):
    with pytest.raises(InputError, match=message):
        similar_pairs(np.eye(3), k=3, **options)


def test_an_unknown_scanner_is_refused_with_the_available_ones(monkeypatch):
    monkeypatch.setenv("GEMEL_SCAN", "abacus")
    with pytest.raises(InputError, match=r"GEMEL_SCAN is 'abacus'.*Known: .*numpy"):
        similar_pairs(np.eye(3), k=1)


def test_the_input_is_not_changed():
    rows = np.arange(12, dtype=np.float32).reshape(4, 3)
    similar_pairs(rows, k=2)
    assert rows.tolist() == np.arange(12).reshape(4, 3).tolist()


def test_rows_too_wide_for_sums_of_int8_are_compared_in_float32():
    rows = np.ones((4, 140_000), np.float32)  # 127 x 127 x 140,000 has 32 bits and a sign
    assert len(similar_pairs(rows, min_score=0.9)) == 6
    assert len(similar_pairs(rows, k=3)) == 3
    hits = search(np.repeat(rows[:1], 64, axis=0), rows, k=4)  # fewer queries do not use int8
    assert hits.index.tolist() == [[0, 1, 2, 3]] * 64
    assert np.allclose(hits.score, 1)


@pytest.mark.parametrize("min_score", ["0.5", b"1", [0.5], object(), True])
def test_a_threshold_that_is_no_number_is_refused(min_score):
    with pytest.raises(InputError, match="min_score must be a finite number, got"):
        similar_pairs(np.eye(3), min_score=min_score)


@pytest.mark.parametrize("min_score", [1, np.float32(0.5), np.int64(1), np.array(0.5)])
def test_a_threshold_may_be_any_kind_of_number(min_score):
    assert len(similar_pairs(np.ones((3, 2)), min_score=min_score)) == 3


def test_lengths_without_a_compiler_take_little_memory():
    rows = np.random.default_rng(0).normal(size=(9000, 64)).astype(np.float32)
    center = rows.mean(axis=0, dtype=np.float64)
    tracemalloc.start()
    result = numpy_squares(rows, center)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < rows.nbytes * 1.5  # two blocks in float64; all rows would be twice what they are
    np.testing.assert_allclose(result, np.square(rows - center).sum(axis=1))
    assert numpy_squares(rows[:0], center).shape == (0,)
