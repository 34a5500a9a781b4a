"""Health and metrics: ready means that the model computed recently."""

import asyncio

import pytest

from gemel.serve.batcher import EmbedOptions
from gemel.serve.options import Limits, Overloaded
from gemel.serve.protocols.operations import Health
from gemel.serve.run import LoadingPage
from serve_case import app_of, client, make_services
from serve_fake import FakeModel


def test_ready_makes_a_real_forward_pass_and_remembers_it():
    probes = []

    async def probe(text):
        probes.append(text)
        return 0.25

    async def go():
        health = Health(probe, fresh_seconds=100)
        states = await asyncio.gather(health.ready(), health.ready(), health.ready())
        assert all(state.ready and state.forward_seconds == 0.25 for state in states) and len(probes) == 1
        health._fresh = 0
        await health.ready()
        health.draining = True
        return await health.ready()

    last = asyncio.run(go())
    assert not last.ready and last.reason == "the server is going down"
    assert len(set(probes)) == len(probes) == 2  # another text each time: a cached vector proves nothing


def test_a_model_that_fails_or_hangs_is_not_ready(monkeypatch):
    async def fails(_):
        raise ArithmeticError("inside")

    async def stands(_):
        await asyncio.Event().wait()

    async def state(probe):
        return await Health(probe, fresh_seconds=1).ready()

    assert asyncio.run(state(fails)).reason == "the forward pass fails (ArithmeticError)"
    monkeypatch.setattr("gemel.serve.protocols.operations.PROBE_SECONDS", 0.01)
    assert "the queue does not move" in asyncio.run(state(stands)).reason


def test_the_probe_goes_before_a_long_queue():
    model = FakeModel()

    async def go():
        services = make_services(model, threads=1)
        app = app_of(services)
        async with client(app) as http:
            model.gate.clear()
            body = {"model": "fake", "input": [f"text {n}" for n in range(200)]}
            large = asyncio.create_task(http.post("/v1/embeddings", json=body))
            assert await asyncio.to_thread(model.began.acquire, timeout=10)
            ready = asyncio.create_task(http.get("/health/ready"))
            while not services.batcher.workers.queue.count[0]:
                await asyncio.sleep(0)
            model.gate.set()
            answer = await ready
            assert (await large).status_code == 200
            app.state.health.draining = True
            drained = await http.get("/health")
        await services.close()
        return answer, drained

    answer, drained = asyncio.run(go())
    assert answer.status_code == 200 and answer.json()["ready"]
    assert any("is anybody there" in text for text in model.batches[1])
    assert drained.status_code == 503 and drained.json()["reason"] == "the server is going down"


def test_a_full_queue_is_no_reason_to_be_taken_out_of_service():
    model = FakeModel()

    async def go():
        services = make_services(model, threads=1, limits=Limits(queue_tokens=20))
        app = app_of(services)
        async with client(app) as http:
            model.gate.clear()
            first = asyncio.create_task(services.batcher.embed(["first"], EmbedOptions()))
            assert await asyncio.to_thread(model.began.acquire, timeout=10)
            waits = asyncio.create_task(
                services.batcher.embed([" ".join("abcdefghijklmnopqr")], EmbedOptions())
            )
            while not services.batcher.queue_tokens:
                await asyncio.sleep(0)
            with pytest.raises(Overloaded):
                await services.batcher.embed(["one more"], EmbedOptions())
            ready = asyncio.create_task(http.get("/health/ready"))
            while not ready.done() and not services.batcher.workers.queue.count[0]:
                await asyncio.sleep(0)
            model.gate.set()
            await asyncio.gather(first, waits)
            answer = await ready
        await services.close()
        return answer

    answer = asyncio.run(go())
    assert answer.status_code == 200, answer.text


def test_metrics_are_available_to_prometheus_and_the_page():
    async def go():
        services = make_services(FakeModel())
        async with client(app_of(services)) as http:
            for text in ("a", "a", "b"):
                await http.post("/v1/embeddings", json={"input": text, "model": "fake"})
            await http.get("/absent/with/secret")
            page = (await http.get("/metrics")).text
            status = (await http.get("/status")).json()
        await services.close()
        return page, status

    page, status = asyncio.run(go())
    for line in (
        'gemel_stage_seconds_count{stage="compute"} 2.0',
        "gemel_batch_texts_sum 2.0",
        "gemel_texts_total 3.0",
        "gemel_tokens_total 6.0",
        "gemel_cache_hits_total 1.0",
        'gemel_requests_total{route="/v1/embeddings",status="200"} 3.0',
        'gemel_requests_total{route="other",status="404"} 1.0',
        "gemel_queue_tokens 0.0",
        "gemel_memory_bytes",
    ):
        assert line in page, line
    assert "secret" not in page
    assert status["total"]["texts"] == 3 and status["cache"]["hits"] == 1 and status["model"] == "fake"


# Before the model is loaded


def front_answers(front, path):
    sent = []

    async def send(message):
        sent.append(message)

    async def go():
        await front({"type": "http", "path": path}, None, send)

    asyncio.run(go())
    return sent[0]["status"], sent[1]["body"]


def test_the_address_answers_while_the_model_is_loaded():
    front = LoadingPage(None, None, None)
    assert front_answers(front, "/health/live") == (200, b'{"live":true}')
    assert front_answers(front, "/health/ready")[0] == 503
    status, body = front_answers(front, "/v1/embeddings")
    assert status == 503 and b"is being loaded" in body and b'"code":"loading"' in body


def test_a_failed_start_ends_the_server():
    ended, sent = [], []

    async def start():
        raise ValueError("no such model")

    async def stop():
        ended.append("stopped")

    async def go():
        front = LoadingPage(start, stop, lambda: ended.append("failed"))
        begun = asyncio.Queue()
        await begun.put({"type": "lifespan.startup"})

        async def send(message):
            sent.append(message["type"])

        running = asyncio.create_task(front({"type": "lifespan"}, begun.get, send))
        while not ended:
            await asyncio.sleep(0)
        await begun.put({"type": "lifespan.shutdown"})
        await running
        return front.error

    with pytest.raises(ValueError, match="no such model"):
        raise asyncio.run(go())
    assert ended == ["failed", "stopped"]
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
