"""The middleware: limits of bodies, errors and their forms, hosts, headers, clients that disconnect."""

import asyncio
import json
import threading
from http.client import HTTPConnection
from types import SimpleNamespace

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, WorkError
from gemel.files.machine import MemoryLimits
from gemel.serve.app import Middleware
from gemel.serve.batcher import EmbedResult
from gemel.serve.connection import ClientDisconnected, JsonCount, is_small, read_body
from gemel.serve.errors import RouteError, problem_of
from gemel.serve.options import DeadlineExceeded, EncodeFailed, Limits, Overloaded, ServeOptions, TooLarge
from gemel.serve.run import index_locations
from gemel.serve.telemetry import find_tracer, memory_bytes, private_bytes
from serve_case import app_of, client, live, make_services
from serve_fake import FakeModel
from tiny import tiny_bert


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("serve") / "tiny"))


def with_app(model, go, *, limits=None, **options):
    """Run `go(http, services)` inside one event loop with a complete application."""

    async def run():
        services = make_services(model, limits=limits)
        async with client(app_of(services, **options)) as http:
            try:
                return await go(http, services)
            finally:
                if isinstance(model, FakeModel):
                    model.gate.set()
                await services.close()

    return asyncio.run(run())


# Bodies


def counted(body, limits=None, piece=None):
    """The counts of a body that arrives in pieces; nothing is counted if the body is small."""
    limits = limits or Limits()
    count = JsonCount(limits)
    if not is_small(body, limits):
        for start in range(0, len(body), piece or len(body)):
            count.feed(body[start : start + (piece or len(body))])
    return count


def parts(*bodies, gone=False):
    messages = [
        {"type": "http.request", "body": body, "more_body": gone or at < len(bodies) - 1}
        for at, body in enumerate(bodies)
    ]
    messages += [{"type": "http.disconnect"}] if gone else []
    waiting = iter(messages)

    async def receive():
        return next(waiting)

    return receive


def test_a_body_is_read_whole_and_within_its_bytes():
    assert asyncio.run(read_body(parts(b"ab", b"cd"), None, Limits(body_bytes=4), 1)) == b"abcd"
    with pytest.raises(TooLarge, match="more than 3 bytes"):
        asyncio.run(read_body(parts(b"ab", b"cd"), None, Limits(body_bytes=3), 1))
    with pytest.raises(TooLarge, match="the body has 9 bytes, at most 3"):
        asyncio.run(read_body(parts(b"unread"), 9, Limits(body_bytes=3), 1))
    with pytest.raises(TooLarge):
        asyncio.run(read_body(parts(b"abcd"), 2, Limits(body_bytes=3), 1))  # a wrong content-length
    with pytest.raises(ClientDisconnected):
        asyncio.run(read_body(parts(b"ab", gone=True), None, Limits(body_bytes=9), 1))


def test_the_time_of_a_body_is_that_of_all_its_parts():
    async def receive():
        await asyncio.sleep(0.2)
        return await both()

    both = parts(b"a", b"b")
    with pytest.raises(RouteError, match=r"did not arrive within 0\.3 s"):
        asyncio.run(read_body(receive, None, Limits(body_bytes=9), 0.3))


def test_a_body_that_does_not_arrive_times_out():
    async def never():
        await asyncio.Event().wait()

    async def half():
        first = parts(b"a", b"b")

        async def receive():
            return await first() if not receive.called else await never()

        receive.called = False
        await receive()
        receive.called = True
        return receive

    for make in (lambda: never, None):
        receive = make() if make else asyncio.run(half())
        with pytest.raises(RouteError, match=r"did not arrive within 0\.01 s"):
            asyncio.run(read_body(receive, None, Limits(body_bytes=9), 0.01))


@pytest.mark.parametrize(
    "deep",
    ["[" * 21 + "]" * 21, '{"a":' * 21 + "1" + "}" * 21, "[" * 100_000, '[{"a":[' * 10 + "]}]" * 10],
)
def test_json_that_is_too_deep_is_refused_before_it_is_parsed(deep):
    with pytest.raises(InputError, match="deeper than 20"):
        counted(deep.encode())


@pytest.mark.parametrize(
    "flat",
    [
        "[" * 20 + "]" * 20,
        json.dumps(["[[[[[[[[[[[[[[[[[[[[[[[[[" for _ in range(30)]),
        json.dumps(['"[{\\', "\\\\", '\\"[[[[[[[[[[[[[[[[[[[[[[[['] * 9),
        json.dumps([[number, {"a": []}] for number in range(50)]),
        "no json at all",
    ],
)
def test_brackets_inside_strings_do_not_count_as_depth(flat):
    counted(flat.encode())


