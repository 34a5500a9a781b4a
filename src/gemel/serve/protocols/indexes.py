"""Routes below /indexes: list, details, search, add, delete and get documents of the indexes the operator opened.

A client names an index, never a path.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from gemel.serve.errors import PlainError, RouteError
from gemel.serve.protocols.search import (
    WHERE,
    IndexQuestion,
    Mode,
    SearchAnswer,
    Where,
    index_of,
    on_index,
    search_index,
)
from gemel.serve.protocols.texts import check_tokens, check_where
from gemel.serve.routes import (
    QUOTED_CHARACTERS,
    FailFast,
    OwnRequest,
    Routes,
    Texts,
    example,
    json_response,
)
from gemel.serve.services import Call

if TYPE_CHECKING:
    from gemel.index.index import Index
    from gemel.index.ingest import WriteResult

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
    """Summary of an index."""

    name: str
    documents: int
    passages: int
    model: str | None = Field(description="null: vectors only, bound to no model")
    dim: int
    fields: dict[str, str] = Field(description="Names and types of the columns for conditions")
    modes: list[Mode] = Field(description="How it can be searched")
    mode: Mode = Field(description="How it is searched unless the request says otherwise")


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
    kinds: dict[str, dict[str, Any]] = Field(
        description="Of sparse and late vectors: the model, and how they are stored"
    )
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
    """In the order of the requested ids; ids that do not exist are left out."""

    documents: list[StoredDocument]


ROUTES = Routes("Indexes", prefix="/indexes", error=PlainError)


@ROUTES.add("GET", "", IndexList)
async def indexes(call: Call) -> Response:
    """The open indexes."""
    opened = call.services.indexes.items()
    rows = await call.work(lambda: [_row(name, index) for name, index in opened])
    return json_response({"indexes": rows})


@ROUTES.add("GET", "/{name}", IndexDetails)
async def index(call: Call, name: str) -> Response:
    """One index and how it is laid out."""
    return json_response(await on_index(call, name, lambda index: _details(name, index)))


@ROUTES.add("POST", "/{name}/search", SearchAnswer)
async def search(call: Call, body: IndexQuestion, name: str) -> Response:
    """The nearest documents of an index, each with its best passage."""
    call.limits.check_texts([body.query], "query")
    return await search_index(call, name, body)


def _writable(call: Call, name: str) -> None:
    """The guard of every route that changes something."""
    if call.read_only:
        raise RouteError(
            403, "this API key is read-only: it may search, not change an index", code="read_only_key"
        )
    index_of(call, name)


@ROUTES.add("POST", "/{name}/documents", WrittenAnswer, guard=_writable)
async def add(call: Call, body: AddRequest, name: str) -> Response:
    """Add documents, or replace those of the same ids. Unchanged texts are not encoded again."""
    texts = [document.text for document in body.documents]
    call.limits.check_texts(texts, "documents")
    ids = [document.id for document in body.documents if document.id is not None] or None
    fields = [document.fields or {} for document in body.documents]

    def write(index: Index) -> WriteResult:
        check_tokens(call, texts)
        return index.add(texts, ids=ids, fields=fields if any(fields) else None, existing=body.existing)

    with call.reserve():
        return json_response(asdict(await on_index(call, name, write, long=True)))


@ROUTES.add("DELETE", "/{name}/documents", DeletedAnswer, guard=_writable)
async def delete(call: Call, body: DeleteRequest, name: str) -> Response:
    """Delete documents by ids or by a condition."""
    check_where(body.where)
    if body.ids:
        call.limits.check_texts(body.ids, "ids", call.limits.pair_texts)
    with call.reserve():
        deleted = await on_index(
            call, name, lambda index: index.delete(body.ids, where=body.where), long=True
        )
    return json_response({"deleted": deleted})


@ROUTES.add("POST", "/{name}/get", DocumentsAnswer, guard=index_of)
async def get(call: Call, body: GetRequest, name: str) -> Response:
    """Documents by their ids."""
    call.limits.check_texts(body.ids, "ids")
    documents = await on_index(call, name, lambda index: index.get(body.ids))
    names = ("id", "text", "fields", "passages")
    return json_response({"documents": [{name: getattr(each, name) for name in names} for each in documents]})


def _row(name: str, index: Index) -> dict[str, Any]:
    stats = index.stats()
    return {
        "name": name,
        "documents": stats.documents,
        "passages": stats.passages,
        "model": stats.model,
        "dim": stats.dim,
        "fields": dict(stats.fields),
        "modes": [*index.kinds, "words", "hybrid"],
        "mode": stats.mode,
    }


def _details(name: str, index: Index) -> dict[str, Any]:
    """Without its location, which only the operator may see."""
    stats = index.stats()
    shown = ("bytes", "layout", "unindexed", "recall", "kinds", "passage_tokens", "version")
    return {**_row(name, index), **{key: getattr(stats, key) for key in shown}}
