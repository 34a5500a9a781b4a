"""Access control: read-only keys, addresses with wrong keys, origins, compressed bodies; and the log."""

import asyncio
import errno
import json
import logging
import socket
import threading
import warnings

import pytest

import gemel
from gemel.cli.verbs.serve import _say_ready
from gemel.errors import InputError, WorkError
from gemel.serve import connection
from gemel.serve.access import FailedKeys, network_of, read_keys
from gemel.serve.options import ServeOptions
from gemel.serve.telemetry import RequestLog, capture_logging, reason_of
from serve_case import app_of, client, live, make_services, openapi_of
from serve_fake import FakeModel
from tiny import tiny_bert

WRITER, READER = "writer-secret-0123456789", "reader-secret-0123456789"
CHANGING = {
    ("POST", "/indexes/{name}/documents"),
    ("PATCH", "/indexes/{name}/documents"),
    ("DELETE", "/indexes/{name}/documents"),
    ("POST", "/indexes/{name}/snapshots"),
}
READING = {
    *("/v1/embeddings", "/embeddings", "/openai/v1/embeddings", "/openai/deployments/{name}/embeddings"),
    *("/v1/embed", "/v2/embed", "/api/embed", "/api/embeddings", "/v1/score", "/score"),
    *("/v1/rerank", "/v2/rerank", "/", "/embed", "/embed_all", "/embed_sparse", "/v1/sparse"),
    *("/similarity", "/rerank", "/predict", "/tokenize", "/decode", "/search", "/pairs", "/clusters"),
    *("/explain", "/relation", "/indexes/{name}/search", "/indexes/{name}/get", "/indexes/{name}/list"),
    *("/indexes/{name}/count", "/indexes/{name}/facets", "/indexes/{name}/more_like"),
}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("access") / "tiny"))


class FullDisk:
    """An index whose writes fail as a full disk makes them fail."""

    location = "/data/notes"

    def __init__(self, error):
        self._error = error

    def add(self, *_, **__):
        raise self._error

    update = add

    def delete(self, *_, **__):
        return 1

    def close(self):
        pass


def ask(model, *requests, keys=None, indexes=None, address="192.0.2.7", **options):
    """The answers to requests that are made one after the other."""

    async def go():
        services = make_services(model, indexes=indexes)
        app = app_of(services, keys=keys, allowed_host=("localhost",), **options)
        async with client(app) as http:
            http._transport.client = (address, 123)
            answers = [await http.request(method, path, **rest) for method, path, rest in requests]
        await services.close()
        return answers

    return asyncio.run(go())


# Read-only keys


def test_a_key_may_be_read_only(tmp_path):
    file = tmp_path / "keys.txt"
    file.write_text(f"a:{WRITER}\nb:{READER}:read-only\nc:{READER}c:60:read-only\nd:{READER}d:read-only:60\n")
    keys = read_keys(file, f"e:{READER}e:read-only", None)
    result = [keys.find(key) for key in (WRITER, *(READER + end for end in ("", "c", "d", "e")))]
    assert [(key.name, key.read_only, key.bucket is not None) for key in result] == [
        ("a", False, False),
        ("b", True, False),
        ("c", True, True),
        ("d", True, True),
        ("e", True, False),
    ]


@pytest.mark.parametrize(
    "line", [f"a:{READER}:readonly", f"a:{READER}:read-only:read-only", f"{READER}:read-only", f"a:{READER}:"]
)
def test_a_misspelled_permission_is_refused_and_not_treated_as_full_access(line):
    with pytest.raises(InputError, match="read-only"):
        read_keys(None, line, None)


def test_a_read_only_key_searches_and_does_not_write(model):
    keys = read_keys(None, f"w:{WRITER},r:{READER}:read-only", None)
    writes = [
        ("POST", "/indexes/notes/documents", {"json": {"documents": [{"text": "a"}]}}),
        ("PATCH", "/indexes/notes/documents", {"json": {"ids": ["a"], "fields": {"year": 1}}}),
        ("DELETE", "/indexes/notes/documents", {"content": b'{"ids": ["a"]}'}),
        ("POST", "/indexes/notes/snapshots", {"json": {}}),
        ("POST", "/embed", {"json": {"inputs": "a"}}),
    ]
    headers = {"content-type": "application/json"}
    answers = {
        key: ask(
            model,
            *(
                (method, path, {**rest, "headers": {**headers, "x-api-key": key}})
                for method, path, rest in writes
            ),
            keys=keys,
            indexes={"notes": FullDisk(InputError("reached"))},
        )
        for key in (WRITER, READER)
    }
    assert [answer.status_code for answer in answers[WRITER]] == [400, 400, 200, 404, 200]
    assert [answer.status_code for answer in answers[READER]] == [403, 403, 403, 403, 200]
    assert answers[READER][0].json()["error"]["type"] == "read_only_key"


