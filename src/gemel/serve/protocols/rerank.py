"""Reranking: Cohere's /v2/rerank; /v1/rerank, the older form that Jina, Voyage, vLLM and infinity share; vLLM's /score.

Documents are scored by the cross-encoder where one is loaded, else by the model for late interaction (MaxSim), else by
the cosine of vectors; `model` may name the second where there are both. An optional field may also be null: LangChain
sends null for what it was not given.
"""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from time import time
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import AliasChoices, BaseModel, Field
from starlette.responses import Response

from gemel.cross_model import CrossModel
from gemel.encoder.head import sigmoid
from gemel.errors import InputError
from gemel.options import CrossOptions
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import CohereError, OpenAIError
from gemel.serve.protocols.openai import Usage
from gemel.serve.protocols.texts import (
    check_tokens,
    embed_many,
    embed_query_and_documents,
    first_tokens,
    is_long,
    unit_norm,
    with_model,
)
from gemel.serve.routes import FailFast, ForeignRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors

if TYPE_CHECKING:
    from gemel.texts.late_model import LateModel

DOCUMENT_TOKENS = 4096  # Cohere's default
CHUNK = 64  # pairs that are scored before other work has its turn

_EXAMPLE: dict[str, Any] = {
    "model": "all-MiniLM-L6-v2",
    "query": "Who plays music?",
    "documents": ["A man is playing a guitar.", "The stock market fell today."],
    "top_n": 1,
}


class RerankRequest(ForeignRequest):
    """Documents to put in order."""

    model_config = example(**_EXAMPLE)

    model: str | None = Field(
        None, description="The cross-encoder, the model for late interaction, or the model"
    )
    query: str
    documents: Texts
    top_n: int | None = Field(None, ge=1, description="How many are returned; default all")
    max_tokens_per_doc: int | None = Field(
        DOCUMENT_TOKENS, ge=1, description="Longer documents are truncated"
    )


class TextDocument(ForeignRequest):
    text: str


Documents: TypeAlias = Annotated[list[str | TextDocument], FailFast()]


class OlderRerankRequest(ForeignRequest):
    """Documents to put in order, as strings or as objects with a text."""

    model_config = example(**_EXAMPLE, return_documents=True)
    refused: ClassVar = {
        "rank_fields": "send each document as one text",
        "max_chunks_per_doc": "a document is read from its beginning; send long ones in parts",
        "max_tokens_per_query": "a query is read up to the model's own length",
        "instruction": "the model's own prompts are used",
    }

    model: str | None = Field(
        None, description="The cross-encoder, the model for late interaction, or the model"
    )
    query: str
    documents: Documents
    top_n: int | None = Field(None, ge=1, description="How many are returned; default all")
    top_k: int | None = Field(None, ge=1, description="The same, in the word of Voyage")
    return_documents: bool | None = False
    max_tokens_per_doc: int | None = Field(None, ge=1, description="Longer documents are truncated")
    truncate: bool | None = Field(
        None, description="false: refuse texts that are longer than the model reads"
    )
    truncation: bool | None = Field(None, description="The same, in the word of Voyage")
    truncate_prompt_tokens: Literal[-1] | None = Field(
        None, description="vLLM; -1: at the model's own length, as always"
    )

    @property
    def top(self) -> int | None:
        if None not in (self.top_n, self.top_k) and self.top_n != self.top_k:
            raise InputError(f"top_n is {self.top_n} and top_k is {self.top_k}. Give one of them")
        return self.top_n or self.top_k


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
    object: Literal["list"]
    results: list[OlderResult]  # type: ignore[assignment]  # with the documents
    data: list[OlderResult] = Field(description="The same, where clients of Voyage look for them")
    model: str
    usage: Usage


class ScoreRequest(ForeignRequest):
    """Pairs of texts to score: one with each of several, or one to one."""

    model_config = example(model=_EXAMPLE["model"], text_1=_EXAMPLE["query"], text_2=_EXAMPLE["documents"])

    model: str | None = Field(
        None, description="The cross-encoder, the model for late interaction, or the model"
    )
    text_1: str | Texts = Field(
        validation_alias=AliasChoices("text_1", "queries", "data_1"),
        description="a string, or a list of strings (also named queries)",
    )
    text_2: str | Texts = Field(
        validation_alias=AliasChoices("text_2", "documents", "data_2"),
        description="a string, or a list of strings (also named documents)",
    )
    truncate_prompt_tokens: Literal[-1] | None = Field(
        None, description="-1: at the model's own length, as always"
    )


class PairScore(BaseModel):
    index: int
    object: Literal["score"]
    score: float = Field(description="0 to 1 from a cross-encoder, else the MaxSim or the cosine")


class ScoreAnswer(BaseModel):
    """In the order of the pairs."""

    id: str
    object: Literal["list"]
    created: int
    model: str
    data: list[PairScore]
    usage: Usage


