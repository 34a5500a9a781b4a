"""Routes below /indexes: list, search, read, add, update and delete documents of the opened indexes; snapshots.

A client names an index, never a path. Snapshots go to the folder that the operator chose.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, BeforeValidator, Field, model_validator
from pydantic_core import PydanticCustomError
from starlette.responses import Response

from gemel.errors import InputError, WorkError
from gemel.serve.errors import PlainError, RouteError
from gemel.serve.options import TooLarge
from gemel.serve.protocols.search import (
    WHERE,
    HitChoice,
    IndexQuestion,
    Mode,
    SearchAnswer,
    Where,
    index_of,
    on_index,
    search_by_examples,
    search_index,
)
from gemel.serve.protocols.texts import check_tokens, check_where
from gemel.serve.routes import (
    QUOTED_CHARACTERS,
    FailFast,
    OwnRequest,
    Routes,
    Texts,
    dumps,
    example,
    json_response,
)
from gemel.serve.services import Call

if TYPE_CHECKING:
    from gemel.index.documents import IndexDocument
    from gemel.index.index import Index
    from gemel.index.ingest import WriteResult

Value: TypeAlias = str | int | float | bool | list[str | int | float | bool] | None
VectorKinds: TypeAlias = list[Literal["dense", "sparse", "late"]]

VECTORS = "Kinds of stored vectors to return, of those that the index has"

_MOST_CHARACTERS = 2_000_000  # of the texts of one page of documents; the next page has the rest

_MOST_NUMBERS = 1_000_000  # of the vectors of an answer

_MOST_SNAPSHOTS = 100  # of an index


def _plain_fields(fields: Any) -> Any:  # noqa: ANN401 - any JSON
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


PLAIN_FIELDS = BeforeValidator(_plain_fields)


class NewDocument(OwnRequest):
    """One document; its fields are those of the index."""

    id: str | None = Field(None, description="If no document has one, ids are made from the texts")
    text: str
    fields: Annotated[dict[str, Value] | None, PLAIN_FIELDS] = None


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


class ChosenDocuments(OwnRequest):
    """Documents by ids or by a condition."""

    ids: Texts | None = None
    where: Where | None = Field(None, description=WHERE)

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if (self.ids is None) == (self.where is None):
            raise ValueError("give either ids or where")
        return self

    def check(self, call: Call) -> None:
        """That condition and ids are within the limits of the server."""
        check_where(self.where)
        if self.ids:
            call.limits.check_texts(self.ids, "ids", call.limits.pair_texts)


class DeleteRequest(ChosenDocuments):
    """Which documents to delete: by ids or by a condition."""

    model_config = example(ids=["a1"])


class UpdateRequest(ChosenDocuments):
    """Which documents to change, and the new values of their fields."""

    model_config = example(ids=["a1"], fields={"lang": "en"})

    fields: Annotated[dict[str, Value], PLAIN_FIELDS] = Field(
        description="New values; null removes one. Other fields, texts and vectors stay"
    )


class GetRequest(OwnRequest):
    """Which documents to fetch."""

    model_config = example(ids=["a1"])

    ids: Texts
    vectors: VectorKinds = Field([], max_length=3, description=VECTORS)


class ListRequest(OwnRequest):
    """A page of documents, by ascending id."""

    model_config = example(where="year >= 2020", limit=100)

    where: Where | None = Field(None, description=WHERE)
    after: str | None = Field(
        None, description="The id after which the page begins: `next` of the one before"
    )
    limit: int = Field(100, ge=1, le=1000, description="Documents at most; fewer if they are long")
    vectors: VectorKinds = Field([], max_length=3, description=VECTORS)


class CountRequest(OwnRequest):
    """Which documents to count."""

    model_config = example(where="year >= 2020")

    where: Where | None = Field(None, description=WHERE)


class FacetsRequest(OwnRequest):
    """A field whose values are counted."""

    model_config = example(field="year", limit=10)

    field: str = Field(max_length=1000)
    where: Where | None = Field(None, description=WHERE)
    limit: int = Field(100, ge=1, le=10_000, description="Values at most, the most frequent ones")


class MoreLikeRequest(HitChoice):
    """Examples and counterexamples: stored documents by id, and texts."""

    model_config = example(ids=["a"], k=3)

    ids: Texts = Field([], description="Documents that answers should be like")
    texts: Texts = Field([], description="Texts that answers should be like")
    unlike: Texts = Field([], description="Documents that answers should be unlike")
    unlike_texts: Texts = Field([], description="Texts that answers should be unlike")

    def examples(self) -> dict[str, list[str]]:
        """The four lists by name."""
        return {name: getattr(self, name) for name in ("ids", "texts", "unlike", "unlike_texts")}


class SnapshotRequest(OwnRequest):
    """A new snapshot."""

    model_config = example()

    name: str | None = Field(
        None,
        pattern="^[A-Za-z0-9][A-Za-z0-9_-]{0,63}$",
        description="Letters, digits, - and _; null: the time in UTC",
    )


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


class UpdatedAnswer(BaseModel):
    updated: int
    unchanged: int = Field(description="Had these values already")


class DeletedAnswer(BaseModel):
    deleted: int


class SparseRowAnswer(BaseModel):
    indices: list[int] = Field(description="Ids of tokens of the sparse encoder")
    values: list[float]


class StoredDocument(BaseModel):
    """A document; its vectors, if requested, have one entry per passage."""

    id: str
    text: str
    fields: dict[str, Value]
    passages: int
    vectors: list[list[float]] | None = Field(None, description="Dense; only there if requested")
    sparse_vectors: list[SparseRowAnswer] | None = Field(None, description="Only there if requested")
    late_vectors: list[list[list[float]]] | None = Field(
        None, description="A vector per token; only there if requested"
    )


class DocumentsAnswer(BaseModel):
    """In the order of the requested ids; ids that do not exist are left out."""

    documents: list[StoredDocument]


class PageAnswer(BaseModel):
    """By ascending id (as strings)."""

    documents: list[StoredDocument]
    next: str | None = Field(description="`after` of the next page; null: this was the last one")


class CountAnswer(BaseModel):
    documents: int
    passages: int


class FacetRow(BaseModel):
    value: str | int | float | bool | None = Field(description="null: documents without a value")
    documents: int


class FacetsAnswer(BaseModel):
    """Most frequent first; of a list field, each value in a list counts once for its document."""

    values: list[FacetRow]


class SnapshotRow(BaseModel):
    name: str
    documents: int | None
    passages: int | None
    bytes: int | None
    problem: str | None = Field(description="Why it cannot be read; null: it can")


class SnapshotList(BaseModel):
    snapshots: list[SnapshotRow]


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


@ROUTES.add("PATCH", "/{name}/documents", UpdatedAnswer, guard=_writable)
async def update(call: Call, body: UpdateRequest, name: str) -> Response:
    """Change fields of documents, by ids or by a condition. Nothing is encoded."""
    body.check(call)
    with call.reserve():
        done = await on_index(
            call, name, lambda index: index.update(body.ids, where=body.where, fields=body.fields), long=True
        )
    return json_response({"updated": done.replaced, "unchanged": done.unchanged})


@ROUTES.add("DELETE", "/{name}/documents", DeletedAnswer, guard=_writable)
async def delete(call: Call, body: DeleteRequest, name: str) -> Response:
    """Delete documents by ids or by a condition."""
    body.check(call)
    with call.reserve():
        deleted = await on_index(
            call, name, lambda index: index.delete(body.ids, where=body.where), long=True
        )
    return json_response({"deleted": deleted})


@ROUTES.add("POST", "/{name}/get", DocumentsAnswer, guard=index_of)
async def get(call: Call, body: GetRequest, name: str) -> Response:
    """Documents by their ids."""
    call.limits.check_texts(body.ids, "ids")

    def read(index: Index) -> bytes:
        documents, left = _within_limits(_by_ids(index, body), characters=None)
        if left is not None:
            raise TooLarge(
                f"the vectors of these documents have more than {_MOST_NUMBERS:,} numbers. Request fewer ids at once"
            )
        return dumps({"documents": documents})

    return Response(await on_index(call, name, read), media_type="application/json")


def _by_ids(index: Index, body: GetRequest) -> Iterable[IndexDocument]:
    """Without vectors all at once; with them a few at a time, so that no more are read than an answer may have."""
    step = 16 if body.vectors else len(body.ids)
    for start in range(0, len(body.ids), step):
        yield from index.get(body.ids[start : start + step], vectors=body.vectors)


@ROUTES.add("POST", "/{name}/list", PageAnswer, name="list", guard=index_of)
async def list_documents(call: Call, body: ListRequest, name: str) -> Response:
    """A page of the documents, all or those that meet a condition, by ascending id."""
    check_where(body.where)

    def read(index: Index) -> bytes:
        stored = index.documents(body.where, after=body.after, limit=body.limit + 1, vectors=body.vectors)
        documents, left = _within_limits(stored, characters=_MOST_CHARACTERS)
        if left is not None and not documents:
            raise TooLarge(
                f"the vectors of the document {left!r} have more than {_MOST_NUMBERS:,} numbers. Leave them out"
            )
        more = left is not None or len(documents) > body.limit
        page = documents[: body.limit]
        return dumps({"documents": page, "next": page[-1]["id"] if more else None})

    return Response(await on_index(call, name, read), media_type="application/json")


def _within_limits(
    stored: Iterable[IndexDocument], *, characters: int | None
) -> tuple[list[dict[str, Any]], str | None]:
    """The first documents, as many as an answer may have, and the id of the one that is too many; None: all fit."""
    rows: list[dict[str, Any]] = []
    numbers = length = 0
    for each in stored:
        numbers += 0 if each.vectors is None else each.vectors.size
        numbers += sum(2 * len(indices) for indices, _ in each.sparse or ())
        numbers += 0 if each.late is None else len(each.late.vectors) * each.late.dim
        length += len(each.text)
        if numbers > _MOST_NUMBERS or (rows and characters is not None and length > characters):
            return rows, each.id
        row = {name: getattr(each, name) for name in ("id", "text", "fields", "passages")}
        rows.append(row | each.vector_columns())
    return rows, None


@ROUTES.add("POST", "/{name}/count", CountAnswer, guard=index_of)
async def count(call: Call, body: CountRequest, name: str) -> Response:
    """How many documents and passages there are, or meet a condition."""
    check_where(body.where)
    return json_response(asdict(await on_index(call, name, lambda index: index.count(body.where))))


@ROUTES.add("POST", "/{name}/facets", FacetsAnswer, guard=index_of)
async def facets(call: Call, body: FacetsRequest, name: str) -> Response:
    """The values of a field and how many documents have each."""
    check_where(body.where)
    counts = await on_index(
        call, name, lambda index: index.facets(body.field, where=body.where, limit=body.limit)
    )
    rows = [{"value": value, "documents": documents} for value, documents in counts.items()]
    return json_response({"values": rows})


@ROUTES.add("POST", "/{name}/more_like", SearchAnswer, guard=index_of)
async def more_like(call: Call, body: MoreLikeRequest, name: str) -> Response:
    """The documents that are most like some stored documents and texts, and unlike others; without those given."""
    for field, given in body.examples().items():
        if given:
            call.limits.check_texts(given, field)
    return await search_by_examples(call, name, body, body.examples())


def _snapshots_of(call: Call, name: str) -> Path:
    """The folder of the snapshots of an index, or a refusal (404)."""
    index_of(call, name)
    folder = call.services.snapshots
    if folder is None:
        raise RouteError(
            404, "no snapshots are made here. Start the server with --snapshots FOLDER", code="no_snapshots"
        )
    return folder / name


def _may_snapshot(call: Call, name: str) -> None:
    _writable(call, name)
    _snapshots_of(call, name)


@ROUTES.add("GET", "/{name}/snapshots", SnapshotList, guard=_snapshots_of)
async def snapshots(call: Call, name: str) -> Response:
    """The snapshots of an index that were made over HTTP."""
    return json_response({"snapshots": await call.work(lambda: _listed(_snapshots_of(call, name)))})


def _listed(folder: Path) -> list[dict[str, Any]]:
    from gemel.index.open import list_indexes

    if not folder.is_dir():
        return []
    rows = []
    for path in sorted(each for each in folder.iterdir() if each.is_dir() and not each.name.startswith(".")):
        for found in list_indexes(path):
            sizes = {name: getattr(found, name) for name in ("documents", "passages", "bytes")}
            problem = None if found.problem is None else found.problem.replace(str(path), path.name)
            rows.append({"name": path.name, **sizes, "problem": problem})
    return rows


@ROUTES.add("POST", "/{name}/snapshots", SnapshotRow, guard=_may_snapshot)
async def snapshot(call: Call, body: SnapshotRequest, name: str) -> Response:
    """Copy an index as it is now to the server's folder of snapshots. The operator restores: gemel index restore."""
    folder = _snapshots_of(call, name)
    chosen = body.name or datetime.now(UTC).strftime("%Y%m%dT%H%M%S%f")

    def copy(index: Index) -> dict[str, Any]:
        if len(_listed_names(folder)) >= _MOST_SNAPSHOTS:
            raise InputError(
                f"there are {_MOST_SNAPSHOTS} snapshots of {name} already. Let the operator delete some"
            )
        if (folder / chosen).exists():
            raise InputError(f"there is a snapshot {chosen!r} of {name} already. Choose another name")
        try:
            done = index.snapshot(folder / chosen)
        except (InputError, WorkError) as error:
            raise WorkError(str(error).replace(str(folder / chosen), chosen)) from error
        return {
            "name": chosen,
            **{each: getattr(done, each) for each in ("documents", "passages", "bytes")},
            "problem": None,
        }

    with call.reserve():
        return json_response(await on_index(call, name, copy, long=True))


def _listed_names(folder: Path) -> list[str]:
    return [each.name for each in folder.iterdir()] if folder.is_dir() else []


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
