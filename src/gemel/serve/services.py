"""What routes use: the loaded models with a batcher each, the indexes, and a few threads for longer work.

Work that is not a forward pass (index searches, pairs, clusters, reranking, writes) runs on these threads. A running
thread cannot be stopped, so what may run and wait is bounded for each client; clients take turns, and long jobs never
take the last free thread, so that a search does not wait behind another client's clusters.
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from time import perf_counter, time
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar, get_args

import numpy as np

from gemel.cross_model import CrossModel
from gemel.errors import InputError
from gemel.model import Model
from gemel.serve.batcher import (
    BatchedModel,
    Batcher,
    Capacity,
    EmbedOptions,
    EmbedResult,
    SparseArrays,
    TextArrays,
)
from gemel.serve.options import DeadlineExceeded, Limits, Overloaded
from gemel.serve.queue import RoundRobin
from gemel.serve.telemetry import Counters, memory_bytes
from gemel.types import Vectors
from gemel.vectors.calibration import Calibration, calibrate

if TYPE_CHECKING:
    from gemel.index.index import Index
    from gemel.texts.late_model import LateModel
    from gemel.texts.sparse_model import SparseModel

T = TypeVar("T")

PromptSide: TypeAlias = Literal["query", "document"]

THREADS = 2  # jobs that run at once
SHORT_PER_LONG = 4  # short jobs of a client that may run or wait, for each long one
CLIENTS = 8  # clients that may have as much waiting as one client may
RETRY_SECONDS = 5.0
CALIBRATIONS = 32  # that are cached
CALIBRATION_PAIRS = 200_000  # random pairs: enough for a percentile, a few milliseconds


class ServedModel:
    """A loaded model: the name that clients call it by, and its batcher."""

    def __init__(self, name: str, model: Model, make_batcher: Callable[[BatchedModel], Batcher]) -> None:
        self.name, self.model = name, model
        self._make_batcher = make_batcher

    @cached_property
    def batcher(self) -> Batcher:
        """Made at its first use, inside the running event loop."""
        return self._make_batcher(self.model)

    def has_name(self, name: str) -> bool:
        """The name is this model's: as it is served or loaded, also without the owner of its repository."""
        return is_called(name, self.name, self.model.name)

    @cached_property
    def prompts(self) -> Mapping[str, str]:
        """The prompts of the checkpoint by their names; none where all of them are empty, as many tools write them."""
        prompts = self.model.checkpoint.prompts
        return prompts if any(prompts.values()) else {}

    @cached_property
    def sides(self) -> Mapping[PromptSide, str]:
        """The sides of a search that the checkpoint has a prompt for, each with the name of its prompt.

        An empty prompt counts where the other side has one, and where the sides have modules or adapters of their own.
        """
        sides: tuple[PromptSide, ...] = get_args(PromptSide)
        names = {
            side: name for side in sides if (name := self.model.checkpoint.prompt_name(side)) is not None
        }
        needed = self.model.checkpoint.query_side is not None
        return names if needed or any(map(self.prompts.get, names.values())) else {}


def is_called(name: str, *own: str) -> bool:
    """The name is one of a model's own, also without the owner of its repository."""
    names = {*own, *(each.rpartition("/")[2] for each in own)}
    names |= {f"sentence-transformers/{each}" for each in names if "/" not in each}
    return name.removesuffix(":latest") in names  # Ollama's clients add this tag


class ServedSparse:
    """The sparse encoder and its batcher."""

    def __init__(self, model: SparseModel, make_batcher: Callable[[BatchedModel], Batcher]) -> None:
        self.name, self.model = model.name, model
        self._make_batcher = make_batcher

    @cached_property
    def batcher(self) -> Batcher:
        """Made at its first use, inside the running event loop."""
        return self._make_batcher(SparseArrays(self.model))

    def options(self, side: PromptSide, *, truncate: bool = True) -> EmbedOptions:
        """For texts of one side of a search."""
        own = self.model.side_options(side)
        return EmbedOptions(prompt=own.prompt, prompt_name=own.prompt_name, truncate=truncate)