def test_every_route_is_classified_as_reading_or_writing(model):
    document = openapi_of(app_of(make_services(model)))["paths"]
    asking = {
        (method.upper(), path)
        for path, methods in document.items()
        for method in methods
        if method.upper() != "GET"
    }
    assert asking == CHANGING | {("POST", path) for path in READING}, (
        "a new route that changes something begins with check_may_write"
    )


# Wrong keys


def test_wrong_keys_from_an_address_are_limited_and_right_ones_elsewhere_are_not(model):
    keys = read_keys(None, f"a:{WRITER}", None)
    guess = ("GET", "/v1/models", {"headers": {"x-api-key": "wrong-key-0123456789"}})
    right = ("GET", "/v1/models", {"headers": {"x-api-key": WRITER}})
    answers = ask(model, *[guess] * 14, right, keys=keys)
    statuses = [answer.status_code for answer in answers]
    assert statuses[:10] == [401] * 10 and 429 in statuses[10:14] and statuses[14] == 429
    assert int(answers[-1].headers["retry-after"]) >= 1
    assert ask(model, right, keys=keys, address="192.0.2.8")[0].status_code == 200


def test_a_key_that_was_right_from_an_address_stays_right_there(model):
    keys = read_keys(None, f"a:{WRITER}", None)
    guess = ("GET", "/v1/models", {"headers": {"x-api-key": "wrong-key-0123456789"}})
    right = ("GET", "/v1/models", {"headers": {"x-api-key": WRITER}})
    statuses = [answer.status_code for answer in ask(model, right, *[guess] * 14, right, keys=keys)]
    assert 429 in statuses and statuses[0] == statuses[-1] == 200


def test_the_limit_of_wrong_keys_ends_and_its_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("gemel.serve.access.MOST_ADDRESSES", 5)
    wrong = FailedKeys(60)
    for _ in range(10):
        assert wrong.wait("a", b"x", now=0.0) == 0
        wrong.record("a", b"x", right=False, now=0.0)
    assert wrong.wait("a", b"x", now=0.0) == pytest.approx(1.0)
    assert wrong.wait("b", b"x", now=0.0) == 0
    assert wrong.wait("a", b"x", now=1.1) == 0
    for number in range(50):
        wrong.record(f"address {number}", b"x", right=number % 2 == 0, now=2.0)
    assert len(wrong._addresses) <= 5 and len(wrong._right) <= 5


def test_the_addresses_of_an_ipv6_network_count_as_one():
    assert network_of("2001:db8::1") == network_of("2001:db8::ffff:2") != network_of("2001:db8:0:1::1")
    assert network_of("::ffff:192.0.2.7") == network_of("192.0.2.7") == "192.0.2.7"
    assert network_of("testclient") == "testclient"


# Origins


@pytest.mark.parametrize(
    "origin",
    [
        *("https://example.org/", "https://example.org/app", "example.org", "://example.org", "https://"),
        *("HTTPS://example.org", "https://Example.org", "https://bücher.example", "https://*.example.org"),
        *("https://example.org:443", "http://example.org:80", "https://example.org:", "https://a b.org"),
        *("https://example.org?x=1", "https://me@example.org", "https://example.org:port", "null", ""),
    ],
)
def test_an_origin_that_can_never_match_is_refused(origin):
    with pytest.raises(InputError, match="can never match"):
        ServeOptions(cors_origin=(origin,))


def test_origins_as_browsers_send_them_are_taken():
    origins = (
        "https://example.org",
        "http://localhost:3000",
        "http://[::1]:8000",
        "chrome-extension://abcdef",
    )
    assert ServeOptions(cors_origin=(*origins, "*")).cors_origin == (*origins, "*")


