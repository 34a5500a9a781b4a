"""The application: the routes of all protocols, the middleware around them, and the OpenAPI document."""

from __future__ import annotations

import inspect
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from gemel.serve.access import Keys
from gemel.serve.middleware import Middleware
from gemel.serve.options import ServeOptions
from gemel.serve.protocols import (
    cohere,
    explain,
    indexes,
    ollama,
    openai,
    operations,
    pairs,
    rerank,
    search,
    tei,
)
from gemel.serve.routes import JsonRoute
from gemel.serve.services import Services

PROTOCOLS = (openai, tei, rerank, cohere, ollama, search, pairs, explain, indexes)
"""The router tries their routes in this order: the busiest first."""


def create_app(services: Services, options: ServeOptions, keys: Keys | None = None) -> Starlette:
    """All of the server but its socket. Whoever stops the server sets `app.state.health.draining`."""

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        yield
        await services.close()

    health = operations.Health(services.probe, fresh_seconds=options.ready_seconds)
    entries = [entry for protocol in PROTOCOLS for entry in protocol.ROUTES]
    entries += operations.routes(services, health)
    routes = [JsonRoute(entry, services) for entry in entries]

    async def openapi(_: Request) -> Response:
        return JSONResponse(openapi_document(routes))

    app = Application(
        routes=[*routes, *operations.page_routes(), Route("/openapi.json", openapi)], lifespan=lifespan
    )
    app.state.health = health
    app.add_middleware(Middleware, services=services, options=options, keys=keys or Keys(()))
    if options.cors_origin:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(options.cors_origin),
            allow_methods=["GET", "POST", "DELETE"],
            allow_headers=["authorization", "content-type", "x-api-key", "api-key", "x-request-id"],
            expose_headers=["x-request-id", "retry-after"],
        )
    return app


class Application(Starlette):
    """Without Starlette's own two layers for errors: the middleware answers all errors, those of the router too."""

    def build_middleware_stack(self) -> ASGIApp:
        app: ASGIApp = self.router
        for layer, arguments, keywords in reversed(self.user_middleware):
            app = layer(app, *arguments, **keywords)
        return app


def openapi_document(routes: Sequence[JsonRoute]) -> dict[str, Any]:
    """The OpenAPI document of these routes, in their order."""
    models = {
        model: None
        for route in routes
        for model in (route.entry.answer, route.entry.error)
        if model is not None
    }
    references, definitions = models_json_schema(
        [(model, "serialization") for model in models], ref_template="#/components/schemas/{model}"
    )
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        operations = paths.setdefault(route.path_format, {})
        operations[route.entry.method.lower()] = _operation(
            route, lambda model: references[model, "serialization"]
        )
    document: dict[str, Any] = _without_nulls(
        {
            "openapi": "3.1.0",
            "info": {"title": "gemel", "version": version("gemel")},
            "paths": paths,
            "components": {"schemas": dict(sorted(definitions.get("$defs", {}).items()))},
        }
    )
    return document


def _operation(route: JsonRoute, reference: Callable[[type[BaseModel]], dict[str, Any]]) -> dict[str, Any]:
    entry = route.entry
    operation: dict[str, Any] = {
        "tags": [entry.tag],
        "summary": entry.summary or entry.name.replace("_", " ").title(),
        "description": inspect.getdoc(entry.function),
    }
    identifier = re.sub(r"\W", "_", entry.name + route.path_format)
    operation["operationId"] = f"{identifier}_{entry.method.lower()}"
    if route.param_convertors:
        operation["parameters"] = [
            {
                "name": name,
                "in": "path",
                "required": True,
                "schema": {"type": "string", "title": name.title()},
            }
            for name in route.param_convertors
        ]
    if route.body_model is not None:
        operation["requestBody"] = {
            "required": True,
            "content": _json(_inlined(route.body_model.model_json_schema())),
        }
    success: dict[str, Any] = {"description": "Successful Response"}
    if entry.media_type is not None:
        success["content"] = _json({} if entry.answer is None else reference(entry.answer))
    responses = {"200": success}
    for status, description in entry.responses.items():
        responses[status] = {"description": description}
    if entry.error is not None:
        content = _json(reference(entry.error))
        responses["4XX"] = {"description": "The request cannot be answered as it is", "content": content}
        responses["5XX"] = {"description": "The server could not do it", "content": content}
    return {**operation, "responses": responses}


def _json(schema: dict[str, Any]) -> dict[str, Any]:
    return {"application/json": {"schema": schema}}


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema with its definitions written out where they are used."""
    definitions = schema.pop("$defs", {})

    def inline(part: Any) -> Any:  # noqa: ANN401 - any JSON
        if isinstance(part, dict):
            if "$ref" in part:
                rest = {name: value for name, value in part.items() if name != "$ref"}
                return inline({**definitions[part["$ref"].rpartition("/")[2]], **rest})
            return {name: inline(value) for name, value in part.items()}
        return [inline(each) for each in part] if isinstance(part, list) else part

    return dict(inline(schema))


def _without_nulls(part: Any) -> Any:  # noqa: ANN401 - any JSON
    """Fields that are null are left out, such as the default of an optional field."""
    if isinstance(part, dict):
        return {name: _without_nulls(value) for name, value in part.items() if value is not None}
    return [_without_nulls(each) for each in part] if isinstance(part, list) else part
