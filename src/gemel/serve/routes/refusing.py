"""Refusals with a status of their own (404, 415, 424), and how each protocol writes an error.

Errors of `gemel.errors` pass through: the shell around the routes answers them.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field

from gemel.errors import InputError
from gemel.serve.routes.answering import answer


class Refused(InputError):
    """A request that is answered with `status`; `code` names the reason for programs."""

    def __init__(self, status: int, message: str, code: str, param: str | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.param = status, code, param


class PlainRoute(APIRoute):
    """Our own shape: {"error": {"message", "type"}}."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        usual = super().get_route_handler()

        async def handler(request: Request) -> Response:
            try:
                return await usual(request)
            except Refused as refused:
                return answer(self.written(refused), refused.status)

        return handler

    @staticmethod
    def written(refused: Refused) -> dict[str, Any]:
        return {"error": {"message": str(refused), "type": refused.code}}


class OpenAIRoute(PlainRoute):
    """OpenAI's shape: {"error": {"message", "type", "param", "code"}}."""

    @staticmethod
    def written(refused: Refused) -> dict[str, Any]:
        said = {"message": str(refused), "type": "invalid_request_error"}
        return {"error": {**said, "param": refused.param, "code": refused.code}}


class TeiRoute(PlainRoute):
    """The shape of text-embeddings-inference: {"error", "error_type"}."""

    @staticmethod
    def written(refused: Refused) -> dict[str, Any]:
        return {"error": str(refused), "error_type": refused.code}


# What the OpenAPI document says of errors.


class _PlainDetail(BaseModel):
    message: str
    type: str


class PlainError(BaseModel):
    """Any error of our own routes."""

    error: _PlainDetail


class _OpenAIDetail(BaseModel):
    message: str
    type: str
    param: str | None = None
    code: str | None = None


class OpenAIError(BaseModel):
    """Any error under /v1."""

    error: _OpenAIDetail


class TeiError(BaseModel):
    """Any error of the routes of text-embeddings-inference."""

    error: str = Field(description="What is wrong, as a sentence")
    error_type: str


def errors(shape: type[BaseModel]) -> dict[int | str, dict[str, Any]]:
    """For `responses=` of a router."""
    return {
        "4XX": {"model": shape, "description": "The request cannot be answered as it is"},
        "5XX": {"model": shape, "description": "The server could not do it"},
    }
