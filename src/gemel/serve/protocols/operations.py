"""Routes for operators (/status, /health and its parts, /metrics for Prometheus), and the web page.

The page at `/` consists of a few files that are read at the start, with a policy that lets the browser run nothing
else. A name in a request is looked up among these files; it never becomes a path.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from itertools import accumulate
from time import perf_counter
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import Response

from gemel.serve.errors import PlainError
from gemel.serve.routes import NamedRoute, Routes, json_response
from gemel.serve.services import Call, Services
from gemel.serve.telemetry import Histogram, memory_bytes

PROBE_SECONDS = 5.0  # a forward pass of one short text that takes longer counts as failed


class Status(RootModel[dict[str, Any]]):
    """Throughput, latency by stage, queue, batches, cache, memory, uptime."""


def routes(services: Services, health: Health) -> Routes:
    """The routes for operators."""
    route = Routes("health")
    registry = CollectorRegistry()
    registry.register(ServerCollector(services))

    @route.add("GET", "/status", Status, tag="Server", error=PlainError)
    async def status(call: Call) -> Response:
        """Live statistics."""
        return json_response(services.status())

    @route.add("GET", "/health/live", summary="The process answers")
    async def live(call: Call) -> Response:
        return json_response({"live": True})

    @route.add("GET", "/health/ready", summary="The model computes", responses={"503": "Not now"})
    async def ready(call: Call) -> Response:
        return _answer(await health.ready())

    @route.add("GET", "/health", summary="The model computes", responses={"503": "Not now"})
    async def plain(call: Call) -> Response:
        return _answer(await health.ready())

    @route.add("GET", "/metrics", summary="Figures for Prometheus", media_type=None)
    async def figures(call: Call) -> Response:
        page = generate_latest(registry)
        return Response(page, media_type="text/plain; version=0.0.4; charset=utf-8")

    return route


def _answer(state: Readiness) -> Response:
    return json_response(state, 200 if state.ready else 503)


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
        for name, help, count in (
            ("texts", "Texts that were answered.", counters.texts.total),
            ("tokens", "Tokens that were computed.", counters.tokens.total),
            ("cache_hits", "Texts answered from memory.", counters.cache_hits),
            ("cache_misses", "Texts that were computed.", counters.cache_misses),
            ("shared", "Texts already under way for another request.", counters.shared),
            ("failed_texts", "Texts that the engine failed at.", counters.failed_batches),
        ):
            yield CounterMetricFamily(f"gemel_{name}", help, count)
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
        services, capacity = self._services, self._services.capacity
        for name, help, value in (
            ("queue_tokens", "Tokens that wait.", capacity.queue_tokens),
            ("queue_tokens_limit", "Tokens that may wait.", services.limits.queue_tokens),
            ("busy_workers", "Workers that compute now.", capacity.busy),
            ("cache_bytes", "Memory of the kept vectors.", capacity.cache.bytes),
            ("memory_bytes", "Resident memory of the process.", memory_bytes()),
            ("uptime_seconds", "Since the model was loaded.", perf_counter() - services.counters.started),
        ):
            yield GaugeMetricFamily(f"gemel_{name}", help, value)


def _histograms(
    name: str, help: str, label: str | None, parts: Mapping[str, Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, help, labels=[label] if label else [])
    for part, histogram in parts.items():
        bounds = [*map(str, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric([part] if label else [], list(zip(bounds, counts, strict=True)), histogram.sum)
    return family


# The page.

MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # a text put into innerHTML would throw
        "trusted-types 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # The browser revalidates each time ("not modified"), so no old file survives an upgrade.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page as it is sent."""

    body: bytes
    media: str
    etag: str


def page_routes() -> list[NamedRoute]:
    """`/` and `/page/{file}`. The page calls the other routes as any client does."""
    available = page_files()

    async def index(request: Request) -> Response:
        return _file_response(available["index.html"], request)

    async def file(request: Request) -> Response:
        requested = available.get(request.path_params["file"])
        if requested is None:
            return Response("There is no such file.", 404, HEADERS, "text/plain; charset=utf-8")
        return _file_response(requested, request)

    return [NamedRoute("/", index), NamedRoute("/page/{file}", file)]


def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its name."""
    available = {}
    for path in files("gemel.serve").joinpath("page").iterdir():
        media = MEDIA.get("." + path.name.rpartition(".")[2])
        if media is not None:
            body = path.read_bytes()
            available[path.name] = PageFile(body, media, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return available


def _file_response(file: PageFile, request: Request) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in tags or "*" in tags:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media)
