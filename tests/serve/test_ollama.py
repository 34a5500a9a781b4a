"""The protocol of Ollama, by its own client where it is installed; the bodies are those that ollama 0.6 sends."""

from contextlib import closing

import httpx
import numpy as np
import pytest

import gemel
from serve_case import app_of, live, make_services
from tiny import tiny_bert

TEXTS = ["the cat is sleeping", "a dog is running in the street"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "tiny", normalize=False))


@pytest.fixture(scope="module")
def address(model):
    with live(app_of(make_services(model))) as result:
        yield result


def post(address, path, body):
    return httpx.post(f"{address}{path}", content=body, headers={"content-type": "application/json"})


def test_embed_answers_vectors_of_length_one(address, model):
    # ollama.Client(host=address).embed(model="tiny", input=[...])
    body = b'{"model":"tiny","input":["the cat is sleeping","a dog is running in the street"]}'
    answer = post(address, "/api/embed", body).json()
    result = np.array(answer["embeddings"], dtype=np.float32)
    assert np.array_equal(result, model.encode(TEXTS, normalize=True))
    assert answer["prompt_eval_count"] == int(model.encode_report(TEXTS).kept.sum())
    assert answer["model"] == "tiny" and answer["total_duration"] > 0


def test_the_older_form_answers_one_vector(address, model):
    # ollama.Client(host=address).embeddings(model="tiny", prompt="...")
    answer = post(address, "/api/embeddings", b'{"model":"tiny","prompt":"the cat is sleeping"}').json()
    result = np.array(answer["embedding"], dtype=np.float32)
    assert np.array_equal(result, model.encode(TEXTS[:1], normalize=True)[0])


def test_the_real_client_reads_the_answers(address, model):
    ollama = pytest.importorskip("ollama", reason="needs pip install ollama")
    with closing(ollama.Client(host=address)) as client:
        result = np.array(client.embed(model="tiny:latest", input=TEXTS).embeddings, dtype=np.float32)
        assert np.array_equal(result, model.encode(TEXTS, normalize=True))
        assert [each.model for each in client.list().models] == ["tiny"]
        with pytest.raises(ollama.ResponseError, match="the model 'nomic-embed-text' is not loaded here"):
            client.embed(model="nomic-embed-text", input=TEXTS)


def test_dimensions_and_what_runs_a_model(address, model):
    more = {"dimensions": 8, "options": {"num_ctx": 2048}, "keep_alive": "5m"}
    answer = httpx.post(f"{address}/api/embed", json={"model": "tiny:latest", "input": TEXTS[0], **more})
    expected = model.encode(TEXTS[:1], dim=8, normalize=True)
    assert np.array_equal(np.array(answer.json()["embeddings"], dtype=np.float32), expected)


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/api/embed", {"model": "llama3", "input": "a"}, 404, "the model 'llama3' is not loaded here"),
        ("/api/embed", {"model": "tiny"}, 400, "the field 'input' is missing"),
        ("/api/embed", {"input": "cat " * 99, "truncate": False}, 400, "texts[0] has 101 tokens"),
        ("/api/embeddings", {"model": "tiny"}, 400, "the field 'prompt' is missing"),
    ],
)
def test_an_error_is_a_string_as_from_ollama(address, path, body, status, message):
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == status
    assert answer.json()["error"].startswith(message)
