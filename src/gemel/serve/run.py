"""The server process: bind, load the models and indexes, serve, drain at SIGTERM, stop at the second signal.

A loading page answers while the models are loaded: alive, not ready.
"""

from __future__ import annotations

import asyncio
import gc
import os
import socket
import ssl
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

import uvicorn

from gemel.cross_model import load_cross
from gemel.errors import InputError, ModelError, WorkError
from gemel.model import Model, load
from gemel.serve.access import Keys, read_keys
from gemel.serve.connection import Connection
from gemel.serve.errors import Problem, send_json, send_problem
from gemel.serve.options import ServeOptions
from gemel.serve.services import Services
from gemel.serve.telemetry import RequestLog, capture_logging, memory_bytes

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.types import ASGIApp, Receive, Scope, Send

    from gemel.index.index import Index
    from gemel.texts.late_model import LateModel
    from gemel.texts.sparse_model import SparseModel

IDLE_SECONDS = 75  # a connection between two requests
MEMORY_EVERY = 1.0  # seconds between two measurements of the memory

# Seconds after which a thread that waits for the GIL gets it: workers must not wait for answers.
SWITCH_SECONDS = 0.0005

# New objects after which Python looks for garbage in cycles: a request leaves little, and makes hundreds.
GARBAGE_OBJECTS = 10_000


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


class ServerProcess:
    """The server of this process."""

    def __init__(
        self, models: Sequence[str], options: ServeOptions, ready: Callable[[str, Services], None]
    ) -> None:
        """`models`: NAME=LOCATION or LOCATION. `ready(address, services)` is called when each has computed a vector."""
        self._models, self._options, self._ready = models, options, ready
        self._keys = load_keys(options)
        self._services: Services | None = None
        self._error: WorkError | None = None
        self._watching: asyncio.Task[None] | None = None

    def run(self) -> None:
        """Serve until a signal comes. Raises the error of loading, or WorkError when the memory exceeds its limit."""
        loading_page = LoadingPage(self._start, self._stop, self._end)
        self._server = _Server(self._config(loading_page))
        listening = bind(self._options.host, self._options.port)
        self._address = address_of(listening, self._options)
        before, thresholds = sys.getswitchinterval(), gc.get_threshold()
        sys.setswitchinterval(SWITCH_SECONDS)
        gc.set_threshold(GARBAGE_OBJECTS, *thresholds[1:])
        try:
            with capture_logging(RequestLog(self._options.log)):
                self._server.run(sockets=[listening])
        finally:
            sys.setswitchinterval(before)
            gc.set_threshold(*thresholds)
            listening.close()
        if loading_page.error is not None:
            raise loading_page.error
        working = self._services is not None and self._services.jobs
        if self._error is not None:
            if working:
                sys.stderr.write(f"gemel serve: {self._error}\n")
                _exit(1)
            raise self._error
        if self._server.force_exit or working:
            _exit(0)

    def _config(self, loading_page: LoadingPage) -> uvicorn.Config:
        """The configuration of uvicorn. A certificate that cannot be used is refused here."""
        options = self._options
        config = uvicorn.Config(
            loading_page,
            http=Connection,
            ws="none",  # not used here, and it would bypass the keys
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
            reason = "no certificate with its private key in PEM was found" if unfit else error.strerror
            given = ", ".join(str(path) for path in (options.ssl_certfile, options.ssl_keyfile) if path)
            raise InputError(
                f"cannot speak HTTPS with {given}: {reason}. Give --ssl-certfile, and --ssl-keyfile if the key is in "
                "another file"
            ) from error
        return config

    async def _start(self) -> ASGIApp:
        # At the same time: reading weights and importing the web framework take about equally long.
        loading = asyncio.to_thread(load_services, self._models, self._options)
        importing = asyncio.to_thread(import_module, "gemel.serve.app")
        services, application = await asyncio.gather(loading, importing)
        self._services = services
        app: Starlette = application.create_app(services, self._options, self._keys)
        state = await app.state.health.ready()
        if not state.ready:
            raise WorkError(f"the model was loaded but does not compute: {state.reason}")
        self._server.app = app
        if self._options.memory_bytes is not None:
            self._watching = asyncio.create_task(self._watch_memory(self._options.memory_bytes))
        # What was loaded stays in memory: scanning it for garbage would delay every request by tens of milliseconds.
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

    async def _watch_memory(self, limit: int) -> None:
        while True:
            await asyncio.sleep(MEMORY_EVERY)
            used = memory_bytes()
            if used > limit:
                self._error = WorkError(
                    f"the memory of the server grew to {used / 1e6:,.0f} MB, over its limit of "
                    f"{limit / 1e6:,.0f} MB; it ended so that it can be restarted"
                )
                self._end()
                return


def _exit(code: int) -> NoReturn:
    """End the process at once: a thread cannot be stopped, and Python would wait for it."""
    sys.stderr.flush()
    os._exit(code)


def load_keys(options: ServeOptions) -> Keys:
    """The keys of the file and the environment. An address that other machines can reach needs at least one."""
    keys = read_keys(options.api_key_file, os.environ.get("GEMEL_API_KEYS"), options.requests_per_minute)
    if not len(keys) and not options.loopback and not options.insecure:
        raise InputError(
            f"host {options.host} can be reached from other machines and there are no API keys. "
            "Give --api-key-file, or --insecure if the network is guarded by other means",
            code="GEM-602",
        )
    return keys


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises InputError with the reason if there is none."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise InputError(
            f"cannot listen on {host} port {port}: {error.strerror or error}. Choose another", code="GEM-601"
        ) from None


