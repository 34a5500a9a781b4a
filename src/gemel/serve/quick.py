"""The busiest routes without the router: a look-up by path, the same functions, half of the time on the way to them.

Errors are the shell's; the OpenAPI document still has these routes from the router.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence

from fastapi import APIRouter, Request
from fastapi.routing import APIRoute

from gemel.serve.body import Receive
from gemel.serve.shell import App, Scope, Send

BUSY = ("/v1/embeddings", "/embed")


class Quick:
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
