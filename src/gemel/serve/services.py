"""What routes get: the loaded model, the batcher in front of it, and a few threads for longer work."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from time import perf_counter
from typing import TYPE_CHECKING, TypeVar

from gemel.cross_model import CrossModel
from gemel.model import Model
from gemel.serve.batcher import Batcher
from gemel.serve.counters import Figures
from gemel.serve.jobs import Jobs
from gemel.serve.limits import Limits, memory_bytes
from gemel.serve.port import Ask, Embedded

if TYPE_CHECKING:
    from gemel.index.index import Index

T = TypeVar("T")


class ServerServices:
    """`Services` over one model. The batcher is made at the first use, inside the loop that serves."""

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
        figures: Figures | None = None,
    ) -> None:
        self.model, self.model_name = model, name or model.name
        self.cross = cross
        self.cross_name = (cross_name or cross.name) if cross is not None else None
        self.indexes: Mapping[str, Index] = dict(indexes or {})
        self.limits = limits or Limits()
        self.figures = figures or Figures()
        self._threads, self._cache_bytes = threads, cache_bytes
        self._batcher: Batcher | None = None
        self._jobs = Jobs(self.limits, self.figures)

    @property
    def working(self) -> int:
        """Jobs that run or wait."""
        return len(self._jobs)

    @property
    def batcher(self) -> Batcher:
        """Made inside the running event loop, once."""
        if self._batcher is None:
            self._batcher = Batcher(
                self.model, self.limits, self.figures, threads=self._threads, cache_bytes=self._cache_bytes
            )
        return self._batcher

    async def embed(self, texts: Sequence[str], ask: Ask) -> Embedded:
        return await self.batcher.embed(texts, ask)

    async def probe(self, text: str) -> float:
        """Seconds of one real forward pass, before everything that waits."""
        started = perf_counter()
        await self.batcher.embed([text], Ask(client="health"), urgent=True)
        return perf_counter() - started

    async def work(
        self,
        function: Callable[[], T],
        *,
        client: str = "",
        long: bool = False,
        seconds: float | None = None,
    ) -> T:
        return await self._jobs.run(function, client=client, long=long, seconds=seconds)

    def reserve(self, client: str) -> AbstractContextManager[None]:
        return self._jobs.reserve(client)

    async def close(self) -> None:
        if self._batcher is not None:
            await self._batcher.close()
        self._jobs.close()
        if not self.working:  # a thread that still writes must not find its table closed
            for index in self.indexes.values():
                index.close()

    def status(self) -> dict[str, object]:
        figures, batcher = self.figures, self._batcher
        return {
            "model": self.model_name,
            "engine": self.model.kernel,
            **figures.summary(),
            "queue": {
                "tokens": batcher.queue_tokens if batcher else 0,
                "texts": len(batcher.workers.waiting) if batcher else 0,
                "most_tokens": self.limits.queue_tokens,
                "jobs": self.working,
            },
            "cache": {
                "hits": figures.cache_hits,
                "misses": figures.cache_misses,
                "shared": figures.shared,
                "texts": len(batcher.cache) if batcher else 0,
                "bytes": batcher.cache.bytes if batcher else 0,
            },
            "memory_bytes": memory_bytes(),
        }
