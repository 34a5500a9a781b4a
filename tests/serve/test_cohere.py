"""Cohere's embeddings, by its own client where it is installed; the bodies are byte for byte what cohere 5.21 sends."""

import base64

import httpx
import numpy as np
import pytest

import gemel
from gemel.serve.options import Limits
from serve_case import app_of, live, make_services
from tiny import tiny_bert

TEXTS = ["the cat is sleeping", "a dog is running in the street"]
LONG = "the dog is running and " * 30 + "the cat is sleeping on the sofa"
PROMPTS = {"query": "how do i ", "document": "the "}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts=PROMPTS))


@pytest.fixture(scope="module")
def address(model):
    with live(app_of(make_services(model, limits=Limits(texts=20)))) as result:
        yield result


def send(address, path, body):
    headers = {"content-type": "application/json", "authorization": "Bearer unused"}
    return httpx.post(f"{address}{path}", content=body, headers=headers)


def ask(address, path, **body):
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def floats(rows):
    return np.array(rows, dtype=np.float32)


def test_the_second_version_answers_by_type(address, model):
    # cohere.ClientV2(...).embed(texts=..., model="tiny", input_type="search_document", embedding_types=[...])
    body = (
        b'{"texts":["the cat is sleeping","a dog is running in the street"],"model":"tiny",'
        b'"input_type":"search_document","embedding_types":["float","int8"]}'
    )
    answer = send(address, "/v2/embed", body).json()
    expected = model.encode(TEXTS, prompt_name="document")
    assert set(answer["embeddings"]) == {"float", "int8"}
    assert np.array_equal(floats(answer["embeddings"]["float"]), expected)
    assert answer["embeddings"]["int8"] == model.encode(TEXTS, prompt_name="document", output="int8").tolist()
    assert answer["response_type"] == "embeddings_by_type" and answer["texts"] == TEXTS
    tokens = int(model.encode_report(TEXTS, prompt_name="document").kept.sum())
    assert answer["meta"]["billed_units"] == {"input_tokens": tokens}


def test_the_first_version_answers_a_plain_list(address, model):
    # cohere.Client(...).embed(texts=..., model="tiny", input_type="search_query")
    body = b'{"texts":["the cat is sleeping"],"model":"tiny","input_type":"search_query"}'
    answer = send(address, "/v1/embed", body).json()
    assert answer["response_type"] == "embeddings_floats"
    assert np.array_equal(floats(answer["embeddings"]), model.encode(TEXTS[:1], prompt_name="query"))
    by_type = ask(address, "/v1/embed", texts=TEXTS, embedding_types=["float"])
    assert np.array_equal(floats(by_type["embeddings"]["float"]), model.encode(TEXTS))


def test_the_real_client_reads_the_answers(address, model):
    cohere = pytest.importorskip("cohere", reason="needs pip install cohere")
    with httpx.Client() as http:
        settings = {"api_key": "unused", "base_url": address, "httpx_client": http}
        second = cohere.ClientV2(**settings)
        answer = second.embed(
            texts=TEXTS, model="tiny", input_type="search_query", embedding_types=["float", "ubinary"]
        )
        assert np.array_equal(floats(answer.embeddings.float_), model.encode(TEXTS, prompt_name="query"))
        first = cohere.Client(**settings).embed(texts=TEXTS, model="tiny")
        assert np.array_equal(floats(first.embeddings), model.encode(TEXTS))
        with pytest.raises(cohere.NotFoundError) as caught:
            second.embed(texts=TEXTS, model="embed-v4.0", input_type="search_query")
    assert caught.value.body["message"].startswith("the model 'embed-v4.0' is not loaded here")


