"""Sparse vectors: rows, words, dot products."""

import numpy as np
import pytest

import gemel
from gemel.vectors.sparse import SparseVectors, largest

NAMES = ("a", "b", "c", "d")
DENSE = np.array([[0, 2, 0, 1], [0, 0, 0, 0], [3, 0.5, 0, 0.5]], dtype=np.float32)


def made(rows=DENSE):
    return SparseVectors.of([largest(row, None, None) for row in rows], NAMES)


def test_dense_and_sparse_rows_are_the_same_numbers():
    np.testing.assert_array_equal(made().to_dense(), DENSE)
    assert made().indptr.tolist() == [0, 2, 2, 5]
    assert made().indices.dtype == np.int32
    assert made().values.dtype == np.float32


def test_words_are_listed_heaviest_first():
    assert made().tokens(0) == [("b", 2.0), ("d", 1.0)]
    assert made().tokens(1) == []
    assert made().tokens(-1) == [("a", 3.0), ("b", 0.5), ("d", 0.5)]
    with pytest.raises(gemel.InputError, match="no row 3"):
        made().tokens(3)


@pytest.mark.parametrize("rows", [slice(1, 3), slice(None, None, -1), 0, [2, 0], slice(0, 0)])
def test_rows_are_taken_as_from_an_array(rows):
    np.testing.assert_array_equal(made()[rows].to_dense(), np.atleast_2d(DENSE[rows]))


def test_similarities_are_dot_products():
    np.testing.assert_array_equal(made().similarity(made()), DENSE @ DENSE.T)
    assert made().similarity(made()[:0]).shape == (3, 0)
    other = SparseVectors.of([], ("a",))
    with pytest.raises(gemel.InputError, match="different models"):
        made().similarity(other)


def test_scipy_gets_the_same_matrix():
    pytest.importorskip("scipy", reason="scipy is in the evaluate extra")
    np.testing.assert_array_equal(made().to_scipy().toarray(), DENSE)


def test_the_largest_weights_are_taken_and_ties_break_on_the_lower_column():
    row = np.array([1, -3, 1, 0.5], dtype=np.float32)
    assert largest(row, 2, None)[0].tolist() == [0, 1]
    assert largest(row, None, 1)[0].tolist() == [0, 1, 2]


def test_a_result_is_shown_in_a_few_words():
    assert "tuple of 4" in repr(made())
    assert "b 2.00, d 1.00" in made()._repr_html_()