class Services:
    """The loaded models and what was loaded beside them. Routes parse and answer; this does the work."""

    def __init__(  # noqa: PLR0913 - everything that the operator may load and limit
        self,
        model: Model,
        *,
        name: str | None = None,
        more_models: Mapping[str, Model] | None = None,
        accept_token_ids: bool = False,
        cross: CrossModel | None = None,
        cross_name: str | None = None,
        sparse: SparseModel | None = None,
        late: LateModel | None = None,
        indexes: Mapping[str, Index] | None = None,
        snapshots: Path | None = None,
        limits: Limits | None = None,
        threads: int | None = None,
        cache_bytes: int = 64_000_000,
    ) -> None:
        """`name` and `cross_name` are what clients call the models; `indexes` by the names the operator gave.

        `snapshots`: the folder for those that clients request; None: they cannot request any.
        `more_models` by their names: a client that names none of them gets `model`. `accept_token_ids`: clients may
        send ids of a model's own vocabulary instead of texts to the routes of OpenAI.
        """
        self.cross = cross
        self.cross_name = (cross_name or cross.name) if cross is not None else None
        self.late = late
        self.indexes: Mapping[str, Index] = dict(indexes or {})
        self.snapshots = snapshots
        self.limits = limits or Limits()
        self.counters = Counters()
        self.accept_token_ids = accept_token_ids
        self.capacity = Capacity(threads=threads, cache_bytes=cache_bytes)
        named = {name or model.name: model, **(more_models or {})}
        self.models = [ServedModel(each, loaded, self._make_batcher) for each, loaded in named.items()]
        """The first is that of the page and of requests that name none."""
        self.sparse = None if sparse is None else ServedSparse(sparse, self._make_batcher)
        self.calibrations = Calibrations()
        self.started = int(time())
        self.jobs = Jobs(self.limits, self.counters)

    @property
    def batcher(self) -> Batcher:
        """Of the first model."""
        return self.models[0].batcher

    def _make_batcher(self, model: BatchedModel) -> Batcher:
        return Batcher(model, self.limits, self.counters, self.capacity)

    async def probe(self, text: str) -> float:
        """Seconds of one real forward pass of each model with a batcher, which goes before everything that waits."""
        started = perf_counter()
        for each in self.models:
            await each.batcher.embed([text], EmbedOptions(), client="health", urgent=True)
        if self.sparse is not None:
            options = self.sparse.options("document")
            await self.sparse.batcher.rows([text], options, client="health", urgent=True)
        return perf_counter() - started

    async def close(self) -> None:
        for batcher in self.capacity.batchers:
            await batcher.close()
        self.jobs.close()
        if not self.jobs:  # a thread may still write to an index
            for index in self.indexes.values():
                index.close()

    def status(self) -> dict[str, object]:
        """The answer of /status: throughput, latency by stage, queue, batches, cache, memory, uptime."""
        counters, capacity, first = self.counters, self.capacity, self.models[0]
        return {
            "model": first.name,
            "models": [each.name for each in self.models],
            "sparse_model": None if self.sparse is None else self.sparse.name,
            "late_model": None if self.late is None else self.late.name,
            "engine": first.model.kernel,
            **counters.summary(),
            "queue": {
                "tokens": capacity.queue_tokens,
                "texts": capacity.queue_texts,
                "most_tokens": self.limits.queue_tokens,
                "jobs": len(self.jobs),
            },
            "cache": {
                "hits": counters.cache_hits,
                "misses": counters.cache_misses,
                "shared": counters.shared,
                "texts": len(capacity.cache),
                "bytes": capacity.cache.bytes,
            },
            "memory_bytes": memory_bytes(),
        }