def test_every_type_is_made_of_the_same_vectors(address, model):
    kinds = ["float", "int8", "uint8", "binary", "ubinary", "base64"]
    result = ask(address, "/v2/embed", texts=TEXTS, embedding_types=kinds)["embeddings"]
    assert list(result) == kinds
    vectors = model.encode(TEXTS)
    assert np.array_equal(np.packbits(vectors > 0, axis=1), np.array(result["ubinary"], dtype=np.uint8))
    assert (np.array(result["binary"]) + 128).tolist() == result["ubinary"]
    assert (np.array(result["int8"]) + 128).tolist() == result["uint8"]
    packed = [np.frombuffer(base64.b64decode(each), dtype="<f4") for each in result["base64"]]
    assert np.array_equal(np.stack(packed), vectors)


def test_fewer_dimensions_are_those_of_the_model(address, model):
    result = ask(address, "/v2/embed", texts=TEXTS, output_dimension=8)
    assert np.array_equal(floats(result["embeddings"]["float"]), model.encode(TEXTS, dim=8))


def test_inputs_are_texts_in_objects(address, model):
    inputs = [{"content": [{"type": "text", "text": text}]} for text in TEXTS]
    result = ask(address, "/v2/embed", inputs=inputs)
    assert np.array_equal(floats(result["embeddings"]["float"]), model.encode(TEXTS))


def test_a_long_text_is_cut_where_the_client_says(address, model):
    def vector(**more):
        return floats(ask(address, "/v2/embed", texts=[LONG], **more)["embeddings"]["float"])

    kept = model.max_length - 2
    end = " ".join(LONG.split()[-kept:])
    assert np.array_equal(vector(), model.encode([LONG], on_long="truncate"))
    assert np.array_equal(vector(truncate="START"), model.encode([end], on_long="truncate"))
    assert np.array_equal(vector(max_tokens=4), model.encode([" ".join(LONG.split()[:4])]))
    refused = httpx.post(f"{address}/v2/embed", json={"texts": [LONG], "truncate": "NONE"})
    assert refused.status_code == 400 and "the model reads 64" in refused.json()["message"]


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/v2/embed", {"images": ["data:image/png;base64,AA"]}, 400, "images is not supported: only texts"),
        ("/v1/embed", {"images": ["data:image/png;base64,AA"]}, 400, "images is not supported: only texts"),
        (
            "/v2/embed",
            {"inputs": [{"content": [{"type": "image_url", "image_url": {"url": "x"}}]}]},
            400,
            "image_url is not supported: only texts",
        ),
        ("/v2/embed", {}, 400, "give either texts, a list of strings, or inputs"),
        ("/v1/embed", {}, 400, "the field 'texts' is missing"),
        ("/v2/embed", {"texts": ["a"], "input_type": "image"}, 400, "input_type must be one of query,"),
        ("/v2/embed", {"texts": ["a"], "embedding_types": ["float64"]}, 400, "embedding_types"),
        ("/v2/embed", {"texts": ["a"], "output_dimension": 99}, 400, "output_dimension must be at most 32"),
        (
            "/v2/embed",
            {"texts": ["a"], "output_dimension": 4, "embedding_types": ["binary"]},
            400,
            "binary packs 8 dimensions to a byte; these vectors have 4",
        ),
        ("/v2/embed", {"texts": ["a"], "max_tokens": 2, "truncate": "START"}, 400, "max_tokens truncates"),
        ("/v2/embed", {"texts": []}, 400, "texts is empty"),
        ("/v2/embed", {"texts": ["a"] * 21}, 413, "texts has 21 texts"),
        ("/v1/embed", {"texts": ["a"], "model": "embed-v4.0"}, 404, "the model 'embed-v4.0' is not loaded"),
    ],
)
def test_bad_input_gets_one_sentence_where_the_client_reads_it(address, path, body, status, message):
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == status, answer.text
    assert answer.json()["message"].startswith(message)


def test_a_large_answer_comes_in_parts_and_is_whole(address, model, monkeypatch):
    monkeypatch.setattr("gemel.serve.routes.LARGE_NUMBERS", 64)
    result = ask(address, "/v2/embed", texts=TEXTS * 5, embedding_types=["float", "int8"])
    assert np.array_equal(floats(result["embeddings"]["float"]), model.encode(TEXTS * 5))
    assert len(result["embeddings"]["int8"]) == 10
