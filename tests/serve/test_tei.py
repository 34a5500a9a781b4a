"""The protocol of text-embeddings-inference, called by the client of huggingface_hub and by plain requests."""

import json

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError
from tests.encoder.test_classification_head import LABELS

import gemel
from gemel.index.open import open_index
from gemel.serve.options import Limits
from gemel.serve.protocols import cohere, ollama, openai, rerank, tei
from gemel.serve.routes import ForeignRequest
from serve_case import app_of, live, make_services
from serve_models import light_cross, related_model
from tiny import tiny_bert

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")

TEXTS = ["the cat is sleeping", "a dog is running in the street", "the stock market fell sharply"]
LONG = "the dog is running and " * 30 + "the cat is sleeping on the sofa"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(tiny_bert(folder / "tiny", prompts={"query": "how do i "}))


@pytest.fixture(scope="module")
def address(model):
    with live(app_of(make_services(model, limits=Limits(texts=50, tokens=5000)))) as result:
        yield result


@pytest.fixture(scope="module")
def ranking(folder, model):
    """A server with a cross-encoder that ranks."""
    cross = light_cross(folder / "cross")
    with live(app_of(make_services(model, cross=cross))) as result:
        yield result, cross


def is_request(kind):
    return (
        isinstance(kind, type)
        and issubclass(kind, ForeignRequest)
        and "json_schema_extra" in kind.model_config
    )


