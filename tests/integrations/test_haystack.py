"""gemel in Haystack: two embedders, alone and in pipelines."""

import asyncio
import os

import numpy as np
import pytest

os.environ["HAYSTACK_TELEMETRY_ENABLED"] = "False"  # before its first import: tests use no network
pytest.importorskip("haystack", reason="needs pip install haystack-ai")

from haystack import Document, Pipeline
from haystack.components.retrievers.in_memory import InMemoryEmbeddingRetriever
from haystack.components.writers import DocumentWriter
from haystack.document_stores.in_memory import InMemoryDocumentStore
from tests.project.test_docs_blocks import small_model  # noqa: F401 - a fixture

import gemel
from gemel.errors import InputError
from gemel.integrations.haystack import GemelDocumentEmbedder, GemelTextEmbedder
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


def test_queries_and_documents_get_their_prompts(model):
    query = GemelTextEmbedder(model).run("hello")["embedding"]
    assert np.array_equal(query, model.encode(["how: hello"])[0])
    (document,) = GemelDocumentEmbedder(model).run([Document(content="hello")])["documents"]
    assert np.array_equal(document.embedding, model.encode(["the: hello"])[0])


def test_documents_that_come_in_are_not_changed(model):
    documents = [Document(content=text, meta={"year": 2020}) for text in TEXTS]
    embedded = GemelDocumentEmbedder(model).run(documents)["documents"]
    assert [each.embedding for each in documents] == [None] * 3
    assert [(each.id, each.content, each.meta) for each in embedded] == [
        (each.id, each.content, each.meta) for each in documents
    ]
    assert GemelDocumentEmbedder(model).run([]) == {"documents": []}


def test_metadata_can_be_put_in_front_of_the_text(model):
    embedder = GemelDocumentEmbedder(
        model, meta_fields_to_embed=["title", "page", "no"], embedding_separator=" "
    )
    document = Document(content="hello", meta={"title": "world", "page": 0, "no": None})
    (result,) = embedder.run([document])["documents"]
    assert np.array_equal(result.embedding, model.encode_document(["world 0 hello"])[0])


def test_options_of_encoding_are_keywords(model):
    assert len(GemelTextEmbedder(model, dim=8).run("hello")["embedding"]) == 8
    with pytest.raises(InputError, match="unknown option 'prefix'"):
        GemelDocumentEmbedder(model, prefix="query: ")


@pytest.mark.parametrize("given", [["a text"], "a text", [1]])
def test_an_object_that_is_not_a_document_is_refused(model, given):
    with pytest.raises(InputError, match="For a text use GemelTextEmbedder"):
        GemelDocumentEmbedder(model).run(given)


def test_an_object_that_is_not_a_text_is_refused(model):
    with pytest.raises(InputError, match="For documents use GemelDocumentEmbedder"):
        GemelTextEmbedder(model).run([Document(content="hello")])


def test_warming_up_loads_the_model(tmp_path):
    for embedder in (GemelTextEmbedder(tmp_path / "nowhere"), GemelDocumentEmbedder(tmp_path / "nowhere")):
        with pytest.raises(gemel.ModelError):
            embedder.warm_up()


@pytest.mark.parametrize(
    "embedder",
    [
        lambda model: GemelTextEmbedder(model, dim=8),
        lambda model: GemelDocumentEmbedder(model, dim=8, meta_fields_to_embed=["title"]),
    ],
    ids=["text", "document"],
)
def test_a_component_is_written_and_read(model, embedder):
    written = embedder(model).to_dict()
    assert written["init_parameters"]["model"] == str(model.checkpoint.folder)
    assert written["init_parameters"]["dim"] == 8
    again = embedder(model).__class__.from_dict(written)
    again.warm_up()
    assert again.to_dict() == written


def indexing(model, store):
    pipeline = Pipeline()
    pipeline.add_component("embedder", GemelDocumentEmbedder(model))
    pipeline.add_component("writer", DocumentWriter(store))
    pipeline.connect("embedder", "writer")
    return pipeline


def asking(model, store):
    pipeline = Pipeline()
    pipeline.add_component("embedder", GemelTextEmbedder(model))
    pipeline.add_component("retriever", InMemoryEmbeddingRetriever(store, top_k=1))
    pipeline.connect("embedder.embedding", "retriever.query_embedding")
    return pipeline


def test_embedders_work_in_pipelines(model):
    store = InMemoryDocumentStore(embedding_similarity_function="cosine")
    written = indexing(model, store).run({"embedder": {"documents": [Document(content=t) for t in TEXTS]}})
    assert written["writer"]["documents_written"] == 3
    result = asking(model, store).run({"embedder": {"text": TEXTS[1]}})["retriever"]["documents"]
    assert [each.content for each in result] == [TEXTS[1]]


def test_a_pipeline_is_written_and_read(folder):
    store = InMemoryDocumentStore()
    written = asking(folder, store).dumps()
    pipeline = Pipeline.loads(written, allowed_modules=["gemel.integrations.haystack"])
    assert pipeline.get_component("embedder").to_dict() == GemelTextEmbedder(folder).to_dict()


def test_async_calls_give_the_same_vectors(model):
    text, documents = GemelTextEmbedder(model), GemelDocumentEmbedder(model)
    given = [Document(content=each) for each in TEXTS]

    async def both():
        return await asyncio.gather(text.run_async("hello"), documents.run_async(given))

    assert asyncio.run(both()) == [text.run("hello"), documents.run(given)]


def test_a_pipeline_runs_in_a_loop(model):
    pipeline = Pipeline()
    pipeline.add_component("embedder", GemelTextEmbedder(model))
    result = asyncio.run(pipeline.run_async({"embedder": {"text": "hello"}}))
    assert result["embedder"] == GemelTextEmbedder(model).run("hello")


def test_the_page_runs(tmp_path, small_model):  # noqa: F811 - the fixture
    run_blocks("haystack.md", "haystack-ai", tmp_path, small_model)
