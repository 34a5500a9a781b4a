"""Several models in one process: each has its name and its batcher; cores, cache and queue are shared."""

import asyncio

import httpx
import numpy as np
import openai
import pytest
from click.testing import CliRunner

import gemel
from gemel.cli.main import cli
from gemel.errors import InputError
from gemel.index.open import open_index
from gemel.serve.batcher import Batcher, Capacity, EmbedOptions
from gemel.serve.options import Limits, Overloaded, ServeOptions
from gemel.serve.run import load_services
from gemel.serve.telemetry import Counters
from serve_case import app_of, live, make_services
from serve_fake import FakeModel
from tiny import tiny_bert

TEXTS = ["the cat is sleeping", "a dog is running in the street", "the stock market fell sharply"]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return tiny_bert(folder / "one"), tiny_bert(folder / "two", seed=5)


@pytest.fixture(scope="module")
def models(folders):
    return [gemel.load(folder) for folder in folders]


@pytest.fixture(scope="module")
def address(models):
    first, second = models
    with open_index(":memory:", second) as index:
        index.add(TEXTS, ids=["a", "b", "c"])
        services = make_services(first, more_models={"second": second}, indexes={"notes": index})
        with live(app_of(services)) as result:
            yield result


def embed(address, **body):
    answer = httpx.post(f"{address}/v1/embeddings", json=body)
    assert answer.status_code == 200, answer.text
    return np.array([row["embedding"] for row in answer.json()["data"]], dtype=np.float32)


def test_each_is_called_by_its_name_and_listed(address, models):
    first, second = models
    assert not np.array_equal(first.encode(TEXTS), second.encode(TEXTS))
    for _ in range(2):  # the second time from the cache, which they share
        assert np.array_equal(embed(address, model="one", input=TEXTS), first.encode(TEXTS))
        assert np.array_equal(embed(address, model="second", input=TEXTS), second.encode(TEXTS))
    with openai.OpenAI(base_url=f"{address}/v1", api_key="unused") as client:
        assert [each.id for each in client.models.list()] == ["one", "second"]
        assert client.models.retrieve("second").id == "second"
    assert httpx.get(f"{address}/status").json()["models"] == ["one", "second"]


def test_a_client_that_names_none_is_asked_to(address):
    answer = httpx.post(f"{address}/v1/embeddings", json={"input": "a"})
    assert answer.status_code == 400
    message = "2 models are loaded. Name one in the field 'model': one, second"
    assert answer.json()["error"]["message"] == message


def test_routes_that_cannot_name_one_use_the_first(address, models):
    result = httpx.post(f"{address}/embed", json={"inputs": TEXTS}).json()
    assert np.array_equal(np.array(result, dtype=np.float32), models[0].encode(TEXTS))


def test_an_index_is_searched_with_the_model_that_made_it(address, models):
    for path, more in (("/search", {"index": "notes"}), ("/indexes/notes/search", {})):
        hits = httpx.post(f"{address}{path}", json={"query": "a cat", "k": 3, **more}).json()["hits"]
        cosine = models[1].encode(TEXTS) @ models[1].encode(["a cat"])[0]
        assert [hit["cosine"] for hit in hits] == pytest.approx(np.sort(cosine)[::-1], abs=1e-5)


def test_the_command_line_loads_them_by_name(folders, tmp_path):
    one, two = map(str, folders)
    with open_index(tmp_path / "notes", gemel.load(two)) as index:
        index.add(["hello world"], ids=["a"])
    services = load_services((one, f"b={two}"), ServeOptions(index=(str(tmp_path / "notes"),)))
    try:
        assert [each.name for each in services.models] == ["one", "b"]
        assert services.indexes["notes"].query_options_for(services.models[1].model) is not None
    finally:
        services.indexes["notes"].close()


@pytest.mark.parametrize(
    ("given", "options", "message"),
    [
        (["{one}", "{one}"], {}, "two models are named 'one'. Give one another name: --model NAME="),
        (["{one}", "b={two}"], {"name": "c"}, "--name c was given with 2 models. Name each one"),
        (["b="], {}, "names no model. Write --model FOLDER or --model NAME=FOLDER"),
    ],
)
def test_names_that_cannot_be_told_apart_are_refused(folders, given, options, message):
    words = [word.format(one=folders[0], two=folders[1]) for word in given]
    with pytest.raises(InputError, match=message):
        load_services(words, ServeOptions(**options))


def on_one_core(run, **limits):
    """`run(batchers, models)` with two fake models that share one core."""

    async def main():
        models, capacity = [FakeModel(), FakeModel()], Capacity(threads=1, cache_bytes=0)
        batchers = [Batcher(model, Limits(**limits), Counters(), capacity) for model in models]
        try:
            await asyncio.wait_for(run(batchers, models), 30)
        finally:
            for model in models:
                model.gate.set()
            for batcher in batchers:
                await batcher.close()

    asyncio.run(main())


async def begun(model):
    assert await asyncio.to_thread(model.began.acquire, timeout=10)


def test_they_share_the_cores_in_turns():
    async def run(batchers, models):
        first, second = models
        first.gate.clear()
        waiting = [asyncio.create_task(batchers[0].embed(["a"], EmbedOptions()))]
        await begun(first)
        # Two lengths, so two batches: the model that waits is served between them.
        waiting += [
            asyncio.create_task(batchers[0].embed([text], EmbedOptions())) for text in ("b c", "d e f")
        ]
        waiting.append(asyncio.create_task(batchers[1].embed(["x"], EmbedOptions())))
        while len(batchers[0].workers.queue) < 2 or not len(batchers[1].workers.queue):
            await asyncio.sleep(0.001)
        assert not second.batches  # the only core is taken
        order = []
        for model, name in ((first, "first"), (second, "second")):
            run_batch = model.run
            model.run = lambda prepared, run_batch=run_batch, name=name: (
                order.append(name),
                run_batch(prepared),
            )[1]
        first.gate.set()
        await asyncio.gather(*waiting)
        assert order == ["second", "first", "first"]

    on_one_core(run)


def test_they_share_the_room_for_tokens_that_wait():
    async def run(batchers, models):
        models[0].gate.clear()
        busy = asyncio.create_task(batchers[0].embed(["a"], EmbedOptions()))
        await begun(models[0])
        waits = asyncio.create_task(batchers[0].embed([" ".join("abcdefghijkl")], EmbedOptions()))
        while not batchers[0].queue_tokens:
            await asyncio.sleep(0.001)
        with pytest.raises(Overloaded, match="14 tokens are waiting"):
            await batchers[1].embed([" ".join("abcdef")], EmbedOptions())
        models[0].gate.set()
        await asyncio.gather(busy, waits)

    on_one_core(run, queue_tokens=20)


def test_a_variable_separates_models_by_commas(monkeypatch):
    """A folder may have a space in its name."""
    monkeypatch.setenv("GEMEL_SERVE_MODEL", "/my models/one,b=/my models/two")
    served = []
    monkeypatch.setattr("gemel.serve.run.ServerProcess.run", lambda process: served.append(process._models))
    CliRunner().invoke(cli, ["serve"], catch_exceptions=False)
    assert served == [("/my models/one", "b=/my models/two")]
