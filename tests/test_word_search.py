"""Search by words, against the formula; and the fusion of rankings, by hand."""

import math

import numpy as np
import pytest

from gemel.errors import InputError
from gemel.nearest import Hits
from gemel.word_search import BM25Index, fuse

CORPUS = [
    "the cat sat on the mat",
    "a dog and a cat",
    "dogs are not cats",
    "printer prints blank pages",
    "blank pages after printing",
    "",
    "cat cat cat",
]


def by_formula(query, corpus, k1=1.2, b=0.75):
    texts = [text.split() for text in corpus]
    mean = sum(map(len, texts)) / len(texts)
    scores = []
    for words in texts:
        score = 0.0
        for word in query.split():
            having = sum(word in other for other in texts)
            often = words.count(word)
            idf = math.log(1 + (len(texts) - having + 0.5) / (having + 0.5))
            score += idf * often / (often + k1 * (1 - b + b * len(words) / mean))
        scores.append(score)
    return scores


@pytest.mark.parametrize("query", ["cat", "blank pages", "a cat cat dog", "zebra", ""])
def test_scores_are_those_of_the_formula(query):
    hits = BM25Index(CORPUS).rank([query], len(CORPUS))
    expected = by_formula(query, CORPUS)
    order = sorted((place for place, score in enumerate(expected) if score), key=lambda p: (-expected[p], p))
    assert [place for place in hits.index[0] if place >= 0] == order
    np.testing.assert_allclose(hits.score[0, : len(order)], [expected[place] for place in order], rtol=1e-6)
    assert not hits.score[0, len(order) :].any()


def test_a_filter_leaves_documents_out():
    where = np.array([False, True, True, True, True, True, True])
    assert 0 not in BM25Index(CORPUS).rank(["cat"], 7, where).index[0]


def test_an_empty_corpus_finds_nothing():
    assert BM25Index([]).rank(["cat"], 3).index.shape == (1, 0)


def ranking(*rows):
    index = np.array(rows)
    return Hits(index, np.zeros(index.shape, np.float32))


def test_fusion_adds_reciprocal_places():
    found = fuse([ranking([3, 1, 2]), ranking([1, 4, -1])], 3)
    assert found.index.tolist() == [[1, 3, 4]]
    np.testing.assert_allclose(found.score[0], [1 / 62 + 1 / 61, 1 / 61, 1 / 62], rtol=1e-6)


def test_fusion_breaks_ties_on_the_lower_position_and_fills_with_nothing():
    found = fuse([ranking([5]), ranking([2])], 4)
    assert found.index.tolist() == [[2, 5, -1, -1]]


def test_fusion_of_one_ranking_keeps_its_order():
    assert fuse([ranking([9, 0, 4])], 2).index.tolist() == [[9, 0]]


def test_rankings_of_different_queries_are_refused():
    with pytest.raises(InputError, match="same queries"):
        fuse([ranking([1]), ranking([1], [2])], 1)
    with pytest.raises(InputError, match="at least one"):
        fuse([], 1)
