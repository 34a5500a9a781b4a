"""What stands at the address while the model is being loaded: alive, not ready; then it is the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from gemel.serve.body import Receive
from gemel.serve.errors import Problem, error_body
from gemel.serve.shell import App, Scope, Send

NOT_YET = Problem(
    503, "the model is being loaded. Try again in a moment", "loading", headers={"retry-after": "1"}
)


class Front:
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
        alive = path == "/health/live"
        body = b'{"live":true}' if alive else error_body(path, NOT_YET)
        headers = [(b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
        if not alive:
            headers.append((b"retry-after", b"1"))
        await send({"type": "http.response.start", "status": 200 if alive else 503, "headers": headers})
        await send({"type": "http.response.body", "body": body})
