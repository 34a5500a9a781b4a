"""A server in this process for tests: `make_services`, `app_of`, `client`, and a live one on a free port."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn
from starlette.applications import Starlette
from starlette.testclient import TestClient

from gemel.serve.access import Keys
from gemel.serve.app import create_app
from gemel.serve.connection import Connection
from gemel.serve.options import Limits, ServeOptions
from gemel.serve.services import Services


def make_services(
    model: Any,
    *,
    cross: Any = None,
    indexes: Mapping[str, Any] | None = None,
    limits: Limits | None = None,
    **settings: Any,
) -> Services:
    """Around a (tiny) model; `settings` go to Services."""
    settings = {"threads": 2, **settings}
    return Services(model, cross=cross, indexes=indexes, limits=limits, **settings)


def app_of(services: Services, *, keys: Keys | None = None, **options: Any) -> Starlette:
    """The complete application; `options` are fields of ServeOptions."""
    return create_app(services, ServeOptions(**{"log": "none", **options}), keys)


def client(app: Starlette, **settings: Any) -> httpx.AsyncClient:
    """Talks to the application without a socket: `async with client(app) as http: await http.post(...)`."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **settings)


def openapi_of(app: Starlette) -> dict[str, Any]:
    """The OpenAPI document that the application serves."""
    document: dict[str, Any] = TestClient(app, base_url="http://localhost").get("/openapi.json").json()
    return document


@contextmanager
def live(app: Starlette) -> Iterator[str]:
    """The application behind a real socket; yields its address, such as http://127.0.0.1:41234."""
    config = uvicorn.Config(
        app, http=Connection, ws="none", host="127.0.0.1", port=0, log_level="error", lifespan="on"
    )
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        if not thread.is_alive():
            raise RuntimeError("the server did not start")
        thread.join(0.01)
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(10)
