"""The application: the routes of all protocols, health, metrics, and the middleware around them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gemel.serve.access import LOOPBACK_NAMES, Keys
from gemel.serve.counters import Metrics
from gemel.serve.logs import RequestLog
from gemel.serve.middleware import Middleware, MiddlewareOptions, find_tracer
from gemel.serve.options import ServeOptions
from gemel.serve.protocols import cohere, openai, own, tei
from gemel.serve.routes import JsonRoute, Routes, openapi_document
from gemel.serve.services import Services

PROTOCOLS = (openai, tei, cohere, own)
"""The router tries their routes in this order: the busiest first."""


def create_app(services: Services, options: ServeOptions, keys: Keys | None = None) -> Starlette:
    """All of the server but its socket. Whoever stops the server sets `app.state.health.draining`."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await services.close()

    health = Health(services.probe, fresh_seconds=options.ready_seconds)
    routes = [route for protocol in PROTOCOLS for route in protocol.routes(services)]
    routes += [*_health_routes(health), *_metrics_routes(services)]
    app = Starlette(
        routes=[*routes, *own.page_routes(), _openapi_route(routes)],
        lifespan=lifespan,
        exception_handlers={HTTPException: _reraise},
    )
    app.state.health = health
    app.add_middleware(Middleware, options=_middleware_options(services, options, keys or Keys(())))
    if options.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origin),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


async def _reraise(_: Request, error: Exception) -> Response:
    """The middleware answers all errors, those of the router too."""
    raise error


def _openapi_route(routes: list[JsonRoute]) -> Route:
    from importlib.metadata import version

    async def document(_: Request) -> Response:
        return JSONResponse(openapi_document(routes, title="gemel", version=version("gemel")))

    return Route("/openapi.json", document)


def _middleware_options(services: Services, options: ServeOptions, keys: Keys) -> MiddlewareOptions:
    names = {name.lower() for name in options.allowed_host}
    return MiddlewareOptions(
        limits=services.limits,
        keys=keys,
        allowed_hosts=frozenset(LOOPBACK_NAMES | names) if options.loopback else None,
        body_seconds=options.body_seconds,
        memory_limit=options.memory_bytes,
        counters=services.counters,
        log=RequestLog(options.log),
        span=find_tracer(),
    )


def _metrics_routes(services: Services) -> Routes:
    route = Routes("health")
    metrics = Metrics(services)

    @route.get("/metrics", summary="Figures for Prometheus", media_type=None)
    async def figures(request: Request) -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return route


PROBE_SECONDS = 5.0  # a forward pass of one short text that takes longer counts as failed


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


def _health_routes(health: Health) -> Routes:
    route = Routes("health")

    @route.get("/health/live", summary="The process answers")
    async def live(request: Request) -> Response:
        return Response(b'{"live":true}', media_type="application/json")

    @route.get("/health/ready", summary="The model computes", responses={"503": "Not now"})
    async def ready(request: Request) -> Response:
        return _answer(await health.ready())

    @route.get("/health", summary="The model computes", responses={"503": "Not now"})
    async def plain(request: Request) -> Response:
        return _answer(await health.ready())

    return route


def _answer(state: Readiness) -> Response:
    status = 200 if state.ready else 503
    return Response(orjson.dumps(state), status, media_type="application/json")
