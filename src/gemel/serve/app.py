"""The application: the routes of all protocols, and the middleware around them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gemel.serve.access import LOOPBACK_NAMES, Keys
from gemel.serve.logs import RequestLog
from gemel.serve.middleware import Middleware, MiddlewareOptions, find_tracer
from gemel.serve.options import ServeOptions
from gemel.serve.protocols import cohere, openai, operations, own, tei
from gemel.serve.routes import JsonRoute, openapi_document
from gemel.serve.services import Services

PROTOCOLS = (openai, tei, cohere, own)
"""The router tries their routes in this order: the busiest first."""


def create_app(services: Services, options: ServeOptions, keys: Keys | None = None) -> Starlette:
    """All of the server but its socket. Whoever stops the server sets `app.state.health.draining`."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await services.close()

    health = operations.Health(services.probe, fresh_seconds=options.ready_seconds)
    routes = [route for protocol in PROTOCOLS for route in protocol.routes(services)]
    routes += operations.routes(services, health)
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
