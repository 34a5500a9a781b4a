"""Prompts are never forgotten: `encode` warns without one, searches use that of each side."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import gemel
from tiny import tiny_bert

BOTH = {"query": "how do i ", "passage": "the ", "clustering": "a "}
TEXTS = ["play a guitar", "a dog"]


def warned(call) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        call()
    return [str(each.message) for each in caught if each.category is gemel.PromptWarning]


def test_encode_without_a_prompt_warns_once_and_names_the_prompts_and_the_calls(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "model", prompts=BOTH))
    (message,) = warned(lambda: model.encode(TEXTS))
    for part in (
        "query: 'how do i '",
        "passage: 'the '",
        "encode_query",
        "encode_document",
        "prompt_name='query'",
    ):
        assert part in message
    assert warned(lambda: model.encode(TEXTS)) == []
    other = gemel.load(tmp_path / "model")
    assert len(warned(lambda: list(other.encode_stream(iter(TEXTS))))) == 1


@pytest.mark.parametrize(
    "call",
    [
        lambda model: model.encode_query(TEXTS),
        lambda model: model.encode_document(TEXTS),
        lambda model: model.encode(TEXTS, prompt_name="clustering"),
        lambda model: model.encode(TEXTS, prompt=""),
        lambda model: model.encode(["how do i " + text for text in TEXTS]),
        lambda model: model.encode([]),
        lambda model: gemel.search_texts(model, TEXTS, TEXTS),
        lambda model: model.with_options().encode_document(TEXTS),
    ],
)
@pytest.mark.parametrize("prompts", [BOTH, {"query": "how do i "}], ids=["both", "query only"])
def test_no_warning_where_a_prompt_or_a_side_is_given(tmp_path, call, prompts):
    model = gemel.load(tiny_bert(tmp_path / "model", prompts={"clustering": "a ", **prompts}))
    assert warned(lambda: call(model)) == []


@pytest.mark.parametrize("prompts", [{}, {"query": "", "document": ""}, {"clustering": "a "}], ids=str)
def test_no_warning_for_a_model_without_prompts_for_search(tmp_path, prompts):
    model = gemel.load(tiny_bert(tmp_path / "model", prompts=prompts))
    assert warned(lambda: model.encode(TEXTS)) == []


def test_search_and_index_use_the_prompt_of_each_side(tmp_path):
    pytest.importorskip("lance")
    model = gemel.load(tiny_bert(tmp_path / "model", prompts=BOTH))
    queries, documents = ["a dog"], ["the dog", "a guitar", "hello"]
    expected = gemel.search(
        model.encode([BOTH["query"] + queries[0]]),
        model.encode([BOTH["passage"] + text for text in documents]),
        3,
    )
    found = gemel.search_texts(model, queries, documents, k=3)
    np.testing.assert_array_equal(found.hits.index, expected.index)
    np.testing.assert_allclose(found.hits.score, expected.score, rtol=1e-6)
    with gemel.open_index(tmp_path / "index", model=model) as index:
        index.add(documents, ids=["0", "1", "2"])
        answer = index.search(queries[0], k=3)
    assert [hit.id for hit in answer.hits] == [str(row) for row in expected.index[0]]
