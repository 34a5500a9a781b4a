"""Cohere's rerank and the older form of it."""

import httpx
import numpy as np
import pytest

import gemel
from gemel.serve.options import Limits
from serve_case import app_of, live, make_services
from serve_models import light_cross
from tiny import tiny_bert

QUERY = "who is sleeping"
DOCUMENTS = ["the cat is sleeping", "a dog is running in the street", "the stock market fell sharply"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def address(model):
    with live(app_of(make_services(model, limits=Limits(texts=20)))) as result:
        yield result


def ask(address, path, **body):
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_documents_come_best_first_with_scores_from_0_to_1(address, model):
    result = ask(address, "/v2/rerank", model="tiny", query=QUERY, documents=DOCUMENTS)
    cosine = model.encode(DOCUMENTS) @ model.encode([QUERY])[0]
    order = np.argsort(-cosine)
    assert [row["index"] for row in result["results"]] == order.tolist()
    assert [row["relevance_score"] for row in result["results"]] == pytest.approx(
        (1 + cosine[order]) / 2, abs=1e-6
    )
    assert result["id"] and result["meta"]["api_version"]["version"] == "2"
    assert result["meta"]["score_kind"] == "cosine"


def test_a_cross_encoder_scores_where_one_is_loaded(model, tmp_path):
    cross = light_cross(tmp_path / "cross")
    with live(app_of(make_services(model, cross=cross))) as address:
        result = ask(address, "/v2/rerank", model="cross", query=QUERY, documents=DOCUMENTS, top_n=2)
    expected = cross.rank(QUERY, DOCUMENTS, 2)
    assert [row["index"] for row in result["results"]] == expected.index.tolist()
    assert all(0 <= row["relevance_score"] <= 1 for row in result["results"])
    assert result["meta"]["score_kind"] == "probability"


def test_long_documents_are_truncated_at_the_end(address):
    long = [f"{document} and then and then and then" for document in DOCUMENTS]
    body = {"model": "tiny", "query": QUERY}
    cut = ask(address, "/v2/rerank", **body, documents=long, max_tokens_per_doc=2)
    short = [" ".join(document.split()[:2]) for document in DOCUMENTS]
    expected = ask(address, "/v2/rerank", **body, documents=short)
    assert cut["results"] == expected["results"]


def test_the_older_form_takes_objects_and_gives_documents_back(address):
    documents = [DOCUMENTS[0], {"text": DOCUMENTS[1]}]
    result = ask(address, "/v1/rerank", query=QUERY, documents=documents, return_documents=True)
    assert {row["document"]["text"] for row in result["results"]} == set(DOCUMENTS[:2])
    assert result["model"] == "tiny"
    bare = ask(address, "/v1/rerank", model="tiny", query=QUERY, documents=documents, top_n=1)
    assert len(bare["results"]) == 1 and "document" not in bare["results"][0]


def test_null_means_not_given(address):
    """LangChain's CohereRerank sends null for what it was not given."""
    body = {"model": "tiny", "query": QUERY, "documents": DOCUMENTS}
    for path, names in (
        ("/v2/rerank", ["top_n", "max_tokens_per_doc"]),
        ("/v1/rerank", ["top_n", "return_documents"]),
    ):
        result = ask(address, path, **body, **dict.fromkeys(names))
        assert result["results"] == ask(address, path, **body)["results"]


@pytest.mark.parametrize(
    ("change", "status", "message"),
    [
        ({"model": "rerank-v3.5"}, 404, "the model 'rerank-v3.5' is not loaded here. Loaded: tiny"),
        ({"documents": []}, 400, "documents is empty"),
        ({"documents": ["a"] * 21}, 413, "documents has 21 texts"),
        ({"documents": "a"}, 400, "documents: must be a list"),
        ({"query": None}, 400, "query: must be a string"),
        ({"top_n": 0}, 400, "top_n: must be greater than or equal to 1"),
        ({"top_n": "3"}, 400, "top_n"),
    ],
)
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_bad_input_gets_one_sentence(address, path, change, status, message):
    body = {"model": "tiny", "query": QUERY, "documents": DOCUMENTS, **change}
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == status
    error = answer.json()["error"]
    assert error["message"].startswith(message)
    assert set(error) == (
        {"message", "type", "param", "code"} if path.startswith("/v1") else {"message", "type"}
    )
    assert "Traceback" not in answer.text and "/src/" not in answer.text
