"""A server from its socket to its end: bind, load, answer, drain at SIGTERM, stop at once at the second signal.

What a server holds, loaded once at its start: the model, the cross-encoder, the indexes by name.

What stands at the address while the model is being loaded: alive, not ready; then it is the application.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from gemel.cross_model import load_cross
from gemel.errors import InputError, WorkError
from gemel.model import Model, load
from gemel.serve.connection import Connection, Receive
from gemel.serve.errors import Problem, send_problem
from gemel.serve.keys import Keys, read_keys
from gemel.serve.limits import Room, memory_bytes, room
from gemel.serve.logs import RequestLog, captured
from gemel.serve.middleware import App, Scope, Send
from gemel.serve.options import ServeOptions
from gemel.serve.services import ServerServices

if TYPE_CHECKING:
    from starlette.applications import Starlette

    from gemel.index.index import Index
    from gemel.serve.services import ServerServices

IDLE_SECONDS = 75  # a connection between two requests

MEMORY_EVERY = 1.0  # seconds between two looks at the memory

SWITCH_SECONDS = (
    0.0005  # after which a thread that waits for Python's lock gets it: workers must not wait for answers
)


class _Server(uvicorn.Server):  # type: ignore[misc, unused-ignore]
    """Ends with exit code 0 after a signal, and at once at the second."""

    app: Starlette | None = None
    should_exit: bool
    force_exit: bool

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        if self.app is not None:
            self.app.state.health.draining = True


class Running:
    """One server of this process."""

    def __init__(
        self, model: str, options: ServeOptions, ready: Callable[[str, ServerServices], None]
    ) -> None:
        """`ready(address, services)` is called when the first vector was computed."""
        self._model, self._options, self._ready = model, options, ready
        self._keys = checked_keys(options)
        self._services: ServerServices | None = None
        self._error: WorkError | None = None
        self._watching: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Until a signal comes. Raises what the loading raised, or WorkError when the memory ran out."""
        front = LoadingPage(self._start, self._stop, self._end)
        self._server = _Server(self._config(front))
        listening = bind(self._options.host, self._options.port)
        self._address = address_of(listening, self._options)
        before = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_SECONDS)
        try:
            with captured(RequestLog(self._options.log)):
                self._server.run(sockets=[listening])
        finally:
            sys.setswitchinterval(before)
            listening.close()
        if front.error is not None:
            raise front.error
        working = self._services is not None and self._services.working
        if self._error is not None:
            if working:
                sys.stderr.write(f"gemel serve: {self._error}\n")
                _leave(1)
            raise self._error
        if self._server.force_exit or working:
            _leave(0)

    def _config(self, front: LoadingPage) -> uvicorn.Config:
        """Loaded: a certificate that cannot be used is refused here."""
        options = self._options
        config = uvicorn.Config(
            front,
            http=Connection,
            ws="none",  # nothing here speaks it, and it would come past the keys
            lifespan="on",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=IDLE_SECONDS,
            timeout_graceful_shutdown=max(1, round(options.grace_seconds)),
            ssl_certfile=options.ssl_certfile,
            ssl_keyfile=options.ssl_keyfile,
        )
        try:
            config.load()
        except OSError as error:  # ssl.SSLError is one
            unfit = isinstance(error, ssl.SSLError)
            why = "no certificate with its private key in PEM was found" if unfit else error.strerror
            given = ", ".join(str(path) for path in (options.ssl_certfile, options.ssl_keyfile) if path)
            raise InputError(
                f"cannot speak HTTPS with {given}: {why}. Give --ssl-certfile, and --ssl-keyfile if the key is in "
                "another file"
            ) from error
        return config

    async def _start(self) -> App:
        # Side by side: reading weights and importing the web framework take about as long as each other.
        loading = asyncio.to_thread(_load, self._model, self._options)
        services, create_app = await asyncio.gather(loading, asyncio.to_thread(_application))
        self._services = services
        app = create_app(services, self._options, self._keys)
        state = await app.state.health.ready()
        if not state.ready:
            raise WorkError(f"the model was loaded but does not compute: {state.reason}")
        self._server.app = app
        if self._options.memory_bytes is not None:
            self._watching = asyncio.create_task(self._watch_memory(self._options.memory_bytes))
        # What was loaded stays: looking through it for garbage would hold up every request for tens of milliseconds.
        gc.collect()
        gc.freeze()
        self._ready(self._address, services)
        return app

    async def _stop(self) -> None:
        if self._watching is not None:
            self._watching.cancel()
        if self._services is not None:
            await self._services.close()

    def _end(self) -> None:
        self._server.should_exit = True

    async def _watch_memory(self, ceiling: int) -> None:
        while True:
            await asyncio.sleep(MEMORY_EVERY)
            used = memory_bytes()
            if room(used, ceiling) is Room.OVER:
                self._error = WorkError(
                    f"the memory of the server grew to {used / 1e6:,.0f} MB, over its limit of "
                    f"{ceiling / 1e6:,.0f} MB; it ended so that it can be started anew"
                )
                self._end()
                return


