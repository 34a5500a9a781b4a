"""The protocol of OpenAI: POST /v1/embeddings, GET /v1/models. Its clients work with another base URL.

Lists of token ids are ids of the served model's tokenizer: they are decoded to text, which is then encoded. Ids that
the tokenizer would not make of that text are refused, so ids of another tokenizer are seldom taken for words.
"""

from __future__ import annotations

import base64
import time
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import OpenAIError
from gemel.serve.protocols.requests import (
    ForeignRequest,
    Texts,
    TokenIds,
    TokenLists,
    client_of,
    dumps,
    example,
    json_list_response,
    json_response,
)
from gemel.serve.protocols.texts import (
    check_dimensions,
    check_model,
    decode_exact_ids,
    is_long_ids,
    loaded_models,
    unit_norm,
)
from gemel.serve.routes import Routes
from gemel.serve.services import Services
from gemel.types import Vectors

_TEXTS = ["A man is playing a guitar.", "Someone plays an instrument."]


class EmbeddingsRequest(ForeignRequest):
    """Texts to encode."""

    model_config = example(model="all-MiniLM-L6-v2", input=_TEXTS)

    input: str | Texts | TokenIds | TokenLists = Field(
        description="a string, a list of strings, a list of token ids of this model, or a list of such lists"
    )
    model: str = Field(description="The name of the loaded model, as GET /v1/models says it")
    dimensions: int | None = Field(None, ge=1, description="Keep only the first numbers of each vector")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32; default float"
    )
    user: str | None = Field(None, description="Not used")
    prompt_name: str | None = Field(
        None, description="Ours: a prompt that the model brings, such as query or document"
    )


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str = Field(description="Numbers, or base64 of little-endian float32")


class Usage(BaseModel):
    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(BaseModel):
    """Vectors in the order of the inputs."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: Usage


class ModelEntry(BaseModel):
    id: str
    object: Literal["model"]
    created: int = Field(description="When the server started, seconds since 1970")
    owned_by: str


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelEntry]


def routes(services: Services) -> Routes:
    """The routes of this protocol."""
    route = Routes("OpenAI", prefix="/v1", error=OpenAIError)
    started = int(time.time())

    def entry(name: str) -> dict[str, Any]:
        return {"id": name, "object": "model", "created": started, "owned_by": "gemel"}

    @route.post("/embeddings", EmbeddingsAnswer)
    async def embeddings(request: Request, body: EmbeddingsRequest) -> Response:
        """Vectors of texts."""
        return await _embeddings(services, request, body)

    @route.get("/models", ModelList)
    async def models(request: Request) -> Response:
        """What is loaded."""
        return json_response({"object": "list", "data": [entry(name) for name in loaded_models(services)]})

    @route.get("/models/{name:path}", ModelEntry)
    async def model(request: Request, name: str) -> Response:
        """One of the loaded models."""
        if name == services.cross_name:
            return json_response(entry(name))
        check_model(services, name)
        return json_response(entry(services.model_name))

    return route


async def _embeddings(services: Services, request: Request, body: EmbeddingsRequest) -> Response:
    check_model(services, body.model)
    check_dimensions(services, body.dimensions)
    texts = await input_texts(services, request, body.input)
    options = EmbedOptions(
        client=client_of(request),
        prompt_name=body.prompt_name,
        normalize=unit_norm(services.model),
        dim=body.dimensions,
    )
    result = await services.embed(texts, options)
    usage = {"prompt_tokens": result.total_tokens, "total_tokens": result.total_tokens}
    rest = dumps({"model": services.model_name, "usage": usage})
    packed = body.encoding_format == "base64"
    return json_list_response(
        len(result.vectors),
        result.vectors.shape[1],
        lambda start, stop: _data(result.vectors[start:stop], packed, start),
        before=b'{"object":"list","data":',
        after=b"," + rest[1:],
    )


async def input_texts(
    services: Services, request: Request, given: str | Texts | TokenIds | TokenLists, name: str = "input"
) -> list[str]:
    """The texts of an `input` in any of its four forms; `name` is its field, for errors."""
    if isinstance(given, str):
        texts = [given]
    elif not given:
        raise InputError(f"{name} is empty: give at least one text")
    else:
        every: list[Any] = given  # all of one type: the model has checked it
        if isinstance(every[0], str):
            texts = every
        else:
            lists = every if isinstance(every[0], list) else [every]
            texts = await services.work(
                lambda: decode_exact_ids(services, lists, name),
                client=client_of(request),
                long=is_long_ids(lists),
            )
    services.limits.check_texts(texts, name)
    return texts


def _data(vectors: Vectors, packed: bool, first: int) -> list[dict[str, Any]]:
    if packed:
        rows = np.ascontiguousarray(vectors, dtype="<f4")
        return [_entry(at, base64.b64encode(row).decode("ascii")) for at, row in enumerate(rows, first)]
    rows = np.ascontiguousarray(vectors)
    return [_entry(at, row) for at, row in enumerate(rows, first)]


def _entry(at: int, embedding: Any) -> dict[str, Any]:  # noqa: ANN401 - an array or a string
    return {"object": "embedding", "index": at, "embedding": embedding}
