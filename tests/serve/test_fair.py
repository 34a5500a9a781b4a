"""Clients take turns, and response times do not reveal what another client sent."""

import asyncio
import threading

import numpy as np
import pytest

import gemel
from gemel.serve.access import read_keys
from gemel.serve.batcher import EmbedOptions
from gemel.serve.options import DeadlineExceeded, Limits, Overloaded
from gemel.serve.services import Calibrations, Jobs
from gemel.serve.telemetry import Counters
from serve_case import app_of, client, make_services
from serve_fake import FakeModel
from serve_models import light_cross
from tiny import tiny_bert

ANNA, BEN = "anna-secret-0123456789", "ben-secret-0123456789"


class Gates:
    """Jobs that record when they start and wait until they are released."""

    def __init__(self):
        self.begun, self.gates = [], {}

    def job(self, name):
        gate = self.gates[name] = threading.Event()

        def run():
            self.begun.append(name)
            assert gate.wait(10)
            return name

        return run


def turns(go, **limits):
    async def run():
        jobs, gates, tasks = Jobs(Limits(**limits), Counters()), Gates(), []

        async def begin(name, client, *, long):
            running = jobs.run(gates.job(name), client=client, long=long)
            tasks.append(asyncio.create_task(running))
            await asyncio.sleep(0)

        async def finish(name):
            count = len(jobs)
            gates.gates[name].set()
            while len(jobs) == count:
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)

        await go(begin, finish, gates)
        for gate in gates.gates.values():
            gate.set()
        await asyncio.gather(*tasks, return_exceptions=True)
        jobs.close()
        return gates.begun

    return asyncio.run(run())


def test_a_search_does_not_wait_for_the_pairs_of_another_client():
    async def go(begin, finish, gates):
        for number in range(8):
            await begin(f"pairs {number}", "greedy", long=True)
        await begin("search", "other", long=False)
        await asyncio.sleep(0.01)
        assert gates.begun == ["pairs 0", "search"]

    turns(go)


def test_long_work_of_two_clients_takes_turns():
    async def go(begin, finish, gates):
        for number in range(4):
            await begin(f"greedy {number}", "greedy", long=True)
        await begin("other", "other", long=True)
        await finish("greedy 0")
        await finish("greedy 1")

    assert turns(go)[:3] == ["greedy 0", "greedy 1", "other"]


def test_searches_of_two_clients_take_turns_and_do_not_starve_long_work():
    async def go(begin, finish, gates):
        for number in range(6):
            await begin(f"greedy {number}", "greedy", long=False)
        await begin("other", "other", long=False)
        await begin("pairs", "third", long=True)
        for number in range(3):
            await finish(f"greedy {number}")

    begun = turns(go)
    assert set(begun[:2]) == {"greedy 0", "greedy 1"}
    assert begun[2:5] == ["pairs", "greedy 2", "other"]


def test_a_client_has_few_long_requests_and_others_are_not_refused_for_it():
    jobs = Jobs(Limits(client_jobs=2), Counters())
    with jobs.reserve("anna"), jobs.reserve("anna"):
        with pytest.raises(Overloaded, match="2 longer requests of this client"), jobs.reserve("anna"):
            pass
        with jobs.reserve("ben"):
            pass
    with jobs.reserve("anna"):
        pass
    jobs.close()


def test_a_job_that_is_canceled_before_it_starts_never_runs():
    async def run():
        jobs, gates = Jobs(Limits(), Counters()), Gates()
        first = asyncio.create_task(jobs.run(gates.job("first"), client="a", long=True))
        await asyncio.sleep(0)
        jobs._limits = Limits(seconds=0.01)
        with pytest.raises(DeadlineExceeded):
            await jobs.run(gates.job("second"), client="b", long=True)
        jobs._limits = Limits()
        gone = asyncio.create_task(jobs.run(gates.job("third"), client="b", long=True))
        await asyncio.sleep(0)
        gone.cancel()
        await asyncio.sleep(0)
        assert len(jobs) == 1
        gates.gates["first"].set()
        await first
        jobs.close()
        return gates.begun, len(jobs)

    assert asyncio.run(run()) == (["first"], 0)