def test_large_bodies_together_are_bounded_and_small_ones_still_pass(model):
    limits = Limits(body_bytes=100_000)

    async def go(http, services):
        middleware = Middleware(None, **app_of(services).user_middleware[0].kwargs)
        visits = [SimpleNamespace(body=0) for _ in range(18)]
        for visit in visits[:16]:
            middleware._reserve(visit, 100_000)
        with pytest.raises(Overloaded, match="too many large requests"):
            middleware._reserve(visits[16], 90_000)
        middleware._reserve(visits[17], 500)
        return visits[16].body, visits[17].body

    assert with_app(model, go, limits=limits) == (0, 500)


def test_chunked_bodies_are_counted_by_their_actual_size():
    """Without a content-length the reserved size grows with the data, and is released."""

    async def app(scope, receive, send):
        assert len(scope["state"]["body"]) == 90_000
        reached.set()
        await release.wait()

    def send_request(middleware, path, parts):
        messages = iter(
            [
                {"type": "http.request", "body": b"x" * 30_000, "more_body": at < 3}
                for at in range(1, parts + 1)
            ]
        )

        async def receive():
            return next(messages)

        async def send(message):
            answers.append(message)

        scope = {"type": "http", "method": "POST", "path": path, "headers": [(b"host", b"localhost")]}
        return asyncio.create_task(middleware(scope, receive, send))

    async def go():
        services = make_services(FakeModel(), limits=Limits(body_bytes=100_000))
        middleware = Middleware(app, **app_of(services).user_middleware[0].kwargs)
        tasks = []
        for _ in range(17):  # 17 x 90,000 bytes fit into 16 x 100,000
            reached.clear()
            tasks.append(send_request(middleware, "/held", 3))
            await reached.wait()
        assert middleware._bodies == 17 * 90_000
        await send_request(middleware, "/refused", 3)
        assert answers[0]["status"] == 429
        release.set()
        await asyncio.gather(*tasks)
        return middleware._bodies

    answers, reached, release = [], asyncio.Event(), asyncio.Event()
    assert asyncio.run(go()) == 0


# Errors


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (InputError("x"), 400),
        (TooLarge("x"), 413),
        (Overloaded("x", 2.5), 429),
        (DeadlineExceeded("x"), 504),
        (WorkError("the index at /data/secret is gone"), 500),
        (EncodeFailed("x"), 500),
        (InputError("no file /data/secret/notes.txt"), 400),
        (RouteError(404, "x"), 404),
        (KeyError("secret"), 500),
    ],
)
def test_every_error_has_its_status(error, status):
    problem = problem_of(error)
    assert problem.status == status and "secret" not in problem.message
    assert problem.headers.get("retry-after") == ("3" if isinstance(error, Overloaded) else None)


def test_errors_have_the_shape_of_the_protocol(model):
    limits = Limits(body_bytes=50)
    body = b'{"input": "' + b"x" * 100 + b'"}'

    async def go(http, _):
        return [
            (await http.post(path, content=body)).json() for path in ("/v1/embeddings", "/embed", "/search")
        ]

    openai, tei, plain = with_app(model, go, limits=limits)
    sentence = "the body has 113 bytes, at most 50 are taken"
    assert openai["error"] == {
        "message": sentence,
        "type": "request_too_large",
        "param": None,
        "code": "too_large",
        "help": "GEM-603",
    }
    assert tei == {"error": sentence, "error_type": "Validation"}
    assert plain == {"error": {"message": sentence, "type": "too_large", "help": "GEM-603"}}


def test_an_internal_error_reveals_no_details(model, capsys):
    async def go(http, services):
        async def broken(texts, options, *, client):
            raise KeyError("the words of a text")

        services.batcher.embed = broken
        return await http.post("/v1/embeddings", json={"input": "a", "model": "tiny"})

    answer = with_app(model, go, log="json")
    assert answer.status_code == 500
    assert answer.json()["error"]["message"] == "the server failed at this request; its log says why"
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert lines[0]["error"] == "KeyError" and lines[1]["status"] == 500
    assert "the words" not in str(lines)


# Around every request


def test_logs_contain_ids_and_never_texts(model, capsys):
    async def go(http, _):
        return await http.post(
            "/v1/embeddings",
            json={"input": "a secret text", "model": "tiny"},
            headers={"x-request-id": "mine-1"},
        )

    answer = with_app(model, go, log="json")
    assert answer.headers["x-request-id"] == "mine-1"
    line = json.loads(capsys.readouterr().err)
    assert (line["id"], line["route"], line["status"]) == ("mine-1", "/v1/embeddings", 200)
    assert "secret" not in str(line)
    with_app(model, go, log="text")
    assert "route=/v1/embeddings status=200" in capsys.readouterr().err


