"""What the integrations of frameworks share, and what they say where the framework is not installed."""

import sys
from importlib import import_module

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, MissingExtra
from gemel.integrations.framework import QueryDocumentEncoder, metadata_of, store_fields
from tiny import tiny_bert

TEXTS = ["a man is playing guitar", "stock market fell sharply", "the cat was sleeping on a sofa"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    prompts = {"query": "how: ", "passage": "the: "}
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("model"), prompts=prompts))


@pytest.fixture
def index(model):
    with gemel.open_index(":memory:", model=model, dim=8) as index:
        index.add(TEXTS, ids=["a", "b", "c"], fields={"year": [2019, 2021, 2023]})
        yield index


@pytest.mark.parametrize(
    ("name", "package", "pip"),
    [
        ("langchain", "langchain_core", "langchain"),
        ("llama_index", "llama_index", "llama-index"),
        ("haystack", "haystack", "haystack"),
    ],
)
def test_without_the_framework_the_error_says_how_to_get_it(monkeypatch, name, package, pip):
    for module in list(sys.modules):
        if module.split(".")[0] == package or module.startswith(f"gemel.integrations.{name}"):
            monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'gemel\[{pip}\]'"):
        import_module(f"gemel.integrations.{name}")


def test_each_side_has_its_prompt_and_gives_lists_of_floats(model):
    sides = QueryDocumentEncoder(model, {"dim": 8})
    assert np.array_equal(sides.queries(["hello"]), model.encode(["how: hello"], dim=8))
    assert np.array_equal(sides.documents(["hello"]), model.encode(["the: hello"], dim=8))
    assert type(sides.queries(["hello"])[0][0]) is float


def test_a_model_is_found_again_by_what_it_is_called(model):
    folder = str(model.checkpoint.folder)
    assert QueryDocumentEncoder(model, {}).name == folder
    assert QueryDocumentEncoder(folder, {}).queries(["hello"]) == QueryDocumentEncoder(model, {}).queries(
        ["hello"]
    )
    assert QueryDocumentEncoder("all-MiniLM-L6-v2", {}).name == "all-MiniLM-L6-v2"


def test_metadata_become_columns_of_an_index_that_has_documents(index):
    given = [{"page": 1, "id": 5, "score": np.float32(0.5)}, {"page": 2, "score": 2, "tags": ["x"]}]
    rows = store_fields(index, given)
    assert {name: index.fields[name] for name in ("page", "score")} == {"page": "int", "score": "float"}
    index.add(["one", "two"], ids=["d", "e"], fields=rows)
    assert [metadata_of(each.fields) for each in index.get(["d", "e"])] == given


def test_metadata_of_several_types_are_refused_before_anything_is_written(index):
    with pytest.raises(InputError, match="several types"):
        store_fields(index, [{"page": 1}, {"page": "two"}])
    assert set(index.fields) == {"year"}


def test_an_index_reports_the_options_it_was_created_with(index):
    assert index.encode_options == gemel.EncodeOptions(dim=8)
    with gemel.open_index(":memory:", dim=8) as vectors:
        assert vectors.encode_options is None


def test_vectors_of_hits_are_those_that_were_compared(index, model):
    hits = index.search("guitar", k=3)
    query = model.encode_query(["guitar"], dim=8)[0]
    vectors = index.passage_vectors(hits)
    assert [float(query @ vector) for vector in vectors] == pytest.approx(
        [hit.cosine for hit in hits], abs=1e-6
    )
    index.delete([hits[0].id])
    assert [vector is None for vector in index.passage_vectors(hits)] == [True, False, False]


def test_an_index_recognizes_vectors_of_its_model(index, model):
    assert index.made_by_model("hello", 3 * model.encode_document(["hello"], dim=8)[0])
    assert not index.made_by_model("hello", model.encode_document(["the market"], dim=8)[0])
    assert not index.made_by_model("hello", model.encode_document(["hello"])[0])
