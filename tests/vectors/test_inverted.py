"""The inverted file: equal to comparing every row, compiled and in NumPy, whole and with blocks passed over."""

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import gemel
from gemel.vectors import inverted
from gemel.vectors.inverted import InvertedFile
from gemel.vectors.scan.native_scanner import VARIABLE, levels
from gemel.vectors.sparse import SparseVectors, largest

DIM = 12
NAMES = tuple(map(str, range(DIM)))
WEIGHTS = st.sampled_from([0.0, 0.0, 0.1, 0.25, 0.3, 1.0, 1.5, 3e-30, -0.25, -1.0])
MATRICES = st.lists(st.lists(WEIGHTS, min_size=DIM, max_size=DIM), max_size=12)


def made(dense):
    return SparseVectors.of([largest(row, None, None) for row in dense], NAMES)


def file_of(rows):
    return InvertedFile.build(rows.indptr, rows.indices, rows.values, rows.shape[1])


def brute_force(rows, query, k, inside=None):
    """By `SparseVectors.similarity`, which is defined without an inverted file."""
    scores = SparseVectors.of([query], rows.vocabulary).similarity(rows)[0]
    shared = np.array([len(np.intersect1d(rows.row(i)[0], query[0])) for i in range(len(rows))], dtype=bool)
    matching = np.flatnonzero(shared if inside is None else shared & inside)
    best = matching[np.lexsort((matching, -scores[matching]))[:k]]
    return best, scores[best]


def same(found, expected):
    np.testing.assert_array_equal(found[0], expected[0])
    assert found[0].dtype == np.int64
    assert found[1].dtype == np.float32
    assert found[1].tobytes() == expected[1].tobytes()


