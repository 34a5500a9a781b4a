"""What routes use: the loaded models and indexes, the batcher, and a few threads for longer work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from gemel.cross_model import CrossModel
from gemel.model import Model
from gemel.serve.batcher import Batcher, EmbedOptions, EmbedResult
from gemel.serve.counters import Counters
from gemel.serve.jobs import Jobs
from gemel.serve.limits import Limits, memory_bytes

if TYPE_CHECKING:
    from gemel.index.index import Index

T = TypeVar("T")


class Services:
    """One loaded model and what was loaded beside it. Routes parse and answer; this does the work."""

    def __init__(
        self,
        model: Model,
        *,
        name: str | None = None,
        cross: CrossModel | None = None,
        cross_name: str | None = None,
        indexes: Mapping[str, Index] | None = None,
        limits: Limits | None = None,
        threads: int | None = None,
        cache_bytes: int = 64_000_000,
        counters: Counters | None = None,
    ) -> None:
        """`name` and `cross_name` are what clients call the models; `indexes` by the names the operator gave."""
        self.model, self.model_name = model, name or model.name
        self.cross = cross
        self.cross_name = (cross_name or cross.name) if cross is not None else None
        self.indexes: Mapping[str, Index] = dict(indexes or {})
        self.limits = limits or Limits()
        self.counters = counters or Counters()
        self._threads, self._cache_bytes = threads, cache_bytes
        self._batcher: Batcher | None = None
        self._jobs = Jobs(self.limits, self.counters)

    @property
    def working(self) -> int:
        """Jobs that run or wait."""
        return len(self._jobs)

    @property
    def batcher(self) -> Batcher:
        """Made at its first use, inside the running event loop."""
        if self._batcher is None:
            self._batcher = Batcher(
                self.model, self.limits, self.counters, threads=self._threads, cache_bytes=self._cache_bytes
            )
        return self._batcher

    async def embed(self, texts: Sequence[str], options: EmbedOptions) -> EmbedResult:
        """Vectors of texts whose number and lengths were checked, through the batcher.

        Raises `Overloaded` (429) when the queue is full, `DeadlineExceeded` (504), `TooLarge` (413) for too many
        tokens, InputError (400) for texts that cannot be encoded; cancelled with the request.
        """
        return await self.batcher.embed(texts, options)

    async def probe(self, text: str) -> float:
        """Seconds of one real forward pass, which goes before everything that waits."""
        started = perf_counter()
        await self.batcher.embed([text], EmbedOptions(client="health"), urgent=True)
        return perf_counter() - started

    async def work(
        self,
        function: Callable[[], T],
        *,
        client: str = "",
        long: bool = False,
        seconds: float | None = None,
    ) -> T:
        """A computation (index search, pairs, explain) on a worker thread, in turns between clients.

        `long`: it may take seconds. One thread is kept free of long ones, and a client may have few of them.
        """
        return await self._jobs.run(function, client=client, long=long, seconds=seconds)

    def reserve(self, client: str) -> AbstractContextManager[None]:
        """Around a request that needs long work: raises `Overloaded` (429) where its client has too many."""
        return self._jobs.reserve(client)

    async def close(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
        self._jobs.close()
        if not self.working:  # a thread may still write to an index
            for index in self.indexes.values():
                index.close()

    def status(self) -> dict[str, object]:
        """The answer of /status: throughput, latency by stage, queue, batches, cache, memory, uptime."""
        counters, batcher = self.counters, self._batcher
        return {
            "model": self.model_name,
            "engine": self.model.kernel,
            **counters.summary(),
            "queue": {
                "tokens": batcher.queue_tokens if batcher else 0,
                "texts": len(batcher.workers.queue) if batcher else 0,
                "most_tokens": self.limits.queue_tokens,
                "jobs": self.working,
            },
            "cache": {
                "hits": counters.cache_hits,
                "misses": counters.cache_misses,
                "shared": counters.shared,
                "texts": len(batcher.cache) if batcher else 0,
                "bytes": batcher.cache.bytes if batcher else 0,
            },
            "memory_bytes": memory_bytes(),
        }
