"""The routes of gemel itself: search, pairs, clusters, explain, relation, indexes, status, and the web page.

The page at `/` consists of a few files that are read at the start, with a policy that lets the browser run nothing
else. A name in a request is looked up among these files; it never becomes a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from pydantic import RootModel
from starlette.requests import Request
from starlette.responses import Response

from gemel.serve.errors import PlainError
from gemel.serve.protocols import clusters, explain, indexes, pairs, search
from gemel.serve.protocols.pairs import Calibrations
from gemel.serve.protocols.requests import json_response
from gemel.serve.routes import JsonRoute, NamedRoute, Routes
from gemel.serve.services import Services


class Status(RootModel[dict[str, Any]]):
    """Throughput, latency by stage, queue, batches, cache, memory, uptime."""


def routes(services: Services) -> list[JsonRoute]:
    """All but the page. They share the calibrations of scores."""
    calibrations = Calibrations()
    server = Routes("Server", error=PlainError)

    @server.get("/status", Status)
    async def status(request: Request) -> Response:
        """Live figures."""
        return json_response(services.status())

    return [
        *search.routes(services, calibrations),
        *pairs.routes(services, calibrations),
        *clusters.routes(services),
        *explain.routes(services),
        *indexes.routes(services, calibrations),
        *server,
    ]


# The page.

MEDIA = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}

POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",  # a text put into innerHTML would throw
        "trusted-types 'none'",
    )
)

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), geolocation=(), microphone=()",
    # The browser revalidates each time ("not modified"), so no old file survives an upgrade.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page as it is sent."""

    body: bytes
    media: str
    etag: str


def page_routes() -> list[NamedRoute]:
    """`/` and `/page/{file}`. The page calls the other routes as any client does."""
    available = page_files()

    async def index(request: Request) -> Response:
        return _file_response(available["index.html"], request)

    async def file(request: Request) -> Response:
        requested = available.get(request.path_params["file"])
        if requested is None:
            return Response("There is no such file.", 404, HEADERS, "text/plain; charset=utf-8")
        return _file_response(requested, request)

    return [NamedRoute("/", index), NamedRoute("/page/{file}", file)]


def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its name."""
    available = {}
    for path in files("gemel.serve").joinpath("page").iterdir():
        media = MEDIA.get("." + path.name.rpartition(".")[2])
        if media is not None:
            body = path.read_bytes()
            available[path.name] = PageFile(body, media, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return available


def _file_response(file: PageFile, request: Request) -> Response:
    headers = {**HEADERS, "ETag": file.etag}
    tags = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if file.etag in tags or "*" in tags:
        return Response(status_code=304, headers=headers)
    return Response(file.body, headers=headers, media_type=file.media)
