"""The batcher: priorities, what is computed together, what is computed once, and what is never computed."""

import asyncio
import random
from contextlib import asynccontextmanager

import numpy as np
import pytest

import gemel
from gemel.encoder.tokenizer import Windows
from gemel.errors import InputError, WorkError
from gemel.serve.batcher import (
    CACHE_OVERHEAD,
    Batcher,
    BatchKeys,
    CachedVector,
    Capacity,
    EmbedOptions,
    VectorCache,
)
from gemel.serve.options import DeadlineExceeded, Limits, Overloaded, TooLarge
from gemel.serve.queue import Priority, Queue, QueuedText
from gemel.serve.telemetry import Counters, Histogram, Rate
from serve_fake import FakeModel, vector_of
from tiny import tiny_bert

# The tests are about other things than prompts.
pytestmark = pytest.mark.filterwarnings("ignore::gemel.PromptWarning")


@asynccontextmanager
async def batching(model, *, threads=1, cache_bytes=10**6, **limits):
    capacity = Capacity(threads=threads, cache_bytes=cache_bytes)
    batcher = Batcher(model, Limits(**limits), Counters(), capacity)
    try:
        yield batcher
    finally:
        if isinstance(model, FakeModel):
            model.gate.set()
        await batcher.close()


async def begun(model, times=1):
    """Wait until the model has started this many more batches."""
    for _ in range(times):
        assert await asyncio.to_thread(model.began.acquire, timeout=10)


async def turn(times=3):
    """Let all tasks run until they wait."""
    for _ in range(times):
        await asyncio.sleep(0)


def ask_for(batcher, *texts, **ask):
    return asyncio.create_task(batcher.embed(list(texts), EmbedOptions(**ask)))


async def busy(batcher, model):
    """A request that keeps the model busy until its gate opens: later requests have to wait."""
    model.gate.clear()
    first = ask_for(batcher, "first")
    await begun(model)
    return first


# The same bits


def test_many_clients_get_the_bits_of_the_offline_encoder(tmp_path):
    model = gemel.load(tiny_bert(tmp_path / "m", prompts={"query": "query: "}))
    draw = random.Random(0)
    words = [
        "the",
        "a",
        "man",
        "woman",
        "cat",
        "dog",
        "is",
        "was",
        "playing",
        "guitar",
        "rain",
        "日本語",
        "naïve",
    ]
    texts = [" ".join(draw.choices(words, k=draw.randint(0, 90))) for _ in range(150)]
    options = [
        EmbedOptions(),
        EmbedOptions(prompt_name="query"),
        EmbedOptions(dim=16),
        EmbedOptions(normalize=False),
        EmbedOptions(prompt="x "),
    ]
    requests = [
        (draw.choices(texts, k=draw.choice([1, 1, 1, 2, 30])), draw.choice(options), n) for n in range(80)
    ]

    async def all_at_once():
        async with batching(model, threads=2) as batcher:
            return await asyncio.gather(
                *(batcher.embed(some, option, client=str(n % 7)) for some, option, n in requests)
            )

    for (some, option, _), embedded in zip(requests, asyncio.run(all_at_once()), strict=True):
        report = model.encode_report(
            some,
            on_long="truncate",
            prompt_name=option.prompt_name,
            prompt=option.prompt,
            dim=option.dim,
            normalize=option.normalize,
        )
        assert np.array_equal(embedded.vectors, report.vectors)
        assert np.array_equal(embedded.tokens, report.tokens) and np.array_equal(embedded.kept, report.kept)


def test_no_text_gives_no_vector():
    async def go():
        async with batching(FakeModel()) as batcher:
            return await batcher.embed([], EmbedOptions())

    assert asyncio.run(go()).vectors.shape == (0, 4)


# What runs together


def test_a_single_request_starts_immediately_with_all_cores():
    model = FakeModel()

    async def go():
        async with batching(model, threads=3) as batcher:
            seen = []
            run = model.run
            model.run = lambda prepared: (seen.append(prepared.options.threads), run(prepared))[1]
            await batcher.embed(["one"], EmbedOptions())
            return seen

    assert asyncio.run(go()) == [3]