def test_an_invalid_request_id_is_replaced(model):
    async def go(http, _):
        return await http.get("/health/live", headers={"x-request-id": 'a"b\\c'})

    assert len(with_app(model, go).headers["x-request-id"]) == 16


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost:8080", 200),
        ("127.0.0.1", 200),
        ("[::1]:80", 200),
        ("LOCALHOST", 200),
        ("evil.example", 403),
        ("", 403),
        ("my.name", 200),
    ],
)
def test_dns_rebinding_is_refused(model, host, status):
    async def go(http, _):
        return await http.get("/health/live", headers={"host": host})

    assert with_app(model, go, allowed_host=("my.name",)).status_code == status


def test_other_origins_are_allowed_only_when_named(model):
    async def go(http, _):
        wanted = {"origin": "https://a.example", "access-control-request-method": "POST"}
        return await http.options("/v1/embeddings", headers=wanted)

    assert "access-control-allow-origin" not in with_app(model, go).headers
    allowed = with_app(model, go, cors_origin=("https://a.example",))
    assert allowed.headers["access-control-allow-origin"] == "https://a.example"


def test_answers_have_security_headers(model):
    async def go(http, _):
        return await http.get("/health/live")

    headers = with_app(model, go).headers
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["content-security-policy"].startswith("default-src 'none'")


def test_low_memory_refuses_encoding_but_not_other_requests(model):
    async def go(http, _):
        work = await http.post("/v1/embeddings", json={"input": "a", "model": "tiny"})
        return work.status_code, work.headers["retry-after"], (await http.get("/v1/models")).status_code

    assert with_app(model, go, memory_limit=1000) == (429, "5", 200)


@pytest.mark.parametrize(
    ("used", "limit", "status"),
    [
        (89_000_000, "100MB", 200),
        (90_000_000, "100MB", 429),
        (101_000_000, "100MB", 429),
        (10**12, None, 200),
    ],
)
def test_new_work_is_refused_when_the_memory_is_short(model, monkeypatch, used, limit, status):
    assert memory_bytes() > private_bytes() > 10**6
    monkeypatch.setattr("gemel.serve.app.memory_bytes", lambda: used)
    monkeypatch.setattr("gemel.serve.app.memory_limits", lambda: MemoryLimits(10**12, None))

    async def go(http, services):
        return await http.post("/embed", json={"inputs": "a man"}), services.counters.rejected["memory"]

    answer, rejected = with_app(model, go, memory_limit=limit)
    assert (answer.status_code, rejected) == (status, int(status == 429))


@pytest.mark.parametrize(("used", "status"), [(89_000_000, 200), (90_000_000, 429)])
def test_without_a_limit_of_its_own_the_server_observes_that_of_the_container(
    model, monkeypatch, used, status
):
    monkeypatch.setattr("gemel.serve.app.memory_limits", lambda: MemoryLimits(10**12, 100_000_000))
    monkeypatch.setattr("gemel.serve.app.private_bytes", lambda: used)
    monkeypatch.setattr("gemel.serve.app.memory_bytes", lambda: 10**12)  # with mapped files

    async def go(http, _):
        return (await http.post("/embed", json={"inputs": "a man"})).status_code

    assert with_app(model, go) == status


def test_both_protocols_give_the_vectors_of_the_model(model):
    async def go(http, services):
        answers = [
            await http.post("/v1/embeddings", json={"input": "a man", "model": "tiny"}),
            await http.post("/embed", json={"inputs": "a man"}),
        ]
        return [answer.json() for answer in answers]

    openai, tei = with_app(model, go)
    assert openai["data"][0]["embedding"] == tei[0]
    assert np.allclose(model.encode(["a man"])[0], tei[0], atol=1e-7)


# Clients that go away, and longer work


def begin(url, text):
    """A connection with a request whose answer is not read."""
    connection = HTTPConnection(url.removeprefix("http://"), timeout=10)
    body = json.dumps({"input": text, "model": "fake"})
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    return connection


def wait_until(true):
    for _ in range(1000):
        if true():
            return
        threading.Event().wait(0.01)
    raise AssertionError("it did not happen")


def test_the_texts_of_a_disconnected_client_are_canceled():
    model = FakeModel()
    services = make_services(model, threads=1)
    with live(app_of(services)) as url:
        model.gate.clear()
        first = begin(url, "first")
        assert model.began.acquire(timeout=10)
        second = begin(url, "second one")
        wait_until(lambda: len(services.batcher.workers.queue))
        first.close()
        second.close()
        wait_until(lambda: services.counters.rejected["gone"] == 2)
        model.gate.set()
        third = begin(url, "third")
        assert third.getresponse().status == 200
        third.close()
    assert model.computed == ["first", "third"]


