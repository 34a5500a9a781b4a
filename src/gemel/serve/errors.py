"""Errors as answers: the status of each error, and the JSON that the clients of each protocol expect.

Every error answer of the server is written here; no message of an unexpected error leaves the server.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import orjson
from pydantic import BaseModel, Field

from gemel.errors import GemelError, InputError, MissingExtra
from gemel.serve.options import DeadlineExceeded, EncodeFailed, Overloaded, TooLarge

if TYPE_CHECKING:
    from starlette.types import Send

TEI_PATHS = (
    "/",
    "/embed",
    "/embed_all",
    "/embed_sparse",
    "/similarity",
    "/rerank",
    "/predict",
    "/tokenize",
    "/decode",
    "/info",
    "/health",
)

OPENAI_PREFIXES = ("/v1/", "/openai/")
OPENAI_PATHS = ("/embeddings", "/score")
COHERE_PATHS = ("/v1/embed", "/v2/embed", "/v2/rerank")

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    405: "invalid_request_error",
    408: "timeout_error",
    413: "request_too_large",
    415: "invalid_request_error",
    422: "invalid_request_error",
    424: "model_error",
    429: "rate_limit_error",
    503: "not_ready_error",
    504: "timeout_error",
}

_TEI_TYPES = {
    413: "Validation",
    422: "Validation",
    400: "Validation",
    424: "Backend",
    429: "Overloaded",
    503: "Unhealthy",
}

_FOLDERS = re.compile(r"(?<![\w./:])/(?:[\w.@+-]+/)+")  # paths of this machine, except for their last part


@dataclass(frozen=True)
class Problem:
    """An error in the form that is sent to a client."""

    status: int
    message: str
    code: str | None = None
    """A word for programs, such as model_not_found."""
    param: str | None = None
    """The field that is wrong."""
    help: str | None = None
    """The code of cli/errors.toml that explains it: `gemel help CODE`."""
    headers: Mapping[str, str] = field(default_factory=dict)


class RouteError(GemelError):
    """An answer other than 200 that a route gives on purpose."""

    def __init__(
        self, status: int, message: str, *, code: str | None = None, param: str | None = None
    ) -> None:
        super().__init__(message)
        self.problem = Problem(status, message, code, param)


def problem_of(error: Exception) -> Problem:
    """The problem to send to the client for an error."""
    problem = _problem(error)
    code = error.code if isinstance(error, GemelError) and problem.code != "internal_error" else None
    return replace(problem, help=code) if code else problem


def _problem(error: Exception) -> Problem:
    from starlette.exceptions import HTTPException  # the loading page needs no web framework

    match error:
        case RouteError():
            return error.problem
        case HTTPException():  # the router: no such path, or not this method
            return Problem(error.status_code, str(error.detail), headers=error.headers or {})
        case TooLarge():
            return Problem(413, str(error), "too_large")
        case Overloaded():
            seconds = str(max(1, math.ceil(error.retry_after)))
            return Problem(429, str(error), "overloaded", headers={"retry-after": seconds})
        case DeadlineExceeded():
            return Problem(504, str(error), "too_late")
        case MissingExtra():
            return Problem(501, str(error), "not_installed")
        case InputError():
            return Problem(400, _FOLDERS.sub("…/", str(error)), "invalid_request")
        case EncodeFailed():
            return Problem(500, str(error), "encode_failed")
    return Problem(500, "the server failed at this request; its log says why", "internal_error")


async def send_problem(send: Send, path: str, problem: Problem) -> None:
    """Answer an ASGI request with this problem."""
    headers = dict(problem.headers)
    if problem.code == "unsupported_content_encoding":
        headers["accept-encoding"] = "identity"
    if problem.status == 401:
        headers["www-authenticate"] = "Bearer"
    if problem.status in (408, 413, 415):  # the rest of the body is not read
        headers["connection"] = "close"
    await send_json(send, problem.status, error_body(path, problem), headers)


async def send_json(send: Send, status: int, body: bytes, headers: Mapping[str, str] | None = None) -> None:
    """Answer an ASGI request with JSON."""
    every = {"content-type": "application/json", "content-length": str(len(body)), **(headers or {})}
    encoded = [(name.encode(), value.encode()) for name, value in every.items()]
    await send({"type": "http.response.start", "status": status, "headers": encoded})
    await send({"type": "http.response.body", "body": body})


def error_body(path: str, problem: Problem) -> bytes:
    """In the form that the clients of the path read: see the classes below."""
    kind = _TYPES.get(problem.status, "server_error")
    explained = {"help": problem.help} if problem.help else {}
    plain = {"message": problem.message, "type": problem.code or kind, **explained}
    if path in COHERE_PATHS:
        return orjson.dumps({"message": problem.message, "error": plain})
    if path.startswith(OPENAI_PREFIXES) or path in OPENAI_PATHS:
        error = {"message": problem.message, "type": kind, "param": problem.param, "code": problem.code}
        return orjson.dumps({"error": {**error, **explained}, "detail": problem.message})
    if path.startswith("/api/"):
        return orjson.dumps({"error": problem.message})
    if path in TEI_PATHS:
        return orjson.dumps(
            {"error": problem.message, "error_type": _TEI_TYPES.get(problem.status, problem.code or kind)}
        )
    return orjson.dumps({"error": plain})


# The forms, for the OpenAPI document.


class _PlainDetail(BaseModel):
    message: str
    type: str
    help: str | None = Field(None, description="A code such as GEM-306, which `gemel help CODE` explains")


class PlainError(BaseModel):
    """Any error of our own routes."""

    error: _PlainDetail


class _OpenAIDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None
    help: str | None = Field(None, description="A code such as GEM-306, which `gemel help CODE` explains")


class OpenAIError(BaseModel):
    """Any error under /v1 or /openai."""

    error: _OpenAIDetail
    detail: str = Field(description="The message once more, where the client of Voyage reads it")


class CohereError(BaseModel):
    """Any error of the routes of Cohere."""

    message: str
    error: _PlainDetail


class OllamaError(BaseModel):
    """Any error of the routes of Ollama."""

    error: str


class TeiError(BaseModel):
    """Any error of the routes of text-embeddings-inference."""

    error: str = Field(description="What is wrong, as a sentence")
    error_type: str