def _leave(code: int) -> NoReturn:
    """At once: a thread cannot be stopped, and Python would wait for it."""
    sys.stderr.flush()
    os._exit(code)


def _load(model: str, options: ServeOptions) -> ServerServices:

    return load_services(model, options)


def _application() -> Callable[[ServerServices, ServeOptions, Keys], Starlette]:
    from gemel.serve.app import create_app

    return create_app


def checked_keys(options: ServeOptions) -> Keys:
    """The keys of the file and the environment; none at all is refused for an address that others can reach."""
    keys = read_keys(options.api_key_file, os.environ.get("GEMEL_API_KEYS"), options.requests_per_minute)
    if not len(keys) and not options.loopback and not options.insecure:
        raise InputError(
            f"host {options.host} can be reached from other machines and there are no API keys. "
            "Give --api-key-file, or --insecure if the network is guarded by other means"
        )
    return keys


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says why there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}. Choose another"
        ) from None


def address_of(listening: socket.socket, options: ServeOptions) -> str:
    scheme = "https" if options.ssl_certfile else "http"
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{scheme}://{host}:{listening.getsockname()[1]}"


def load_services(model: str, options: ServeOptions) -> ServerServices:
    """Slow: reads weights. An index that was made by another model is refused here."""
    encoder = load(model, precision=options.precision, engine=options.engine)
    cross = None if options.rerank is None else load_cross(options.rerank)
    return ServerServices(
        encoder,
        name=options.name,
        cross=cross,
        indexes=_open_indexes(options.index, encoder),
        limits=options.limits,
        threads=options.threads,
        cache_bytes=options.cache_bytes,
    )


def index_places(given: tuple[str, ...]) -> dict[str, str]:
    """Places by name out of NAME=PLACE or PLACE; the name of a bare place is its last part."""
    places: dict[str, str] = {}
    for word in given:
        name, equals, place = word.partition("=")
        if not equals or "/" in name:  # a URL may hold a = of its own
            name, place = Path(word.partition("?")[0].rstrip("/")).name, word
        if not name or not place:
            raise InputError(f"--index {word!r} names no place. Write --index FOLDER or --index NAME=FOLDER")
        if name in places:
            raise InputError(f"two indexes are named {name!r}. Give one another name: --index NAME={place}")
        places[name] = place
    return places


def _open_indexes(given: tuple[str, ...], model: Model) -> dict[str, Index]:
    places = index_places(given)
    if not places:
        return {}
    from gemel.index.open import open_index

    return {name: open_index(place, model, create=False) for name, place in places.items()}


NOT_YET = Problem(
    503, "the model is being loaded. Try again in a moment", "loading", headers={"retry-after": "1"}
)


class LoadingPage:
    """An ASGI application that becomes another one."""

    def __init__(
        self,
        start: Callable[[], Awaitable[App]],
        stop: Callable[[], Awaitable[None]],
        fail: Callable[[], None],
    ) -> None:
        """`start` makes the application; `stop` is awaited at the end; `fail` ends the server when `start` fails."""
        self.error: BaseException | None = None
        self._start, self._stop, self._fail = start, stop, fail
        self._app: App | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._not_yet(scope["path"], send)

    async def _live(self, receive: Receive, send: Send) -> None:
        await receive()
        starting = asyncio.create_task(self._begin())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        starting.cancel()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _begin(self) -> None:
        try:
            self._app = await self._start()
        except Exception as error:
            self.error = error
            self._fail()

    async def _not_yet(self, path: str, send: Send) -> None:
        if path != "/health/live":
            await send_problem(send, path, NOT_YET)
            return
        body = b'{"live":true}'
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})
