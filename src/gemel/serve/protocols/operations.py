"""Routes for operators: /health, /health/live, /health/ready, and /metrics for Prometheus."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from time import perf_counter

import orjson
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from starlette.requests import Request
from starlette.responses import Response

from gemel.serve.counters import Histogram
from gemel.serve.limits import memory_bytes
from gemel.serve.routes import Routes
from gemel.serve.services import Services

PROBE_SECONDS = 5.0  # a forward pass of one short text that takes longer counts as failed


def routes(services: Services, health: Health) -> Routes:
    """The routes for operators."""
    route = Routes("health")
    registry = CollectorRegistry()
    registry.register(ServerCollector(services))

    @route.get("/health/live", summary="The process answers")
    async def live(request: Request) -> Response:
        return Response(b'{"live":true}', media_type="application/json")

    @route.get("/health/ready", summary="The model computes", responses={"503": "Not now"})
    async def ready(request: Request) -> Response:
        return _answer(await health.ready())

    @route.get("/health", summary="The model computes", responses={"503": "Not now"})
    async def plain(request: Request) -> Response:
        return _answer(await health.ready())

    @route.get("/metrics", summary="Figures for Prometheus", media_type=None)
    async def figures(request: Request) -> Response:
        page = generate_latest(registry)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    return route


def _answer(state: Readiness) -> Response:
    status = 200 if state.ready else 503
    return Response(orjson.dumps(state), status, media_type="application/json")


@dataclass(frozen=True)
class Readiness:
    """The answer of /health/ready."""

    ready: bool
    reason: str | None = None
    forward_seconds: float | None = None
    """Of the last forward pass, with its time in the queue."""
    age_seconds: float | None = None


class Health:
    """Makes a real forward pass when the last one is too old; concurrent requests share one."""

    def __init__(self, probe: Callable[[str], Awaitable[float]], *, fresh_seconds: float) -> None:
        self.draining = False
        self._probe, self._fresh = probe, fresh_seconds
        self._last: tuple[float, float] | None = None  # when it ended, how long it took
        self._lock = asyncio.Lock()
        self._count = 0

    async def ready(self) -> Readiness:
        if self.draining:
            return Readiness(False, "the server is going down")
        async with self._lock:
            if self._last is None or perf_counter() - self._last[0] > self._fresh:
                try:
                    await self._forward()
                except TimeoutError:
                    return Readiness(
                        False, f"no forward pass within {PROBE_SECONDS:g} s: the queue does not move"
                    )
                except Exception as error:
                    return Readiness(False, f"the forward pass fails ({type(error).__name__})")
        assert self._last is not None
        return Readiness(True, None, round(self._last[1], 6), round(perf_counter() - self._last[0], 3))

    async def _forward(self) -> None:
        self._last = None
        self._count += 1
        # A new text each time: a cached vector would prove nothing.
        seconds = await asyncio.wait_for(self._probe(f"is anybody there, {self._count}"), PROBE_SECONDS)
        self._last = perf_counter(), seconds


class ServerCollector:
    """The metrics of one server, for the registry of prometheus_client."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        counters = self._services.counters
        yield _histograms(
            "gemel_stage_seconds", "Time of a request or batch by stage.", "stage", counters.stages
        )
        yield _histograms("gemel_batch_texts", "Texts of a batch.", None, {"": counters.batch_texts})
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        counters = self._services.counters
        yield CounterMetricFamily("gemel_texts", "Texts that were answered.", counters.texts.total)
        yield CounterMetricFamily("gemel_tokens", "Tokens that were computed.", counters.tokens.total)
        yield CounterMetricFamily("gemel_cache_hits", "Texts answered from memory.", counters.cache_hits)
        yield CounterMetricFamily("gemel_cache_misses", "Texts that were computed.", counters.cache_misses)
        yield CounterMetricFamily(
            "gemel_shared", "Texts already under way for another request.", counters.shared
        )
        yield CounterMetricFamily(
            "gemel_failed_texts", "Texts that the engine failed at.", counters.failed_batches
        )
        rejected = CounterMetricFamily("gemel_rejected", "Requests refused, by reason.", labels=["reason"])
        for reason, count in counters.rejected.items():
            rejected.add_metric([reason], count)
        yield rejected
        answers = CounterMetricFamily(
            "gemel_requests", "Answers by route and status.", labels=["route", "status"]
        )
        for (route, status), count in counters.answers.items():
            answers.add_metric([route, str(status)], count)
        yield answers

    def _gauges(self) -> Iterator[Metric]:
        services = self._services
        batcher = services.batcher
        yield GaugeMetricFamily("gemel_queue_tokens", "Tokens that wait.", batcher.queue_tokens)
        yield GaugeMetricFamily(
            "gemel_queue_tokens_limit", "Tokens that may wait.", services.limits.queue_tokens
        )
        yield GaugeMetricFamily("gemel_busy_workers", "Workers that compute now.", batcher.workers.busy)
        yield GaugeMetricFamily("gemel_cache_bytes", "Memory of the kept vectors.", batcher.cache.bytes)
        yield GaugeMetricFamily("gemel_memory_bytes", "Resident memory of the process.", memory_bytes())
        seconds = perf_counter() - services.counters.started
        yield GaugeMetricFamily("gemel_uptime_seconds", "Since the model was loaded.", seconds)


def _histograms(
    name: str, help: str, label: str | None, parts: Mapping[str, Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, help, labels=[label] if label else [])
    for part, histogram in parts.items():
        bounds = [*map(str, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric([part] if label else [], list(zip(bounds, counts, strict=True)), histogram.sum)
    return family