def test_nothing_starts_after_shutdown():
    async def run():
        jobs, gates = Jobs(Limits(), Counters()), Gates()
        tasks = [
            asyncio.create_task(jobs.run(gates.job(name), client="a", long=True))
            for name in ("runs", "waits")
        ]
        await asyncio.sleep(0.01)
        jobs.close()
        assert len(jobs) == 1
        gates.gates["runs"].set()
        result = await asyncio.gather(*tasks, return_exceptions=True)
        return result[0], type(result[1]), gates.begun

    assert asyncio.run(run()) == ("runs", asyncio.CancelledError, ["runs"])


# Many requests of one key next to those of another


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("fair") / "tiny"))


def test_a_key_with_many_pairs_does_not_delay_the_search_of_another(model, monkeypatch):
    gate = threading.Event()
    monkeypatch.setattr("gemel.serve.protocols.pairs.similar_pairs", lambda *_, **__: gate.wait(20))

    async def go():
        services = make_services(model, limits=Limits(client_jobs=4))
        keys = read_keys(None, f"anna:{ANNA},ben:{BEN}", None)
        async with client(app_of(services, keys=keys)) as http:
            greedy = [
                asyncio.create_task(
                    http.post("/pairs", json={"texts": ["a", "b", "c"]}, headers={"x-api-key": ANNA})
                )
                for _ in range(24)
            ]
            while not len(services.jobs):
                await asyncio.sleep(0.001)
            result = await asyncio.wait_for(
                http.post("/search", json={"query": "a", "texts": ["a", "b"]}, headers={"x-api-key": BEN}), 10
            )
            gate.set()
            statuses = [answer.status_code for answer in await asyncio.gather(*greedy)]
        await services.close()
        return result.status_code, statuses.count(429)

    status, refused = asyncio.run(go())
    assert status == 200
    assert refused == 20  # four may wait, and the others are refused before anything is computed


def test_a_cross_encoder_yields_to_others_between_its_pieces(model, tmp_path):
    cross = light_cross(tmp_path / "cross")
    documents = [f"document {number}" for number in range(150)]

    async def go():
        services = make_services(model, cross=cross)
        calls = []
        work = services.jobs.run

        async def counted(function, **settings):
            calls.append(settings)
            return await work(function, **settings)

        services.jobs.run = counted
        async with client(app_of(services)) as http:
            answer = await http.post("/rerank", json={"query": "a man", "texts": documents})
        await services.close()
        return answer.json(), calls

    rows, calls = asyncio.run(go())
    assert len(calls) == 1 + 3 and all(call["long"] and call["client"] for call in calls)
    raw = cross.logits(["a man"] * 150, documents)[:, 0]
    assert [row["index"] for row in rows] == np.argsort(-raw, kind="stable").tolist()


# What another client sent


def test_vectors_are_remembered_for_the_client_that_sent_the_text_only():
    async def go():
        services = make_services(model := FakeModel())
        for name in ("anna", "anna", "ben"):
            await services.batcher.embed(["a secret"], EmbedOptions(), client=name)
        await services.close()
        return model.computed, services.counters.cache_hits

    assert asyncio.run(go()) == (["a secret", "a secret"], 1)


def test_a_text_under_way_for_one_client_is_not_shared_with_another():
    async def go():
        model = FakeModel()
        services = make_services(model)
        model.gate.clear()
        requests = [
            asyncio.create_task(services.batcher.embed(["a secret"], EmbedOptions(), client=name))
            for name in "abb"
        ]
        await asyncio.sleep(0.05)
        model.gate.set()
        await asyncio.gather(*requests)
        await services.close()
        return model.computed, services.counters.shared

    assert asyncio.run(go()) == (["a secret", "a secret"], 1)


def test_calibrations_of_texts_are_kept_for_their_client_only():
    vectors = np.random.default_rng(0).normal(size=(60, 8)).astype(np.float32)
    calibrations = Calibrations()
    first = calibrations.between("anna", vectors)
    assert calibrations.between("anna", vectors) is first
    assert calibrations.between("ben", vectors) is not first
