"""The protocol of OpenAI, called by its own client."""

import asyncio
import base64

import httpx
import numpy as np
import openai
import pytest

import gemel
from gemel.serve.options import Limits
from serve_case import app_of, live, make_services
from tiny import tiny_bert

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

TEXTS = ["the cat is sleeping", "a dog is running in the street", "the stock market fell sharply"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "tiny", prompts={"query": "how do i "}))


@pytest.fixture(scope="module")
def address(model):
    limits = Limits(texts=20, characters=1000, tokens=2000)
    with live(app_of(make_services(model, limits=limits))) as result:
        yield result


@pytest.fixture(scope="module")
def client(address):
    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused", max_retries=0) as result:
        yield result


def vectors_of(answer):
    return np.array([row.embedding for row in answer.data], dtype=np.float32)


def test_a_list_gives_the_bits_of_encode_in_its_order(client, model):
    answer = client.embeddings.create(model="tiny", input=TEXTS, encoding_format="float")
    assert np.array_equal(vectors_of(answer), model.encode(TEXTS))
    assert [row.index for row in answer.data] == [0, 1, 2]
    assert answer.model == "tiny" and answer.object == "list"


def test_the_clients_own_default_is_base64_and_gives_the_same_bits(client, model):
    answer = client.embeddings.create(model="tiny", input=TEXTS[0])
    assert np.array_equal(vectors_of(answer), model.encode(TEXTS[:1]))


def test_base64_is_little_endian_float32(address, model):
    body = {"model": "tiny", "input": TEXTS[0], "encoding_format": "base64"}
    row = httpx.post(f"{address}/v1/embeddings", json=body).json()["data"][0]
    result = np.frombuffer(base64.b64decode(row["embedding"]), dtype="<f4")
    assert np.array_equal(result, model.encode(TEXTS[:1])[0])


def test_usage_counts_special_tokens_too(client, model):
    answer = client.embeddings.create(model="tiny", input=TEXTS)
    tokens = int(model.encode_report(TEXTS).kept.sum())
    assert (answer.usage.prompt_tokens, answer.usage.total_tokens) == (tokens, tokens)


def test_the_async_client_gets_the_same_answers(address, model):
    async def ask():
        async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key="unused") as client:
            body = [client.embeddings.create(model="tiny", input=text) for text in TEXTS]
            return await asyncio.gather(*body)

    result = np.concatenate([vectors_of(answer) for answer in asyncio.run(ask())])
    assert np.array_equal(result, model.encode(TEXTS))


def test_dimensions_keep_the_first_numbers_at_length_one(client, model):
    answer = client.embeddings.create(model="tiny", input=TEXTS, dimensions=8)
    assert np.array_equal(vectors_of(answer), model.encode(TEXTS, dim=8))


def test_token_arrays_are_ids_of_the_models_own_tokenizer(client, model):
    ids = [[piece.id for piece in model.tokenizer.pieces(text)] for text in TEXTS]
    assert np.array_equal(vectors_of(client.embeddings.create(model="tiny", input=ids)), model.encode(TEXTS))
    one = client.embeddings.create(model="tiny", input=ids[0])
    assert np.array_equal(vectors_of(one), model.encode(TEXTS[:1]))


def test_ids_of_another_tokenizer_are_refused_with_the_reason(client):
    with pytest.raises(
        openai.BadRequestError, match="input has the token id 100257; tiny knows ids from 0 to"
    ):
        client.embeddings.create(model="tiny", input=[[100257]])


def test_ids_that_the_tokenizer_would_not_make_are_refused(client, model):
    end, word = (model.tokenizer.pieces(text, special=False)[-1] for text in ("cats", "dog"))
    assert end.token == "##s"  # never starts a text
    with pytest.raises(
        openai.BadRequestError, match=r"input\[1\] is no sequence of token ids that the tokenizer"
    ):
        client.embeddings.create(model="tiny", input=[[word.id], [end.id, word.id]])


def test_characters_that_the_vocabulary_lacks_may_come_as_ids(client, model):
    text = "hello ☃ world"
    ids = [piece.id for piece in model.tokenizer.pieces(text)]
    assert model.tokenizer.text(ids) == "hello world"
    result = vectors_of(client.embeddings.create(model="tiny", input=ids))
    assert np.array_equal(result, model.encode(["hello world"]))


