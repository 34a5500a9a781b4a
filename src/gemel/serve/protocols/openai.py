"""The protocol of OpenAI and of those who extended it: POST /v1/embeddings, GET /v1/models.

Clients of OpenAI, Azure, Voyage, Jina, vLLM and infinity work with another base URL. Fields of theirs that would change
the answer are honored or refused. Token ids are those of the served model's tokenizer, and are only accepted if the
server was told so: they are decoded to text, which is then encoded. Ids that the tokenizer would not make of that text
are refused, so ids of another tokenizer are seldom taken for words.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import OpenAIError
from gemel.serve.protocols.texts import (
    VectorType,
    as_base64,
    check_dimensions,
    check_one_prompt,
    check_vector_types,
    input_texts,
    loaded_models,
    offered_models,
    prompt_for_purpose,
    unit_norm,
    vectors_as,
    with_model,
)
from gemel.serve.routes import (
    FailFast,
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

ENCODED = "float, int8, uint8, binary or ubinary: the number format of each vector"

EncodedType: TypeAlias = VectorType | Literal["base64"]


class TextInput(ForeignRequest):
    """A text of Jina's `input`."""

    refused: ClassVar = dict.fromkeys(("image", "url", "bytes", "pdf"), "only texts are encoded")

    text: str


class EmbeddingsRequest(ForeignRequest):
    """Texts to encode."""

    model_config = example(model="all-MiniLM-L6-v2", input=_TEXTS)
    refused: ClassVar = {"late_chunking": "each text is encoded on its own"}

    input: str | Texts | TokenIds | TokenLists | Annotated[list[str | TextInput], FailFast()] = Field(
        description="a string, a list of strings or of objects with a text, a list of token ids of this model, or a "
        "list of such lists"
    )
    model: str | None = Field(
        None,
        description="A name that GET /v1/models lists, such as MODEL, MODEL:query or MODEL:document; may be left out "
        "where one model is loaded",
    )
    dimensions: int | None = Field(None, ge=1, description="Keep only the first numbers of each vector")
    output_dimension: int | None = Field(None, ge=1, description="The same, in the word of Voyage")
    encoding_format: Literal["float", "base64"] | None = Field(
        None, description="base64: the bytes of the numbers, little-endian; default float"
    )
    output_dtype: VectorType | None = Field(None, description=f"Voyage: {ENCODED}")
    embedding_type: EncodedType | Annotated[list[EncodedType], Field(min_length=1)] | None = Field(
        None, description=f"Jina: {ENCODED}; base64: float32 as bytes; several: an object with each"
    )
    encoding_type: EncodedType | None = Field(None, description="The same, in the word of older clients")
    truncate: bool | None = Field(None, description="Jina; false: longer texts are refused")
    truncation: bool | None = Field(None, description="The same, in the word of Voyage")
    truncate_prompt_tokens: Literal[-1] | None = Field(
        None, description="vLLM; -1: at the model's own length, as always"
    )
    normalized: bool | None = Field(None, description="Jina; false: vectors keep their own lengths")
    modality: Literal["text"] | None = Field(None, description="infinity: only texts are encoded")
    user: str | None = Field(None, description="Not used")
    prompt_name: str | None = Field(
        None, description="Extension: the name of a prompt of the model, such as query or document"
    )
    input_type: str | None = Field(None, description="Voyage; query or document: the model's prompt for it")
    task: str | None = Field(
        None, description="Jina; such as retrieval.query, retrieval.passage: the model's prompt for it"
    )

    def one_of(self, *names: str) -> Any:  # noqa: ANN401 - the type of these fields
        """The value of fields that mean the same; two different ones are refused."""
        given = {name: value for name in names if (value := getattr(self, name)) is not None}
        values = list(given.values())
        if any(value != values[0] for value in values):
            raise InputError(f"{' and '.join(given)} were given with different values. Give one of them")
        return values[0] if values else None


class Embedding(BaseModel):
    object: Literal["embedding"]
    index: int
    embedding: list[float] | str | dict[str, list[float] | str] = Field(
        description="Numbers, base64 of their bytes, or an object of both by the embedding_type requested"
    )


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
    parent: str | None = Field(
        None, description="Of MODEL:query and MODEL:document: the model whose prompt they select"
    )
    prompts: dict[str, str] | None = Field(
        None,
        description="The prompts that the model has, or the one that this name selects; left out if it has none",
    )


class ModelList(BaseModel):
    object: Literal["list"]
    data: list[ModelEntry]


ROUTES = Routes("OpenAI", error=OpenAIError)


