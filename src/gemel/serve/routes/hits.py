"""Answers of a search as JSON: one shape for an index and for texts of the request."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import BaseModel, Field

from gemel.calibration import Calibration
from gemel.serve.port import Ask, Services
from gemel.serve.routes.texts import embed_many


class HitRow(BaseModel):
    """One document or text that was found."""

    id: str = Field(description="Of the document; the position of a text of the request")
    score: float = Field(description="What ordered the answers: see scored_by")
    cosine: float = Field(description="Of the query and the text")
    percentile: float | None = Field(
        description="Per cent of random pairs with a lower cosine; null: unknown"
    )
    text: str = Field(description="The best passage")
    part: int = Field(description="Which passage of the document it is, from 0")
    fields: dict[str, Any]
    relation: dict[str, float] | None = Field(
        description="Probabilities of the labels of the model's relation head; null: it keeps none"
    )


class SearchAnswer(BaseModel):
    """Best first."""

    hits: list[HitRow]
    scored_by: Literal["cosine", "fusion", "cross"]
    exact: bool = Field(description="Every passage was compared")
    seconds: float


def with_percentiles(rows: list[dict[str, Any]], calibration: Calibration | None) -> list[dict[str, Any]]:
    """Rows of an answer with what their cosines are worth."""
    return [
        {**row, "percentile": None if calibration is None else calibration.percentile(row["cosine"])}
        for row in rows
    ]


async def with_relations(
    services: Services, query: str, rows: Sequence[dict[str, Any]], ask: Ask
) -> list[dict[str, Any]]:
    """Rows of an answer with how the query relates to each text, where the model keeps its relation head."""
    labels = services.model.labels
    if labels is None or not rows:
        return [{**row, "relation": None} for row in rows]
    # Not the vectors of the search: the head knows those of default options only.
    texts = [query, *(row["text"] for row in rows)]
    vectors = (await embed_many(services, texts, ask, limited=False)).vectors
    chances = services.model.relation_of(vectors[:1].repeat(len(rows), axis=0), vectors[1:]).tolist()
    return [
        {**row, "relation": dict(zip(labels, p, strict=True))} for row, p in zip(rows, chances, strict=True)
    ]
