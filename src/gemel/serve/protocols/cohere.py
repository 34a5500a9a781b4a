"""Reranking: Cohere's /v2/rerank, and /v1/rerank, the older form that Jina and others share.

Documents are scored by the cross-encoder where one is loaded, else by the cosine of vectors. An optional field may
also be null: LangChain sends null for what it was not given.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field
from starlette.responses import Response

from gemel.cross_model import CrossModel
from gemel.options import CrossOptions
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import OpenAIError, PlainError
from gemel.serve.protocols.texts import (
    check_model,
    check_tokens,
    embed_query_and_documents,
    first_tokens,
    is_long,
    unit_norm,
)
from gemel.serve.routes import FailFast, ForeignRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors

DOCUMENT_TOKENS = 4096  # Cohere's default
CHUNK = 64  # pairs that a cross-encoder reads before other work has its turn

_EXAMPLE: dict[str, Any] = {
    "model": "all-MiniLM-L6-v2",
    "query": "Who plays music?",
    "documents": ["A man is playing a guitar.", "The stock market fell today."],
    "top_n": 1,
}


class RerankRequest(ForeignRequest):
    """Documents to put in order."""

    model_config = example(**_EXAMPLE)

    model: str = Field(description="The cross-encoder or the model that is loaded")
    query: str
    documents: Texts
    top_n: int | None = Field(None, ge=1, description="How many are returned; default all")
    max_tokens_per_doc: int | None = Field(
        DOCUMENT_TOKENS, ge=1, description="Longer documents are truncated"
    )


class TextDocument(ForeignRequest):
    text: str


class OlderRerankRequest(ForeignRequest):
    """Documents to put in order, as strings or as objects with a text."""

    model_config = example(**_EXAMPLE, return_documents=True)

    model: str | None = Field(None, description="The cross-encoder or the model that is loaded")
    query: str
    documents: Annotated[list[str | TextDocument], FailFast()]
    top_n: int | None = Field(None, ge=1, description="How many are returned; default all")
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


ROUTES = Routes("Cohere", error=PlainError)


@ROUTES.add("POST", "/v2/rerank", RerankAnswer)
async def rerank(call: Call, body: RerankRequest) -> Response:
    """Documents by how well they answer a query."""
    check_model(call, body.model, reranks=True)
    documents = await _truncate(call, body.documents, body.max_tokens_per_doc or DOCUMENT_TOKENS)
    results = await _rank(call, body.query, documents, body.top_n)
    return json_response({"id": str(uuid.uuid4()), "results": results, "meta": _meta(call, "2")})


@ROUTES.add("POST", "/v1/rerank", OlderRerankAnswer, error=OpenAIError)
async def older(call: Call, body: OlderRerankRequest) -> Response:
    """Documents by how well they answer a query, in the form that Jina and others share."""
    if body.model is not None:
        check_model(call, body.model, reranks=True)
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    results = await _rank(call, body.query, documents, body.top_n)
    if body.return_documents:
        results = [{**row, "document": {"text": documents[row["index"]]}} for row in results]
    name = call.services.cross_name or call.model_name
    return json_response(
        {"id": str(uuid.uuid4()), "model": name, "results": results, "meta": _meta(call, "1")}
    )


async def _rank(call: Call, query: str, documents: list[str], top: int | None) -> list[dict[str, Any]]:
    call.limits.check_texts([query], "query")
    call.limits.check_texts(documents, "documents")
    scores = await score(call, query, documents, EmbedOptions())
    return [{"index": int(at), "relevance_score": float(scores.relevance[at])} for at in scores.best(top)]


async def _truncate(call: Call, documents: list[str], most: int) -> list[str]:
    """At most `most` tokens of each document."""
    call.limits.check_texts(documents, "documents")
    if all(len(document) <= most for document in documents):  # a token has at least one character
        return documents
    return await call.work(
        lambda: [first_tokens(call.model, each, most) for each in documents], long=is_long(documents)
    )


def _meta(call: Call, version: str) -> dict[str, Any]:
    """With what `relevance_score` is: a probability of the cross-encoder, or (1 + cosine) / 2."""
    api = {"version": version, "is_experimental": False}
    kind = "cosine" if reranker(call) is None else "probability"
    return {"api_version": api, "billed_units": {"search_units": 1}, "score_kind": kind}


@dataclass(frozen=True, eq=False)
class RelevanceScores:
    """How well documents answer a query, in the order of the documents."""

    raw: Vectors
    """(n,) the cross-encoder's logit, or the cosine."""
    relevance: Vectors
    """(n,) the same from 0 to 1: the sigmoid of the logit, or (1 + cosine) / 2."""

    def best(self, k: int | None = None) -> NDArray[np.int64]:
        """Positions, best first; ties go to the earlier one."""
        return np.argsort(-self.raw, kind="stable")[:k]


def reranker(call: Call) -> CrossModel | None:
    """The cross-encoder, if it gives one score; one with several classes cannot rank."""
    cross = call.services.cross
    return cross if cross is not None and len(cross.labels) == 1 else None


async def score(call: Call, query: str, documents: Sequence[str], options: EmbedOptions) -> RelevanceScores:
    """Scores of documents. `options.truncate` False refuses texts that are longer than the model reads."""
    cross = reranker(call)
    if cross is not None:
        repeated = [query] * len(documents)
        logits = await logits_of(call, cross, repeated, documents, truncate=options.truncate, once=[query])
        return RelevanceScores(logits[:, 0], sigmoid(logits[:, 0]))
    normalized = replace(options, normalize=unit_norm(call.model))
    of_query, of_documents = await embed_query_and_documents(call, query, documents, normalized)
    raw = np.clip(of_documents.vectors @ of_query.vectors[0], -1, 1)
    return RelevanceScores(raw, (1 + raw) / 2)


def sigmoid(logits: Vectors) -> Vectors:
    """From 0 to 1, in float32."""
    return np.asarray(1 / (1 + np.exp(-logits.clip(-80, 80))), dtype=np.float32)


async def logits_of(
    call: Call,
    cross: CrossModel,
    left: Sequence[str],
    right: Sequence[str],
    *,
    truncate: bool,
    once: Sequence[str] | None = None,
) -> Vectors:
    """(n, labels) of pairs, in chunks that take turns with the work of other clients and end with the request.

    `once`: the texts of `left` that count towards the limit of tokens, where it repeats one text.
    """
    options = CrossOptions(on_long="truncate" if truncate else "error")
    counted = [*(left if once is None else once), *right]

    def chunk(start: int) -> Vectors:
        return cross.logits(left[start : start + CHUNK], right[start : start + CHUNK], options)

    long = len(right) > CHUNK or is_long(counted)
    with call.reserve() if long else nullcontext():
        await call.work(lambda: check_tokens(call, counted), long=long)
        parts = [await call.work(partial(chunk, start), long=long) for start in range(0, len(right), CHUNK)]
    return np.concatenate(parts)
