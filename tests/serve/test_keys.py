"""API keys: where they come from, what they allow, and rate limits."""

import asyncio

import pytest
from starlette.datastructures import Headers

import gemel
from gemel.errors import InputError
from gemel.serve.access import TokenBucket, given_key, read_keys
from gemel.serve.options import ServeOptions
from gemel.serve.run import load_keys
from serve_case import app_of, client, make_services
from tiny import tiny_bert

ANNA, BEN = "anna-secret-0123456789", "ben-secret-0123456789"


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("keys") / "tiny"))


def test_keys_come_from_a_file_and_the_environment(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text(f"# who may ask\nanna:{ANNA}\n\nben:{BEN}:30  # slowly\n")
    keys = read_keys(file, "c-key-0123456789abcd, d:d-key-0123456789abcd", None)
    assert [keys.find(key).name for key in (ANNA, BEN, "c-key-0123456789abcd", "d-key-0123456789abcd")] == [
        "anna",
        "ben",
        "key-3",
        "d",
    ]
    assert keys.find(ANNA).bucket is None and keys.find(BEN).bucket is not None
    assert keys.find("wrong") is None and keys.find("") is None and keys.find("\ud800") is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a:short", "a key of 5 characters can be guessed, at least 16"),
        (f"a:{ANNA}:x", "must be a number over 0"),
        (f"a:{ANNA}:0", "must be a number over 0"),
        (f"a:{ANNA}:5:6", "Write KEY, NAME:KEY or NAME:KEY:REQUESTS_PER_MINUTE"),
        (f"a:{ANNA}\na:{BEN}", "named 'a' is there already"),
        ("# none", "no API key in it"),
    ],
)
def test_a_bad_line_is_named_and_its_key_is_not_shown(tmp_path, text, message):
    file = tmp_path / "keys.txt"
    file.write_text(text)
    with pytest.raises(InputError, match=message) as refused:
        read_keys(file, None, None)
    assert ANNA not in str(refused.value) and "short" not in str(refused.value)
    with pytest.raises(InputError, match="cannot be read"):
        read_keys(tmp_path / "absent", None, None)


def test_a_key_is_sent_in_one_of_two_headers():
    assert given_key(Headers({"authorization": "Bearer abc"})) == "abc"
    assert given_key(Headers({"authorization": "bearer  abc "})) == "abc"
    assert given_key(Headers({"x-api-key": "abc"})) == "abc"
    assert given_key(Headers({"authorization": "Basic abc"})) is None
    assert given_key(Headers()) is None


def test_a_token_bucket_allows_a_burst_and_then_the_rate():
    bucket = TokenBucket(12)  # two at once, then one in five seconds
    start = bucket._seen
    assert [bucket.take(start), bucket.take(start)] == [0, 0]
    assert bucket.take(start) == pytest.approx(5)
    assert bucket.take(start + 5.1) == 0
    assert bucket.take(start + 5.1) > 0


def test_a_public_address_needs_keys(monkeypatch):
    monkeypatch.delenv("GEMEL_API_KEYS", raising=False)
    with pytest.raises(InputError, match=r"host 0\.0\.0\.0 can be reached from other machines"):
        load_keys(ServeOptions(host="0.0.0.0"))
    assert len(load_keys(ServeOptions(host="0.0.0.0", insecure=True))) == 0
    assert len(load_keys(ServeOptions())) == 0
    monkeypatch.setenv("GEMEL_API_KEYS", ANNA)
    assert len(load_keys(ServeOptions(host="0.0.0.0"))) == 1


def statuses(model, keys, *requests):
    async def go():
        services = make_services(model)
        async with client(app_of(services, keys=keys)) as http:
            answers = [await http.request(method, path, **rest) for method, path, rest in requests]
        await services.close()
        return answers

    return asyncio.run(go())


def test_only_a_valid_key_gives_access_to_the_routes(model):
    keys = read_keys(None, f"anna:{ANNA}", None)
    post = {"json": {"input": "a", "model": "tiny"}}
    answers = statuses(
        model,
        keys,
        ("POST", "/v1/embeddings", post),
        ("POST", "/v1/embeddings", {**post, "headers": {"authorization": "Bearer wrong"}}),
        ("POST", "/v1/embeddings", {**post, "headers": {"authorization": f"Bearer {ANNA}"}}),
        ("POST", "/embed", {"json": {"inputs": "a"}, "headers": {"x-api-key": ANNA}}),
        ("GET", "/metrics", {}),
        ("GET", "/status", {}),
    )
    assert [answer.status_code for answer in answers] == [401, 401, 200, 200, 401, 401]
    assert answers[0].json()["error"]["code"] == "invalid_api_key"
    assert answers[0].headers["www-authenticate"] == "Bearer"


def test_the_page_and_health_need_no_key(model):
    keys = read_keys(None, ANNA, None)
    paths = ("/", "/health", "/health/live", "/health/ready")
    answers = statuses(model, keys, *(("GET", path, {}) for path in paths), ("POST", "/", {}))
    assert [answer.status_code for answer in answers] == [200] * 4 + [401]


def test_a_rate_limited_key_gets_retry_after(model):
    keys = read_keys(None, f"anna:{ANNA}:6", None)
    get = ("GET", "/v1/models", {"headers": {"x-api-key": ANNA}})
    first, second = statuses(model, keys, get, get)
    assert (first.status_code, second.status_code) == (200, 429)
    assert 1 <= int(second.headers["retry-after"]) <= 10
