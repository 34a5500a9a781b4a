"""POST /v1/sparse: the weights of words that a sparse encoder (SPLADE) gives to texts, with the words.

TEI's form of the same is /embed_sparse in tei.py. Searches and explanations by these weights are in search.py and
explain.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.errors import InputError
from gemel.serve.batcher import EmbedOptions, TextArray
from gemel.serve.errors import OpenAIError, RouteError
from gemel.serve.protocols.openai import Usage
from gemel.serve.protocols.texts import CHUNK
from gemel.serve.routes import OwnRequest, Routes, Texts, dumps, example, json_list_response
from gemel.serve.services import Call, PromptSide, ServedSparse, is_called
from gemel.vectors.sparse import SparseVectors


class SparseRequest(OwnRequest):
    """Texts to encode."""

    model_config = example(input=["A man is playing a guitar."], input_type="document", max_active_dims=8)

    model: str | None = Field(None, description="The name of the sparse encoder that is loaded")
    input: str | Texts = Field(description="a string or a list of strings")
    input_type: PromptSide | None = Field(
        None, description="query or document: with the prompt and the modules for it, if the model has them"
    )
    max_active_dims: int | None = Field(
        None, ge=1, description="Keep only so many weights of a text, the largest"
    )
    truncate: bool = Field(True, description="false: texts that are longer than the model reads are refused")


class SparseRow(BaseModel):
    """The weights of one text that are not zero, heaviest first."""

    index: int = Field(description="The position of the text")
    object: Literal["sparse_embedding"]
    indices: list[int] = Field(description="The column of each weight: the id of a token, or a dimension")
    values: list[float]
    tokens: list[str] = Field(description="The name of each column")


class SparseAnswer(BaseModel):
    """In the order of the texts."""

    object: Literal["list"]
    data: list[SparseRow]
    model: str
    dimensions: int = Field(description="Columns that there are")
    usage: Usage


ROUTES = Routes("Sparse vectors", error=OpenAIError)


@ROUTES.add("POST", "/v1/sparse", SparseAnswer, name="sparse")
async def sparse_route(call: Call, body: SparseRequest) -> Response:
    """Weights of words for each text, with the words. 404 without a sparse encoder."""
    served = needed_sparse(call, body.model)
    texts = [body.input] if isinstance(body.input, str) else body.input
    call.limits.check_texts(texts, "input")
    if body.input_type is None and served.model.checkpoint.query is not None:
        raise InputError(
            f"the model {served.name} encodes queries and documents with different modules. Give input_type: query or "
            "document"
        )
    options = (
        EmbedOptions(truncate=body.truncate)
        if body.input_type is None
        else served.options(body.input_type, truncate=body.truncate)
    )
    result = await call.embed_sparse(texts, options)
    rows = [_heaviest(row, body.max_active_dims) for row in result.rows]
    rest = dumps(
        {
            "model": served.name,
            "dimensions": served.model.dim,
            "usage": {"prompt_tokens": result.total_tokens, "total_tokens": result.total_tokens},
        }
    )
    return json_list_response(
        len(rows),
        3 * max(map(len, rows)),
        lambda start, stop: [
            _row(position, row, served.model.vocabulary)
            for position, row in enumerate(rows[start:stop], start)
        ],
        before=b'{"object":"list","data":',
        after=b"," + rest[1:],
    )


def needed_sparse(call: Call, name: str | None = None) -> ServedSparse:
    """The sparse encoder of this name (None: the loaded one), or a refusal (404)."""
    served = call.services.sparse
    if served is None:
        raise RouteError(
            404, "no sparse encoder is loaded. Start the server with --sparse", code="no_sparse_model"
        )
    if name is not None and not is_called(name, served.name):
        raise RouteError(
            404,
            f"the sparse encoder {name[:100]!r} is not loaded here. Loaded: {served.name}",
            code="model_not_found",
            param="model",
        )
    return served


async def weights_of_words(
    call: Call, texts: Sequence[str], side: PromptSide, *, before: int = 0
) -> tuple[SparseVectors, int]:
    """The weights of texts of one side of a search, and the tokens that the request has had then.

    In chunks that leave room in the queue for other requests; `before`: tokens that it has had already.
    """
    served = needed_sparse(call)
    rows = []
    for start in range(0, len(texts), CHUNK):
        result = await call.embed_sparse(texts[start : start + CHUNK], served.options(side))
        rows += [(row["index"], row["value"]) for row in result.rows]
        before += sum(result.tokens)
        call.limits.check_tokens(before, all_counted=False)
    return SparseVectors.of(rows, served.model.vocabulary), before


def _heaviest(row: TextArray, most: int | None) -> TextArray:
    order = np.argsort(-np.abs(row["value"]), kind="stable")
    chosen: TextArray = row[order[:most]]
    return chosen


def _row(position: int, row: TextArray, words: Sequence[str]) -> dict[str, Any]:
    columns = row["index"].tolist()
    return {
        "index": position,
        "object": "sparse_embedding",
        "indices": columns,
        "values": np.ascontiguousarray(row["value"]),
        "tokens": [words[column] for column in columns],
    }
