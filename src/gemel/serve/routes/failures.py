"""How each protocol writes an error, for the OpenAPI document. The errors themselves are answered by the shell."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, Field


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