def address_of(listening: socket.socket, options: ServeOptions) -> str:
    scheme = "https" if options.ssl_certfile else "http"
    host = f"[{options.host}]" if ":" in options.host else options.host
    return f"{scheme}://{host}:{listening.getsockname()[1]}"


def load_services(models: Sequence[str], options: ServeOptions) -> Services:
    """Load the models and open the indexes. An index that was made by none of the models is refused."""
    named = _load_models(models, options)
    (name, first), *others = named.items()
    cross = None if options.rerank is None else load_cross(options.rerank)
    sparse, late = _load_sparse(options), _load_late(options)
    return Services(
        first,
        name=name,
        more_models=dict(others),
        accept_token_ids=options.accept_token_ids,
        cross=cross,
        sparse=sparse,
        late=late,
        indexes=_open_indexes(options.index, list(named.values()), {"sparse": sparse, "late": late}),
        snapshots=options.snapshots,
        limits=options.limits,
        threads=options.threads,
        cache_bytes=options.cache_bytes,
    )


def _load_models(given: Sequence[str], options: ServeOptions) -> dict[str, Model]:
    """The models by the names that clients use."""
    if options.name is not None and len(given) > 1:
        raise InputError(
            f"--name {options.name} was given with {len(given)} models. Name each one: --model NAME=FOLDER"
        )
    named: dict[str, Model] = {}
    for word in given:
        name, equals, location = word.partition("=")
        own = bool(equals) and "/" not in name and not Path(word).exists()
        if own and not (name and location):
            raise InputError(f"--model {word!r} names no model. Write --model FOLDER or --model NAME=FOLDER")
        model = load(
            location if own else word, precision=options.precision, engine=options.engine, task=options.task
        )
        served = name if own else options.name or model.name
        if served in named:
            raise InputError(
                f"two models are named {served!r}. Give one another name: --model NAME={location or word}"
            )
        named[served] = model
    return named


def _load_sparse(options: ServeOptions) -> SparseModel | None:
    if options.sparse is None:
        return None
    from gemel.texts.sparse_model import load_sparse

    return load_sparse(options.sparse, precision=options.precision, engine=options.engine)


def _load_late(options: ServeOptions) -> LateModel | None:
    if options.late is None:
        return None
    from gemel.texts.late_model import load_late

    return load_late(options.late, precision=options.precision, engine=options.engine)


def index_locations(given: tuple[str, ...]) -> dict[str, str]:
    """Locations of indexes by name, from NAME=LOCATION or LOCATION, whose name is its last part."""
    locations: dict[str, str] = {}
    for word in given:
        name, equals, location = word.partition("=")
        if not equals or "/" in name:  # a URL may contain a =
            name, location = Path(word.partition("?")[0].rstrip("/")).name, word
        if not name or not location:
            raise InputError(f"--index {word!r} names no index. Write --index FOLDER or --index NAME=FOLDER")
        if name in locations:
            raise InputError(
                f"two indexes are named {name!r}. Give one another name: --index NAME={location}"
            )
        locations[name] = location
    return locations


def _open_indexes(
    given: tuple[str, ...], models: Sequence[Model], kinds: Mapping[str, SparseModel | LateModel | None]
) -> dict[str, Index]:
    loaded = {kind: model for kind, model in kinds.items() if model is not None}
    return {
        name: _open_with_kinds(location, models, loaded) for name, location in index_locations(given).items()
    }


def _open_with_kinds(
    location: str, models: Sequence[Model], loaded: Mapping[str, SparseModel | LateModel]
) -> Index:
    """The index with the sparse and late models that are loaded, if these made it; else with its own, loaded now."""
    index = _open_with(location, models, {})
    there = {kind: model for kind, model in loaded.items() if kind in index.kinds}
    choices = [there, *({kind: model} for kind, model in there.items())] if there else []
    for chosen in choices:
        with suppress(ModelError):  # made by another one
            shared = _open_with(location, models, chosen)
            index.close()
            index = shared
            break
    index.kind_model("sparse")
    index.kind_model("late")
    return index


def _open_with(location: str, models: Sequence[Model], kinds: Mapping[str, SparseModel | LateModel]) -> Index:
    """The index, with the one of the models that made its dense vectors, if it has any."""
    from gemel.index.open import open_index

    for model in models:
        try:
            return open_index(location, model, create=False, **kinds)  # type: ignore[arg-type]
        except ModelError as error:  # made by another model
            refused = error
    index = open_index(location, create=False, **kinds)  # type: ignore[arg-type]
    if "dense" in index.kinds or not index.kinds:
        index.close()
        raise refused
    return index


LOADING = Problem(
    503, "the model is being loaded. Try again in a moment", "loading", headers={"retry-after": "1"}
)


class LoadingPage:
    """An ASGI application that says "loading" until the real one is ready, and then passes everything to it."""

    def __init__(
        self,
        start: Callable[[], Awaitable[ASGIApp]],
        stop: Callable[[], Awaitable[None]],
        fail: Callable[[], None],
    ) -> None:
        """`start` makes the application; `stop` is awaited at the end; `fail` ends the server when `start` fails."""
        self.error: BaseException | None = None
        self._start, self._stop, self._fail = start, stop, fail
        self._app: ASGIApp | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
        elif self._app is not None:
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._loading(scope["path"], send)

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        await receive()
        starting = asyncio.create_task(self._load())
        await send({"type": "lifespan.startup.complete"})
        await receive()
        starting.cancel()
        await self._stop()
        await send({"type": "lifespan.shutdown.complete"})

    async def _load(self) -> None:
        try:
            self._app = await self._start()
        except Exception as error:
            self.error = error
            self._fail()

    async def _loading(self, path: str, send: Send) -> None:
        if path == "/health/live":
            await send_json(send, 200, b'{"live":true}')
        else:
            await send_problem(send, path, LOADING)