@dataclass(frozen=True)
class Call:
    """One request to a route: the services on behalf of its client."""

    services: Services
    client: str
    """The name of its API key, else its address."""
    read_only: bool = False
    """Its key may not change an index."""
    chosen: ServedModel | None = None
    """The model that the client named; None: the first."""
    side: PromptSide | None = None
    """What followed the model's name, as in MODEL:query; one of `ServedModel.sides`."""
    late_chosen: bool = False
    """The client named the model for late interaction: it reranks, also where there is a cross-encoder."""

    @property
    def served(self) -> ServedModel:
        return self.chosen or self.services.models[0]

    @property
    def model(self) -> Model:
        return self.served.model

    @property
    def model_name(self) -> str:
        return self.served.name if self.side is None else f"{self.served.name}:{self.side}"

    @property
    def prompt_name(self) -> str | None:
        """The prompt that the name of the model chose."""
        return None if self.side is None else self.served.sides[self.side]

    @property
    def limits(self) -> Limits:
        return self.services.limits

    async def embed(self, texts: Sequence[str], options: EmbedOptions) -> EmbedResult:
        """Vectors of texts whose number and lengths were checked, through the batcher.

        Raises `Overloaded` (429) when the queue is full, `DeadlineExceeded` (504), `TooLarge` (413) for too many
        tokens, InputError (400) for texts that cannot be encoded; cancelled with the request.
        """
        return await self.served.batcher.embed(texts, options, client=self.client)

    async def embed_sparse(self, texts: Sequence[str], options: EmbedOptions) -> TextArrays:
        """As `embed`, of the sparse encoder, which must be there: one array of WORD_WEIGHT for each text."""
        assert self.services.sparse is not None
        return await self.services.sparse.batcher.rows(texts, options, client=self.client)

    async def work(self, function: Callable[[], T], *, long: bool = False) -> T:
        """A computation (index search, pairs, explain) on a worker thread, in turns between clients.

        `long`: it may take seconds. One thread is kept free of long ones, and a client may have few of them.
        """
        return await self.services.jobs.run(function, client=self.client, long=long)

    def reserve(self) -> AbstractContextManager[None]:
        """Around a request that needs long work: raises `Overloaded` (429) where its client has too many."""
        return self.services.jobs.reserve(self.client)


@dataclass(eq=False)
class ThreadJob:
    """One computation that waits or runs."""

    function: Callable[[], Any]
    client: str
    long: bool
    done: asyncio.Future[Any]
    begun: bool = False

    @property
    def waiting(self) -> bool:
        return not self.done.done()


