"""Cohere's rerank, /v2/rerank, and /v1/rerank, the older form that Jina and others share.

A field that may be left out may also be null: LangChain sends that for what it was not given.
"""

from __future__ import annotations

import uuid
from typing import Annotated, Any

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field

from gemel.serve.port import Ask, Services
from gemel.serve.routes.answering import answer
from gemel.serve.routes.failures import OpenAIError, PlainError, errors
from gemel.serve.routes.names import check_ranker
from gemel.serve.routes.reading import Foreign, StopAtFirst, Texts, client_of, example, read, takes
from gemel.serve.routes.scoring import score
from gemel.serve.routes.texts import check_sizes, is_long
from gemel.serve.routes.tokens import first_tokens

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


def router(services: Services) -> APIRouter:
    """Both forms."""
    routes = APIRouter()
    v2 = APIRouter(tags=["Cohere"], responses=errors(PlainError))
    v1 = APIRouter(tags=["Cohere"], responses=errors(OpenAIError))

    @v2.post("/v2/rerank", response_model=RerankAnswer, openapi_extra=takes(RerankRequest))
    async def rerank(request: Request) -> Response:
        """Documents by how well they answer a query."""
        asked = await read(request, RerankRequest)
        check_ranker(services, asked.model)
        documents = await _cut(services, request, asked.documents, asked.max_tokens_per_doc or _DOCUMENT)
        results = await _ranked(services, request, asked.query, documents, asked.top_n)
        return answer({"id": str(uuid.uuid4()), "results": results, "meta": _meta("2")})

    @v1.post("/v1/rerank", response_model=OlderRerankAnswer, openapi_extra=takes(OlderRerankRequest))
    async def older(request: Request) -> Response:
        """Documents by how well they answer a query, in the form that Jina and others share."""
        asked = await read(request, OlderRerankRequest)
        check_ranker(services, asked.model)
        documents = [each if isinstance(each, str) else each.text for each in asked.documents]
        results = await _ranked(services, request, asked.query, documents, asked.top_n)
        if asked.return_documents:
            results = [{**row, "document": {"text": documents[row["index"]]}} for row in results]
        name = services.cross_name or services.model_name
        return answer({"id": str(uuid.uuid4()), "model": name, "results": results, "meta": _meta("1")})

    routes.include_router(v2)
    routes.include_router(v1)
    return routes


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
