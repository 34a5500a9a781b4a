"""The protocol of OpenAI: POST /v1/embeddings, GET /v1/models. Its clients work with another base URL.

Lists of token ids are ids of the served model's tokenizer: they are decoded to text, which is then encoded. Ids that
the tokenizer would not make of that text are refused, so ids of another tokenizer are seldom taken for words.
"""

from __future__ import annotations

import base64
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import OpenAIError
from gemel.serve.protocols.texts import check_dimensions, check_model, input_texts, loaded_models, unit_norm
from gemel.serve.routes import (
    ForeignRequest,
    Routes,
    Texts,
    TokenIds,
    TokenLists,
    dumps,
    example,
    json_list_response,
    json_response,
)
from gemel.serve.services import Call
from gemel.types import Vectors

_TEXTS = ["A man is playing a guitar.", "Someone plays an instrument."]


class EmbeddingsRequest(ForeignRequest):
    """Texts to encode."""

    model_config = example(model="all-MiniLM-L6-v2", input=_TEXTS)

    input: str | Texts | TokenIds | TokenLists = Field(
        description="a string, a list of strings, a list of token ids of this model, or a list of such lists"
    )
    model: str = Field(description="The name of the loaded model, as listed by GET /v1/models")
    dimensions: int | None = Field(None, ge=1, description="Keep only the first numbers of each vector")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: little-endian float32; default float"
    )
    user: str | None = Field(None, description="Not used")
    prompt_name: str | None = Field(
        None, description="Extension: the name of a prompt of the model, such as query or document"
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


ROUTES = Routes("OpenAI", prefix="/v1", error=OpenAIError)


@ROUTES.add("POST", "/embeddings", EmbeddingsAnswer)
async def embeddings(call: Call, body: EmbeddingsRequest) -> Response:
    """Vectors of texts."""
    check_model(call, body.model)
    check_dimensions(call, body.dimensions)
    texts = await input_texts(call, body.input)
    options = EmbedOptions(prompt_name=body.prompt_name, normalize=unit_norm(call.model), dim=body.dimensions)
    result = await call.embed(texts, options)
    usage = {"prompt_tokens": result.total_tokens, "total_tokens": result.total_tokens}
    rest = dumps({"model": call.model_name, "usage": usage})
    packed = body.encoding_format == "base64"
    return json_list_response(
        len(result.vectors),
        result.vectors.shape[1],
        lambda start, stop: _data(result.vectors[start:stop], packed, start),
        before=b'{"object":"list","data":',
        after=b"," + rest[1:],
    )


@ROUTES.add("GET", "/models", ModelList)
async def models(call: Call) -> Response:
    """What is loaded."""
    return json_response({"object": "list", "data": [_model(call, name) for name in loaded_models(call)]})


@ROUTES.add("GET", "/models/{name:path}", ModelEntry)
async def model(call: Call, name: str) -> Response:
    """One of the loaded models."""
    if name == call.services.cross_name:
        return json_response(_model(call, name))
    check_model(call, name)
    return json_response(_model(call, call.model_name))


def _model(call: Call, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": call.services.started, "owned_by": "gemel"}


def _data(vectors: Vectors, packed: bool, first: int) -> list[dict[str, Any]]:
    rows = np.ascontiguousarray(vectors, dtype="<f4" if packed else None)
    return [
        {
            "object": "embedding",
            "index": at,
            "embedding": base64.b64encode(row).decode("ascii") if packed else row,
        }
        for at, row in enumerate(rows, first)
    ]
