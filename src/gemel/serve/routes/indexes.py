"""Indexes that the operator opened: what they hold, search, add, delete. A client names one, never a path."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Request, Response

from gemel.index.index import Index
from gemel.index.types import Written
from gemel.serve.port import Ask, Services
from gemel.serve.routes import index_shapes as shapes
from gemel.serve.routes.answering import answer
from gemel.serve.routes.calibrations import Calibrations
from gemel.serve.routes.hits import SearchAnswer
from gemel.serve.routes.index_search import IndexQuestion, index_of, on_index, search_index
from gemel.serve.routes.reading import check_may_write, client_of, read, takes
from gemel.serve.routes.texts import check_sizes, check_tokens, check_where


def add_indexes(routes: APIRouter, services: Services, calibrations: Calibrations) -> None:
    """Add the routes."""
    inside = APIRouter(prefix="/indexes", tags=["Indexes"])

    @inside.get("", response_model=shapes.IndexList)
    async def indexes(request: Request) -> Response:
        """The open indexes."""
        known = services.indexes
        found = await services.work(
            lambda: [_row(name, index) for name, index in known.items()], client=client_of(request)
        )
        return answer({"indexes": found})

    @inside.get("/{name}", response_model=shapes.IndexDetails)
    async def index(name: str, request: Request) -> Response:
        """One index and how it is laid out."""
        return answer(await on_index(services, name, lambda found: _details(name, found), client_of(request)))

    @inside.post("/{name}/search", response_model=SearchAnswer, openapi_extra=takes(IndexQuestion))
    async def search(name: str, request: Request) -> Response:
        """The nearest documents of an index, each with its best passage."""
        asked = await read(request, IndexQuestion)
        check_sizes(services, [asked.query], "query")
        return await search_index(services, calibrations, name, asked, Ask(client=client_of(request)))

    _add_documents(inside, services)
    routes.include_router(inside)


def _add_documents(inside: APIRouter, services: Services) -> None:
    @inside.post(
        "/{name}/documents", response_model=shapes.WrittenAnswer, openapi_extra=takes(shapes.AddRequest)
    )
    async def add(name: str, request: Request) -> Response:
        """Add documents, or replace those of the same ids. Unchanged texts are not encoded again."""
        check_may_write(request)
        index_of(services, name)
        asked = await read(request, shapes.AddRequest)
        texts = [document.text for document in asked.documents]
        check_sizes(services, texts, "documents")
        ids = [document.id for document in asked.documents if document.id is not None] or None
        fields = [document.fields or {} for document in asked.documents]
        given = fields if any(fields) else None

        def write(index: Index) -> Written:
            check_tokens(services, texts)
            return index.add(texts, ids=ids, fields=given, existing=asked.existing)

        client = client_of(request)
        with services.reserve(client):
            return answer(asdict(await on_index(services, name, write, client, long=True)))

    @inside.delete(
        "/{name}/documents", response_model=shapes.DeletedAnswer, openapi_extra=takes(shapes.DeleteRequest)
    )
    async def delete(name: str, request: Request) -> Response:
        """Delete documents by ids or by a condition."""
        check_may_write(request)
        index_of(services, name)
        asked = await read(request, shapes.DeleteRequest)
        check_where(asked.where)
        if asked.ids:
            check_sizes(services, asked.ids, "ids", services.limits.pair_texts)
        client = client_of(request)
        with services.reserve(client):
            gone = await on_index(
                services, name, lambda index: index.delete(asked.ids, where=asked.where), client, long=True
            )
        return answer({"deleted": gone})

    @inside.post("/{name}/get", response_model=shapes.DocumentsAnswer, openapi_extra=takes(shapes.GetRequest))
    async def get(name: str, request: Request) -> Response:
        """Documents by their ids."""
        index_of(services, name)
        asked = await read(request, shapes.GetRequest)
        check_sizes(services, asked.ids, "ids")
        documents = await on_index(services, name, lambda index: index.get(asked.ids), client_of(request))
        return answer({"documents": [asdict(document) for document in documents]})


def _row(name: str, index: Index) -> dict[str, Any]:
    stats = index.stats()
    return {
        "name": name,
        "documents": stats.documents,
        "passages": stats.passages,
        "model": stats.model,
        "dim": stats.dim,
        "fields": dict(stats.fields),
    }


def _details(name: str, index: Index) -> dict[str, Any]:
    """Without its place, which is the operator's own business."""
    stats = index.stats()
    shown = ("bytes", "layout", "unindexed", "recall", "passage_tokens", "version")
    return {**_row(name, index), **{key: getattr(stats, key) for key in shown}}
