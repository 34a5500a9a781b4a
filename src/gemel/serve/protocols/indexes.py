"""Routes below /indexes: list, details, search, add, delete and get documents of the indexes the operator opened.

A client names an index, never a path.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from starlette.requests import Request
from starlette.responses import Response

from gemel.index.index import Index
from gemel.index.ingest import WriteResult
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError
from gemel.serve.protocols.pairs import Calibrations
from gemel.serve.protocols.requests import (
    QUOTED_CHARACTERS,
    FailFast,
    OwnRequest,
    Texts,
    check_may_write,
    client_of,
    example,
    json_response,
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
from gemel.serve.protocols.texts import check_tokens, check_where
from gemel.serve.routes import Routes
from gemel.serve.services import Services


def routes(services: Services, calibrations: Calibrations) -> Routes:
    """The routes below /indexes."""
    route = Routes("Indexes", prefix="/indexes", error=PlainError)

    @route.get("", IndexList)
    async def indexes(request: Request) -> Response:
        """The open indexes."""
        rows = await services.work(
            lambda: [_row(name, index) for name, index in services.indexes.items()], client=client_of(request)
        )
        return json_response({"indexes": rows})

    @route.get("/{name}", IndexDetails)
    async def index(request: Request, name: str) -> Response:
        """One index and how it is laid out."""
        return json_response(
            await on_index(services, name, lambda index: _details(name, index), client_of(request))
        )

    @route.post("/{name}/search", SearchAnswer)
    async def search(request: Request, body: IndexQuestion, name: str) -> Response:
        """The nearest documents of an index, each with its best passage."""
        services.limits.check_texts([body.query], "query")
        return await search_index(services, calibrations, name, body, EmbedOptions(client=client_of(request)))

    _add_documents(route, services)
    return route


def _add_documents(route: Routes, services: Services) -> None:
    def exists(request: Request) -> None:
        index_of(services, request.path_params["name"])

    def writable(request: Request) -> None:
        check_may_write(request)
        exists(request)

    @route.post("/{name}/documents", WrittenAnswer, guard=writable)
    async def add(request: Request, body: AddRequest, name: str) -> Response:
        """Add documents, or replace those of the same ids. Unchanged texts are not encoded again."""
        texts = [document.text for document in body.documents]
        services.limits.check_texts(texts, "documents")
        ids = [document.id for document in body.documents if document.id is not None] or None
        fields = [document.fields or {} for document in body.documents]
        given = fields if any(fields) else None

        def write(index: Index) -> WriteResult:
            check_tokens(services, texts)
            return index.add(texts, ids=ids, fields=given, existing=body.existing)

        client = client_of(request)
        with services.reserve(client):
            return json_response(asdict(await on_index(services, name, write, client, long=True)))

    @route.delete("/{name}/documents", DeletedAnswer, guard=writable)
    async def delete(request: Request, body: DeleteRequest, name: str) -> Response:
        """Delete documents by ids or by a condition."""
        check_where(body.where)
        if body.ids:
            services.limits.check_texts(body.ids, "ids", services.limits.pair_texts)
        client = client_of(request)
        with services.reserve(client):
            deleted = await on_index(
                services, name, lambda index: index.delete(body.ids, where=body.where), client, long=True
            )
        return json_response({"deleted": deleted})

    @route.post("/{name}/get", DocumentsAnswer, guard=exists)
    async def get(request: Request, body: GetRequest, name: str) -> Response:
        """Documents by their ids."""
        services.limits.check_texts(body.ids, "ids")
        documents = await on_index(services, name, lambda index: index.get(body.ids), client_of(request))
        return json_response({"documents": [asdict(document) for document in documents]})


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
    """Without its location, which only the operator may see."""
    stats = index.stats()
    shown = ("bytes", "layout", "unindexed", "recall", "passage_tokens", "version")
    return {**_row(name, index), **{key: getattr(stats, key) for key in shown}}


Value: TypeAlias = str | int | float | bool | list[str | int | float | bool] | None


class NewDocument(OwnRequest):
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
                    f"the field {wrong[:QUOTED_CHARACTERS]!r} must be a string, a number, true, false, null, or a "
                    "list of the first four"
                )
                raise PydanticCustomError("field_value", "{sentence}", {"sentence": sentence})
        return fields


def _is_plain(value: object) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, str | int | float) for each in value)
    return not isinstance(value, dict)


class AddRequest(OwnRequest):
    """Documents to add, in one commit."""

    model_config = example(
        documents=[{"id": "a1", "text": "A man is playing a guitar.", "fields": {"lang": "en"}}],
        existing="replace",
    )

    documents: Annotated[list[NewDocument], FailFast()]
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


class DeleteRequest(OwnRequest):
    """Which documents to delete: by ids or by a condition."""

    model_config = example(ids=["a1"])

    ids: Texts | None = None
    where: Where | None = Field(None, description=WHERE)

    @model_validator(mode="after")
    def _one_way(self) -> DeleteRequest:
        if (self.ids is None) == (self.where is None):
            raise ValueError("give either ids or where")
        return self


class GetRequest(OwnRequest):
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
