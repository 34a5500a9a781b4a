"""The page at `/`: a few files kept in memory, with a policy that lets the browser run nothing else.

A name in a request is looked up among the files that were read at the start; it never becomes a path.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.resources import files

from fastapi import APIRouter, Request, Response

from gemel.serve.port import Services

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
    # Ask each time and be told "not modified": after an upgrade no old file stays.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True)
class PageFile:
    """One file of the page as it is sent."""

    body: bytes
    media: str
    etag: str


def page_files() -> Mapping[str, PageFile]:
    """Every file of the page by its name."""
    found = {}
    for path in files("gemel.serve").joinpath("page").iterdir():
        media = MEDIA.get("." + path.name.rpartition(".")[2])
        if media is not None:
            body = path.read_bytes()
            found[path.name] = PageFile(body, media, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def router(services: Services) -> APIRouter:
    """`/` and `/page/{file}`. Needs nothing of the services: the page asks the other routes, as any client does."""
    known = page_files()
    routes = APIRouter(include_in_schema=False)

    @routes.api_route("/", methods=["GET", "HEAD"])
    def index(request: Request) -> Response:
        return _answer(known["index.html"], request)

    @routes.api_route("/page/{file}", methods=["GET", "HEAD"])
    def file(file: str, request: Request) -> Response:
        found = known.get(file)
        if found is None:
            return Response("There is no such file.", 404, HEADERS, "text/plain; charset=utf-8")
        return _answer(found, request)

    return routes


def _answer(found: PageFile, request: Request) -> Response:
    headers = {**HEADERS, "ETag": found.etag}
    held = [tag.strip().removeprefix("W/") for tag in request.headers.get("if-none-match", "").split(",")]
    if found.etag in held or "*" in held:
        return Response(status_code=304, headers=headers)
    return Response(found.body, headers=headers, media_type=found.media)
