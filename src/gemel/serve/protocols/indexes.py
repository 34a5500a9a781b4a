"""Indexes that the operator opened: what they hold, search, add, delete. A client names one, never a path.

What the routes of indexes take and answer.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias

from fastapi import APIRouter, Request, Response
from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gemel.index.index import Index
from gemel.index.results import WriteResult
from gemel.serve.port import Ask, Services
from gemel.serve.protocols.pairs import Calibrations
from gemel.serve.protocols.requests import (
    SHOWN,
    Own,
    StopAtFirst,
    Texts,
    answer,
    check_may_write,
    client_of,
    example,
    read,
    takes,
)
from gemel.serve.protocols.search import (
    WHERE,
    IndexQuestion,
    SearchAnswer,
    Where,
    index_of,
    on_index,
    search_index,
)
from gemel.serve.protocols.texts import check_sizes, check_tokens, check_where


def add_indexes(routes: APIRouter, services: Services, calibrations: Calibrations) -> None:
    """Add the routes."""
    inside = APIRouter(prefix="/indexes", tags=["Indexes"])

    @inside.get("", response_model=IndexList)
    async def indexes(request: Request) -> Response:
        """The open indexes."""
        known = services.indexes
        found = await services.work(
            lambda: [_row(name, index) for name, index in known.items()], client=client_of(request)
        )
        return answer({"indexes": found})

    @inside.get("/{name}", response_model=IndexDetails)
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
    @inside.post("/{name}/documents", response_model=WrittenAnswer, openapi_extra=takes(AddRequest))
    async def add(name: str, request: Request) -> Response:
        """Add documents, or replace those of the same ids. Unchanged texts are not encoded again."""
        check_may_write(request)
        index_of(services, name)
        asked = await read(request, AddRequest)
        texts = [document.text for document in asked.documents]
        check_sizes(services, texts, "documents")
        ids = [document.id for document in asked.documents if document.id is not None] or None
        fields = [document.fields or {} for document in asked.documents]
        given = fields if any(fields) else None

        def write(index: Index) -> WriteResult:
            check_tokens(services, texts)
            return index.add(texts, ids=ids, fields=given, existing=asked.existing)

        client = client_of(request)
        with services.reserve(client):
            return answer(asdict(await on_index(services, name, write, client, long=True)))

    @inside.delete("/{name}/documents", response_model=DeletedAnswer, openapi_extra=takes(DeleteRequest))
    async def delete(name: str, request: Request) -> Response:
        """Delete documents by ids or by a condition."""
        check_may_write(request)
        index_of(services, name)
        asked = await read(request, DeleteRequest)
        check_where(asked.where)
        if asked.ids:
            check_sizes(services, asked.ids, "ids", services.limits.pair_texts)
        client = client_of(request)
        with services.reserve(client):
            gone = await on_index(
                services, name, lambda index: index.delete(asked.ids, where=asked.where), client, long=True
            )
        return answer({"deleted": gone})

    @inside.post("/{name}/get", response_model=DocumentsAnswer, openapi_extra=takes(GetRequest))
    async def get(name: str, request: Request) -> Response:
        """Documents by their ids."""
        index_of(services, name)
        asked = await read(request, GetRequest)
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


Value: TypeAlias = str | int | float | bool | list[str | int | float | bool] | None


class NewDocument(Own):
    """One document; its fields are those of the index."""

    id: str | None = Field(None, description="If no document has one, ids are made from the texts")
    text: str
    fields: dict[str, Value] | None = None

    @field_validator("fields", mode="before")
    @classmethod
    def _plain_values_only(cls, fields: Any) -> Any:  # noqa: ANN401 - any JSON
        """The first wrong value is enough: the types would be tried in turn for each of thousands."""
        if isinstance(fields, dict):
            wrong = next((name for name, value in fields.items() if not _is_plain(value)), None)
            if wrong is not None:
                sentence = (
                    f"the field {wrong[:SHOWN]!r} must be a string, a number, true, false, null, or a list of the "
                    "first four"
                )
                raise PydanticCustomError("field_value", "{sentence}", {"sentence": sentence})
        return fields


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str | int | float) for each in value)
    return not isinstance(value, dict)


class AddRequest(Own):
    """Documents to add, in one commit."""

    model_config = example(
        documents=[{"id": "a1", "text": "A man is playing a guitar.", "fields": {"lang": "en"}}],
        existing="replace",
    )

    documents: Annotated[list[NewDocument], StopAtFirst()]
    existing: Literal["error", "replace", "skip"] = Field(
        "error", description="For ids that are there already"
    )

    @model_validator(mode="after")
    def _ids_of_all(self) -> AddRequest:
        named = sum(document.id is not None for document in self.documents)
        if named not in (0, len(self.documents)):
            raise ValueError(
                f"{named} of {len(self.documents)} documents have an id: give one to all, or to none"
            )
        return self


class DeleteRequest(Own):
    """Which documents to delete: by ids or by a condition."""

    model_config = example(ids=["a1"])

    ids: Texts | None = None
    where: Where | None = Field(None, description=WHERE)

    @model_validator(mode="after")
    def _one_way(self) -> DeleteRequest:
        if (self.ids is None) == (self.where is None):
            raise ValueError("give either ids or where")
        return self


class GetRequest(Own):
    """Which documents to fetch."""

    model_config = example(ids=["a1"])

    ids: Texts


# Answers.


class IndexRow(BaseModel):
    """An index in short."""

    name: str
    documents: int
    passages: int
    model: str | None = Field(description="null: vectors only, bound to no model")
    dim: int
    fields: dict[str, str] = Field(description="Names and types of the columns for conditions")


class IndexList(BaseModel):
    indexes: list[IndexRow]


class IndexDetails(IndexRow):
    """An index and how it is laid out."""

    bytes: int
    layout: str
    unindexed: int = Field(
        description="Passages that are compared one by one, as they came after the last build"
    )
    recall: float | None = Field(description="Measured on a sample; null: every passage is compared")
    passage_tokens: int | None
    version: str


class WrittenAnswer(BaseModel):
    added: int
    replaced: int
    unchanged: int
    encoded: int = Field(description="Passages that the model encoded")
    truncated: int


class DeletedAnswer(BaseModel):
    deleted: int


class StoredDocument(BaseModel):
    id: str
    text: str
    fields: dict[str, Value]
    passages: int


class DocumentsAnswer(BaseModel):
    """In the order asked; ids that are not there are left out."""

    documents: list[StoredDocument]
