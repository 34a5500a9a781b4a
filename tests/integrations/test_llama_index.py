"""gemel in LlamaIndex: the embedding, and an index of gemel as the vector store of LlamaIndex."""

import asyncio
import pickle

import numpy as np
import pytest

pytest.importorskip("llama_index.core", reason="needs pip install llama-index-core")

from llama_index.core import MockEmbedding, StorageContext, VectorStoreIndex
from llama_index.core.schema import Document, NodeRelationship, RelatedNodeInfo, TextNode
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)
from tests.project.test_docs_blocks import small_model  # noqa: F401 - a fixture

import gemel
from gemel.errors import InputError
from gemel.integrations.llama_index import GemelEmbedding, GemelVectorStore
from integration_pages import run_blocks
from tiny import tiny_bert

PROMPTS = {"query": "how: ", "document": "the: "}
TEXTS = ["a man is playing guitar", "stock market fell sharply", "the cat was sleeping on a sofa"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"), prompts=PROMPTS)


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(folder)


@pytest.fixture
def index(model):
    with gemel.open_index(":memory:", model=model) as index:
        yield index


@pytest.fixture
def store(index, model):
    store = GemelVectorStore(index)
    store.add(nodes_of(model))
    return store


def nodes_of(model):
    """Three nodes, the first two of one document, with vectors."""
    nodes = [
        TextNode(id_=id_, text=text, metadata={"year": year, "lang": "en", "tags": ["x"]})
        for id_, text, year in zip("abc", TEXTS, (2019, 2021, 2023), strict=True)
    ]
    for node, source in zip(nodes, ("first", "first", "second"), strict=True):
        node.relationships[NodeRelationship.SOURCE] = RelatedNodeInfo(node_id=source)
    return GemelEmbedding(model)(nodes)


def make_query(model, text="guitar", k=3, **more):
    vector = GemelEmbedding(model).get_query_embedding(text)
    return VectorStoreQuery(query_embedding=vector, query_str=text, similarity_top_k=k, **more)


def filters(*parts, condition="and"):
    return MetadataFilters(
        filters=[
            part
            if isinstance(part, MetadataFilters)
            else MetadataFilter(key=part[0], operator=part[1], value=part[2])
            for part in parts
        ],
        condition=condition,
    )


def test_queries_and_texts_get_their_prompts(model):
    embedding = GemelEmbedding(model)
    assert np.array_equal(embedding.get_query_embedding("hello"), model.encode(["how: hello"])[0])
    assert np.array_equal(embedding.get_text_embedding("hello"), model.encode(["the: hello"])[0])


def test_a_batch_gives_the_vectors_of_its_texts(model):
    embedding = GemelEmbedding(model, embed_batch_size=2)
    vectors = [embedding.get_text_embedding(text) for text in TEXTS]
    assert embedding.get_text_embedding_batch(TEXTS) == vectors
    assert asyncio.run(embedding.aget_text_embedding_batch(TEXTS)) == vectors


def test_async_calls_give_the_same_vectors(model):
    embedding = GemelEmbedding(model)

    async def both():
        return await asyncio.gather(embedding.aget_query_embedding("a"), embedding.aget_text_embedding("a"))

    assert asyncio.run(both()) == [embedding.get_query_embedding("a"), embedding.get_text_embedding("a")]


def test_options_of_encoding_are_keywords(folder):
    embedding = GemelEmbedding(folder, dim=8, embed_batch_size=7)
    assert len(embedding.get_query_embedding("hello")) == 8
    assert embedding.embed_batch_size == 7
    with pytest.raises(InputError, match="output 'int8' is for storage"):
        GemelEmbedding(folder, output="int8")


@pytest.mark.parametrize(
    "again",
    [
        lambda embedding: GemelEmbedding.from_dict(embedding.to_dict()),
        lambda embedding: pickle.loads(pickle.dumps(embedding)),
    ],
    ids=["dict", "pickle"],
)
def test_an_embedding_is_written_and_read(model, again):
    embedding = GemelEmbedding(model, dim=8)
    copy = again(embedding)
    assert copy.model_name == str(model.checkpoint.folder)
    assert copy.get_query_embedding("hello") == embedding.get_query_embedding("hello")


def test_a_vector_store_index_finds_what_was_added(index, model):
    store = GemelVectorStore(index)
    context = StorageContext.from_defaults(vector_store=store)
    documents = [Document(text=text, id_=f"d{number}") for number, text in enumerate(TEXTS)]
    embedding = GemelEmbedding(model)
    made = VectorStoreIndex.from_documents(documents, storage_context=context, embed_model=embedding)
    assert made.as_retriever(similarity_top_k=1).retrieve(TEXTS[1])[0].text == TEXTS[1]
    made.delete_ref_doc("d1")
    opened = VectorStoreIndex.from_vector_store(store, embed_model=embedding)
    actual = opened.as_retriever(similarity_top_k=3).retrieve(TEXTS[1])
    assert sorted(each.text for each in actual) == sorted([TEXTS[0], TEXTS[2]])


def test_a_query_is_a_search_of_the_index(store, model):
    query = make_query(model)
    result = store.query(query)
    hits = store.client.search(query.query_embedding, k=3)
    assert result.ids == [hit.id for hit in hits]
    assert result.similarities == [hit.score for hit in hits]
    assert result.nodes[0].get_content() == hits[0].text


def test_a_node_comes_back_as_it_was(store, model):
    node = nodes_of(model)[1]
    (actual,) = store.get_nodes(["b", "nowhere"])
    assert actual.model_dump(exclude={"embedding"}) == node.model_dump(exclude={"embedding"})
    assert actual.ref_doc_id == "first"


def test_a_node_under_the_same_id_is_replaced(store, model):
    node = TextNode(id_="a", text="hello world")
    store.add(GemelEmbedding(model)([node]))
    assert len(store.client) == 3
    assert store.get_nodes(["a"])[0].text == "hello world"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (filters(("year", FilterOperator.GTE, 2021)), "bc"),
        (filters(("year", FilterOperator.EQ, 2019)), "a"),
        (filters(("year", FilterOperator.NE, 2019)), "bc"),
        (filters(("year", FilterOperator.IN, [2019, 2023])), "ac"),
        (filters(("year", FilterOperator.NIN, [2019, 2023])), "b"),
        (filters(("year", FilterOperator.LT, 2020), ("year", FilterOperator.GT, 2022), condition="or"), "ac"),
        (
            filters(("lang", FilterOperator.EQ, "en"), filters(("year", FilterOperator.LTE, 2019))),
            "a",
        ),
        (filters(("year", FilterOperator.IS_EMPTY, None)), ""),
        (filters(), "abc"),
    ],
)
def test_filters_are_conditions_of_the_index(store, model, given, expected):
    assert "".join(sorted(store.query(make_query(model, filters=given)).ids)) == expected