def test_waiting_texts_of_one_length_share_a_batch():
    model = FakeModel()

    async def go():
        async with batching(model) as batcher:
            first = await busy(batcher, model)
            rest = [ask_for(batcher, text) for text in ("a b", "a", "c d", "b", "e f g")]
            await turn()
            model.gate.set()
            await asyncio.gather(first, *rest)

    asyncio.run(go())
    assert model.batches == [["first"], ["a b", "c d"], ["a", "b"], ["e f g"]]


def test_a_batch_stays_within_its_tokens():
    model = FakeModel()

    async def go():
        async with batching(model) as batcher:
            first = await busy(batcher, model)
            rest = ask_for(batcher, *(f"text {n}" for n in range(40)))  # 4 tokens each, 64 to a batch
            await turn()
            model.gate.set()
            await asyncio.gather(first, rest)

    asyncio.run(go())
    assert max(map(len, model.batches)) <= 16 and len(model.computed) == 41


def test_single_queries_go_before_large_requests_that_wait_longer():
    model = FakeModel()

    async def go():
        async with batching(model) as batcher:
            first = await busy(batcher, model)
            large = ask_for(batcher, *(" ".join("x" * (n % 5 + 3)) + f" {n}" for n in range(100)))
            await turn()
            single = ask_for(batcher, "a single query of eight words is here")
            await turn()
            model.gate.set()
            await asyncio.gather(first, large, single)

    asyncio.run(go())
    assert model.batches[1][0] == "a single query of eight words is here"


# Fairness, on the queue alone

KEYS = BatchKeys(1, lambda options: None)


def job(client, words, priority=Priority.SMALL):
    windows = Windows((), (), words, words)
    return QueuedText(f"{client}{words}".encode(), windows, KEYS.of(EmbedOptions()), client, priority, 0.0)


def test_clients_take_turns_whatever_the_length_of_their_line():
    waiting = Queue()
    for number in range(100):
        waiting.put(job("greedy", 10 + number))
    waiting.put(job("modest", 5))
    taken = [waiting.take(1)[0].client for _ in range(3)]
    assert "modest" in taken[:2]


def test_clients_share_a_batch_in_turns():
    waiting = Queue()
    for _ in range(50):
        waiting.put(job("greedy", 4))
    waiting.put(job("modest", 4))
    assert "modest" in [each.client for each in waiting.take(16)]


def test_large_requests_are_not_starved_by_small_ones():
    waiting = Queue()
    waiting.put(job("batch", 7, Priority.LARGE))
    priorities = []
    for number in range(8):
        waiting.put(job("many", 20 + number))
        priorities += [each.priority for each in waiting.take(1)]
    assert Priority.LARGE in priorities


def test_texts_of_large_requests_do_not_make_a_batch_of_small_ones_longer():
    waiting = Queue(mixed=True)
    for number in range(10):
        waiting.put(job("batch", 10 + number, Priority.LARGE))
    for client in ("a", "b"):
        waiting.put(job(client, 5))
    assert [each.client for each in waiting.take(100)] == ["a", "b"]
    assert {each.client for each in waiting.take(100)} == {"batch"}


def test_small_requests_join_a_batch_that_begins_with_a_large_one():
    waiting = Queue(mixed=True)
    waiting.put(job("batch", 10, Priority.LARGE))
    for _ in range(8):
        waiting.put(job("many", 20))
    batches = [[each.client for each in waiting.take(30)] for _ in range(4)]
    assert batches == [["many"], ["many"], ["many"], ["batch", "many"]]


def test_the_health_probe_goes_first():
    waiting = Queue()
    for number in range(20):
        waiting.put(job("many", 20 + number))
    waiting.put(job("health", 3, Priority.URGENT))
    assert waiting.take(1)[0].priority is Priority.URGENT


