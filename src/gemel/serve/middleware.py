"""What stands around every route, as one ASGI layer: who is let in, the body's limits, ids, the log, the figures.

Who is let in: the name a request calls this server by, its API key, how often it asks.

OpenTelemetry spans around requests, when the package is there and a provider was set up; else nothing.
"""

from __future__ import annotations

import asyncio
import math
import re
import secrets
from collections.abc import Awaitable, Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from gemel.serve.connection import Gone, Message, Receive, RequestBody, read_body
from gemel.serve.counters import Figures
from gemel.serve.errors import RouteError, problem_of, send_problem
from gemel.serve.keys import Key, Keys, digest_of, given_key
from gemel.serve.limits import Limits, Overloaded, Room, TooLate, late, memory_bytes, room, trim_memory
from gemel.serve.logs import RequestLog

Scope = dict[str, Any]

Send = Callable[[Message], Awaitable[None]]

App = Callable[[Scope, Receive, Send], Awaitable[None]]

WATCH_AFTER = 0.02  # seconds after which a request is worth asking whether its client is still there

MEMORY_EVERY = 0.5  # seconds between two looks at the memory

MOST_BODIES = 16  # bodies of the largest size that may be in memory at once

SMALL_BODY = 64_000  # bytes

LARGE_BODY = 100_000  # bytes, after which memory is given back to the system

TRIM_AFTER = 0.2  # seconds

GONE = 499  # what the log calls a request whose client went away

SAFE_HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"x-frame-options", b"DENY"),
]

CLOSED_POLICY = (b"content-security-policy", b"default-src 'none'; frame-ancestors 'none'")

_ID = re.compile(rb"[A-Za-z0-9_.:-]{1,64}")


@dataclass(frozen=True)
class MiddlewareSettings:
    """What the layer needs to know."""

    limits: Limits
    keys: Keys
    allowed_hosts: frozenset[str] | None
    body_seconds: float
    memory_ceiling: int | None
    figures: Figures
    log: RequestLog
    span: Span