@pytest.mark.skipif(not hasattr(FilterCondition, "NOT"), reason="this LlamaIndex has no condition NOT")
def test_a_filter_can_be_negated(store, model):
    given = filters(("year", FilterOperator.EQ, 2019), ("year", FilterOperator.EQ, 2021), condition="not")
    assert store.query(make_query(model, filters=given)).ids == ["c"]


def test_an_unsupported_filter_is_refused(store, model):
    given = filters(("lang", FilterOperator.TEXT_MATCH, "e"))
    with pytest.raises(InputError, match=r"cannot filter 'lang' by 'text_match'\. It supports: ==, !="):
        store.query(make_query(model, filters=given))


def test_a_query_can_name_documents_and_nodes(store, model):
    assert sorted(store.query(make_query(model, doc_ids=["first"])).ids) == ["a", "b"]
    assert store.query(make_query(model, node_ids=["c"])).ids == ["c"]


def test_a_hybrid_query_counts_words_too(store, model):
    actual = store.query(make_query(model, "sofa", mode=VectorStoreQueryMode.HYBRID))
    hits = store.client.search("sofa", k=3, hybrid=True)
    assert (actual.ids, actual.similarities) == ([hit.id for hit in hits], [hit.score for hit in hits])


def test_an_unsupported_mode_is_refused(store, model):
    with pytest.raises(InputError, match="default and hybrid, not 'svm'"):
        store.query(make_query(model, mode=VectorStoreQueryMode.SVM))
    with pytest.raises(InputError, match="no vector to search by"):
        store.query(VectorStoreQuery(query_str="hello"))


def test_nodes_are_deleted_by_document_by_id_and_by_filter(store):
    store.delete("second")
    assert [node.node_id for node in store.get_nodes(["a", "b", "c"])] == ["a", "b"]
    store.delete_nodes(["a", "b"], filters(("year", FilterOperator.EQ, 2019)))
    assert [node.node_id for node in store.get_nodes(["a", "b", "c"])] == ["b"]
    store.delete_nodes([])
    with pytest.raises(InputError, match="Use clear to delete all"):
        store.delete_nodes()
    store.clear()
    assert len(store.client) == 0


def test_an_empty_store_has_nothing_to_delete(index):
    store = GemelVectorStore(index)
    store.delete("anything")
    assert store.add([]) == []
    assert store.get_nodes(["a"]) == []


def test_vectors_of_another_model_are_refused(index):
    store = GemelVectorStore(index)
    nodes = MockEmbedding(embed_dim=32)([TextNode(text="hello")])
    with pytest.raises(InputError, match="Set embed_model to a GemelEmbedding"):
        store.add(nodes)
    assert len(index) == 0


def test_an_index_of_vectors_only_takes_those_of_any_model():
    with gemel.open_index(":memory:", dim=4) as index:
        store = GemelVectorStore(index, fields=["year"])
        node = TextNode(id_="a", text="hello", metadata={"year": 2020, "author": "x"})
        store.add(MockEmbedding(embed_dim=4)([node]))
        assert "author" not in index.fields
        assert store.query(VectorStoreQuery(query_embedding=[1.0] * 4)).nodes[0].metadata == node.metadata


def test_an_index_that_was_made_without_llama_index_is_read(index, model):
    index.add(TEXTS, ids=["a", "b", "c"], fields={"year": [2019, 2021, 2023]})
    (node,) = GemelVectorStore(index).query(make_query(model, TEXTS[1], k=1)).nodes
    assert (node.node_id, node.get_content(), node.metadata) == ("b", TEXTS[1], {"year": 2021})


def test_async_calls_do_what_the_others_do(index, model):
    store = GemelVectorStore(index)

    async def story():
        await store.async_add(nodes_of(model))
        await store.adelete("second")
        await store.adelete_nodes(["a"])
        actual = await store.aquery(make_query(model))
        (node,) = await store.aget_nodes(["b"])
        await store.aclear()
        return actual.ids, node.node_id

    assert asyncio.run(story()) == (["b"], "b")
    assert len(index) == 0


def test_the_page_runs(tmp_path, small_model):  # noqa: F811 - the fixture
    run_blocks("llama-index.md", "llama-index-core", tmp_path, small_model)