def zipfian(count, dim, words):
    """Rows in which low columns are frequent, and neighbors are alike, as passages of one text are."""
    rng = np.random.default_rng(0)
    topics = np.repeat(rng.integers(dim // 2, dim, (count // 50 + 1, 3)), 50, axis=0)[:count]
    drawn = np.concatenate([(dim * rng.random((count, words)) ** 3).astype(np.int64), topics], axis=1)
    keys = np.unique(np.arange(count)[:, None] * dim + drawn)
    indptr = np.searchsorted(keys, np.arange(count + 1) * dim)
    weights = rng.gamma(2, 0.3, len(keys)).astype(np.float32) * np.where(keys % dim >= dim // 2, 4, 1)
    names = tuple(map(str, range(dim)))
    return SparseVectors(indptr, (keys % dim).astype(np.int32), weights.astype(np.float32), names)


@pytest.mark.parametrize("level", levels())
@settings(max_examples=40, deadline=None)
@given(MATRICES, st.lists(WEIGHTS, min_size=DIM, max_size=DIM), st.integers(1, 15), st.integers(0, 2**12 - 1))
def test_a_search_equals_comparing_every_row(level, dense, query, k, mask):
    rows = made(np.array(dense, dtype=np.float32).reshape(-1, DIM))
    row = largest(np.array(query, dtype=np.float32), None, None)
    inside = np.array([bool(mask >> i & 1) for i in range(len(rows))], dtype=bool)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, level)
        file = file_of(rows)
        same(file.search(row, k), brute_force(rows, row, k))
        same(file.search(row, k, inside=inside), brute_force(rows, row, k, inside))


@pytest.fixture(scope="module")
def large():
    """More rows than a window, with tables for their long lists."""
    rows = zipfian(66_000, 400, 10)
    return rows, file_of(rows)


@pytest.fixture(scope="module")
def cases(large):
    """Queries and what NumPy answers, which compares all rows."""
    rows, file = large
    rng = np.random.default_rng(1)
    found = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(VARIABLE, "numpy")
        for k, part in ((1, 1), (10, 1), (300, 1), (10, 0.01)):
            columns = np.union1d(rng.integers(0, 400, 20), [0, 1, 2]).astype(np.int32)
            query = columns, rng.gamma(2, 0.3, len(columns)).astype(np.float32)
            inside = rng.random(len(rows)) < part
            found.append((query, k, inside, file.search(query, k, inside=inside)))
    return found


def test_numpy_and_similarity_agree_on_many_rows(large, cases):
    rows, _ = large
    for query, k, inside, expected in cases:
        scores = SparseVectors.of([query], rows.vocabulary).similarity(rows)[0]
        matching = np.flatnonzero((scores != 0) & inside)  # no weight is negative
        best = matching[np.lexsort((matching, -scores[matching]))[:k]]
        same(expected, (best, scores[best]))


@pytest.mark.parametrize("level", levels()[:-1])
@pytest.mark.parametrize("least", [0, 1 << 60], ids=["blocks", "all"])
def test_blocks_are_passed_over_without_changing_the_answer(large, cases, level, least, monkeypatch):
    _, file = large
    assert len(file._postings.block_tops) > 10
    monkeypatch.setenv(VARIABLE, level)
    monkeypatch.setattr(inverted, "LEAST_LONG", least)
    for query, k, inside, expected in cases:
        same(file.search(query, k, inside=inside), expected)
        if inside.all():
            same(file.search(query, k), expected)
        assert len(file.search(query, k, inside=inside, exact=False)[0]) == len(expected[0])


def test_the_recall_of_approximate_search_is_measured(large):
    _, file = large
    assert file.recall is not None
    assert 0.5 < file.recall <= 1
    assert file_of(made(np.eye(DIM, dtype=np.float32))).recall is None


@pytest.mark.parametrize("level", levels())
def test_ties_go_to_the_lower_row(level, monkeypatch):
    monkeypatch.setenv(VARIABLE, level)
    rows = made(np.array([[0, 1], [1, 0], [1, 0], [2, 0], [1, 0]], dtype=np.float32))
    found, scores = file_of(rows).search(rows.row(1), 3)
    assert found.tolist() == [3, 1, 2]
    assert scores.tolist() == [2, 1, 1]


@pytest.mark.parametrize("level", levels())
def test_rows_whose_products_add_up_to_zero_are_found_and_others_are_not(level, monkeypatch):
    monkeypatch.setenv(VARIABLE, level)
    rows = made(np.array([[1, -1, 0], [0, 0, 5], [-2, 0, 0], [0, 0, 0]], dtype=np.float32))
    query = largest(np.array([1, 1, 0], dtype=np.float32), None, None)
    found, scores = file_of(rows).search(query, 9)
    assert found.tolist() == [0, 2]
    assert scores.tolist() == [0, -2]
    assert not np.signbit(scores[0])


def test_nothing_is_found_for_an_empty_query_or_in_an_empty_file():
    none = np.empty(0, np.int32), np.empty(0, np.float32)
    file = file_of(made(np.eye(DIM, dtype=np.float32)))
    assert len(file.search(none, 3)[0]) == 0
    assert len(file_of(made(np.empty((0, DIM), np.float32))).search((np.array([1]), np.ones(1)), 3)[0]) == 0
    zero = np.array([3], dtype=np.int32), np.zeros(1, np.float32)
    assert len(file.search(zero, 3)[0]) == 0


def test_a_saved_file_answers_the_same(tmp_path, large):
    rows, file = large
    file.save(tmp_path / "file")
    file.save(tmp_path / "file")  # replaces
    loaded = InvertedFile.load(tmp_path / "file")
    assert (len(loaded), loaded.dim, loaded.recall, loaded.nbytes) == (66_000, 400, file.recall, file.nbytes)
    assert isinstance(loaded._postings.rows, np.memmap)
    same(loaded.search(rows.row(5), 10), file.search(rows.row(5), 10))
    same(loaded.search(rows.row(5), 10, exact=False), file.search(rows.row(5), 10, exact=False))


def test_a_saved_empty_file_is_loaded(tmp_path):
    file_of(made(np.empty((0, DIM), np.float32))).save(tmp_path / "file")
    assert len(InvertedFile.load(tmp_path / "file")) == 0


@pytest.mark.parametrize("name", ["starts", "rows", "tables", "weights"])
def test_a_damaged_file_is_refused(tmp_path, name):
    file_of(made(np.eye(DIM, dtype=np.float32))).save(tmp_path)
    array = np.load(tmp_path / f"{name}.npy")
    np.save(tmp_path / f"{name}.npy", array[:-1] if array.ndim == 1 else array + 7)
    with pytest.raises(gemel.InputError, match="Build it again"):
        InvertedFile.load(tmp_path)


def test_a_missing_or_newer_file_is_refused(tmp_path):
    with pytest.raises(gemel.InputError, match="no inverted file can be read"):
        InvertedFile.load(tmp_path / "none")
    file_of(made(np.eye(DIM, dtype=np.float32))).save(tmp_path)
    about = json.loads((tmp_path / "inverted.json").read_text())
    (tmp_path / "inverted.json").write_text(json.dumps({**about, "format": 99}))
    with pytest.raises(gemel.InputError, match="its format is 99"):
        InvertedFile.load(tmp_path)


def test_arguments_that_do_not_fit_are_refused():
    file = file_of(made(np.eye(DIM, dtype=np.float32)))
    one = np.ones(1, np.float32)
    with pytest.raises(gemel.InputError, match="different models"):
        file.search((np.array([DIM], np.int32), one), 1)
    with pytest.raises(gemel.InputError, match="ascending"):
        file.search((np.array([2, 1], np.int32), np.ones(2, np.float32)), 1)
    with pytest.raises(gemel.InputError, match="finite"):
        file.search((np.array([2], np.int32), one * np.nan), 1)
    with pytest.raises(gemel.InputError, match="at least 1"):
        file.search((np.array([2], np.int32), one), 0)
    with pytest.raises(gemel.InputError, match="inside"):
        file.search((np.array([2], np.int32), one), 1, inside=np.ones(3, bool))
    for indptr, indices, message in (
        ([0, 2, 1], [0], "never falls"),
        ([0, 2], [0], "ends at 2"),
        ([0, 1], [DIM], "columns are from"),
        ([0, 2], [1, 1], "ascending"),
    ):
        with pytest.raises(gemel.InputError, match=message):
            InvertedFile.build(
                np.array(indptr), np.array(indices, np.int32), np.ones(len(indices), np.float32), DIM
            )