def test_allowing_every_origin_gives_a_warning(capsys, model):
    for origins in (("https://example.org",), ("*",)):
        options = ServeOptions(cors_origin=origins)
        _say_ready(options)("http://127.0.0.1:1", make_services(model))
        assert ("warning: --cors-origin '*' lets every web page" in capsys.readouterr().err) == (
            origins == ("*",)
        )


# Bodies that are compressed


def test_a_compressed_body_is_refused_before_it_is_read(model):
    headers = {"content-type": "application/json", "content-encoding": "gzip"}
    plain = {"content-type": "application/json", "content-encoding": "identity"}
    packed, open_ = ask(
        model,
        ("POST", "/embed", {"content": b"\x1f\x8b\x08", "headers": headers}),
        ("POST", "/embed", {"content": b'{"inputs": "a"}', "headers": plain}),
    )
    assert (packed.status_code, open_.status_code) == (415, 200)
    assert "content-encoding 'gzip' is not read" in packed.json()["error"]
    assert packed.headers["accept-encoding"] == "identity"


# The log


def failures(capsys):
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    return [line for line in lines if line["event"] != "request"]


@pytest.mark.parametrize("wrapped", [False, True])
def test_the_log_says_why_a_write_failed(model, capsys, wrapped):
    error = OSError(errno.ENOSPC, "No space left on device", "/data/notes/secret name")
    if wrapped:
        error = WorkError("cannot write to /data/notes: LanceError(IO): a secret text (os error 28)")
    answer = ask(
        model,
        ("POST", "/indexes/notes/documents", {"json": {"documents": [{"text": "a secret text"}]}}),
        indexes={"notes": FullDisk(error)},
        log="json",
    )[0]
    assert answer.status_code == 500
    (line,) = failures(capsys)
    assert line["reason"] == "No space left on device"
    assert "secret" not in json.dumps(line) and "secret" not in answer.text


def test_the_reason_is_found_behind_other_errors():
    try:
        try:
            raise OSError(errno.EROFS, "in other words")
        except OSError as error:
            raise RuntimeError("a wrapper") from error
    except RuntimeError as error:
        assert reason_of(error) == "Read-only file system"
    assert reason_of(MemoryError()) == "Cannot allocate memory"
    assert reason_of(ValueError("nothing of the system")) is None


@pytest.mark.filterwarnings("default")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_messages_of_libraries_are_logged_as_json_without_a_traceback(capsys):
    def fail():
        raise ValueError("a secret")

    with capture_logging(RequestLog("json")):
        try:
            fail()
        except ValueError:
            logging.getLogger("asyncio").exception("an exception was never retrieved")
        logging.getLogger("gemel.serve").error("a text of %d tokens fails", 7)
        logging.getLogger("some.library").warning("quotes a secret")
        warnings.warn("quotes a secret", UserWarning, stacklevel=1)
        thread = threading.Thread(target=fail, name="worker")
        thread.start()
        thread.join()
    lines = failures(capsys)
    assert [line["event"] for line in lines] == ["failure", "log", "log", "log", "failure"]
    assert lines[1]["message"] == "a text of 7 tokens fails"
    assert "secret" not in json.dumps(lines) and "fail" in lines[0]["frames"][-1]


# Connections


def test_a_websocket_upgrade_does_not_bypass_keys(model):
    keys = read_keys(None, f"a:{WRITER}", None)
    with live(app_of(make_services(model), keys=keys)) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=10) as one:
            one.sendall(
                b"GET /status HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: websocket\r\n"
                b"sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
            )
            assert one.recv(1000).startswith(b"HTTP/1.1 401 ")


def test_a_client_that_does_not_read_its_answer_is_cut_off(monkeypatch):
    lost, close = threading.Event(), connection.Connection.connection_lost

    def note(self, error):
        lost.set()
        close(self, error)

    monkeypatch.setattr(connection, "STALLED_SECONDS", 0.2)
    monkeypatch.setattr(connection.Connection, "connection_lost", note)
    with live(app_of(make_services(FakeModel()))) as url:
        host, port = url.removeprefix("http://").split(":")
        with socket.socket() as one:
            one.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            one.connect((host, int(port)))
            one.settimeout(20)
            one.sendall(b"GET /openapi.json HTTP/1.1\r\nhost: localhost\r\n\r\n" * 400)
            assert lost.wait(20)