def test_a_prompt_of_the_model_can_be_named(client, model):
    answer = client.embeddings.create(model="tiny", input=TEXTS, extra_body={"prompt_name": "query"})
    assert np.array_equal(vectors_of(answer), model.encode(TEXTS, prompt_name="query"))


def test_fields_that_mean_nothing_here_are_ignored(client):
    body = {"model": "tiny", "input": TEXTS[0], "user": "someone"}
    assert len(client.embeddings.create(**body, extra_body={"service_tier": "auto"}).data) == 1


def test_a_model_without_length_one_is_served_with_length_one(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "raw", normalize=False))
    with (
        live(app_of(make_services(model))) as address,
        openai.OpenAI(base_url=f"{address}/v1", api_key="unused") as client,
    ):
        result = vectors_of(client.embeddings.create(model="raw", input=TEXTS))
    assert np.allclose(np.linalg.norm(result, axis=1), 1, atol=1e-6)


def test_the_loaded_model_is_listed_and_found_by_its_names(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    assert client.models.retrieve("sentence-transformers/tiny").id == "tiny"


def test_another_model_is_not_found_in_openais_shape(client):
    with pytest.raises(openai.NotFoundError) as caught:
        client.embeddings.create(model="text-embedding-3-small", input="a")
    assert caught.value.code == "model_not_found" and caught.value.param == "model"
    assert (
        caught.value.body["message"] == "the model 'text-embedding-3-small' is not loaded here. Loaded: tiny"
    )
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("../../etc/passwd")


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        (b"{", 400, "the body is no JSON that can be read: EOF"),
        (b"[]", 400, "the body must be a JSON object"),
        (b'{"model": "tiny"}', 400, "the field 'input' is missing. Required: input, model"),
        (b'{"model": "tiny", "input": []}', 400, "input is empty: give at least one text"),
        (b'{"model": "tiny", "input": [1, "a"]}', 400, "input cannot be read. It takes: a string, a list of"),
        (b'{"model": "tiny", "input": {"a": 1}}', 400, "input cannot be read. It takes: a string, a list of"),
        (b'{"model": "tiny", "input": "\\ud800"}', 400, "the body is no JSON that can be read"),
        (b'{"model": "tiny", "input": "\xff"}', 400, "the body is no JSON that can be read"),
        (b'{"model": 3, "input": "a"}', 400, "model: must be a string"),
        (b'{"model": "tiny", "input": "a", "dimensions": 99}', 400, "dimensions must be at most 32"),
        (
            b'{"model": "tiny", "input": "a", "dimensions": 0}',
            400,
            "dimensions: must be greater than or equal to 1",
        ),
        (
            b'{"model": "tiny", "input": "a", "encoding_format": "hex"}',
            400,
            "encoding_format: must be 'float' or",
        ),
        (b'{"model": "tiny", "input": "a", "prompt_name": "no"}', 400, "unknown prompt 'no'"),
        (b'{"model": "tiny", "input": [-1]}', 400, "input has the token id -1"),
        (b'{"model": "tiny", "input": [' + b'"a",' * 20 + b'"a"]}', 413, "input has 21 texts"),
        (b'{"model": "tiny", "input": "' + b"a" * 1001 + b'"}', 413, "input[0] has 1,001 characters"),
    ],
)
def test_bad_input_gets_one_sentence_in_openais_shape(address, body, status, message):
    answer = httpx.post(
        f"{address}/v1/embeddings", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code == status
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"].startswith(message)
    assert "Traceback" not in answer.text and "/src/" not in answer.text


def test_a_cross_site_simple_request_is_refused(address):
    for sort in ("text/plain", "application/x-www-form-urlencoded"):
        body = {"content": b'{"model": "tiny", "input": "a"}', "headers": {"content-type": sort}}
        answer = httpx.post(f"{address}/v1/embeddings", **body)
        assert answer.status_code == 415
        assert answer.json()["error"]["message"] == f"the body must be sent as application/json, got '{sort}'"


def test_nul_and_emoji_are_texts_as_any_other(client, model):
    texts = ["a\x00b", "hello 😀 world", "שלום", ""]
    assert np.array_equal(
        vectors_of(client.embeddings.create(model="tiny", input=texts)), model.encode(texts)
    )
