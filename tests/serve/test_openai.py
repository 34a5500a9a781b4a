"""The protocol of OpenAI, called by its own client, and what Azure, Voyage, Jina and infinity make of it."""

import asyncio
import base64
import json

import httpx
import numpy as np
import openai
import pytest

import gemel
from gemel.serve.access import read_keys
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
    with live(app_of(make_services(model, limits=limits, accept_token_ids=True))) as result:
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
    assert [model.id for model in client.models.list()] == ["tiny", "tiny:query"]
    assert client.models.retrieve("tiny").id == "tiny"
    assert client.models.retrieve("tiny:query").id == "tiny:query"
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
        (b'{"model": "tiny"}', 400, "the field 'input' is missing. Required: input"),
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
    assert set(error) - {"help"} == {"message", "type", "param", "code"}
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


# Clients of others


@pytest.fixture(scope="module")
def texts_only(model):
    """A server as it starts by default."""
    with live(app_of(make_services(model))) as result:
        yield result


def ask(address, path="/v1/embeddings", **body):
    answer = httpx.post(f"{address}{path}", json=body)
    assert answer.status_code == 200, answer.text
    return [row["embedding"] for row in answer.json()["data"]]


def floats(rows):
    return np.array(rows, dtype=np.float32)


def test_the_client_of_azure_works_with_its_path_and_its_key(model):
    keys = read_keys(None, "someone:a-secret-of-enough-length", None)
    with live(app_of(make_services(model), keys=keys)) as address:
        settings = {"azure_endpoint": address, "api_version": "2024-02-01", "max_retries": 0}
        with openai.AzureOpenAI(**settings, api_key="a-secret-of-enough-length") as client:
            assert np.array_equal(
                vectors_of(client.embeddings.create(model="tiny", input=TEXTS)), model.encode(TEXTS)
            )
            with pytest.raises(openai.NotFoundError, match="the model 'ada' is not loaded here"):
                client.embeddings.create(model="ada", input=TEXTS)
        with openai.AzureOpenAI(
            **settings, api_key="a-secret-of-enough-length", azure_deployment="tiny"
        ) as client:
            named = client.embeddings.create(model="text-embedding-3-small", input=TEXTS)
            assert np.array_equal(vectors_of(named), model.encode(TEXTS))
        with (
            openai.AzureOpenAI(**settings, api_key="wrong") as client,
            pytest.raises(openai.AuthenticationError),
        ):
            client.embeddings.create(model="tiny", input=TEXTS)


def test_the_model_may_be_left_out_where_one_is_loaded(texts_only, model):
    assert np.array_equal(floats(ask(texts_only, input=TEXTS)), model.encode(TEXTS))


def test_ids_are_refused_unless_the_server_accepts_them(texts_only):
    # What OpenAIEmbeddings of LangChain sends by default: ids of tiktoken.
    body = {"input": [[1820, 8415, 374, 21811]], "model": "tiny", "encoding_format": "base64"}
    answer = httpx.post(f"{texts_only}/v1/embeddings", json=body)
    assert answer.status_code == 400
    message = answer.json()["error"]["message"]
    assert "set check_embedding_ctx_length=False" in message and "--accept-token-ids" in message


def test_langchain_works_when_it_sends_texts(texts_only, model):
    langchain = pytest.importorskip("langchain_openai", reason="needs pip install langchain-openai")
    with httpx.Client() as http:
        embeddings = langchain.OpenAIEmbeddings(
            model="tiny",
            base_url=f"{texts_only}/v1",
            api_key="unused",
            check_embedding_ctx_length=False,
            http_client=http,
        )
        assert np.array_equal(floats(embeddings.embed_documents(TEXTS)), model.encode(TEXTS))


@pytest.mark.parametrize(
    ("kind", "dtype"),
    [("float", "<f4"), ("int8", "i1"), ("uint8", "u1"), ("binary", "i1"), ("ubinary", "u1")],
)
def test_voyage_gets_its_number_formats_and_dimensions(texts_only, model, kind, dtype):
    # Byte for byte what voyageai 0.5 sends: Client(...).embed(TEXTS, "tiny", "query", output_dtype=..., ...)
    body = json.dumps(
        {
            "input": TEXTS,
            "model": "tiny",
            "input_type": "query",
            "truncation": True,
            "output_dtype": kind,
            "output_dimension": 16,
            "encoding_format": "base64",
        }
    )
    headers = {"content-type": "application/json"}
    answer = httpx.post(f"{texts_only}/v1/embeddings", content=body, headers=headers).json()
    result = np.stack(
        [np.frombuffer(base64.b64decode(row["embedding"]), dtype=dtype) for row in answer["data"]]
    )
    vectors = model.encode(TEXTS, prompt_name="query", dim=16)
    small = gemel.quantize(vectors, "int8").astype(int)
    bits = np.packbits(vectors > 0, axis=1).astype(int)
    expected = {"float": vectors, "int8": small, "uint8": small + 128, "binary": bits - 128, "ubinary": bits}
    assert np.array_equal(result, expected[kind])
    assert answer["usage"]["total_tokens"] > 0


