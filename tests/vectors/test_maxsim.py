"""MaxSim: the laws of late interaction on plain arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray

import gemel
from gemel.vectors.maxsim import MultiVectors, join_texts

Vectors = NDArray[np.float32]


def texts(counts: Sequence[int], seed: int = 0, dim: int = 24) -> MultiVectors:
    random = np.random.default_rng(seed)
    parts = [gemel.normalize(random.normal(size=(count, dim)).astype(np.float32)) for count in counts]
    return join_texts(parts, (f"t{number}" for number in range(sum(counts))), dim)


def naive(query: Vectors, document: Vectors) -> float:
    return sum(max(float(np.dot(q, d)) for d in document) for q in query)


def test_maxsim_adds_the_best_product_of_each_token_of_the_query() -> None:
    queries, documents = texts([3, 1, 8], seed=1), texts([5, 1, 40, 7])
    expected = [[naive(queries.of(q), documents.of(d)) for d in range(4)] for q in range(3)]
    assert gemel.maxsim(queries, documents) == pytest.approx(np.array(expected), abs=1e-5)
    assert gemel.maxsim(np.eye(3), [np.eye(3), np.eye(3)[:1]]).tolist() == [3.0, 1.0]


def test_a_score_has_the_same_bits_whatever_the_other_documents_and_queries_are() -> None:
    queries, documents = texts([32, 5, 1], seed=2), texts([180, 3, 64, 64, 1, 17])
    table = gemel.maxsim(queries, documents)
    for q in range(len(queries)):
        assert np.array_equal(gemel.maxsim(queries.of(q), documents), table[q])
        for d in reversed(range(len(documents))):
            alone = gemel.maxsim(queries.of(q), [documents.of(d).copy()])
            assert np.array_equal(alone, table[q, d : d + 1])


def test_a_text_compared_with_itself_has_the_bits_of_its_copy() -> None:
    one = texts([20])
    assert np.array_equal(gemel.maxsim(one.of(0), one), gemel.maxsim(one.of(0).copy(), one))


def test_equal_documents_have_equal_scores_and_documents_keep_their_order() -> None:
    documents = texts([9, 4])
    several = [documents.of(1), documents.of(0), documents.of(1)]
    score = gemel.maxsim(texts([6], seed=3).of(0), several)
    assert score[0] == score[2] != score[1]


def test_smaller_forms_are_stored_per_vector_and_stay_near() -> None:
    documents, query = texts([7, 3, 0, 11]), texts([5], seed=4).of(0)
    exact = gemel.maxsim(query, documents)
    for form, error in (("float16", 1e-2), ("int8", 5e-2)):
        small = documents.as_form(form)
        assert small.vectors.dtype == form and small.tokens == documents.tokens
        assert gemel.maxsim(query, small)[[0, 1, 3]] == pytest.approx(exact[[0, 1, 3]], abs=error)
        alone = join_texts([documents.of(1)], documents.tokens_of(1), documents.dim).as_form(form)
        assert np.array_equal(alone.of(0), small.of(1))
    back = documents.as_form("int8").as_form("float32")
    assert back.scales is None and back.of(0) == pytest.approx(documents.of(0), abs=5e-3)


def test_a_document_without_tokens_is_last() -> None:
    score = gemel.maxsim(texts([2]).of(0), texts([3, 0]))
    assert np.isfinite(score[0]) and score[1] == -np.inf


def test_texts_are_found_by_position_and_no_further() -> None:
    two = texts([2, 3])
    assert len(two) == 2 and two.tokens_of(-1) == ("t2", "t3", "t4") and two.of(-1).shape == (3, 24)
    with pytest.raises(IndexError, match="there are 2 texts"):
        two.of(2)


def test_vectors_of_another_size_and_unknown_forms_are_refused() -> None:
    with pytest.raises(gemel.InputError, match="must come from the same model"):
        gemel.maxsim(np.eye(3), [np.eye(4)])
    with pytest.raises(gemel.InputError, match="output must be one of"):
        texts([1]).as_form("binary")
