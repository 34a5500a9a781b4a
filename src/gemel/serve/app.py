"""The application: the routes of all protocols, the middleware around them, and the OpenAPI document.

The middleware is the same for every route: access, the body, deadlines, errors, request ids, the log and the counters.
Spans of OpenTelemetry are made when the package is installed and a provider was set up.
"""

from __future__ import annotations

import asyncio
import inspect
import random
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from time import perf_counter
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gemel.files.machine import memory_limits
from gemel.serve.access import LOOPBACK_NAMES, Keys, check_encoding, check_host, check_key, is_public
from gemel.serve.connection import ClientDisconnected, read_body
from gemel.serve.errors import problem_of, send_problem
from gemel.serve.options import DeadlineExceeded, Overloaded, ServeOptions, deadline_message
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
    sparse,
    tei,
)
from gemel.serve.routes import JsonRoute
from gemel.serve.services import Services
from gemel.serve.telemetry import RequestLog, find_tracer, memory_bytes, private_bytes, trim_memory

PROTOCOLS = (openai, tei, rerank, cohere, ollama, search, pairs, explain, indexes, sparse)
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
            allow_methods=["GET", "POST", "PATCH", "DELETE"],
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


WATCH_AFTER = 0.02  # seconds after which the middleware watches whether the client is still connected
MEMORY_EVERY = 0.5  # seconds between two measurements of the memory
MEMORY_SHARE = 0.9  # of the limit, from which new work is refused
MOST_BODIES = 16  # bodies of the largest size that may be in memory at once
SMALL_BODY = 64_000  # bytes
LARGE_BODY = 100_000  # bytes, after which memory is returned to the system
TRIM_AFTER = 0.2  # seconds
DISCONNECTED = 499  # the status in the log of a request whose client disconnected

SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]

CLOSED_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

_ID = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_IDS = random.Random()  # an id tells requests apart; it may be guessed