def test_the_queue_removes_canceled_requests():
    waiting = Queue()
    jobs = [job(str(number % 3), 5 + number % 4) for number in range(60)]
    for each in jobs:
        waiting.put(each)
    for each in jobs[::2]:
        waiting.drop(each)
    taken = []
    while batch := waiting.take(100):
        taken += batch
    assert set(taken) == set(jobs[1::2])
    assert waiting.tokens == 0 and len(waiting) == 0 and not waiting._groups


# Computed once, or never


def test_equal_texts_under_way_are_computed_once():
    model = FakeModel()

    async def go():
        async with batching(model) as batcher:
            model.gate.clear()
            tasks = [
                ask_for(batcher, "same", "same"),
                ask_for(batcher, "same"),
                ask_for(batcher, "same", dim=2),
            ]
            await turn()
            model.gate.set()
            return await asyncio.gather(*tasks)

    twice, once, short = asyncio.run(go())
    assert model.computed == ["same", "same"]  # one of them with another dim
    assert np.array_equal(twice.vectors, [vector_of("same")] * 2) and np.array_equal(
        once.vectors[0], twice.vectors[0]
    )
    assert short.vectors.shape == (1, 2)


def test_a_recent_text_is_not_computed_again_and_the_memory_of_it_is_bounded():
    model = FakeModel()

    async def go():
        size = 4 * 4 + CACHE_OVERHEAD
        async with batching(model, cache_bytes=3 * size) as batcher:
            for text in ("a", "b", "c", "a", "d", "a", "b"):
                await batcher.embed([text], EmbedOptions())
            return batcher.cache.bytes, len(batcher.cache)

    assert asyncio.run(go()) == (3 * (16 + CACHE_OVERHEAD), 3)
    assert model.computed == ["a", "b", "c", "d", "b"]


def test_a_cache_of_size_zero_keeps_nothing():
    cache = VectorCache(0)
    cache.put(b"key", CachedVector(np.zeros(4, np.float32), 1, 1))
    assert len(cache) == 0 and cache.get(b"key") is None


def test_texts_of_a_disconnected_client_are_not_computed():
    model = FakeModel()

    async def go():
        async with batching(model) as batcher:
            first = await busy(batcher, model)
            gone = ask_for(batcher, "gone", "shared now")
            stays = ask_for(batcher, "shared now")
            await turn()
            gone.cancel()
            await turn()
            model.gate.set()
            await asyncio.gather(first, stays)
            assert gone.cancelled() and batcher.queue_tokens == 0

    asyncio.run(go())
    assert model.computed == ["first", "shared now"]


def test_a_request_over_its_deadline_is_canceled():
    model = FakeModel()

    async def go():
        async with batching(model) as batcher:
            first = await busy(batcher, model)
            batcher._limits = Limits(seconds=0.01)
            with pytest.raises(DeadlineExceeded, match=r"not ready within 0\.01 s"):
                await batcher.embed(["late"], EmbedOptions())
            assert batcher.queue_tokens == 0
            model.gate.set()
            await first

    asyncio.run(go())
    assert model.computed == ["first"]


def test_a_full_queue_refuses_immediately_with_retry_after():
    model = FakeModel()

    async def go():
        async with batching(model, queue_tokens=20) as batcher:
            first = await busy(batcher, model)
            waits = ask_for(batcher, "a b c d e f g h")
            await turn()
            with pytest.raises(Overloaded, match="10 tokens are waiting and at most 20 may") as refused:
                await batcher.embed(["k l m n o p q r s"], EmbedOptions())
            assert refused.value.retry_after >= 1
            model.gate.set()
            await asyncio.gather(first, waits)

    asyncio.run(go())


