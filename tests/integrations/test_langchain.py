"""gemel in LangChain: what its standard tests do not cover; those run in test_integrations_langchain_standard.py."""

import asyncio

import numpy as np
import pytest

pytest.importorskip("langchain_core", reason="needs pip install langchain-core")
pytest.importorskip("lance", reason="needs pip install 'gemel[index]'")

from langchain_core.documents import Document
from langchain_core.embeddings import DeterministicFakeEmbedding
from tests.project.test_docs_blocks import small_model  # noqa: F401 - a fixture

import gemel
from gemel.errors import InputError
from gemel.integrations.langchain import GemelEmbeddings, GemelVectorStore
from integration_pages import run_blocks
from tiny import tiny_bert

PROMPTS = {"query": "how: ", "document": "the: "}
TEXTS = ["a man is playing guitar", "stock market fell sharply", "the cat was sleeping on a sofa"]
YEARS = [{"year": 2019, "lang": "en"}, {"year": 2021, "lang": "en"}, {"year": 2023, "lang": "de"}]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"), prompts=PROMPTS)


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(folder)


@pytest.fixture
def store(model):
    with gemel.open_index(":memory:", model=model) as index:
        store = GemelVectorStore(index)
        store.add_texts(TEXTS, YEARS, ids=["a", "b", "c"])
        yield store


def test_queries_and_documents_get_their_prompts(model):
    embeddings = GemelEmbeddings(model)
    assert np.array_equal(embeddings.embed_query("hello"), model.encode(["how: hello"])[0])
    assert np.array_equal(embeddings.embed_documents(TEXTS), model.encode([f"the: {t}" for t in TEXTS]))


def test_options_of_encoding_are_keywords(model):
    assert len(GemelEmbeddings(model, dim=8).embed_query("hello")) == 8
    with pytest.raises(InputError, match="unknown option 'dimensions'"):
        GemelEmbeddings(model, dimensions=8)
    with pytest.raises(InputError, match="output 'binary' is for storage"):
        GemelEmbeddings(model, output="binary")


def test_a_model_is_loaded_at_the_first_text(folder, tmp_path):
    assert len(GemelEmbeddings(folder).embed_query("hello")) == 32
    with pytest.raises(gemel.ModelError):
        GemelEmbeddings(tmp_path / "nowhere").embed_query("hello")


def test_no_texts_give_no_vectors(model):
    assert GemelEmbeddings(model).embed_documents([]) == []


def test_a_search_is_that_of_the_index(store):
    hits = store.index.search("guitar", k=3)
    result = store.similarity_search_with_score("guitar", k=3)
    assert [(document.id, score) for document, score in result] == [(hit.id, hit.score) for hit in hits]
    assert result[0][0].metadata == dict(hits[0].fields)


def test_a_vector_finds_what_its_text_finds(store):
    vector = store.embeddings.embed_query("guitar")
    assert store.similarity_search_by_vector(vector, k=3) == store.similarity_search("guitar", k=3)


@pytest.mark.parametrize("condition", ["year >= 2020 and lang = 'en'", {"year": {">=": 2020}, "lang": "en"}])
def test_a_filter_is_a_condition_of_the_index(store, condition):
    assert [each.id for each in store.similarity_search("guitar", filter=condition)] == ["b"]
    assert [each.id for each in store.max_marginal_relevance_search("guitar", filter=condition)] == ["b"]


def test_a_retriever_takes_filters_and_options_of_the_index(store):
    options = {"k": 2, "filter": "year > 2019", "hybrid": True}
    result = store.as_retriever(search_kwargs=options).invoke("the market")
    assert [each.id for each in result] == ["b", "c"]


def test_a_retriever_by_threshold_keeps_what_is_near_enough(store):
    retriever = store.as_retriever(
        search_type="similarity_score_threshold", search_kwargs={"score_threshold": 0.0, "hybrid": True}
    )
    hits = store.index.search("guitar", k=4, hybrid=True)
    assert [each.id for each in retriever.invoke("guitar")] == [hit.id for hit in hits]
    scored = store.similarity_search_with_relevance_scores("guitar", k=3)
    assert [score for _, score in scored] == [
        max(0.0, hit.cosine) for hit in store.index.search("guitar", k=3)
    ]
    assert scored == asyncio.run(store.asimilarity_search_with_relevance_scores("guitar", k=3))


def test_marginal_relevance_leaves_out_near_duplicates(model):
    texts = [TEXTS[0], f"{TEXTS[0]} .", TEXTS[1]]
    store = GemelVectorStore.from_texts(texts, GemelEmbeddings(model), ids=["a", "twin", "b"])
    nearest = [each.id for each in store.similarity_search(TEXTS[0], k=2)]
    assert sorted(nearest) == ["a", "twin"]
    varied = [each.id for each in store.max_marginal_relevance_search(TEXTS[0], k=2, lambda_mult=0.1)]
    assert varied == [nearest[0], "b"]
    alone = [each.id for each in store.max_marginal_relevance_search(TEXTS[0], k=2, lambda_mult=1)]
    assert alone == nearest


def test_marginal_relevance_of_nothing_is_nothing(model):
    assert GemelVectorStore.from_texts([], GemelEmbeddings(model)).max_marginal_relevance_search("a") == []