class Middleware:
    """ASGI middleware."""

    def __init__(self, app: App, settings: MiddlewareSettings) -> None:
        self._app, self._settings = app, settings
        self._bodies = 0  # bytes of bodies in memory
        self._trimming = False
        self._memory: tuple[float, Room] = (-1e9, Room.ENOUGH)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        visit = _Visit(scope, send)
        try:
            with self._settings.span(f"{scope['method']} {scope['path']}"):
                await self._answer(visit, scope, receive)
        except Gone:
            visit.status = GONE
        except asyncio.CancelledError:
            if visit.late:
                await self._give_up(visit)
            elif visit.gone:
                visit.status = GONE
            else:
                raise
        except Exception as error:
            await self._fail(visit, error)
        finally:
            self._note(visit)

    async def _answer(self, visit: _Visit, scope: Scope, receive: Receive) -> None:
        settings, headers = self._settings, scope["headers"]
        check_host(headers, settings.allowed_hosts)
        address = scope["client"][0] if scope.get("client") else ""
        state = scope.setdefault("state", {})
        state["read_only"] = False
        if not is_public(scope["method"], scope["path"]):
            key = check_key(headers, settings.keys, address)
            if key is not None:
                visit.client, state["read_only"] = key.name, key.read_only
        state["client"] = visit.client or address
        if scope["method"] in ("GET", "HEAD", "OPTIONS"):
            await self._app(scope, receive, visit.send)
            return
        check_encoding(headers)
        self._check_memory()
        stated, most = _content_length(headers), settings.limits.body_bytes
        try:
            self._reserve(visit, min(stated or 0, most))
            taken = _counted(receive, lambda size: self._reserve(visit, size)) if stated is None else receive
            body = await read_body(taken, stated, settings.limits, settings.body_seconds)
            scope["state"]["body"] = body
            await self._watched(visit, scope, _replay(body, receive), receive)
        finally:
            scope["state"].pop("body", None)
            self._bodies -= visit.body
            if visit.body >= LARGE_BODY:
                self._trim_soon()

    def _trim_soon(self) -> None:
        """After a large body the allocator is asked to give its pages back, once for all that end together."""
        if not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_later(TRIM_AFTER, self._trim)

    def _trim(self) -> None:
        self._trimming = False
        asyncio.get_running_loop().run_in_executor(None, trim_memory)

    def _reserve(self, visit: _Visit, size: int) -> None:
        """Room for a body, or for its next part where no length was stated, before it is kept.

        Small bodies always fit: large ones must not shut them out.
        """
        most = MOST_BODIES * self._settings.limits.body_bytes
        if visit.body + size > SMALL_BODY and self._bodies + size > most:
            raise Overloaded("too many large requests are under way. Try again in 1 s", 1.0)
        self._bodies += size
        visit.body += size

    async def _watched(self, visit: _Visit, scope: Scope, replayed: Receive, receive: Receive) -> None:
        """Run the route; if it takes a while, cancel it when its client goes away, or when its time is over.

        One time for all that a route does; an answer that has begun to go out is not broken off.
        """
        loop, task = asyncio.get_running_loop(), asyncio.current_task()
        watchers: list[asyncio.Task[None]] = []

        async def watch() -> None:
            while (await receive())["type"] != "http.disconnect":
                pass
            if task is not None and not visit.complete and not visit.late:
                visit.gone = True
                task.cancel()

        def end() -> None:
            if task is not None and not visit.status and not visit.gone:
                visit.late = True
                task.cancel()

        timer = loop.call_later(WATCH_AFTER, lambda: watchers.append(loop.create_task(watch())))
        deadline = loop.call_later(self._settings.limits.seconds, end)
        try:
            await self._app(scope, replayed, visit.send)
        finally:
            timer.cancel()
            deadline.cancel()
            for watcher in watchers:
                watcher.cancel()

    async def _give_up(self, visit: _Visit) -> None:
        task = asyncio.current_task()
        if task is not None:
            task.uncancel()  # it was ours, and this is its answer
        self._settings.figures.rejected["deadline"] += 1
        await self._fail(visit, TooLate(late(self._settings.limits.seconds)))

    def _check_memory(self) -> None:
        settings, now = self._settings, perf_counter()
        if settings.memory_ceiling is None:
            return
        if now - self._memory[0] > MEMORY_EVERY:
            self._memory = now, room(memory_bytes(), settings.memory_ceiling)
        if self._memory[1] is not Room.ENOUGH:
            settings.figures.rejected["memory"] += 1
            raise Overloaded("the server is short of memory. Try again in 5 s", 5.0)

    async def _fail(self, visit: _Visit, error: Exception) -> None:
        problem = problem_of(error)
        if problem.code == "internal_error":
            self._settings.log.failure(error, id=visit.id.decode(), path=visit.path)
        if visit.status:  # too late for another answer
            return
        if problem.code in ("invalid_api_key", "wrong_host", "too_large", "slow_body", "overloaded"):
            self._settings.figures.rejected[problem.code] += 1
        await send_problem(visit.send, visit.path, problem)

    def _note(self, visit: _Visit) -> None:
        seconds = perf_counter() - visit.started
        figures = self._settings.figures
        figures.requests.add(1)
        figures.answers[visit.route, visit.status] += 1
        if visit.status == GONE:
            figures.rejected["gone"] += 1
        if visit.path.startswith("/health"):
            return
        self._settings.log.line(
            "request",
            id=visit.id.decode(),
            method=visit.method,
            route=visit.route,
            status=visit.status,
            seconds=round(seconds, 6),
            client=visit.client,
        )


class _Visit:
    """One request and what became of it."""

    __slots__ = (
        *("_scope", "_send", "body", "client", "complete", "gone", "id"),
        *("late", "method", "path", "started", "status"),
    )

    def __init__(self, scope: Scope, send: Send) -> None:
        self._scope, self._send = scope, send
        self.method, self.path = scope["method"], scope["path"]
        self.started = perf_counter()
        self.client: str | None = None
        self.status = 0
        self.body = 0  # bytes reserved for it
        self.gone = self.late = self.complete = False
        self.id = _request_id(scope["headers"])

    @property
    def route(self) -> str:
        """The path as the routes write it: a client's own words stay out of logs and figures."""
        route = self._scope.get("route")
        return getattr(route, "path", None) or "other"

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = message["headers"] = list(message.get("headers", ()))
            headers.append((b"x-request-id", self.id))
            headers.extend(SAFE_HEADERS)
            if not any(name == CLOSED_POLICY[0] for name, _ in headers):
                headers.append(CLOSED_POLICY)
        elif not message.get("more_body"):
            self.complete = True
        await self._send(message)


