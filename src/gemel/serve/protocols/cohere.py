"""The embeddings of Cohere: POST /v2/embed and /v1/embed. Its rerank is in rerank.py.

Vectors come in each of the requested number formats. `input_type` chooses the model's own prompt for queries or
documents. Images are refused.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions, EmbedResult
from gemel.serve.errors import CohereError
from gemel.serve.protocols.texts import (
    VectorType,
    as_base64,
    check_dimensions,
    check_vector_types,
    first_tokens,
    is_long,
    keep_ends,
    prompt_for_purpose,
    unit_norm,
    vectors_as,
    with_model,
)
from gemel.serve.routes import (
    FailFast,
    ForeignRequest,
    JsonList,
    Routes,
    Texts,
    dumps,
    example,
    json_lists_response,
)
from gemel.serve.services import Call

EmbeddingType: TypeAlias = VectorType | Literal["base64"]

_EXAMPLE: dict[str, Any] = {
    "model": "all-MiniLM-L6-v2",
    "texts": ["A man is playing a guitar.", "Someone plays an instrument."],
    "input_type": "search_document",
}
_TEXTS_ONLY = "only texts are encoded"


class CohereEmbedV1Request(ForeignRequest):
    """Texts to encode."""

    model_config = example(**_EXAMPLE)
    refused: ClassVar = {"images": _TEXTS_ONLY}

    model: str | None = Field(
        None, description="The name of a loaded model; `:query` or `:document` may follow it"
    )
    texts: Texts | None = None
    input_type: str | None = Field(
        None,
        description="search_query, search_document, classification or clustering: the model's prompt for it, if any",
    )
    embedding_types: list[EmbeddingType] | None = Field(
        None, description="float, int8, uint8, binary, ubinary, base64; default: float, as a plain list"
    )
    truncate: Literal["NONE", "START", "END"] | None = Field(
        "END", description="Which end of a long text is cut off; NONE: long texts are refused"
    )


class ContentPart(ForeignRequest):
    """A part of one of `inputs`."""

    refused: ClassVar = {"image_url": _TEXTS_ONLY}

    type: Literal["text"]
    text: str


class CohereInput(ForeignRequest):
    """One of `inputs`: a text."""

    content: Annotated[list[ContentPart], Field(min_length=1, max_length=1)]


class CohereEmbedRequest(CohereEmbedV1Request):
    """Texts to encode, as `texts` or as `inputs`."""

    model_config = example(**_EXAMPLE, embedding_types=["float", "int8"])

    inputs: Annotated[list[CohereInput], FailFast()] | None = Field(
        None, description="objects with one content of the type text, instead of texts"
    )
    output_dimension: int | None = Field(None, ge=1, description="Keep only the first numbers of each vector")
    max_tokens: int | None = Field(None, ge=1, description="Longer texts are truncated, at their end")
    embedding_types: list[EmbeddingType] | None = Field(
        None, description="float (the default), int8, uint8, binary, ubinary, base64"
    )


class EmbeddingsByType(BaseModel):
    """A list of vectors for each type that was requested."""

    float_: list[list[float]] | None = Field(None, alias="float")
    int8: list[list[int]] | None = None
    uint8: list[list[int]] | None = None
    binary: list[list[int]] | None = None
    ubinary: list[list[int]] | None = None
    base64: list[str] | None = None


class CohereEmbedAnswer(BaseModel):
    """Vectors in the order of the texts."""

    id: str
    response_type: Literal["embeddings_by_type", "embeddings_floats"]
    embeddings: EmbeddingsByType
    texts: list[str]
    meta: dict[str, Any]


class CohereEmbedV1Answer(CohereEmbedAnswer):
    embeddings: EmbeddingsByType | list[list[float]]  # type: ignore[assignment]  # plain without embedding_types


ROUTES = Routes("Cohere", error=CohereError)


@ROUTES.add("POST", "/v2/embed", CohereEmbedAnswer, name="embed")
async def embed(call: Call, body: CohereEmbedRequest) -> Response:
    """Vectors of texts, by type."""
    if (body.texts is None) == (body.inputs is None):
        raise InputError("give either texts, a list of strings, or inputs")
    if body.max_tokens is not None and body.truncate not in ("END", None):
        raise InputError(f"max_tokens truncates at the end of a text, but truncate is {body.truncate!r}")
    call = with_model(call, body.model)
    check_dimensions(call, body.output_dimension, "output_dimension")
    texts = body.texts if body.texts is not None else [each.content[0].text for each in body.inputs or ()]
    kinds = body.embedding_types or ["float"]
    check_vector_types(kinds, body.output_dimension or call.model.dim)
    result = await _encode(call, texts, body, dim=body.output_dimension, most=body.max_tokens)
    return _answer(result, texts, kinds, "2")


@ROUTES.add("POST", "/v1/embed", CohereEmbedV1Answer, name="embed_v1")
async def embed_v1(call: Call, body: CohereEmbedV1Request) -> Response:
    """Vectors of texts: a plain list, or by type where `embedding_types` has any."""
    if body.texts is None:
        raise InputError("the field 'texts' is missing. Required: texts")
    call = with_model(call, body.model)
    kinds = body.embedding_types or []
    check_vector_types(kinds, call.model.dim)
    result = await _encode(call, body.texts, body)
    return _answer(result, body.texts, kinds, "1")


async def _encode(
    call: Call,
    texts: list[str],
    body: CohereEmbedV1Request,
    *,
    dim: int | None = None,
    most: int | None = None,
) -> EmbedResult:
    call.limits.check_texts(texts, "texts")
    prompt_name = prompt_for_purpose(call, body.input_type, "input_type")
    if most is not None:
        texts = await call.work(
            lambda: [first_tokens(call.model, each, most) for each in texts], long=is_long(texts)
        )
    if body.truncate == "START":
        texts = await keep_ends(call, texts, call.model.checkpoint.prompts.get(prompt_name or "", ""))
    options = EmbedOptions(
        prompt_name=prompt_name,
        normalize=unit_norm(call.model),
        dim=dim,
        truncate=body.truncate != "NONE",
    )
    return await call.embed(texts, options)


def _answer(
    result: EmbedResult, texts: Sequence[str], kinds: Sequence[EmbeddingType], version: str
) -> Response:
    """By type, or as a plain list where no type is requested."""
    each = list(dict.fromkeys(kinds))
    head = {"id": str(uuid.uuid4()), "response_type": f"embeddings_{'by_type' if each else 'floats'}"}
    rest = {
        "texts": texts,
        "meta": {"api_version": {"version": version}, "billed_units": {"input_tokens": result.total_tokens}},
    }
    before = dumps(head)[:-1] + b',"embeddings":'
    after = (b"}," if each else b",") + dumps(rest)[1:]
    if not each:
        return json_lists_response([_rows(result, "float", before)], after)
    names = [(b"," if at else before + b"{") + f'"{kind}":'.encode() for at, kind in enumerate(each)]
    return json_lists_response(
        [_rows(result, kind, name) for kind, name in zip(each, names, strict=True)], after
    )


def _rows(result: EmbedResult, kind: EmbeddingType, before: bytes) -> JsonList:
    def part(start: int, stop: int) -> Sequence[Any]:
        rows = np.ascontiguousarray(
            vectors_as(result.vectors[start:stop], "float" if kind == "base64" else kind)
        )
        return [as_base64(row) for row in rows] if kind == "base64" else list(rows)

    return JsonList(before, len(result.vectors), result.vectors.shape[1], part)