def test_every_metadata_comes_back_as_it_was(model, tmp_path):
    metadata = {
        "id": 7,
        "tags": ["a", "b"],
        "none": None,
        "1st": 1,
        "Source": "x",
        "source": "y",
        "deep": {"a": 1},
    }
    with gemel.open_index(tmp_path / "notes", model=model) as index:
        (id_,) = GemelVectorStore(index).add_documents([Document(page_content="hello", metadata=metadata)])
        assert set(index.fields) == {"Source", "more_metadata"}
    with gemel.open_index(tmp_path / "notes", model=model) as index:
        assert GemelVectorStore(index).get_by_ids([id_]) == [
            Document(id=id_, page_content="hello", metadata=metadata)
        ]


def test_texts_with_and_without_metadata_can_be_mixed(store):
    store.add_texts(["hello", "world"], [None, {"year": 2024}], ids=["d", "e"])
    assert [each.metadata for each in store.get_by_ids(["d", "e"])] == [{}, {"year": 2024}]


def test_metadata_that_is_not_json_is_refused(store):
    with pytest.raises(InputError, match=r"'when'.* cannot be written as JSON"):
        store.add_texts(["hello"], [{"when": object()}])


def test_a_metadata_keeps_its_type(store):
    with pytest.raises(InputError, match=r"field 'year'.*but the field is int"):
        store.add_texts(["hello"], [{"year": "2024"}])
    assert len(store.index) == 3


def test_metadata_that_comes_later_can_be_filtered_by(store):
    store.add_texts(["hello world"], [{"page": 3}], ids=["d"])
    assert [each.id for each in store.similarity_search("hello", filter="page = 3")] == ["d"]


def test_only_named_metadata_becomes_fields(model):
    store = GemelVectorStore.from_texts(
        ["hello"], GemelEmbeddings(model), [{"page": 3, "author": "x"}], fields=["page"]
    )
    assert set(store.index.fields) == {"page", "more_metadata"}
    assert store.similarity_search("hello")[0].metadata == {"page": 3, "author": "x"}


def test_an_index_that_was_made_without_langchain_is_read(model):
    with gemel.open_index(":memory:", model=model) as index:
        index.add(TEXTS, ids=["a", "b", "c"], fields=YEARS)
        assert GemelVectorStore(index).get_by_ids(["b"]) == [
            Document(id="b", page_content=TEXTS[1], metadata=YEARS[1])
        ]


def test_a_long_document_answers_with_its_best_passage_or_whole(model):
    text = " ".join(["the stock market fell sharply today ."] * 30) + " a cat was sleeping on a sofa ."
    with gemel.open_index(":memory:", model=model, passage_tokens=16) as index:
        store = GemelVectorStore(index)
        store.add_texts([text], ids=["a"])
        (result,) = store.similarity_search("a cat was sleeping on a sofa .")
        assert len(result.page_content) < 120
        assert result.page_content in text
        assert GemelVectorStore(index, whole=True).similarity_search("a cat")[0].page_content == text
        assert store.get_by_ids(["a"])[0].page_content == text


def test_a_store_made_of_texts_keeps_the_options_of_the_embeddings(model, tmp_path):
    made = GemelVectorStore.from_texts(TEXTS, GemelEmbeddings(model, dim=8), location=tmp_path / "notes")
    assert made.index.dim == 8
    made.index.close()
    with gemel.open_index(tmp_path / "notes") as index:
        again = GemelVectorStore(index)
        assert again.embeddings.options == {"dim": 8}
        assert len(again.max_marginal_relevance_search("guitar", k=2)) == 2


def test_documents_with_and_without_ids_make_a_store():
    documents = [Document(page_content="one", id="1"), Document(page_content="two")]
    store = GemelVectorStore.from_documents(documents, DeterministicFakeEmbedding(size=6))
    assert store.similarity_search("one", k=1) == [documents[0]]
    assert len(store.index) == 2


def test_deleting_without_ids_deletes_everything_or_what_matches_the_condition(store):
    assert store.delete(filter={"lang": "de"})
    assert len(store.index) == 2
    assert store.delete()
    assert len(store.index) == 0


def test_an_embedding_beside_the_model_of_the_index_is_refused(store):
    with pytest.raises(InputError, match="Leave embedding out"):
        GemelVectorStore(store.index, DeterministicFakeEmbedding(size=32))


def test_an_index_of_vectors_only_cannot_encode_a_text():
    with gemel.open_index(":memory:", dim=6) as index:
        store = GemelVectorStore(index)
        assert store.embeddings is None
        for ask in (store.similarity_search, store.max_marginal_relevance_search):
            with pytest.raises(InputError, match="has no model"):
                ask("hello")


def test_async_calls_do_what_the_others_do(store):
    async def both():
        result = await asyncio.gather(
            store.asimilarity_search("guitar", k=2),
            store.amax_marginal_relevance_search("guitar", k=2),
            store.as_retriever(search_kwargs={"k": 2}).ainvoke("guitar"),
        )
        vectors = await store.embeddings.aembed_documents(TEXTS)
        return result, vectors

    result, vectors = asyncio.run(both())
    assert result[0] == result[2] == store.similarity_search("guitar", k=2)
    assert result[1] == store.max_marginal_relevance_search("guitar", k=2)
    assert vectors == store.embeddings.embed_documents(TEXTS)


def test_the_page_runs(tmp_path, small_model):  # noqa: F811 - the fixture
    run_blocks("langchain.md", "langchain-core", tmp_path, small_model)
