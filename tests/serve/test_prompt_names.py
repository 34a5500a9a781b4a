"""MODEL:query and MODEL:document as names of models: the checkpoint's prompts for clients that cannot send a field."""

import httpx
import numpy as np
import openai
import pytest

import gemel
from serve_case import app_of, live, make_services
from tiny import tiny_bert

TEXTS = ["the cat is sleeping", "a dog is running in the street"]
PROMPTS = {"query": "how do i ", "passage": "the ", "clustering": "a "}
SIDES = {"query": "query", "document": "passage"}


def load(folder, **settings):
    return gemel.load(tiny_bert(folder, **settings))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return load(tmp_path_factory.mktemp("models") / "tiny", prompts=PROMPTS)


@pytest.fixture(scope="module")
def address(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("more")
    more = {
        "plain": load(folder / "plain"),
        "empty": load(folder / "empty", prompts={"query": "", "document": ""}),
        "one-sided": load(folder / "one", prompts={"query": "how do i "}),
        "bare-documents": load(folder / "bare", prompts={"query": "how do i ", "document": ""}),
        "owner/taken": load(folder / "taken", prompts={"query": "how do i "}),
        "owner/taken:query": load(folder / "other", seed=5),
    }
    with live(app_of(make_services(model, more_models=more))) as result:
        yield result


def floats(rows):
    return np.array(rows, dtype=np.float32)


def post(address, path, **body):
    return httpx.post(f"{address}{path}", json=body)


def embedded(address, path, **body):
    """The vectors of an answer in the form of any protocol."""
    answer = post(address, path, **body)
    assert answer.status_code == 200, answer.text
    content = answer.json()
    if "data" in content:
        return floats([row["embedding"] for row in content["data"]])
    if "embedding" in content:
        return floats([content["embedding"]])
    rows = content["embeddings"]
    return floats(rows["float"] if isinstance(rows, dict) else rows)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/v1/embeddings", "input"),
        ("/embeddings", "input"),
        ("/openai/v1/embeddings", "input"),
        ("/api/embed", "input"),
        ("/v1/embed", "texts"),
        ("/v2/embed", "texts"),
    ],
)
def test_the_name_selects_the_prompt_on_every_route(address, model, path, field, side):
    expected = model.encode(TEXTS, prompt_name=SIDES[side])
    assert not np.array_equal(expected, model.encode(TEXTS, prompt_name=None))
    for name in (f"tiny:{side}", f"sentence-transformers/tiny:{side}"):
        assert np.array_equal(embedded(address, path, model=name, **{field: TEXTS}), expected)


def test_the_older_form_of_ollama_takes_the_name(address, model):
    result = embedded(address, "/api/embeddings", model="tiny:query", prompt=TEXTS[0])
    assert np.array_equal(result, model.encode(TEXTS[:1], prompt_name="query"))


def test_the_client_of_azure_names_it_as_deployment(address, model):
    settings = {"azure_endpoint": address, "api_version": "2024-02-01", "api_key": "unused"}
    with openai.AzureOpenAI(**settings, azure_deployment="tiny:document") as client:
        answer = client.embeddings.create(model="ignored", input=TEXTS)
    assert answer.model == "tiny:document"
    result = floats([row.embedding for row in answer.data])
    assert np.array_equal(result, model.encode(TEXTS, prompt_name="passage"))


