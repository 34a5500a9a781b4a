"""Cohere's rerank, /v2/rerank, and /v1/rerank, the older form that Jina and others share.

A field that may be left out may also be null: LangChain sends that for what it was not given.

How well documents answer a query: by the cross-encoder where one is loaded, else by the cosine of vectors.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.requests import Request
from starlette.responses import Response

from gemel.cross_model import CrossModel
from gemel.options import CrossOptions
from gemel.serve.errors import OpenAIError, PlainError
from gemel.serve.port import Ask, Services
from gemel.serve.protocols.requests import (
    Foreign,
    StopAtFirst,
    Texts,
    answer,
    client_of,
    example,
)
from gemel.serve.protocols.texts import (
    check_ranker,
    check_sizes,
    check_tokens,
    embed_sides,
    first_tokens,
    is_long,
    unit,
)
from gemel.serve.routes import JsonRoute, Routes
from gemel.types import Vectors

_DOCUMENT = 4096  # tokens of a document, as Cohere has it

_EXAMPLE: dict[str, Any] = {
    "model": "all-MiniLM-L6-v2",
    "query": "Who plays music?",
    "documents": ["A man is playing a guitar.", "The stock market fell today."],
    "top_n": 1,
}


class RerankRequest(Foreign):
    """Documents to put in order."""

    model_config = example(**_EXAMPLE)

    model: str = Field(description="The cross-encoder or the model that is loaded")
    query: str
    documents: Texts
    top_n: int | None = Field(None, ge=1, description="How many come back; default all")
    max_tokens_per_doc: int | None = Field(
        _DOCUMENT, ge=1, description="Of a document that is longer, the beginning counts"
    )


class TextDocument(Foreign):
    text: str


class OlderRerankRequest(Foreign):
    """Documents to put in order, as strings or as objects with a text."""

    model_config = example(**_EXAMPLE, return_documents=True)

    model: str | None = Field(None, description="The cross-encoder or the model that is loaded")
    query: str
    documents: Annotated[list[str | TextDocument], StopAtFirst()]
    top_n: int | None = Field(None, ge=1, description="How many come back; default all")
    return_documents: bool | None = False


class Result(BaseModel):
    index: int
    relevance_score: float = Field(description="0 to 1")


class Document(BaseModel):
    text: str


class OlderResult(Result):
    document: Document | None = None


class RerankAnswer(BaseModel):
    """Best first."""

    id: str
    results: list[Result]
    meta: dict[str, Any]


class OlderRerankAnswer(RerankAnswer):
    results: list[OlderResult]  # type: ignore[assignment]  # with the documents
    model: str


def routes(services: Services) -> list[JsonRoute]:
    """Both forms; they differ in how an error is written."""
    v2, v1 = Routes("Cohere", error=PlainError), Routes("Cohere", error=OpenAIError)

    @v2.post("/v2/rerank", RerankAnswer)
    async def rerank(request: Request, body: RerankRequest) -> Response:
        """Documents by how well they answer a query."""
        check_ranker(services, body.model)
        documents = await _cut(services, request, body.documents, body.max_tokens_per_doc or _DOCUMENT)
        results = await _ranked(services, request, body.query, documents, body.top_n)
        return answer({"id": str(uuid.uuid4()), "results": results, "meta": _meta("2")})

    @v1.post("/v1/rerank", OlderRerankAnswer)
    async def older(request: Request, body: OlderRerankRequest) -> Response:
        """Documents by how well they answer a query, in the form that Jina and others share."""
        check_ranker(services, body.model)
        documents = [each if isinstance(each, str) else each.text for each in body.documents]
        results = await _ranked(services, request, body.query, documents, body.top_n)
        if body.return_documents:
            results = [{**row, "document": {"text": documents[row["index"]]}} for row in results]
        name = services.cross_name or services.model_name
        return answer({"id": str(uuid.uuid4()), "model": name, "results": results, "meta": _meta("1")})

    return [*v2, *v1]


async def _ranked(
    services: Services, request: Request, query: str, documents: list[str], top: int | None
) -> list[dict[str, Any]]:
    check_sizes(services, [query], "query")
    check_sizes(services, documents, "documents")
    found = await score(services, query, documents, Ask(client=client_of(request)))
    return [{"index": int(at), "relevance_score": float(found.between[at])} for at in found.best(top)]


async def _cut(services: Services, request: Request, documents: list[str], most: int) -> list[str]:
    """The beginnings of documents with more tokens; a token stands for at least one character."""
    check_sizes(services, documents, "documents")
    if all(len(document) <= most for document in documents):
        return documents
    return await services.work(
        lambda: [first_tokens(services.model, each, most) for each in documents],
        client=client_of(request),
        long=is_long(documents),
    )


def _meta(version: str) -> dict[str, Any]:
    said = {"version": version, "is_experimental": False}
    return {"api_version": said, "billed_units": {"search_units": 1}}


PIECE = 64  # pairs that a cross-encoder reads before other work has its turn


@dataclass(frozen=True, eq=False)
class Scored:
    """One query against documents, in the order of the documents."""

    raw: Vectors
    """(n,) the cross-encoder's number before the sigmoid, or the cosine."""
    between: Vectors
    """(n,) the same as a number from 0 to 1: the sigmoid, or (1 + cosine) / 2."""
    by: Literal["cross", "cosine"]

    def best(self, k: int | None = None) -> NDArray[np.int64]:
        """Positions, best first; ties go to the earlier one."""
        return np.argsort(-self.raw, kind="stable")[:k]


def ranker(services: Services) -> CrossModel | None:
    """The cross-encoder, if it gives one score; one that tells classes apart cannot rank."""
    cross = services.cross
    return cross if cross is not None and len(cross.labels) == 1 else None


async def score(services: Services, query: str, documents: Sequence[str], ask: Ask) -> Scored:
    """`ask.cut` False refuses texts that are longer than the model reads."""
    cross = ranker(services)
    if cross is not None:
        raw = (await logits_of(services, cross, [query] * len(documents), documents, ask, once=[query]))[:, 0]
        return Scored(raw, np.asarray(1 / (1 + np.exp(-raw.clip(-80, 80))), dtype=np.float32), "cross")
    length = Ask(client=ask.client, cut=ask.cut, seconds=ask.seconds, normalize=unit(services.model))
    asked, known = await embed_sides(services, query, documents, length)
    raw = np.clip(known.vectors @ asked.vectors[0], -1, 1)
    return Scored(raw, (1 + raw) / 2, "cosine")


async def logits_of(
    services: Services,
    cross: CrossModel,
    left: Sequence[str],
    right: Sequence[str],
    ask: Ask,
    *,
    once: Sequence[str] | None = None,
) -> Vectors:
    """(n, labels) of pairs, in pieces that take turns with the work of other clients and end with the request.

    `once`: what is counted of `left`, where it is one text again and again.
    """
    options = CrossOptions(on_long="truncate" if ask.cut else "error")
    counted = [*(left if once is None else once), *right]

    def piece(start: int) -> Vectors:
        return cross.logits(left[start : start + PIECE], right[start : start + PIECE], options)

    long = len(right) > PIECE or is_long(counted)
    with services.reserve(ask.client) if long else nullcontext():
        await services.work(lambda: check_tokens(services, counted), client=ask.client, long=long)
        parts = [
            await services.work(partial(piece, start), client=ask.client, long=long)
            for start in range(0, len(right), PIECE)
        ]
    return np.concatenate(parts)