@ROUTES.add("POST", "/embeddings", EmbeddingsAnswer, tag="infinity")
@ROUTES.add("POST", "/openai/v1/embeddings", EmbeddingsAnswer, tag="Azure")
@ROUTES.add("POST", "/v1/embeddings", EmbeddingsAnswer)
async def embeddings(call: Call, body: EmbeddingsRequest) -> Response:
    """Vectors of texts."""
    call = with_model(call, body.model)
    dimensions = body.one_of("dimensions", "output_dimension")
    check_dimensions(call, dimensions, "dimensions" if body.output_dimension is None else "output_dimension")
    kinds: EncodedType | list[EncodedType] = (
        body.one_of("output_dtype", "embedding_type", "encoding_type") or "float"
    )
    prompt_name = _prompt_name(call, body)
    options = EmbedOptions(
        prompt_name=prompt_name,
        normalize=False if body.normalized is False else unit_norm(call.model),
        dim=dimensions,
        truncate=body.one_of("truncate", "truncation") is not False,
    )
    return await _answer(call, await _texts(call, body), options, kinds, body.encoding_format == "base64")


@ROUTES.add("POST", "/openai/deployments/{name:path}/embeddings", EmbeddingsAnswer, tag="Azure")
async def deployment(call: Call, body: EmbeddingsRequest, name: str) -> Response:
    """Vectors of texts, by the model that the path names; the `model` of the body is not used."""
    return await embeddings(call, body.model_copy(update={"model": name}))


async def _texts(call: Call, body: EmbeddingsRequest) -> list[str]:
    given: Any = body.input
    if isinstance(given, list) and any(isinstance(each, TextInput) for each in given):
        given = [each if isinstance(each, str) else each.text for each in given]
    return await input_texts(call, given, accept_ids=call.services.accept_token_ids)


def _prompt_name(call: Call, body: EmbeddingsRequest) -> str | None:
    given = [name for name in ("prompt_name", "input_type", "task") if getattr(body, name) is not None]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} all choose a prompt. Give one of them")
    if not given:
        return call.prompt_name
    if body.prompt_name is not None:
        check_one_prompt(call, body.prompt_name, "prompt_name", body.prompt_name)
        return body.prompt_name
    return prompt_for_purpose(call, getattr(body, given[0]), given[0])


async def _answer(
    call: Call,
    texts: Sequence[str],
    options: EmbedOptions,
    kinds: EncodedType | list[EncodedType],
    packed: bool,
) -> Response:
    several = [kinds] if isinstance(kinds, str) else kinds
    check_vector_types(several, options.dim or call.model.dim)
    result = await call.embed(texts, options)
    tokens = result.total_tokens
    usage = {"prompt_tokens": tokens, "total_tokens": tokens}
    rest = dumps({"model": call.model_name, "usage": usage})
    return json_list_response(
        len(result.vectors),
        result.vectors.shape[1] * len(several),
        lambda start, stop: _data(result.vectors[start:stop], kinds, packed, start),
        before=b'{"object":"list","data":',
        after=b"," + rest[1:],
    )


@ROUTES.add("GET", "/v1/models", ModelList)
async def models(call: Call) -> Response:
    """What is loaded, with the prompts; MODEL:query and MODEL:document where the model has such prompts."""
    entries = [_encoder(each) for each in offered_models(call)]
    entries += [_entry(call, name) for name in loaded_models(call)[len(call.services.models) :]]
    return json_response({"object": "list", "data": entries})


@ROUTES.add("GET", "/v1/models/{name:path}", ModelEntry)
async def model(call: Call, name: str) -> Response:
    """One of the loaded models."""
    if name in loaded_models(call)[len(call.services.models) :]:
        return json_response(_entry(call, name))
    return json_response(_encoder(with_model(call, name)))


def _encoder(call: Call) -> dict[str, Any]:
    entry, prompts, chosen = _entry(call, call.model_name), call.served.prompts, call.prompt_name
    if chosen is not None:
        return {**entry, "parent": call.served.name, "prompts": {chosen: prompts[chosen]}}
    return {**entry, "prompts": prompts} if prompts else entry


def _entry(call: Call, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": call.services.started, "owned_by": "gemel"}


def _data(
    vectors: Vectors, kinds: EncodedType | list[EncodedType], packed: bool, first: int
) -> list[dict[str, Any]]:
    several = [kinds] if isinstance(kinds, str) else kinds
    columns = [_encoded(vectors, kind, packed) for kind in several]
    rows = (
        columns[0]
        if isinstance(kinds, str)
        else [dict(zip(kinds, row, strict=True)) for row in zip(*columns, strict=True)]
    )
    return [{"object": "embedding", "index": at, "embedding": row} for at, row in enumerate(rows, first)]


def _encoded(vectors: Vectors, kind: EncodedType, packed: bool) -> Sequence[Any]:
    """Each vector as JSON takes it: numbers, or a string of base64."""
    if kind == "base64":
        kind, packed = "float", True
    rows = np.ascontiguousarray(vectors_as(vectors, kind))
    return [as_base64(row) for row in rows] if packed else list(rows)
