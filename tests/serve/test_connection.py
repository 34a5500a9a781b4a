"""A connection that sends endless or slow headers is closed before any key is checked."""

import socket

import pytest

from gemel.serve import connection
from serve_case import app_of, live, make_services
from serve_fake import FakeModel

LIVE = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n"


@pytest.fixture(scope="module")
def address():
    with live(app_of(make_services(FakeModel()))) as url:
        host, port = url.removeprefix("http://").split(":")
        yield host, int(port)


@pytest.fixture
def open_(address):
    with socket.create_connection(address, timeout=10) as one:
        yield one


@pytest.fixture
def soon(monkeypatch):
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.2)


def answer(one):
    """The next answer's first line; empty where the connection was closed."""
    result = b""
    while b'"live":true}' not in result:
        try:
            more = one.recv(10_000)
        except ConnectionResetError:  # closed, with unread bytes
            more = b""
        if not more:
            break
        result += more
    return result.partition(b"\r\n")[0]


def test_headers_of_a_usual_size_pass(open_):
    for _ in range(2):
        open_.sendall(LIVE + b"x-long: " + b"a" * 50_000 + b"\r\n\r\n")
        assert answer(open_) == b"HTTP/1.1 200 OK"


def test_pipelined_requests_are_all_answered(open_):
    open_.sendall(b"\r\n" + (LIVE + b"\r\n") * 3)
    result = b""
    while result.count(b'"live":true}') < 3:
        more = open_.recv(10_000)
        assert more, result
        result += more


@pytest.mark.parametrize("start", [b"", LIVE + b"\r\n"])
@pytest.mark.parametrize(
    "header", [b"x-long: " + b"a" * 65_000, b"".join(b"x%d: y\r\n" % n for n in range(6700))]
)
def test_whole_headers_that_are_too_long_are_refused(open_, start, header):
    if start:
        open_.sendall(start)
        assert answer(open_) == b"HTTP/1.1 200 OK"
    open_.sendall(LIVE + header + b"\r\n\r\n")
    assert answer(open_) == b"HTTP/1.1 431 Request Header Fields Too Large"


@pytest.mark.parametrize("beginning", [LIVE + b"x-long: ", b"GET /"])
def test_an_endless_header_is_cut_off(open_, beginning):
    open_.sendall(beginning)
    sent = 0
    with pytest.raises(OSError):  # a broken pipe or a reset, depending on the system
        while sent < 100_000_000:
            sent += open_.send(b"a" * 100_000)
    assert sent < 50_000_000  # the content of the buffers of both sides


@pytest.mark.parametrize("start", [b"", LIVE + b"\r\n"])
@pytest.mark.parametrize("beginning", [LIVE + b"x-slow: ", b"\r\n", b"G"])
@pytest.mark.usefixtures("soon")
def test_slow_headers_time_out_also_in_a_second_request(address, start, beginning):
    with socket.create_connection(address, timeout=10) as one:
        if start:
            one.sendall(start)
            assert answer(one) == b"HTTP/1.1 200 OK"
        one.sendall(beginning)
        assert answer(one) == b""


@pytest.mark.usefixtures("soon")
def test_a_connection_that_sends_nothing_is_closed_and_an_idle_keep_alive_connection_is_not(address):
    with socket.create_connection(address, timeout=10) as silent, socket.create_connection(address) as rests:
        rests.sendall(LIVE + b"\r\n")
        assert answer(rests) == b"HTTP/1.1 200 OK"
        assert answer(silent) == b""
        rests.sendall(LIVE + b"\r\n")
        assert answer(rests) == b"HTTP/1.1 200 OK"


@pytest.mark.usefixtures("soon")
def test_a_slow_answer_is_no_slow_request(address):
    """The next request arrives while the first is computed: the client is not slow."""
    model = FakeModel()
    model.gate.clear()
    with live(app_of(make_services(model, threads=1))) as url:
        host, port = url.removeprefix("http://").split(":")
        body = b'{"model": "fake", "input": "a b"}'
        head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        with socket.create_connection((host, int(port)), timeout=10) as one:
            one.sendall(head + b"content-length: %d\r\n\r\n" % len(body) + body + LIVE)
            assert model.began.acquire(timeout=10)
            one.settimeout(0.5)  # more than twice the time for headers
            with pytest.raises(TimeoutError):
                one.recv(1)
            one.settimeout(10)
            model.gate.set()
            one.sendall(b"\r\n")
            assert answer(one) == b"HTTP/1.1 200 OK"


def received(one, end):
    result = b""
    while not result.endswith(end):
        more = one.recv(10_000)
        assert more, result
        result += more
    return result


def test_an_answer_without_a_body_is_sent(open_):
    open_.sendall(b"HEAD / HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert received(open_, b"\r\n\r\n").startswith(b"HTTP/1.1 200 OK")
    open_.sendall(b"GET / HTTP/1.1\r\nhost: localhost\r\nif-none-match: *\r\n\r\n")
    assert received(open_, b"\r\n\r\n").startswith(b"HTTP/1.1 304 Not Modified")


def test_a_client_that_waits_for_a_go_ahead_gets_it_before_the_answer(open_):
    body = b'{"model": "fake", "input": "a b"}'
    head = b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
    open_.sendall(head + b"expect: 100-continue\r\ncontent-length: %d\r\n\r\n" % len(body))
    assert received(open_, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    open_.sendall(body)
    assert received(open_, b"}}").startswith(b"HTTP/1.1 200 OK\r\n")


class RecordingTransport:
    """Remembers what was sent with each call."""

    def __init__(self):
        self.calls = []

    def write(self, data):
        self.calls.append(data)

    def writelines(self, parts):
        self.calls.append(b"".join(parts))

    def close(self):
        self.calls.append("close")


def test_headers_leave_together_with_the_first_part_of_the_body():
    transport = RecordingTransport()
    answered = connection.AnswerTransport(transport)
    for part in (b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 200 OK\r\n\r\n", b"first", b"second"):
        answered.write(part)
    answered.close()
    assert transport.calls == [
        b"HTTP/1.1 100 Continue\r\n\r\n",
        b"HTTP/1.1 200 OK\r\n\r\nfirst",
        b"second",
        "close",
    ]


def test_headers_whose_body_failed_are_sent_before_the_connection_is_closed():
    transport = RecordingTransport()
    answered = connection.AnswerTransport(transport)
    answered.write(b"HTTP/1.1 200 OK\r\n\r\n")
    answered.close()
    assert transport.calls == [b"HTTP/1.1 200 OK\r\n\r\n", "close"]
