"""Cohere's rerank, the older form that Jina, Voyage, vLLM and infinity share, and vLLM's scores."""

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


def test_a_cross_encoder_scores_where_one_is_loaded(model, tmp_path):
    cross = light_cross(tmp_path / "cross")
    with live(app_of(make_services(model, cross=cross))) as address:
        result = ask(address, "/v2/rerank", model="cross", query=QUERY, documents=DOCUMENTS, top_n=2)
    expected = cross.rank(QUERY, DOCUMENTS, 2)
    assert [row["index"] for row in result["results"]] == expected.index.tolist()
    assert all(0 <= row["relevance_score"] <= 1 for row in result["results"])


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
    assert set(error) - {"help"} == (
        {"message", "type", "param", "code"} if path.startswith("/v1") else {"message", "type"}
    )
    assert "Traceback" not in answer.text and "/src/" not in answer.text


# The clients of others


def test_the_client_of_voyage_finds_its_data(address, model):
    # Byte for byte what voyageai 0.5 sends: Client(...).rerank(QUERY, DOCUMENTS, "tiny", top_k=1)
    body = (
        b'{"query": "who is sleeping", "documents": ["the cat is sleeping", "a dog is running in the street", '
        b'"the stock market fell sharply"], "model": "tiny", "top_k": 1, "truncation": true}'
    )
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{address}/v1/rerank", content=body, headers=headers).json()
    cosine = model.encode(DOCUMENTS) @ model.encode([QUERY])[0]
    assert [row["index"] for row in answer["data"]] == [int(cosine.argmax())]
    assert answer["data"] == answer["results"] and answer["object"] == "list"
    assert answer["usage"]["total_tokens"] == int(model.encode_report([QUERY, *DOCUMENTS]).kept.sum())


def test_the_real_client_of_voyage_reads_the_answer(address, monkeypatch):
    voyageai = pytest.importorskip("voyageai", reason="needs pip install voyageai")
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        monkeypatch.setattr(voyageai, "requestssession", session)
        client = voyageai.Client(api_key="unused", base_url=f"{address}/v1", max_retries=1)
        result = client.rerank(QUERY, DOCUMENTS, model="tiny", top_k=2)
    expected = ask(address, "/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=2)["results"]
    assert [row.index for row in result.results] == [row["index"] for row in expected]
    assert result.total_tokens > 0


def test_the_real_client_of_cohere_reads_the_answer(address):
    cohere = pytest.importorskip("cohere", reason="needs pip install cohere")
    with httpx.Client() as http:
        client = cohere.ClientV2(api_key="unused", base_url=address, httpx_client=http)
        result = client.rerank(model="tiny", query=QUERY, documents=DOCUMENTS, top_n=1).results
    expected = ask(address, "/v1/rerank", query=QUERY, documents=DOCUMENTS, top_n=1)["results"]
    assert [row.index for row in result] == [row["index"] for row in expected]


def test_rerank_takes_documents_too_as_vllm_and_infinity_do(address):
    # Byte for byte what litellm.rerank(model="hosted_vllm/tiny", ...) and "infinity/tiny" send.
    body = (
        b'{"model": "tiny", "query": "who is sleeping", "top_n": 1, "documents": ["the cat is sleeping", '
        b'"a dog is running in the street"], "return_documents": true}'
    )
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{address}/rerank", content=body, headers=headers).json()
    older = httpx.post(f"{address}/v1/rerank", content=body, headers=headers).json()
    assert answer["results"] == older["results"] and len(answer["results"]) == 1
    assert answer["results"][0]["document"]["text"] in DOCUMENTS


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_scores_of_pairs_are_cosines_in_the_order_of_the_pairs(address, model, path):
    one = ask(address, path, model="tiny", text_1=QUERY, text_2=DOCUMENTS)
    cosine = model.encode(DOCUMENTS) @ model.encode([QUERY])[0]
    assert [row["score"] for row in one["data"]] == pytest.approx(cosine, abs=1e-6)
    assert [row["index"] for row in one["data"]] == [0, 1, 2] and one["object"] == "list"
    pairs = ask(address, path, queries=DOCUMENTS, documents=DOCUMENTS)
    assert [row["score"] for row in pairs["data"]] == pytest.approx([1, 1, 1], abs=1e-6)
    assert len(ask(address, path, text_1=QUERY, text_2=DOCUMENTS[0])["data"]) == 1


def test_scores_of_pairs_are_those_of_the_cross_encoder_where_one_is_loaded(model, tmp_path):
    cross = light_cross(tmp_path / "cross")
    with live(app_of(make_services(model, cross=cross))) as address:
        result = ask(address, "/v1/score", model="cross", text_1=[QUERY] * 3, text_2=DOCUMENTS)
    logits = cross.logits([QUERY] * 3, DOCUMENTS)[:, 0]
    assert [row["score"] for row in result["data"]] == pytest.approx(1 / (1 + np.exp(-logits)), abs=1e-6)
    assert result["model"] == "cross" and result["usage"]["total_tokens"] > 0


@pytest.mark.parametrize(
    ("path", "change", "message"),
    [
        ("/v1/rerank", {"top_n": 1, "top_k": 2}, "top_n is 1 and top_k is 2. Give one of them"),
        ("/v1/rerank", {"rank_fields": ["title"]}, "rank_fields is not supported: send each document as one"),
        ("/v1/rerank", {"max_chunks_per_doc": 3}, "max_chunks_per_doc is not supported"),
        ("/v1/rerank", {"instruction": "find"}, "instruction is not supported"),
        ("/v1/rerank", {"documents": ["cat " * 99], "truncation": False}, "texts[0] has 101 tokens"),
        ("/rerank", {"texts": DOCUMENTS}, "give either texts or documents"),
        ("/rerank", {"documents": None}, "the field 'texts' is missing. Required: query, texts"),
    ],
)
def test_fields_that_cannot_be_honored_are_refused(address, path, change, message):
    body = {"model": "tiny", "query": QUERY, "documents": DOCUMENTS, **change}
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == 400, answer.text
    error = answer.json()["error"]
    assert (error if isinstance(error, str) else error["message"]).startswith(message)


def test_texts_that_do_not_pair_are_refused(address):
    answer = httpx.post(f"{address}/v1/score", json={"text_1": ["a", "b"], "text_2": ["a", "b", "c"]})
    assert answer.status_code == 400
    assert answer.json()["error"]["message"].startswith("text_1 has 2 texts but text_2 has 3")


def test_documents_are_cut_where_the_client_says(address):
    body = {"query": QUERY, "documents": DOCUMENTS}
    short = [" ".join(document.split()[:2]) for document in DOCUMENTS]
    cut = ask(address, "/v1/rerank", **body, max_tokens_per_doc=2)
    assert cut["results"] == ask(address, "/v1/rerank", query=QUERY, documents=short)["results"]