def _counted(receive: Receive, count: Callable[[int], None]) -> Receive:
    """What comes, after `count` was told the bytes of each part."""

    async def part() -> Message:
        message = await receive()
        count(len(message.get("body", b"")))
        return message

    return part


def _replay(body: RequestBody, receive: Receive) -> Receive:
    """The body as one message, unless the route has taken it already, then whatever comes."""
    given = False

    async def again() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body.take(), "more_body": False}

    return again


def _content_length(headers: list[tuple[bytes, bytes]]) -> int | None:
    for name, value in headers:
        if name == b"content-length":
            return int(value) if value.isdigit() else None
    return None


def _request_id(headers: list[tuple[bytes, bytes]]) -> bytes:
    """The client's own, if it is short and plain; else a new one."""
    for name, value in headers:
        if name == b"x-request-id" and _ID.fullmatch(value):
            return value
    return secrets.token_hex(8).encode()


LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

PUBLIC = frozenset({"/", "/health", "/health/live", "/health/ready", "/favicon.ico"})

PUBLIC_FOLDER = "/page/"  # the files of the page, which asks for the key itself

Headers = Iterable[tuple[bytes, bytes]]


def host_name(headers: Headers) -> str:
    """The Host header without its port."""
    for name, value in headers:
        if name == b"host":
            host = value.decode("latin-1").strip().lower()
            if host.startswith("["):
                return host[1:].partition("]")[0]
            return host.partition(":")[0]
    return ""


def check_host(headers: Headers, allowed: frozenset[str] | None) -> None:
    """A page of the web that had its name pointed at this machine calls us by that name: refuse it.

    `allowed` None: the server is meant to be reached by others, under names that are not known here.
    """
    if allowed is not None and host_name(headers) not in allowed:
        raise RouteError(
            403,
            "this server answers to localhost only. Start it with --allowed-host to let it answer to more names",
            code="wrong_host",
        )


def check_encoding(headers: Headers) -> None:
    """Refuse (415) a body that is compressed: a small one could become a very large one."""
    for name, value in headers:
        said = value.decode("latin-1").strip().lower()
        if name == b"content-encoding" and said not in ("", "identity"):
            raise RouteError(
                415,
                f"a body with content-encoding {said[:40]!r} is not read. Send it as it is, without compression",
                code="unsupported_content_encoding",
            )


def is_public(method: str, path: str) -> bool:
    return method in ("GET", "HEAD") and (path in PUBLIC or path.startswith(PUBLIC_FOLDER))


def check_key(headers: Headers, keys: Keys, address: str) -> Key | None:
    """The key; None where there are no keys.

    Raises 401 for a wrong one, `Overloaded` for one that asks too often and for an address with many wrong ones.
    """
    if not len(keys):
        return None
    given = given_key(headers)
    key = None
    if given is not None:
        digest = digest_of(given)
        if wait := keys.wrong.wait(address, digest):
            raise Overloaded(
                f"too many wrong API keys came from this address. Try again in {math.ceil(wait)} s", wait
            )
        key = keys.find(given)
        keys.wrong.note(address, digest, right=key is not None)
    if key is None:
        what = "no API key was sent" if given is None else "the API key is not known"
        raise RouteError(401, f"{what}. Send it as Authorization: Bearer KEY", code="invalid_api_key")
    if key.bucket is not None and (wait := key.bucket.take()):
        raise Overloaded(f"the key {key.name!r} asks more often than it may. Try again in {wait:.0f} s", wait)
    return key


Span = Callable[[str], AbstractContextManager[Any]]


def find_tracer() -> Span:
    """What makes a span of a name. OpenTelemetry is set up before: `opentelemetry-instrument gemel serve`."""
    try:
        from opentelemetry import trace
    except ImportError:
        return lambda _: nullcontext()
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return lambda _: nullcontext()
    span: Span = trace.get_tracer("gemel.serve").start_as_current_span
    return span