def ask(address, path, **body):
    answer = httpx.post(f"{address}/{path}", json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def vectors(address, **body):
    return np.array(ask(address, "embed", **body), dtype=np.float32)


# With huggingface_hub


def test_feature_extraction_gives_the_bits_of_encode(address, model):
    client = InferenceClient(model=f"{address}/embed")
    assert np.array_equal(client.feature_extraction(TEXTS), model.encode(TEXTS))
    assert np.array_equal(client.feature_extraction(TEXTS[0]), model.encode(TEXTS[:1]))


def test_the_address_alone_is_enough_for_the_client(address, model):
    client = InferenceClient(model=address)
    assert np.array_equal(client.feature_extraction(TEXTS), model.encode(TEXTS))
    result = client.sentence_similarity(TEXTS[0], other_sentences=TEXTS[1:])
    rows = model.encode(TEXTS)
    assert np.allclose(result, rows[1:] @ rows[0], atol=1e-6)


def test_the_clients_options_reach_the_model(address, model):
    client = InferenceClient(model=f"{address}/embed")
    raw = client.feature_extraction(TEXTS, normalize=False)
    assert np.array_equal(raw, model.encode(TEXTS, normalize=False))
    queries = client.feature_extraction(TEXTS, prompt_name="query")
    assert np.array_equal(queries, model.encode(TEXTS, prompt_name="query"))
    assert client.feature_extraction(TEXTS, dimensions=8).shape == (3, 8)


def test_sentence_similarity_is_the_cosine(address, model):
    result = InferenceClient(model=f"{address}/similarity").sentence_similarity(
        TEXTS[0], other_sentences=TEXTS
    )
    assert np.allclose(result, model.encode(TEXTS) @ model.encode(TEXTS[:1])[0], atol=1e-6)
    assert result[0] == pytest.approx(1, abs=1e-6)


def test_an_error_reaches_the_client_with_its_sentence(address):
    client = InferenceClient(model=f"{address}/embed")
    with pytest.raises(HfHubHTTPError, match="unknown prompt 'no'"):
        client.feature_extraction(TEXTS[0], prompt_name="no")


# Long texts


def test_a_long_text_is_cut_unless_that_is_forbidden(address, model):
    assert np.array_equal(vectors(address, inputs=LONG), model.encode([LONG], on_long="truncate"))
    refused = httpx.post(f"{address}/embed", json={"inputs": LONG, "truncate": False})
    assert refused.status_code in (400, 413) and "tokens, the model reads 64" in refused.json()["error"]


def test_the_beginning_can_be_cut_off_instead_of_the_end(address, model):
    left = InferenceClient(model=f"{address}/embed").feature_extraction(
        LONG, truncate=True, truncation_direction="left"
    )
    words = LONG.split()
    end = " ".join(words[-62:])  # one token per word, and two special tokens
    assert np.array_equal(left, model.encode([end]))
    short = vectors(address, inputs=TEXTS[0], truncation_direction="Left")
    assert np.array_equal(short, model.encode(TEXTS[:1]))


def test_a_cross_encoder_refuses_to_cut_the_beginning(ranking):
    """It has its own tokenizer and maximum length, and truncates at the end, whatever the limits of the other model."""
    address, cross = ranking
    queries = {"query": TEXTS[0], "truncation_direction": "Left"}
    assert cross.max_length < 60
    fits = ask(address, "rerank", **queries, texts=TEXTS, raw_scores=True)
    logits = cross.logits([TEXTS[0]] * 3, TEXTS)[:, 0]
    assert [row["score"] for row in fits] == pytest.approx(sorted(logits.tolist(), reverse=True), abs=1e-6)
    refused = httpx.post(f"{address}/rerank", json={**queries, "texts": [" ".join(LONG.split()[:60])]})
    assert refused.status_code == 400, refused.text
    assert "the model reads 48, and truncation_direction 'Left' is not possible" in refused.json()["error"]


# What is left out, and too much

REQUESTS = [
    kind
    for protocol in (tei, openai, rerank, cohere, ollama)
    for kind in vars(protocol).values()
    if is_request(kind) and kind.__module__ == protocol.__name__
]
ALTERNATIVES = {  # one of these is given, and the example gives it
    tei.RerankRequest: "texts",
    cohere.CohereEmbedRequest: "texts",
    cohere.CohereEmbedV1Request: "texts",
}


@pytest.mark.parametrize("kind", REQUESTS)
def test_optional_fields_may_be_null(kind):
    """Clients written in typed languages send null for what was not given."""
    optional = [
        name
        for name, field in kind.model_fields.items()
        if not field.is_required() and name != ALTERNATIVES.get(kind)
    ]
    body = {**kind.model_json_schema()["examples"][0], **dict.fromkeys(optional)}
    assert kind.model_validate_json(json.dumps(body)).model_dump(include=set(optional)) == dict.fromkeys(
        optional
    )


def test_null_means_the_default(address):
    nothing = {"truncate": None, "truncation_direction": None, "prompt_name": None}
    for path, body, optional in (
        ("embed", {"inputs": LONG}, {**nothing, "normalize": None, "dimensions": None}),
        ("embed_all", {"inputs": LONG}, nothing),
        ("rerank", {"query": TEXTS[0], "texts": TEXTS}, {"raw_scores": None, "return_text": None}),
        ("tokenize", {"inputs": TEXTS[0]}, {"add_special_tokens": None}),
        ("decode", {"ids": [2, 5, 6, 3]}, {"skip_special_tokens": None}),
    ):
        assert ask(address, path, **body, **optional) == ask(address, path, **body), path


def test_every_route_counts_its_tokens(folder):
    """Also those whose texts do not go through the batcher."""
    model = related_model(folder / "counted")
    texts = ["the cat is sleeping"] * 6  # 36 tokens, 24 of them words
    bodies = {
        "embed": {"inputs": texts},
        "embed_all": {"inputs": texts},
        "tokenize": {"inputs": texts},
        "rerank": {"query": texts[0], "texts": texts[1:]},
        "predict": {"inputs": [texts[:2]] * 3},
        "relation": {"left": texts[:3], "right": texts[3:]},
        "explain": {"left": " ".join(texts[:4]), "right": " ".join(texts[4:])},
        "indexes/notes/documents": {"documents": [{"text": text} for text in texts]},
    }
    with open_index(":memory:", model) as index:
        limits = Limits(tokens=27)
        for cross in (None, light_cross(folder / "one"), light_cross(folder / "three", labels=3)):
            app = app_of(make_services(model, cross=cross, limits=limits, indexes={"notes": index}))
            with live(app) as address:
                for path, body in bodies.items():
                    answer = httpx.post(f"{address}/{path}", json=body)
                    assert answer.status_code == 413, (path, answer.text)
                left = {"inputs": texts, "truncation_direction": "Left"}
                assert httpx.post(f"{address}/embed", json=left).status_code == 413


# Token vectors, tokens, texts


def test_embed_all_gives_the_vectors_of_every_token(address, model):
    result = ask(address, "embed_all", inputs=TEXTS)
    for rows, expected in zip(result, model.tokens(TEXTS), strict=True):
        assert np.array_equal(np.array(rows, dtype=np.float32), expected.vectors)


def test_embed_all_refuses_an_answer_that_would_be_too_large(address, monkeypatch):
    monkeypatch.setattr("gemel.serve.protocols.tei.MOST_NUMBERS", 100)
    answer = httpx.post(f"{address}/embed_all", json={"inputs": TEXTS})
    assert answer.status_code == 413
    assert answer.json()["error"].startswith("the token vectors of these texts are")


def test_sparse_vectors_are_declined_as_by_a_model_without_them(address):
    answer = httpx.post(f"{address}/embed_sparse", json={"inputs": "a"})
    assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")


def test_tokens_have_offsets_and_decode_to_the_text(address):
    (result,) = ask(address, "tokenize", inputs="the café dog")
    assert [each["text"] for each in result] == ["[CLS]", "the", "c", "a", "f", "é", "dog", "[SEP]"]
    assert [each["special"] for each in result] == [True, *[False] * 6, True]
    assert result[0]["start"] is None and (result[5]["start"], result[5]["stop"]) == (7, 8)
    ids = [each["id"] for each in result]
    assert ask(address, "decode", ids=ids) == ["the café dog"]
    assert ask(address, "decode", ids=[ids, ids[:2]], skip_special_tokens=False)[1] == "[CLS] the"


def test_tokens_without_special_tokens_and_with_a_prompt(address):
    (result,) = ask(address, "tokenize", inputs=["dog"], add_special_tokens=False, prompt_name="query")
    assert [each["text"] for each in result] == ["how", "do", "i", "dog"]


def test_info_names_the_model_and_the_limits(address):
    result = httpx.get(f"{address}/info").json()
    assert result["model_id"] == "tiny" and result["max_input_length"] == 64
    assert result["model_type"] == {"embedding": {"pooling": "mean"}}
    assert result["max_client_batch_size"] == 50


# Ranking and classes


def test_rerank_without_a_cross_encoder_is_by_cosine(address, model):
    result = ask(address, "rerank", query=TEXTS[0], texts=TEXTS, raw_scores=True, return_text=True)
    cosine = model.encode(TEXTS) @ model.encode(TEXTS[:1], prompt_name="query")[0]
    assert [row["index"] for row in result] == np.argsort(-cosine).tolist()
    assert [row["score"] for row in result] == pytest.approx(sorted(cosine, reverse=True), abs=1e-6)
    assert [row["text"] for row in result] == [TEXTS[row["index"]] for row in result]
    between = ask(address, "rerank", query=TEXTS[0], texts=TEXTS)
    assert [row["score"] for row in between] == pytest.approx([(1 + row["score"]) / 2 for row in result])


def test_rerank_with_a_cross_encoder_is_its_ranking(ranking):
    address, cross = ranking
    result = ask(address, "rerank", query=TEXTS[0], texts=TEXTS)
    expected = cross.rank(TEXTS[0], TEXTS)
    assert [row["index"] for row in result] == expected.index.tolist()
    raw = ask(address, "rerank", query=TEXTS[0], texts=TEXTS, raw_scores=True)
    logits = cross.logits([TEXTS[0]] * 3, TEXTS)[:, 0]
    assert [row["score"] for row in raw] == pytest.approx(logits[expected.index].tolist(), abs=1e-6)
    assert [row["score"] for row in result] == pytest.approx(
        1 / (1 + np.exp(-logits[expected.index])), abs=1e-6
    )


def test_a_model_without_classes_declines_to_predict(address, ranking):
    for server in (address, ranking[0]):
        answer = httpx.post(f"{server}/predict", json={"inputs": TEXTS[:2]})
        assert (answer.status_code, answer.json()["error_type"]) == (424, "Backend")


def test_a_classification_head_predicts_the_classes_of_pairs(folder):
    model = related_model(folder)
    with live(app_of(make_services(model))) as address:
        one = ask(address, "predict", inputs=TEXTS[:2])
        several = ask(address, "predict", inputs=[TEXTS[:2], TEXTS[1:]])
        single = httpx.post(f"{address}/predict", json={"inputs": "one text"})
    expected = dict(zip(LABELS, model.relation(TEXTS[:1], TEXTS[1:2])[0].tolist(), strict=True))
    assert {row["label"]: row["score"] for row in one} == pytest.approx(expected)
    assert [row["score"] for row in one] == sorted(expected.values(), reverse=True)
    assert several[0] == one and len(several) == 2
    assert single.status_code == 400 and "two texts each" in single.json()["error"]


def test_a_cross_encoder_with_classes_predicts_and_does_not_rank(folder, model):
    cross = light_cross(folder / "nli", labels=3)
    with live(app_of(make_services(model, cross=cross))) as address:
        result = ask(address, "predict", inputs=[TEXTS[:2]])[0]
        raw = ask(address, "predict", inputs=[TEXTS[:2]], raw_scores=True)[0]
        ranked = ask(address, "rerank", query=TEXTS[0], texts=TEXTS, raw_scores=True)
    chances = cross.probabilities(TEXTS[:1], TEXTS[1:2])[0]
    assert [row["score"] for row in result] == pytest.approx(sorted(chances.tolist(), reverse=True))
    assert raw[0]["score"] == pytest.approx(float(cross.logits(TEXTS[:1], TEXTS[1:2]).max()))
    assert all(-1 <= row["score"] <= 1 for row in ranked)


# Bad input


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("embed", {}, 400, "the field 'inputs' is missing"),
        ("embed", {"inputs": []}, 400, "inputs is empty"),
        ("embed", {"inputs": [["a"]]}, 400, "inputs cannot be read. It takes: a string"),
        ("embed", {"inputs": ["a"] * 51}, 413, "inputs has 51 texts; one request takes at most 50"),
        ("embed", {"inputs": "a", "truncation_direction": "up"}, 400, "truncation_direction: must be 'Left'"),
        ("embed", {"inputs": "a", "normalize": "yes"}, 400, "normalize: must be a boolean"),
        ("embed_all", {"inputs": None}, 400, "inputs cannot be read"),
        ("similarity", {"inputs": {"source_sentence": "a"}}, 400, "inputs.sentences: Field required"),
        ("similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, 400, "sentences is empty"),
        ("rerank", {"query": "a", "texts": []}, 400, "texts is empty"),
        ("rerank", {"query": "a"}, 400, "the field 'texts' is missing. Required: query, texts"),
        ("tokenize", {"inputs": 3}, 400, "inputs cannot be read. It takes: a string or a list of strings"),
        ("decode", {"ids": []}, 400, "ids is empty"),
        ("decode", {"ids": [10**12]}, 400, "ids has the token id 1000000000000; tiny knows ids from 0"),
        ("", {"inputs": 3}, 400, "inputs cannot be read"),
    ],
)
def test_bad_input_gets_one_sentence_in_the_protocols_shape(address, path, body, status, message):
    answer = httpx.post(f"{address}/{path}", json=body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error", "error_type"}
    assert answer.json()["error"].startswith(message)
    assert "Traceback" not in answer.text and "/src/" not in answer.text