def test_the_real_client_of_voyage_reads_the_answers(texts_only, model, monkeypatch):
    voyageai = pytest.importorskip("voyageai", reason="needs pip install voyageai")
    requests = pytest.importorskip("requests")
    with requests.Session() as session:
        monkeypatch.setattr(voyageai, "requestssession", session)
        client = voyageai.Client(api_key="unused", base_url=f"{texts_only}/v1", max_retries=1)
        assert np.array_equal(floats(client.embed(TEXTS, model="tiny").embeddings), model.encode(TEXTS))
        with pytest.raises(voyageai.error.InvalidRequestError, match="output_dimension must be at most 32"):
            client.embed(TEXTS, model="tiny", output_dimension=99)


def test_a_body_without_a_type_is_read_unless_a_browser_sends_it(texts_only):
    """LiteLLM's client for Voyage forgets the header."""
    body = b'{"input": ["the cat is sleeping"], "model": "tiny"}'
    assert httpx.post(f"{texts_only}/v1/embeddings", content=body).status_code == 200
    for header in ("origin", "sec-fetch-site"):
        answer = httpx.post(f"{texts_only}/v1/embeddings", content=body, headers={header: "http://localhost"})
        assert answer.status_code == 415


def test_jina_sends_objects_and_a_task(texts_only, model):
    inputs = [{"text": TEXTS[0]}, TEXTS[1], {"text": TEXTS[2]}]
    for task, options in (
        ("retrieval.query", {"prompt_name": "query"}),
        ("retrieval.passage", {}),
        ("text-matching", {}),
    ):
        result = ask(texts_only, model="tiny", input=inputs, task=task)
        assert np.array_equal(floats(result), model.encode(TEXTS, **options))


def test_jina_gets_one_form_or_several(texts_only, model):
    vectors = model.encode(TEXTS)
    (packed, *_) = ask(texts_only, input=TEXTS, embedding_type="base64")
    assert np.array_equal(np.frombuffer(base64.b64decode(packed), dtype="<f4"), vectors[0])
    several = ask(texts_only, input=TEXTS, embedding_type=["float", "ubinary"])
    assert np.array_equal(floats([row["float"] for row in several]), vectors)
    assert np.array_equal([row["ubinary"] for row in several], np.packbits(vectors > 0, axis=1))
    # The word of older clients.
    assert ask(texts_only, input=TEXTS, encoding_type="binary") == ask(
        texts_only, input=TEXTS, embedding_type="binary"
    )


def test_infinity_has_its_path(texts_only, model):
    # Byte for byte what litellm.embedding(model="infinity/tiny", dimensions=8, ...) sends.
    body = b'{"input": ["the cat is sleeping"], "model": "tiny", "output_dimension": 8}'
    answer = httpx.post(
        f"{texts_only}/embeddings", content=body, headers={"content-type": "application/json"}
    )
    result = floats([row["embedding"] for row in answer.json()["data"]])
    assert np.array_equal(result, model.encode(TEXTS[:1], dim=8))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (
            {"input": [{"text": "a"}, {"image": "https://example.org/a.png"}]},
            "image is not supported: only texts",
        ),
        (
            {"input": "a", "late_chunking": True},
            "late_chunking is not supported: each text is encoded on its own",
        ),
        (
            {"input": "a", "embedding_type": "float16"},
            "embedding_type cannot be read. It takes: Jina: float,",
        ),
        (
            {"input": "a", "output_dtype": "base64"},
            "output_dtype: must be 'float', 'int8', 'uint8', 'binary'",
        ),
        (
            {"input": "a", "output_dimension": 99},
            "output_dimension must be at most 32, the model's own, got 99",
        ),
        (
            {"input": "a", "dimensions": 8, "output_dimension": 16},
            "dimensions and output_dimension were given",
        ),
        (
            {"input": "a", "dimensions": 4, "output_dtype": "binary"},
            "binary packs 8 dimensions to a byte; these",
        ),
        ({"input": "a", "input_type": "question"}, "input_type must be one of query, search_query,"),
        (
            {"input": "a", "task": "retrieval.query", "prompt_name": "query"},
            "prompt_name and task all choose",
        ),
        ({"input": "cat " * 99, "truncate": False}, "texts[0] has 101 tokens, the model reads 64"),
        ({"input": "cat " * 99, "truncation": False}, "texts[0] has 101 tokens, the model reads 64"),
        ({"input": "a", "truncate_prompt_tokens": 5}, "truncate_prompt_tokens: must be -1"),
        ({"input": "a", "modality": "image"}, "modality: must be 'text'"),
    ],
)
def test_fields_that_cannot_be_honored_are_refused(texts_only, body, message):
    answer = httpx.post(f"{texts_only}/v1/embeddings", json=body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].startswith(message)
    assert answer.json()["detail"] == answer.json()["error"]["message"]


def test_vectors_keep_their_lengths_where_jina_says_so(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "raw", normalize=False))
    with live(app_of(make_services(model))) as address:
        result = floats(ask(address, input=TEXTS, normalized=False))
    assert np.array_equal(result, model.encode(TEXTS))
