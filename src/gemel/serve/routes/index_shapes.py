"""What the routes of indexes take and answer."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic_core import PydanticCustomError

from gemel.serve.routes.index_search import WHERE, Where
from gemel.serve.routes.reading import SHOWN, Own, StopAtFirst, Texts, example

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