class Jobs:
    """The threads and their queue. Used on one event loop."""

    def __init__(self, limits: Limits, counters: Counters) -> None:
        self._limits, self._counters = limits, counters
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="gemel-work")
        self._waiting = {long: RoundRobin[ThreadJob]() for long in (False, True)}
        self._running: Counter[bool] = Counter()
        self._closed = False
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._requests: Counter[str] = Counter()

    def __len__(self) -> int:
        """Jobs that run or wait."""
        return self._counts.total()

    @contextmanager
    def reserve(self, client: str) -> Iterator[None]:
        """Around all that a long request does: refuse it before its texts are encoded, not after."""
        most = self._limits.client_jobs
        self._check(self._requests[client], most, self._requests.total())
        self._requests[client] += 1
        try:
            yield
        finally:
            self._requests -= Counter([client])  # forgets a client whose count is 0

    async def run(self, function: Callable[[], T], *, client: str = "", long: bool = False) -> T:
        """The result of `function`. After its time nobody waits for it, but it keeps its thread."""
        most = self._limits.client_jobs * (1 if long else SHORT_PER_LONG)
        total = sum(count for (_, is_long), count in self._counts.items() if is_long == long)
        self._check(self._counts[client, long], most, total)
        allowed = self._limits.seconds
        job = ThreadJob(function, client, long, asyncio.get_running_loop().create_future())
        self._counts[client, long] += 1
        self._waiting[long].put(job)
        self._start()
        try:
            finished, _ = await asyncio.wait({job.done}, timeout=allowed)
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        if not finished:
            self._give_up(job)
            self._counters.rejected["deadline"] += 1
            raise DeadlineExceeded(f"the answer was not ready within {allowed:g} s. Ask for less at once")
        result: T = job.done.result()
        return result

    def close(self) -> None:
        """Begin nothing that waits; what runs continues, as a thread cannot be stopped."""
        self._closed = True
        for turns in self._waiting.values():
            while (job := turns.next()) is not None:
                self._give_up(job)
        self._pool.shutdown(wait=False)

    def _start(self) -> None:
        """Give free threads to those whose turn it is."""
        while not self._closed and self._running.total() < THREADS and (job := self._next()) is not None:
            job.begun = True
            self._running[job.long] += 1
            loop = job.done.get_loop()
            running = self._pool.submit(job.function)
            running.add_done_callback(partial(self._deliver, loop, job))

    def _next(self) -> ThreadJob | None:
        """A long job where none runs, else a short one: neither waits for all of the other."""
        if not self._running[True] and (job := self._waiting[True].next()) is not None:
            return job
        if (job := self._waiting[False].next()) is not None:
            return job
        return self._waiting[True].next() if self._running[True] < THREADS - 1 else None

    def _deliver(self, loop: asyncio.AbstractEventLoop, job: ThreadJob, running: Future[Any]) -> None:
        """On the thread of the job."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, job, running)

    def _finish(self, job: ThreadJob, running: Future[Any]) -> None:
        self._running[job.long] -= 1
        self._uncount(job)
        if not job.done.done():
            if running.cancelled():
                job.done.cancel()
            elif (error := running.exception()) is not None:
                job.done.set_exception(error)
            else:
                job.done.set_result(running.result())
        self._start()

    def _give_up(self, job: ThreadJob) -> None:
        """A job that has not begun never will; nobody sees the result of one that has."""
        if not job.done.done():
            job.done.cancel()
            if not job.begun:
                self._uncount(job)

    def _uncount(self, job: ThreadJob) -> None:
        self._counts -= Counter([(job.client, job.long)])

    def _check(self, count: int, most: int, total: int) -> None:
        if count >= most or total >= CLIENTS * most:
            self._counters.rejected["work"] += 1
            whose = f"{count} longer requests of this client" if count >= most else f"{total} longer requests"
            raise Overloaded(f"{whose} run or wait already. Try again in {RETRY_SECONDS:g} s", RETRY_SECONDS)


class Calibrations:
    """The most recent calibrations, by the vectors they were computed from. Safe to use from several threads."""

    def __init__(self) -> None:
        self._cached: OrderedDict[object, Calibration | None] = OrderedDict()
        self._lock = threading.Lock()

    def between(self, client: str, left: Vectors, right: Vectors | None = None) -> Calibration | None:
        """Of pairs within `left`, or of left and right; None where these are too few or too similar to calibrate.

        Cached for this client only: another client could tell by the time of its answer which texts were sent.
        """
        sides = [np.ascontiguousarray(side) for side in (left, right) if side is not None]
        key = [(side.shape, hashlib.blake2b(side.data, digest_size=16).digest()) for side in sides]
        return self.cached((client, *key), lambda: (left, right))

    def cached(self, key: object, sample: Callable[[], tuple[Vectors, Vectors | None]]) -> Calibration | None:
        """As `between`, for vectors that are fetched only when the key is new."""
        with self._lock:
            if key in self._cached:
                self._cached.move_to_end(key)
                return self._cached[key]
        calibration = _calibrate(*sample())
        with self._lock:
            self._cached[key] = calibration
            while len(self._cached) > CALIBRATIONS:
                self._cached.popitem(last=False)
        return calibration


def _calibrate(left: Vectors, right: Vectors | None) -> Calibration | None:
    try:
        return calibrate(left, other=right, sample=CALIBRATION_PAIRS)
    except InputError:
        return None