ROUTES = Routes("Rerank", error=OpenAIError)


@ROUTES.add("POST", "/v2/rerank", RerankAnswer, tag="Cohere", error=CohereError)
async def rerank(call: Call, body: RerankRequest) -> Response:
    """Documents by how well they answer a query."""
    call = with_model(call, body.model, reranks=True)
    documents = await _truncate(call, body.documents, body.max_tokens_per_doc or DOCUMENT_TOKENS)
    scores = await _scores(call, body.query, documents)
    return json_response(
        {"id": str(uuid.uuid4()), "results": scores.rows(body.top_n), "meta": _meta(call, "2")}
    )


@ROUTES.add("POST", "/v1/rerank", OlderRerankAnswer)
async def older(call: Call, body: OlderRerankRequest) -> Response:
    """Documents by how well they answer a query, in the form that Jina, Voyage, vLLM and infinity share."""
    call = with_model(call, body.model, reranks=True)
    top = body.top
    documents = [each if isinstance(each, str) else each.text for each in body.documents]
    read = await _truncate(call, documents, body.max_tokens_per_doc)
    truncate = body.truncate is not False and body.truncation is not False
    scores = await _scores(call, body.query, read, truncate=truncate)
    rows = scores.rows(top)
    if body.return_documents:
        rows = [{**row, "document": {"text": documents[row["index"]]}} for row in rows]
    return json_response(
        {
            "id": str(uuid.uuid4()),
            "object": "list",
            "model": _scorer(call),
            "results": rows,
            "data": rows,
            "meta": _meta(call, "1"),
            "usage": _usage(scores.tokens),
        }
    )


@ROUTES.add("POST", "/v1/score", ScoreAnswer, tag="vLLM", name="score")
@ROUTES.add("POST", "/score", ScoreAnswer, tag="vLLM", name="score")
async def score_route(call: Call, body: ScoreRequest) -> Response:
    """A score for each pair of texts: that of the cross-encoder, else of late interaction (MaxSim), else the cosine."""
    call = with_model(call, body.model, reranks=True)
    left, right = ([each] if isinstance(each, str) else each for each in (body.text_1, body.text_2))
    call.limits.check_texts(left, "text_1")
    call.limits.check_texts(right, "text_2")
    if len(left) not in (1, len(right)):
        raise InputError(
            f"text_1 has {len(left)} texts but text_2 has {len(right)}. Give one, or as many as text_2 has"
        )
    scores = await _score_pairwise(call, left, right)
    return json_response(
        {
            "id": f"score-{uuid.uuid4()}",
            "object": "list",
            "created": int(time()),
            "model": _scorer(call),
            "data": [
                {"index": at, "object": "score", "score": each} for at, each in enumerate(scores.raw.tolist())
            ],
            "usage": _usage(scores.tokens),
        }
    )


async def _score_pairwise(call: Call, left: list[str], right: list[str]) -> PairwiseScores:
    """Pairs left[i], right[i]; one left text is paired with all."""
    scorer = reranker(call)
    if scorer is not None:
        repeated = left * len(right) if len(left) == 1 else left
        scored = await score_pairs(call, scorer, repeated, right, truncate=True, once=left)
        raw = scored.logits[:, 0]
        return PairwiseScores(sigmoid(raw) if isinstance(scorer, CrossModel) else raw, scored.tokens)
    options = EmbedOptions(normalize=unit_norm(call.model))
    prompt_name = call.model.checkpoint.prompt_name
    queries = await embed_many(call, left, replace(options, prompt_name=prompt_name("query")))
    documents = await embed_many(
        call,
        right,
        replace(options, prompt_name=prompt_name("document")),
        before=sum(queries.tokens),
    )
    cosines = np.clip((queries.vectors * documents.vectors).sum(axis=1), -1, 1)
    return PairwiseScores(cosines, queries.total_tokens + documents.total_tokens)


@dataclass(frozen=True, eq=False)
class PairwiseScores:
    """Scores of pairs, in their order."""

    raw: Vectors
    """(n,)"""
    tokens: int


def _scorer(call: Call) -> str:
    """The name of what scores."""
    scorer = reranker(call)
    if scorer is None:
        return call.model_name
    return (call.services.cross_name or "") if isinstance(scorer, CrossModel) else scorer.name


def _usage(tokens: int) -> dict[str, int]:
    return {"prompt_tokens": tokens, "total_tokens": tokens}


async def _scores(call: Call, query: str, documents: list[str], *, truncate: bool = True) -> RelevanceScores:
    call.limits.check_texts([query], "query")
    call.limits.check_texts(documents, "documents")
    return await score(call, query, documents, EmbedOptions(truncate=truncate))