class Middleware:
    """ASGI middleware that answers every error (see `errors.py`)."""

    def __init__(self, app: ASGIApp, services: Services, options: ServeOptions, keys: Keys) -> None:
        self._app, self._keys = app, keys
        self._body_seconds, self._memory_limit = options.body_seconds, options.memory_bytes
        self._container_limit = memory_limits().limit if options.memory_bytes is None else None
        self._limits, self._counters = services.limits, services.counters
        self._log, self._span = RequestLog(options.log), find_tracer()
        names = LOOPBACK_NAMES.union(name.lower() for name in options.allowed_host)
        self._allowed_hosts = names if options.loopback else None
        self._bodies = 0  # bytes of bodies in memory
        self._trimming = False
        self._measured = -1e9  # when the memory was
        self._short_of_memory = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        state = RequestState(scope, send)
        try:
            with self._span(f"{scope['method']} {scope['path']}"):
                await self._answer(state, scope, receive)
        except ClientDisconnected:
            state.status = DISCONNECTED
        except asyncio.CancelledError:
            if not state.disconnected:
                raise
            state.status = DISCONNECTED
        except Exception as error:
            await self._fail(state, error)
        finally:
            self._record(state)

    async def _answer(self, state: RequestState, scope: Scope, receive: Receive) -> None:
        headers = state.headers
        check_host(headers, self._allowed_hosts)
        address = scope["client"][0] if scope.get("client") else ""
        shared = scope.setdefault("state", {})
        shared["read_only"] = False
        if not is_public(scope["method"], scope["path"]):
            key = check_key(headers, self._keys, address)
            if key is not None:
                state.client, shared["read_only"] = key.name, key.read_only
        shared["client"] = state.client or address
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, state.send)
            return
        check_encoding(headers)
        self._check_memory()
        length = headers.get("content-length", "")
        stated = int(length) if length.isdecimal() else None
        try:
            self._reserve(state, min(stated or 0, self._limits.body_bytes))
            source = _counted(receive, lambda size: self._reserve(state, size)) if stated is None else receive
            shared["body"] = await read_body(source, stated, self._limits, self._body_seconds)
            await self._watched(state, scope, receive)
        finally:
            shared.pop("body", None)
            self._bodies -= state.body
            if state.body >= LARGE_BODY:
                self._trim_soon()

    def _trim_soon(self) -> None:
        """Return memory to the system after large bodies, once for all that end together."""
        if not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        self._trimming = False
        asyncio.get_running_loop().run_in_executor(None, trim_memory)

    def _reserve(self, state: RequestState, size: int) -> None:
        """Count the bytes of a body, or of its next part where no length was stated, before it is read.

        Small bodies are always accepted: large ones must not displace them.
        """
        most = MOST_BODIES * self._limits.body_bytes
        if state.body + size > SMALL_BODY and self._bodies + size > most:
            raise Overloaded("too many large requests are under way. Try again in 1 s", 1.0)
        self._bodies += size
        state.body += size

    async def _watched(self, state: RequestState, scope: Scope, receive: Receive) -> None:
        """Run the route; if it takes a while, cancel it when its client disconnects or its deadline passes.

        One deadline for all that a route does; an answer that is already being sent is not interrupted.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        watchers: list[asyncio.Task[None]] = []
        seconds = self._limits.seconds
        deadline = asyncio.timeout(seconds)

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if task is not None and not state.complete and not deadline.expired():
                state.disconnected = True
                task.cancel()

        async def send(message: Message) -> None:
            if deadline.when() is not None and not deadline.expired():
                deadline.reschedule(None)
            await state.send(message)

        timer = loop.call_later(WATCH_AFTER, lambda: watchers.append(loop.create_task(watch())))
        try:
            async with deadline:
                await self._app(scope, receive, send)
        except TimeoutError:
            if not deadline.expired():
                raise
            self._counters.rejected["deadline"] += 1
            raise DeadlineExceeded(deadline_message(seconds)) from None
        finally:
            timer.cancel()
            for watcher in watchers:
                watcher.cancel()

    def _check_memory(self) -> None:
        """Refuse new work near the limit of the options, else near that of the container.

        The pages of mapped files count for the former only: a container drops them before it runs out of memory.
        """
        limit = self._memory_limit or self._container_limit
        if limit is None:
            return
        now = perf_counter()
        if now - self._measured > MEMORY_EVERY:
            used = private_bytes() if self._memory_limit is None else memory_bytes()
            self._measured, self._short_of_memory = now, used >= MEMORY_SHARE * limit
        if self._short_of_memory:
            self._counters.rejected["memory"] += 1
            raise Overloaded("the server is short of memory. Try again in 5 s", 5.0)

    async def _fail(self, state: RequestState, error: Exception) -> None:
        problem = problem_of(error)
        if problem.code == "internal_error":
            self._log.failure(error, id=state.id, path=state.path)
        if state.status:  # too late for another answer
            return
        if problem.code in ("invalid_api_key", "wrong_host", "too_large", "slow_body", "overloaded"):
            self._counters.rejected[problem.code] += 1
        await send_problem(state.send, state.path, problem)

    def _record(self, state: RequestState) -> None:
        seconds = perf_counter() - state.started
        counters = self._counters
        counters.requests.add(1)
        counters.answers[state.route, state.status] += 1
        if state.status == DISCONNECTED:
            counters.rejected["gone"] += 1
        if state.path.startswith("/health"):
            return
        self._log.line(
            "request",
            id=state.id,
            method=state.method,
            route=state.route,
            status=state.status,
            seconds=round(seconds, 6),
            client=state.client,
        )


class RequestState:
    """One request and its answer so far."""

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self.method, self.path = scope["method"], scope["path"]
        self.started = perf_counter()
        self.client: str | None = None
        self.status = 0
        self.body = 0  # bytes counted for it
        self.disconnected = self.complete = False
        self.headers = Headers(scope=scope)
        given = self.headers.get("x-request-id", "")
        # The id that the client sent, if it is short and plain.
        self.id = given if _ID.fullmatch(given) else f"{_IDS.getrandbits(64):016x}"

    @property
    def route(self) -> str:
        """The path pattern of the route: a client's own words stay out of logs and counters."""
        route = self._scope.get("route")
        return getattr(route, "path", None) or "other"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"] = list(message.get("headers", ()))
            headers.append((b"x-request-id", self.id.encode()))
            headers.extend(SAFE_HEADERS)
            if not any(name == CLOSED_POLICY[0] for name, _ in headers):
                headers.append(CLOSED_POLICY)
        elif not message.get("more_body"):
            self.complete = True
        await self._send(message)


def _counted(receive: Receive, count: Callable[[int], None]) -> Receive:
    """`receive`, with `count` called for the bytes of each part."""

    async def part() -> Message:
        message = await receive()
        count(len(message.get("body", b"")))
        return message

    return part
