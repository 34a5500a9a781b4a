"""Requests generated from the OpenAPI document: none breaks the server, every answer matches the document."""

import json
from pathlib import Path

import httpx
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
    response_schema_conformance,
    status_code_conformance,
)

import gemel
from gemel.index.open import open_index
from gemel.serve.options import Limits
from serve_case import app_of, live, make_services
from serve_models import light_cross, related_model
from tiny_late import tiny_late
from tiny_sparse import tiny_sparse

OPERATIONS = [
    ("POST", "/"),
    ("POST", "/api/embed"),
    ("POST", "/api/embeddings"),
    ("GET", "/api/tags"),
    ("POST", "/clusters"),
    ("POST", "/decode"),
    ("POST", "/embed"),
    ("POST", "/embed_all"),
    ("POST", "/embed_sparse"),
    ("POST", "/embeddings"),
    ("POST", "/explain"),
    ("GET", "/indexes"),
    ("GET", "/indexes/{name}"),
    ("DELETE", "/indexes/{name}/documents"),
    ("PATCH", "/indexes/{name}/documents"),
    ("POST", "/indexes/{name}/documents"),
    ("POST", "/indexes/{name}/count"),
    ("POST", "/indexes/{name}/facets"),
    ("POST", "/indexes/{name}/get"),
    ("POST", "/indexes/{name}/list"),
    ("POST", "/indexes/{name}/more_like"),
    ("POST", "/indexes/{name}/search"),
    ("GET", "/indexes/{name}/snapshots"),
    ("POST", "/indexes/{name}/snapshots"),
    ("GET", "/info"),
    ("POST", "/openai/deployments/{name}/embeddings"),
    ("POST", "/openai/v1/embeddings"),
    ("POST", "/pairs"),
    ("POST", "/predict"),
    ("POST", "/relation"),
    ("POST", "/rerank"),
    ("POST", "/score"),
    ("POST", "/search"),
    ("POST", "/similarity"),
    ("GET", "/status"),
    ("POST", "/tokenize"),
    ("POST", "/v1/embed"),
    ("POST", "/v1/embeddings"),
    ("GET", "/v1/models"),
    ("GET", "/v1/models/{name}"),
    ("POST", "/v1/rerank"),
    ("POST", "/v1/score"),
    ("POST", "/v1/sparse"),
    ("POST", "/v2/embed"),
    ("POST", "/v2/rerank"),
]
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
    negative_data_rejection,
]
EXAMPLES = 12
SLOW_TO_MAKE = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    model, cross = related_model(folder), light_cross(folder / "cross")
    with open_index(":memory:", model) as index:
        index.add(["the cat is sleeping", "hello world"], ids=["a", "b"], fields={"year": [2020, 2021]})
        more = {
            "snapshots": tmp_path_factory.mktemp("snapshots"),
            "sparse": gemel.load_sparse(tiny_sparse(folder / "splade")),
            "late": gemel.load_late(tiny_late(folder / "colbert")),
        }
        services = make_services(
            model, cross=cross, indexes={"notes": index}, limits=Limits(texts=100), **more
        )
        with live(app_of(services)) as result:
            yield result


@pytest.fixture(scope="module")
def schema(address):
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


@pytest.fixture(scope="module")
def document(address):
    return httpx.get(f"{address}/openapi.json").json()


def test_the_document_is_the_one_that_clients_were_generated_from(document):
    """A change of the API is a visible change of openapi.json, which was written from this document."""
    golden = json.loads(Path(__file__).with_name("openapi.json").read_text())
    assert document["openapi"] == "3.1.0"
    assert document["paths"] == golden["paths"]
    assert document["components"] == {"schemas": golden["schemas"]}


def test_every_route_of_the_protocols_is_tested(document):
    documented = [(method.upper(), path) for path, item in document["paths"].items() for method in item]
    health = {"/metrics", "/health", "/health/live", "/health/ready"}
    assert sorted(each for each in documented if each[1] not in health) == sorted(OPERATIONS)


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE])
@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_made_up_requests_are_answered_as_the_document_says(schema, address, method, path, mode):
    operation = schema[path][method]
    if mode is GenerationMode.NEGATIVE and method == "GET":
        return  # no parameters

    @seed(7)
    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=SLOW_TO_MAKE,
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def run(case):
        if "name" in case.path_parameters and not path.startswith("/v1"):
            case.path_parameters["name"] = "notes" if path.startswith("/indexes") else "kept"
        if path == "/clusters" and mode is GenerationMode.POSITIVE:
            case.body = {**case.body, "k": None, "method": None, "layout": "pca"}  # others are slow to import
        case.call_and_validate(base_url=address, checks=CHECKS, timeout=60)

    run()


@pytest.mark.parametrize(("method", "path"), OPERATIONS)
def test_the_documents_own_example_is_answered(document, address, method, path):
    operation = document["paths"][path][method.lower()]
    assert operation["description"]
    if "requestBody" not in operation:
        return
    (body,) = operation["requestBody"]["content"]["application/json"]["schema"]["examples"]
    if "model" in body:
        body["model"] = "kept"
    if path == "/decode":
        body["ids"] = [5, 6]
    if path == "/indexes/{name}/documents" and method == "POST":
        body["documents"][0]["fields"] = {"year": 2022}
    if method == "PATCH":  # which documents are left depends on the tests before
        body = {"where": "year >= 0", "fields": {"year": 2022}}
    name = "notes" if path.startswith("/indexes") else "kept"
    answer = httpx.request(method, address + path.replace("{name}", name), json=body)
    assert answer.status_code == 200, answer.text
