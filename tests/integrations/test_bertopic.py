"""A gemel model as the backend of a real BERTopic."""

import builtins
import sys

import numpy as np
import pytest
from tests.project.test_docs_blocks import small_model  # noqa: F401 - a fixture

import gemel
from gemel.errors import InputError, MissingExtra
from integration_pages import run_blocks
from tiny import tiny_bert

TEXTS = [
    f"{who} {what}"
    for who in ("a man", "a woman", "the dog", "my cat")
    for what in ("in the rain", "on a sofa")
]

# bertopic and its dependencies warn about their own code
pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("model")))


@pytest.fixture(scope="module")
def backend_class():
    pytest.importorskip("bertopic", reason="bertopic is not installed")
    from gemel.integrations.bertopic import GemelBackend

    return GemelBackend


def test_documents_and_words_are_the_vectors_of_the_model(backend_class, model, capsys):
    backend = backend_class(model, dim=8)
    expected = model.encode(TEXTS, dim=8)
    assert (backend.embed_documents(TEXTS) == expected).all()
    assert (backend.embed_words(np.array(TEXTS)) == expected).all()
    assert not capsys.readouterr().err
    backend.embed(TEXTS, verbose=True)
    assert "8 of 8 texts" in capsys.readouterr().err


def test_bertopic_takes_the_backend_as_it_is(backend_class, model):
    from bertopic.backend._utils import select_backend

    backend = backend_class(model)
    assert select_backend(backend) is backend


def test_topics_are_found_and_queried(backend_class, model, tmp_path):
    from bertopic import BERTopic
    from sklearn.cluster import KMeans
    from sklearn.decomposition import PCA

    parts = {"umap_model": PCA(2, random_state=0), "hdbscan_model": KMeans(2, random_state=0, n_init=1)}
    topics = BERTopic(embedding_model=backend_class(model), **parts)
    numbers, _ = topics.fit_transform(TEXTS)
    expected = KMeans(2, random_state=0, n_init=1).fit(
        PCA(2, random_state=0).fit_transform(model.encode(TEXTS))
    )
    groups = {frozenset(np.flatnonzero(np.array(numbers) == topic)) for topic in set(numbers)}
    assert groups == {frozenset(np.flatnonzero(expected.labels_ == label)) for label in (0, 1)}
    result, scores = topics.find_topics("a woman", top_n=1)
    assert result[0] in numbers
    assert -1 <= scores[0] <= 1.001
    topics.save(tmp_path / "topics", serialization="safetensors")
    again = BERTopic.load(tmp_path / "topics", embedding_model=backend_class(model))
    assert again.find_topics("a woman", top_n=1)[0] == result


def test_a_wrong_model_or_option_is_refused(backend_class, model):
    with pytest.raises(InputError, match="model must be a loaded model, got 'minilm'"):
        backend_class("minilm")
    with pytest.raises(InputError, match="unknown option 'batch'"):
        backend_class(model, batch=3)


def test_without_bertopic_the_error_says_how_to_get_it(monkeypatch):
    real = builtins.__import__

    def absent(name, *args, **kwargs):
        if name.split(".")[0] == "bertopic":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", absent)
    monkeypatch.delitem(sys.modules, "gemel.integrations.bertopic", raising=False)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[bertopic\]'"):
        real("gemel.integrations.bertopic")


@pytest.mark.slow
def test_the_blocks_of_the_page_run(tmp_path, small_model):  # noqa: F811 - the fixture
    pytest.importorskip("bertopic", reason="bertopic is not installed")
    run_blocks("bertopic.md", "bertopic", tmp_path, small_model)
