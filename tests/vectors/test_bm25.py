"""Search by words, compared with the formula; and the fusion of rankings, by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemel.errors import InputError
from gemel.vectors.bm25 import BM25Index, WordRules, fuse
from gemel.vectors.search import Hits

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
    order = sorted(
        (position for position, score in enumerate(expected) if score), key=lambda p: (-expected[p], p)
    )
    assert [position for position in hits.index[0] if position >= 0] == order
    np.testing.assert_allclose(
        hits.score[0, : len(order)], [expected[position] for position in order], rtol=1e-6
    )
    assert not hits.score[0, len(order) :].any()


def test_a_filter_leaves_documents_out():
    where = np.array([False, True, True, True, True, True, True])
    assert 0 not in BM25Index(CORPUS).rank(["cat"], 7, where).index[0]


def test_an_empty_corpus_finds_nothing():
    assert BM25Index([]).rank(["cat"], 3).index.shape == (1, 0)


def ranking(*rows):
    index = np.array(rows)
    return Hits(index, np.zeros(index.shape, np.float32))


def test_fusion_adds_reciprocal_ranks():
    result = fuse([ranking([3, 1, 2]), ranking([1, 4, -1])], 3)
    assert result.index.tolist() == [[1, 3, 4]]
    np.testing.assert_allclose(result.score[0], [1 / 62 + 1 / 61, 1 / 61, 1 / 62], rtol=1e-6)


def test_fusion_breaks_ties_on_the_lower_position_and_fills_with_nothing():
    result = fuse([ranking([5]), ranking([2])], 4)
    assert result.index.tolist() == [[2, 5, -1, -1]]


def test_fusion_of_one_ranking_keeps_its_order():
    assert fuse([ranking([9, 0, 4])], 2).index.tolist() == [[9, 0]]


def test_rankings_of_different_queries_are_refused():
    with pytest.raises(InputError, match="same queries"):
        fuse([ranking([1]), ranking([1], [2])], 1)
    with pytest.raises(InputError, match="at least one"):
        fuse([], 1)


# Rules for words.


@pytest.mark.parametrize(
    ("text", "document", "query"),
    [
        ("The cat's C++ x_y", ["the", "cat", "s", "c", "x", "y"], None),
        ("東京", ["東", "京", "東京"], ["東京"]),
        ("猫", ["猫"], ["猫"]),
        ("iPhone手机", ["iphone", "手", "机", "手机"], ["iphone", "手机"]),
        ("ｶﾞﾗｽ", ["ガ", "ラ", "ス", "ガラ", "ラス"], ["ガラ", "ラス"]),
        ("Ｆｕｌｌ ﬁne", ["full", "fine"], None),
        ("हिन्दी", ["हिन्दी"], None),
        ("cafe\u0301", ["café"], None),
        ("東京・大阪", ["東", "京", "東京", "大", "阪", "大阪"], ["東京", "大阪"]),
    ],
)
def test_words_by_script(text, document, query):
    assert WordRules().document(text) == document
    assert WordRules().query(text) == (document if query is None else query)


def test_the_older_rules_treat_runs_as_words():
    assert WordRules(version=1).document("東京タワー cafe") == ["東京タワー", "cafe"]
    assert WordRules.from_json(None) == WordRules(version=1)
    assert WordRules.from_json(WordRules().to_json()) == WordRules()


def test_words_of_a_query_are_found_in_a_text():
    text = "The cafe\u0301: 東京都, DOG dogs the"
    shared = WordRules().shared_words("the dog, CAFÉ 東京 cat", text)
    found = {word: [text[start:stop] for start, stop in spans] for word, spans in shared.items()}
    assert found == {
        "the": ["The", "the"],
        "dog": ["DOG"],
        "café": ["cafe\u0301"],
        "東京": ["東京"],
        "cat": [],
    }
    older = WordRules(version=1).shared_words("東京 東京都", text)
    assert older == {"東京": [], "東京都": [(11, 14)]}


@given(st.text("ab 東京ーé.\u0301", max_size=12), st.text("ab 東京ーé.\u0301", max_size=12))
def test_the_words_that_are_found_are_those_of_both(query, text):
    for rules in (WordRules(), WordRules(version=1)):
        found = [word for word, spans in rules.shared_words(query, text).items() if spans]
        assert set(found) == set(rules.query(query)) & set(rules.document(text))


def test_part_of_a_run_finds_it_in_memory():
    assert BM25Index(["東京タワー", "京都"]).rank(["東京"], 2).index.tolist() == [[0, -1]]


def test_stemming_is_by_language():
    pytest.importorskip("Stemmer", reason="needs the extra stemming")
    rules = WordRules(stemming="english")
    assert rules.document("Connections connected 東京") == ["connect", "connect", "東", "京", "東京"]
    assert rules.query("connecting") == ["connect"]
    with pytest.raises(InputError, match=r"no stemming for 'klingon'. Known: .*english"):
        WordRules(stemming="klingon")


@given(st.text(st.characters(codec="utf-8")))
def test_a_text_is_found_by_its_own_words_and_words_contain_no_spaces(text):
    for rules in (WordRules(), WordRules(version=1)):
        document = set(rules.document(text))
        assert set(rules.query(text)) <= document
        assert not any(word != "".join(word.split()) or not word for word in document)
