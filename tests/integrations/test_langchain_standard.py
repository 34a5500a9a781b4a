"""LangChain's own standard tests, for the embeddings and for the vector store over three kinds of index."""

import asyncio
import functools
import inspect

import pytest

pytest.importorskip("langchain_tests", reason="needs pip install langchain-tests")
pytest.importorskip("lance", reason="needs pip install 'gemel[index]'")

from langchain_tests.integration_tests import EmbeddingsIntegrationTests, VectorStoreIntegrationTests
from langchain_tests.integration_tests.vectorstores import EMBEDDING_SIZE
from langchain_tests.unit_tests import EmbeddingsUnitTests

import gemel
from gemel.integrations.langchain import GemelEmbeddings, GemelVectorStore
from tiny import tiny_bert


def in_a_loop(coroutine):
    @functools.wraps(coroutine)
    def run(*given, **named):
        return asyncio.run(coroutine(*given, **named))

    return run


# Their coroutines need pytest-asyncio. It is not used here: it needs a setting that pytest refuses without it.
for suite in (EmbeddingsIntegrationTests, VectorStoreIntegrationTests):
    for name, coroutine in inspect.getmembers(suite, inspect.iscoroutinefunction):
        setattr(suite, name, in_a_loop(coroutine))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def loaded(folder):
    return gemel.load(folder)


class Tiny:
    """What both suites for embeddings need."""

    @pytest.fixture(autouse=True)
    def _given(self, folder):
        self.folder = folder

    @property
    def embeddings_class(self):
        return GemelEmbeddings

    @property
    def embedding_model_params(self):
        return {"model": self.folder}


class TestEmbeddingsAsUnit(Tiny, EmbeddingsUnitTests):
    pass


class TestEmbeddings(Tiny, EmbeddingsIntegrationTests):
    pass


class TestVectorsOfAnotherEmbedding(VectorStoreIntegrationTests):
    @pytest.fixture(params=["memory", "folder"])
    def vectorstore(self, request, tmp_path):
        location = ":memory:" if request.param == "memory" else tmp_path / "index"
        with gemel.open_index(location, dim=EMBEDDING_SIZE, durable=False) as index:
            yield GemelVectorStore(index, self.get_embeddings())


class TestVectorsOfTheModelOfTheIndex(VectorStoreIntegrationTests):
    @pytest.fixture
    def vectorstore(self, loaded):
        with gemel.open_index(":memory:", model=loaded) as index:
            yield GemelVectorStore(index)