def test_models_are_listed_with_their_prompts(address):
    entries = {each["id"]: each for each in httpx.get(f"{address}/v1/models").json()["data"]}
    listed = {name: (each.get("parent"), each.get("prompts")) for name, each in entries.items()}
    assert listed == {
        "tiny": (None, PROMPTS),
        "tiny:query": ("tiny", {"query": "how do i "}),
        "tiny:document": ("tiny", {"passage": "the "}),
        "plain": (None, None),
        "empty": (None, None),
        "one-sided": (None, {"query": "how do i "}),
        "one-sided:query": ("one-sided", {"query": "how do i "}),
        "bare-documents": (None, {"query": "how do i ", "document": ""}),
        "bare-documents:query": ("bare-documents", {"query": "how do i "}),
        "bare-documents:document": ("bare-documents", {"document": ""}),
        "owner/taken": (None, {"query": "how do i "}),
        "owner/taken:query": (None, None),
    }
    assert set(entries["plain"]) == {"id", "object", "created", "owned_by"}
    for name, entry in entries.items():
        assert httpx.get(f"{address}/v1/models/{name}").json() == entry
    tags = httpx.get(f"{address}/api/tags").json()["models"]
    assert [each["name"] for each in tags] == list(entries)
    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused") as client:
        assert [each.id for each in client.models.list()] == list(entries)


def test_a_name_that_the_operator_gave_comes_first(address):
    named = embedded(address, "/v1/embeddings", model="owner/taken:query", input=TEXTS)
    prompted = embedded(address, "/v1/embeddings", model="owner/taken", input=TEXTS, prompt_name="query")
    assert not np.array_equal(named, prompted)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "plain:query",
            "the model 'plain' has no prompt for queries, so there is no 'plain:query'. Use: plain",
        ),
        (
            "empty:document",
            "the model 'empty' has no prompt for documents, so there is no 'empty:document'. Use: empty",
        ),
        (
            "one-sided:document",
            "the model 'one-sided' has no prompt for documents, so there is no 'one-sided:document'. "
            "Use: one-sided, one-sided:query",
        ),
    ],
)
def test_a_prompt_that_the_checkpoint_lacks_is_an_error(address, name, message):
    for path, body in (("/v1/embeddings", {"input": TEXTS}), ("/v2/embed", {"texts": TEXTS})):
        answer = post(address, path, model=name, **body)
        assert (answer.status_code, answer.json()["error"]["message"]) == (404, message)
    answer = post(address, "/api/embed", model=name, input=TEXTS)
    assert (answer.status_code, answer.json()["error"]) == (404, message)
    assert httpx.get(f"{address}/v1/models/{name}").status_code == 404


def test_another_tag_is_no_prompt(address):
    for name in ("tiny:clustering", "tiny:passage", "absent:query", ":query", "tiny:query:query"):
        answer = post(address, "/v1/embeddings", model=name, input=TEXTS)
        assert answer.status_code == 404
        assert answer.json()["error"]["message"].startswith(f"the model {name!r} is not loaded here")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/embeddings", {"input": TEXTS, "prompt_name": "query"}),
        ("/v1/embeddings", {"input": TEXTS, "input_type": "query"}),
        ("/v1/embeddings", {"input": TEXTS, "task": "retrieval.query"}),
        ("/v2/embed", {"texts": TEXTS, "input_type": "search_query"}),
    ],
)
def test_a_field_may_repeat_the_name_but_not_contradict_it(address, model, path, body):
    expected = model.encode(TEXTS, prompt_name="query")
    assert np.array_equal(embedded(address, path, model="tiny:query", **body), expected)
    answer = post(address, path, model="tiny:document", **body)
    field, value = list(body.items())[1]
    message = f"the model 'tiny:document' chooses the prompt 'passage', but {field} is {value!r}. "
    assert answer.status_code == 400
    assert answer.json()["error"]["message"] == f"{message}Leave out {field}, or name the model 'tiny'"


def test_a_purpose_without_a_prompt_contradicts_the_name_too(address):
    answer = post(address, "/v2/embed", model="one-sided:query", texts=TEXTS, input_type="search_document")
    assert answer.status_code == 400
    assert "chooses the prompt 'query', but input_type is 'search_document'" in answer.text


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_reranking_has_both_sides(address, path):
    answer = post(address, path, model="tiny:query", query="a cat", documents=TEXTS)
    assert answer.status_code == 400
    assert "Name the model 'tiny'" in answer.text
    assert post(address, path, model="tiny", query="a cat", documents=TEXTS).status_code == 200
