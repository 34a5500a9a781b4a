"""The application: routes inside, the shell around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import APIRouter, FastAPI, Response
from starlette.middleware.cors import CORSMiddleware

from gemel.serve import health
from gemel.serve.doors import LOOPBACK_NAMES
from gemel.serve.framework_errors import add_error_handlers
from gemel.serve.health import Health
from gemel.serve.keys import Keys
from gemel.serve.logs import RequestLog
from gemel.serve.metrics import Metrics
from gemel.serve.options import ServeOptions
from gemel.serve.quick import Quick, busy_routes
from gemel.serve.routes import cohere, openai, own, page, tei
from gemel.serve.services import ServerServices
from gemel.serve.shell import Shell, ShellSettings
from gemel.serve.tracing import find_tracer

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
    app.include_router(health.router(app.state.health))
    app.include_router(_metrics(services))
    add_error_handlers(app)
    app.add_middleware(Quick, routes=busy_routes(routers))
    app.add_middleware(Shell, settings=_settings(services, options, keys or Keys(())))
    if options.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origin),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


def _settings(services: ServerServices, options: ServeOptions, keys: Keys) -> ShellSettings:
    names = {name.lower() for name in options.allowed_host}
    return ShellSettings(
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
