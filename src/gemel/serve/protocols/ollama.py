"""The protocol of Ollama: POST /api/embed, /api/embeddings, its older form for one text, and GET /api/tags.

What its clients send beside the texts (`options`, `keep_alive`) is about running a model, and is not used.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import OllamaError
from gemel.serve.protocols.texts import check_dimensions, offered_models, unit_norm, with_model
from gemel.serve.routes import (
    ForeignRequest,
    Routes,
    Texts,
    dumps,
    example,
    json_list_response,
    json_response,
)
from gemel.serve.services import Call

_TEXT = "A man is playing a guitar."


class OllamaRequest(ForeignRequest):
    """What both forms have."""

    model: str | None = Field(
        None,
        description="The name of a loaded model; `:latest` may follow it, or `:query` or `:document` for the model's "
        "prompt",
    )
    options: dict[str, Any] | None = Field(None, description="Not used")
    keep_alive: float | str | None = Field(None, description="Not used")


class OllamaEmbedRequest(OllamaRequest):
    """Texts to encode."""

    model_config = example(model="all-MiniLM-L6-v2", input=[_TEXT])

    input: str | Texts = Field(description="a string or a list of strings")
    truncate: bool | None = Field(None, description="false: longer texts are refused")
    dimensions: int | None = Field(None, ge=1, description="Keep only the first numbers of each vector")


class OllamaPromptRequest(OllamaRequest):
    """One text to encode."""

    model_config = example(model="all-MiniLM-L6-v2", prompt=_TEXT)

    prompt: str


class OllamaEmbedAnswer(BaseModel):
    """Vectors in the order of the texts."""

    model: str
    embeddings: list[list[float]]
    total_duration: int = Field(description="Nanoseconds")
    load_duration: int = Field(description="0: the model was loaded when the server started")
    prompt_eval_count: int = Field(description="Tokens")


class OllamaPromptAnswer(BaseModel):
    embedding: list[float]


class OllamaModel(BaseModel):
    name: str
    model: str


class OllamaModels(BaseModel):
    models: list[OllamaModel]


ROUTES = Routes("Ollama", error=OllamaError)


@ROUTES.add("POST", "/api/embed", OllamaEmbedAnswer)
async def embed(call: Call, body: OllamaEmbedRequest) -> Response:
    """A vector of length 1 for each text."""
    started = perf_counter_ns()
    call = with_model(call, body.model)
    check_dimensions(call, body.dimensions)
    texts = [body.input] if isinstance(body.input, str) else body.input
    call.limits.check_texts(texts, "input")
    options = EmbedOptions(
        prompt_name=call.prompt_name,
        normalize=unit_norm(call.model),
        dim=body.dimensions,
        truncate=body.truncate is not False,
    )
    result = await call.embed(texts, options)
    rest = {
        "total_duration": perf_counter_ns() - started,
        "load_duration": 0,
        "prompt_eval_count": result.total_tokens,
    }
    rows = np.ascontiguousarray(result.vectors)
    return json_list_response(
        len(rows),
        rows.shape[1],
        lambda start, stop: rows[start:stop],  # type: ignore[arg-type, return-value]
        before=dumps({"model": call.model_name})[:-1] + b',"embeddings":',
        after=b"," + dumps(rest)[1:],
    )


@ROUTES.add("POST", "/api/embeddings", OllamaPromptAnswer)
async def embeddings(call: Call, body: OllamaPromptRequest) -> Response:
    """The vector of one text, of length 1."""
    call = with_model(call, body.model)
    call.limits.check_texts([body.prompt], "prompt")
    options = EmbedOptions(prompt_name=call.prompt_name, normalize=unit_norm(call.model))
    result = await call.embed([body.prompt], options)
    return json_response({"embedding": np.ascontiguousarray(result.vectors[0])})


@ROUTES.add("GET", "/api/tags", OllamaModels)
async def tags(call: Call) -> Response:
    """What is loaded; MODEL:query and MODEL:document where the model has such prompts."""
    names = [each.model_name for each in offered_models(call)]
    return json_response({"models": [{"name": name, "model": name} for name in names]})