async def _truncate(call: Call, documents: list[str], most: int | None) -> list[str]:
    """At most `most` tokens of each document."""
    call.limits.check_texts(documents, "documents")
    if most is None or all(
        len(document) <= most for document in documents
    ):  # a token has at least one character
        return documents
    return await call.work(
        lambda: [first_tokens(call.model, each, most) for each in documents], long=is_long(documents)
    )


def _meta(call: Call, version: str) -> dict[str, Any]:
    """With the kind of number behind `relevance_score`: a probability of the cross-encoder, a MaxSim, or a cosine."""
    api = {"version": version, "is_experimental": False}
    scorer = reranker(call)
    kind = "cosine" if scorer is None else "probability" if isinstance(scorer, CrossModel) else "maxsim"
    return {"api_version": api, "billed_units": {"search_units": 1}, "score_kind": kind}


@dataclass(frozen=True, eq=False)
class RelevanceScores:
    """How well documents answer a query, in the order of the documents."""

    raw: Vectors
    """(n,) the cross-encoder's logit, the MaxSim, or the cosine."""
    relevance: Vectors
    """(n,) the same from 0 to 1: the sigmoid of the logit; of the MaxSim for each vector of the query, or of the
    cosine, (1 + x) / 2."""
    tokens: int
    """Of the query and the documents."""

    def rows(self, k: int | None = None) -> list[dict[str, Any]]:
        """Rows of an answer, best first."""
        return [{"index": int(at), "relevance_score": float(self.relevance[at])} for at in self.best(k)]

    def best(self, k: int | None = None) -> NDArray[np.int64]:
        """Positions, best first; ties go to the earlier one."""
        return np.argsort(-self.raw, kind="stable")[:k]


def reranker(call: Call) -> CrossModel | LateModel | None:
    """The cross-encoder, if it gives one score: one with several classes cannot rank. Else, or where the client named
    it, the model for late interaction; None: there is neither."""
    cross, late = call.services.cross, call.services.late
    if cross is None or len(cross.labels) != 1 or call.late_chosen:
        return late
    return cross


async def score(call: Call, query: str, documents: Sequence[str], options: EmbedOptions) -> RelevanceScores:
    """Scores of documents. `options.truncate` False refuses texts that are longer than the model reads."""
    scorer = reranker(call)
    if scorer is not None:
        repeated = [query] * len(documents)
        scored = await score_pairs(call, scorer, repeated, documents, truncate=options.truncate, once=[query])
        raw = scored.logits[:, 0]
        relevance = (
            sigmoid(raw) if isinstance(scorer, CrossModel) else await _relevance(call, scorer, query, raw)
        )
        return RelevanceScores(raw, relevance, scored.tokens)
    normalized = replace(options, normalize=unit_norm(call.model))
    of_query, of_documents = await embed_query_and_documents(call, query, documents, normalized)
    raw = np.clip(of_documents.vectors @ of_query.vectors[0], -1, 1)
    return RelevanceScores(raw, (1 + raw) / 2, of_query.total_tokens + of_documents.total_tokens)


async def _relevance(call: Call, late: LateModel, query: str, raw: Vectors) -> Vectors:
    """MaxSim from 0 to 1: it is a sum over the vectors of the query, of products up to 1 if vectors have length 1."""
    count = await call.work(lambda: len(late.encode_query([query], on_long="truncate").tokens))
    mean = raw / np.float32(max(1, count))
    return np.clip((1 + mean) / 2, 0, 1) if late.checkpoint.normalize else sigmoid(mean)


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """What a cross-encoder says of pairs, or their MaxSim."""

    logits: Vectors
    """(n, labels); of late interaction (n, 1)."""
    tokens: int
    """Of the texts, before truncation."""


async def score_pairs(
    call: Call,
    scorer: CrossModel | LateModel,
    left: Sequence[str],
    right: Sequence[str],
    *,
    truncate: bool,
    once: Sequence[str] | None = None,
) -> ScoredPairs:
    """The logits of pairs, in chunks that take turns with the work of other clients and end with the request.

    `once`: the texts of `left` that count towards the limit of tokens, where it repeats one text.
    """
    options = CrossOptions(on_long="truncate" if truncate else "error")
    counted = [*(left if once is None else once), *right]

    def chunk(start: int) -> Vectors:
        queries, documents = left[start : start + CHUNK], right[start : start + CHUNK]
        if isinstance(scorer, CrossModel):
            return scorer.logits(queries, documents, options)
        scores = scorer.scores(queries, documents, options)
        # A document without a single token has no MaxSim; JSON has no infinity.
        return np.maximum(scores, np.finfo(np.float32).min)[:, None]

    long = len(right) > CHUNK or is_long(counted)
    with call.reserve() if long else nullcontext():
        tokens = await call.work(lambda: check_tokens(call, counted), long=long)
        parts = [await call.work(partial(chunk, start), long=long) for start in range(0, len(right), CHUNK)]
    return ScoredPairs(np.concatenate(parts), tokens)