def test_longer_work_is_bounded_in_number_and_time(model):
    async def go(_, services):
        assert await services.jobs.run(lambda: 5) == 5
        with pytest.raises(ZeroDivisionError):
            await services.jobs.run(lambda: 1 // 0)
        done = asyncio.Event()
        loop = asyncio.get_running_loop()

        def wait():
            asyncio.run_coroutine_threadsafe(done.wait(), loop).result()

        limits, services.jobs._limits = services.limits, Limits(seconds=0.01)
        with pytest.raises(DeadlineExceeded):
            await services.jobs.run(wait)
        services.jobs._limits = limits
        tasks = [asyncio.create_task(services.jobs.run(wait)) for _ in range(7)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded, match="8 longer requests of this client run or wait already"):
            await services.jobs.run(wait)
        other = asyncio.create_task(services.jobs.run(wait, client="other"))
        await asyncio.sleep(0)
        assert len(services.jobs) == 9
        done.set()
        await asyncio.gather(*tasks, other)
        await asyncio.sleep(0)
        return services.counters.rejected["work"], len(services.jobs)

    assert with_app(model, go, limits=Limits(client_jobs=2)) == (1, 0)


def test_a_request_has_one_time_limit_in_total():
    """Two pieces that each take nearly the whole time limit exceed it together."""
    model = FakeModel()

    async def go(http, services):
        async def slow(texts, options, *, client):
            await asyncio.sleep(0.3)
            return EmbedResult(np.zeros((len(texts), 4), np.float32), [1] * len(texts), [1] * len(texts))

        services.batcher.embed = slow
        answer = await http.post("/pairs", json={"texts": [f"text {n}" for n in range(600)]})
        assert not asyncio.current_task().cancelling()
        return answer, services.counters.rejected

    answer, rejected = with_app(model, go, limits=Limits(seconds=0.5))
    assert answer.status_code == 504 and "not ready within 0.5 s" in answer.json()["error"]["message"]
    assert rejected["deadline"] == 1 and rejected["gone"] == 0


def test_a_request_has_one_token_limit_in_total(model):
    """Also over the pieces that it is split into, and over the query and its documents."""
    texts = [f"the cat {'is ' * (n % 5)}" for n in range(600)]
    tokens = sum(len(ids) + 2 for ids in model.tokenizer.content(texts))

    async def go(http, services):
        body = {"texts": texts, "k": 1}
        return [
            (await http.post("/pairs", json=body)).status_code,
            (await http.post("/search", json={"query": "hello", **body})).status_code,
        ]

    assert with_app(model, go, limits=Limits(tokens=tokens)) == [200, 413]
    assert with_app(model, go, limits=Limits(tokens=tokens - 1)) == [413, 413]
    assert with_app(model, go, limits=Limits(tokens=tokens + 3)) == [200, 200]


# Options


def test_options_that_cannot_be_are_refused():
    for wrong, message in (
        ({"port": 70_000}, "port must be from 0 to 65535"),
        ({"log": "xml"}, "log must be one of json, text, none"),
        ({"ssl_keyfile": "k.pem"}, "without ssl_certfile"),
        ({"threads": 0}, "threads must be at least 1"),
        ({"memory_limit": "lots"}, "memory must be bytes"),
        ({"request_seconds": 0}, "request_seconds must be more than 0"),
    ):
        with pytest.raises(InputError, match=message):
            ServeOptions(**wrong)


def test_only_addresses_of_this_machine_are_loopback():
    hosts = {"127.0.0.1": True, "localhost": True, "::1": True, "0.0.0.0": False, "example.org": False}
    assert {host: ServeOptions(host=host).loopback for host in hosts} == hosts


def test_indexes_have_names():
    assert index_locations(("notes", "b=/data/x=y", "s3://bucket/tickets")) == {
        "notes": "notes",
        "b": "/data/x=y",
        "tickets": "s3://bucket/tickets",
    }
    with pytest.raises(InputError, match="two indexes are named 'a'"):
        index_locations(("x/a", "y/a"))
    with pytest.raises(InputError, match="names no index"):
        index_locations(("a=",))


def test_spans_are_made_only_for_a_provider(monkeypatch):
    with find_tracer()("GET /"):
        pass
    trace = pytest.importorskip("opentelemetry.trace")
    seen = []

    class Tracer:
        def start_as_current_span(self, name):
            seen.append(name)
            return pytest.MonkeyPatch.context()

    monkeypatch.setattr(trace, "get_tracer_provider", object)
    monkeypatch.setattr(trace, "get_tracer", lambda name: Tracer())
    with find_tracer()("POST /embed"):
        pass
    assert seen == ["POST /embed"]
