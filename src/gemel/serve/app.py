"""The application: routes inside, the shell around them.

The busiest routes without the router: a look-up by path, the same functions, half of the time on the way to them.

Errors are the shell's; the OpenAPI document still has these routes from the router.

Errors that the web framework raises by itself, in the shape of the protocol that was spoken.

Whether the server lives and whether it computes: /health/live, /health/ready, and /health as others name it.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from time import perf_counter

import orjson
from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware

from gemel.serve.connection import Receive
from gemel.serve.errors import Problem, error_body, problem_of
from gemel.serve.keys import Keys
from gemel.serve.logs import RequestLog
from gemel.serve.metrics import Metrics
from gemel.serve.middleware import (
    LOOPBACK_NAMES,
    App,
    Middleware,
    MiddlewareSettings,
    Scope,
    Send,
    find_tracer,
)
from gemel.serve.options import ServeOptions
from gemel.serve.protocols import cohere, openai, own, page, tei
from gemel.serve.services import ServerServices

ROUTES = (openai, tei, cohere, own, page)
"""Looked through in this order for every request: the busiest first."""


def create_app(services: ServerServices, options: ServeOptions, keys: Keys | None = None) -> FastAPI:
    """All of the server but its socket. `app.state.health` is drained by whoever stops it."""
    from importlib.metadata import version

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await services.close()

    # No pages of FastAPI's own: they load scripts from elsewhere.
    app = FastAPI(title="gemel", version=version("gemel"), docs_url=None, redoc_url=None, lifespan=lifespan)
    app.state.health = Health(services.probe, fresh_seconds=options.ready_seconds)
    routers = [routes.router(services) for routes in ROUTES]
    for router in routers:
        app.include_router(router)
    app.include_router(health_router(app.state.health))
    app.include_router(_metrics(services))
    add_error_handlers(app)
    app.add_middleware(FastPath, routes=busy_routes(routers))
    app.add_middleware(Middleware, settings=_settings(services, options, keys or Keys(())))
    if options.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origin),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


def _settings(services: ServerServices, options: ServeOptions, keys: Keys) -> MiddlewareSettings:
    names = {name.lower() for name in options.allowed_host}
    return MiddlewareSettings(
        limits=services.limits,
        keys=keys,
        allowed_hosts=frozenset(LOOPBACK_NAMES | names) if options.loopback else None,
        body_seconds=options.body_seconds,
        memory_ceiling=options.memory_bytes,
        figures=services.figures,
        log=RequestLog(options.log),
        span=find_tracer(),
    )


def _metrics(services: ServerServices) -> APIRouter:
    routes = APIRouter(tags=["health"])
    metrics = Metrics(services)

    @routes.get("/metrics", summary="Figures for Prometheus", response_class=Response)
    async def figures() -> Response:
        return Response(metrics.page(), media_type="text/plain; version=0.0.4; charset=utf-8")

    return routes


BUSY = ("/v1/embeddings", "/embed")


class FastPath:
    """ASGI middleware."""

    def __init__(self, app: App, routes: Mapping[str, APIRoute]) -> None:
        self._app, self._routes = app, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        route = self._routes.get(scope.get("path", "")) if scope.get("method") == "POST" else None
        if route is None:
            await self._app(scope, receive, send)
            return
        scope["route"] = route
        response = await route.endpoint(Request(scope, receive))
        await response(scope, receive, send)


def busy_routes(routers: Sequence[APIRouter]) -> dict[str, APIRoute]:
    """Of these routers, by path; only functions that take the request and nothing else."""
    found = {}
    for router in routers:
        for route in router.routes:
            if isinstance(route, APIRoute) and route.path in BUSY and route.methods == {"POST"}:
                assert len(inspect.signature(route.endpoint).parameters) == 1, f"{route.path} takes more"
                found[route.path] = route
    return found


def _problem_of(error: Exception) -> Problem:
    match error:
        case HTTPException():
            return Problem(error.status_code, str(error.detail), headers=error.headers or {})
        case RequestValidationError():
            return Problem(422, _first_mistake(error), "invalid_request")
    return problem_of(error)


def _first_mistake(error: RequestValidationError) -> str:
    mistakes = error.errors()
    if not mistakes:
        return "the request is not of the form that this route takes"
    place = ".".join(str(part) for part in mistakes[0].get("loc", ()) if part != "body")
    text = str(mistakes[0].get("msg", "not of the right form"))
    return f"{place}: {text}" if place else text


def add_error_handlers(app: FastAPI) -> None:
    """Errors that FastAPI would answer by itself get their protocol's shape; all others reach the shell."""

    async def answer(request: Request, error: Exception) -> Response:
        path, problem = request.scope["path"], _problem_of(error)  # request.url would decode the query
        return Response(
            error_body(path, problem), problem.status, dict(problem.headers), media_type="application/json"
        )

    for kind in (HTTPException, RequestValidationError):
        app.add_exception_handler(kind, answer)


PROBE_SECONDS = 5.0  # a forward pass of one short text that takes longer is none


@dataclass(frozen=True)
class Ready:
    """What a load balancer is told."""

    ready: bool
    reason: str | None = None
    forward_seconds: float | None = None
    """Of the last forward pass, its wait included."""
    age_seconds: float | None = None


class Health:
    """Makes a real forward pass when the last one is too old; several askers share one."""

    def __init__(self, probe: Callable[[str], Awaitable[float]], *, fresh_seconds: float) -> None:
        self.draining = False
        self._probe, self._fresh = probe, fresh_seconds
        self._last: tuple[float, float] | None = None  # when it ended, how long it took
        self._lock = asyncio.Lock()
        self._count = 0

    async def ready(self) -> Ready:
        if self.draining:
            return Ready(False, "the server is going down")
        async with self._lock:
            if self._last is None or perf_counter() - self._last[0] > self._fresh:
                try:
                    await self._forward()
                except TimeoutError:
                    return Ready(False, f"no forward pass within {PROBE_SECONDS:g} s: the queue stands still")
                except Exception as error:
                    return Ready(False, f"the forward pass fails ({type(error).__name__})")
        assert self._last is not None
        return Ready(True, None, round(self._last[1], 6), round(perf_counter() - self._last[0], 3))

    async def _forward(self) -> None:
        self._last = None
        self._count += 1
        # A text of its own each time: a remembered vector would say nothing.
        seconds = await asyncio.wait_for(self._probe(f"is anybody there, {self._count}"), PROBE_SECONDS)
        self._last = perf_counter(), seconds


def health_router(health: Health) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/health/live", summary="The process answers")
    async def live() -> Response:
        return Response(b'{"live":true}', media_type="application/json")

    @routes.get("/health/ready", summary="The model computes", responses={503: {"description": "Not now"}})
    async def ready() -> Response:
        return _answer(await health.ready())

    @routes.get("/health", summary="The model computes", responses={503: {"description": "Not now"}})
    async def plain() -> Response:
        return _answer(await health.ready())

    return routes


def _answer(state: Ready) -> Response:
    status = 200 if state.ready else 503
    return Response(orjson.dumps(state), status, media_type="application/json")