def test_a_bad_text_fails_alone():
    model = FakeModel()
    model.fails = {"bad 3"}

    async def go():
        async with batching(model) as batcher:
            first = await busy(batcher, model)
            good = [ask_for(batcher, f"good {n}") for n in range(5)]
            bad = ask_for(batcher, "good 9", "bad 3")
            await turn()
            model.gate.set()
            vectors = [(await task).vectors[0] for task in good]
            with pytest.raises(WorkError, match=r"texts\[1\] could not be encoded") as failed:
                await bad
            assert "nobody's business" not in str(failed.value)
            await first
            return vectors

    vectors = asyncio.run(go())
    assert np.array_equal(vectors, [vector_of(f"good {n}") for n in range(5)])


# Limits


def test_a_request_over_a_limit_is_refused_with_the_numbers():
    async def go():
        async with batching(FakeModel(), tokens=12) as batcher:
            with pytest.raises(TooLarge, match="14 tokens, at most 12"):
                await batcher.embed(["a b c d e", "f g h i j"], EmbedOptions())
            assert batcher.queue_tokens == 0

    asyncio.run(go())


def test_texts_over_a_limit_are_refused_with_the_numbers_and_the_field():
    limits = Limits(texts=3, characters=40)
    limits.check_texts(["a"] * 3, "inputs")
    limits.check_texts(["a"] * 4, "inputs", 4)
    for texts, message in (
        (["a"] * 4, "inputs has 4 texts; one request takes at most 3"),
        (["x", "x" * 41], r"inputs\[1\] has 41 characters; a text takes at most 40"),
    ):
        with pytest.raises(TooLarge, match=message):
            limits.check_texts(texts, "inputs")
    with pytest.raises(InputError, match="inputs is empty"):
        limits.check_texts([], "inputs")


def test_texts_that_are_cached_or_given_twice_count_too():
    model = FakeModel()

    async def go():
        async with batching(model, texts=3, tokens=12) as batcher:
            for texts in (["a b c d e"], ["f g h i j"]):
                await batcher.embed(texts, EmbedOptions())
            for texts in (["a b c d e", "f g h i j"], ["a b c d e"] * 2):
                with pytest.raises(TooLarge, match="14 tokens, at most 12"):
                    await batcher.embed(texts, EmbedOptions())

    asyncio.run(go())
    assert model.computed == ["a b c d e", "f g h i j"]


def test_texts_and_options_that_cannot_be_encoded_are_refused():
    async def go():
        async with batching(FakeModel()) as batcher:
            for texts, ask, message in (
                (["a", None], EmbedOptions(), r"texts\[1\] is None"),
                (["a\ud800"], EmbedOptions(), "lone surrogate"),
                (["a"], EmbedOptions(dim=10**9), "dim must be at most 4"),
                (["a"], EmbedOptions(dim=0), "dim must be a whole number of at least 1"),
                (
                    ["w " * 100],
                    EmbedOptions(truncate=False),
                    r"texts\[0\] has 102 tokens, the model reads 64",
                ),
            ):
                with pytest.raises(InputError, match=message):
                    await batcher.embed(texts, ask)
            assert (await batcher.embed(["w " * 100], EmbedOptions())).kept == [64]

    asyncio.run(go())


def test_long_texts_are_tokenized_in_a_thread_and_in_order():
    async def go():
        texts = [f"{number} " * 30 for number in range(300)]
        async with batching(FakeModel()) as batcher:
            return texts, await batcher.embed(texts, EmbedOptions())

    texts, embedded = asyncio.run(go())
    assert np.array_equal(embedded.vectors, [vector_of(text) for text in texts])


# Counters


def test_statistics_have_percentiles_and_rates(monkeypatch):
    times = Histogram((1, 2))
    assert times.percentile(0.5) is None
    for value in (0.5, 1, 1.5, 9):
        times.add(value)
    assert times.counts == [2, 1, 1] and times.percentile(0.5) == 1.5 and times.count == 4
    clock = iter([100.0, 100.5, 101.5, 105.0])
    monkeypatch.setattr("gemel.serve.telemetry.perf_counter", lambda: next(clock))
    rate = Rate()
    for count in (10, 20, 30):
        rate.add(count)
    assert rate.total == 60 and rate.per_second() == 6.0
