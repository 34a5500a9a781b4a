"""POST /search, and the search of an index for POST /indexes/{name}/search.

The texts of an index, or of the request itself, that are nearest to a query. The answer has the same form for both.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator
from starlette.responses import Response

from gemel.cross_model import CrossModel, ScoreKind
from gemel.errors import InputError, ModelError, WorkError
from gemel.options import CrossOptions, EncodeOptions
from gemel.serve.batcher import EmbedOptions
from gemel.serve.errors import PlainError, RouteError
from gemel.serve.options import DeadlineExceeded, Overloaded, TooLarge
from gemel.serve.protocols.rerank import reranker
from gemel.serve.protocols.texts import check_where, embed_many, embed_query_and_documents, unit_norm
from gemel.serve.routes import OwnRequest, Routes, Texts, example, json_response
from gemel.serve.services import Call
from gemel.types import Vectors
from gemel.vectors.bm25 import BM25Index, fuse
from gemel.vectors.calibration import Calibration
from gemel.vectors.search import Hits, search

if TYPE_CHECKING:
    from gemel.index.index import Index
    from gemel.index.query import Answer

CANDIDATES = 50  # texts that fusion and reranking consider

Where: TypeAlias = str | dict[str, Any]
Result = TypeVar("Result")

WHERE = 'a condition on fields, such as lang = \'en\' and year >= 2020, or {"lang": "en"}'


class IndexQuestion(OwnRequest):
    """A query to one index."""

    model_config = example(query="Who plays music?", k=3)

    query: str
    k: int = Field(10, ge=1, le=1000, description="Number of results")
    offset: int = Field(0, ge=0, le=10_000, description="Results to skip, for paging")
    where: Where | None = Field(None, description=WHERE)
    hybrid: bool = Field(False, description="Fuse the ranking by vectors with one by words (BM25)")
    exact: bool = Field(False, description="Compare every passage, however many there are")
    rerank: bool = Field(False, description="Rerank the best results by the cross-encoder")


class SearchRequest(IndexQuestion):
    """A query, and where to look: an index by its name, or texts."""

    model_config = example(
        query="Who plays music?",
        k=2,
        texts=["A man is playing a guitar.", "The stock market fell today.", "A child is reading a book."],
    )

    index: str | None = Field(None, description="The name of an index that the server has opened")
    texts: Texts | None = Field(None, description="Texts to search, instead of an index")

    @model_validator(mode="after")
    def _one_source(self) -> SearchRequest:
        if (self.index is None) == (self.texts is None):
            raise ValueError("give either index, the name of one, or texts")
        if self.texts is not None and self.where is not None:
            raise ValueError("where filters by the fields of an index; texts have none")
        return self


class HitRow(BaseModel):
    """One document or text that was found."""

    id: str = Field(description="Of the document; the position of a text of the request")
    score: float = Field(description="What ordered the answers: see scored_by")
    cosine: float = Field(description="Of the query and the text")
    percentile: float | None = Field(
        description="Percentage of random pairs with a lower cosine; null: unknown"
    )
    text: str = Field(description="The best passage")
    part: int = Field(description="Which passage of the document it is, from 0")
    fields: dict[str, Any]
    relation: dict[str, float] | None = Field(
        description="Probabilities of the labels of the model's classification head; null: it has none"
    )


class SearchAnswer(BaseModel):
    """Best first."""

    hits: list[HitRow]
    scored_by: Literal["cosine", "fusion", "cross"]
    score_kind: ScoreKind | None = Field(
        description="What the scores of the cross-encoder are, as its checkpoint says; null: it was not used"
    )
    exact: bool = Field(description="Every passage was compared")
    seconds: float


ROUTES = Routes("Search", error=PlainError)


@ROUTES.add("POST", "/search", SearchAnswer, name="search")
async def search_route(call: Call, body: SearchRequest) -> Response:
    """The nearest texts, best first."""
    call.limits.check_texts([body.query], "query")
    if body.index is not None:
        return await search_index(call, body.index, body)
    return await _search_texts(call, body)


async def _search_texts(call: Call, body: SearchRequest) -> Response:
    started, texts = perf_counter(), body.texts or []
    call.limits.check_texts(texts, "texts")
    normalized = EmbedOptions(normalize=unit_norm(call.model))
    query, documents = await embed_query_and_documents(call, body.query, texts, normalized)

    def work() -> list[dict[str, Any]]:
        rows = _rank_texts(call, body, query.vectors, documents.vectors)
        calibration = call.services.calibrations.between(call.client, documents.vectors)
        return _add_percentiles(rows, calibration)

    rows = await _add_relations(call, body.query, await call.work(work, long=body.rerank))
    by = "cross" if body.rerank else "fusion" if body.hybrid else "cosine"
    how = {"scored_by": by, "score_kind": _score_kind(call, body), "exact": True}
    return json_response({"hits": rows, **how, "seconds": perf_counter() - started})


def _rank_texts(call: Call, body: SearchRequest, query: Vectors, documents: Vectors) -> list[dict[str, Any]]:
    """Rows without percentiles and relations. Runs on a worker thread."""
    texts, last = body.texts or [], body.offset + body.k
    width = min(max(last, CANDIDATES) if body.hybrid or body.rerank else last, len(texts))
    hits = search(query, documents, width)
    if body.hybrid:
        hits = fuse([hits, BM25Index(texts).rank([body.query], width)], width)
    if body.rerank:
        hits = _rerank(call, body.query, texts, hits)
    cosine = np.clip(documents @ query[0], -1, 1)
    ranked = zip(hits.index[0].tolist(), hits.score[0].tolist(), strict=True)
    return [
        {
            "id": str(position),
            "score": score,
            "cosine": float(cosine[position]),
            "text": texts[position],
            "part": 0,
            "fields": {},
        }
        for position, score in list(ranked)[body.offset : last]
        if position >= 0
    ]


def _score_kind(call: Call, body: IndexQuestion) -> ScoreKind | None:
    """Of the scores of the cross-encoder, where it sorts the answers."""
    return _needed_reranker(call).score_kind if body.rerank else None


def _rerank(call: Call, query: str, texts: list[str], hits: Hits) -> Hits:
    candidates = hits.index[0][hits.index[0] >= 0]
    documents = [texts[position] for position in candidates]
    ranked = _needed_reranker(call).rank(query, documents, options=CrossOptions(on_long="truncate"))
    return Hits(candidates[ranked.index][None], ranked.score[None])


def _needed_reranker(call: Call) -> CrossModel:
    cross = reranker(call)
    if cross is None:
        raise InputError("no cross-encoder is loaded that could rerank. Start the server with --rerank")
    return cross


def _add_percentiles(rows: list[dict[str, Any]], calibration: Calibration | None) -> list[dict[str, Any]]:
    """Rows of an answer with the percentiles of their cosines."""
    return [
        {**row, "percentile": None if calibration is None else calibration.percentile(row["cosine"])}
        for row in rows
    ]


async def _add_relations(call: Call, query: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows of an answer with how the query relates to each text, where the model has a classification head."""
    labels = call.model.labels
    if labels is None or not rows:
        return [{**row, "relation": None} for row in rows]
    # Not the vectors of the search: the head was trained on those of default options.
    texts = [query, *(row["text"] for row in rows)]
    vectors = (await embed_many(call, texts, EmbedOptions(), limited=False)).vectors
    probabilities = call.model.relation_of(vectors[:1].repeat(len(rows), axis=0), vectors[1:]).tolist()
    return [
        {**row, "relation": dict(zip(labels, p, strict=True))}
        for row, p in zip(rows, probabilities, strict=True)
    ]


def index_of(call: Call, name: str) -> Index:
    """The index of this name, or a refusal (404)."""
    indexes = call.services.indexes
    if name not in indexes:
        raise RouteError(
            404,
            f"no index {name[:100]!r} is open here. Open: {', '.join(indexes) or 'none'}",
            code="index_not_found",
            param="index",
        )
    return indexes[name]


def with_model_of(call: Call, index: Index) -> Call:
    """The call with the model that made the index."""
    models = call.services.models
    made = next((each for each in models if index.query_options_for(each.model) is not None), None)
    return replace(call, chosen=made)


async def on_index(
    call: Call, name: str, function: Callable[[Index], Result], *, long: bool = False
) -> Result:
    """The result of `function` for the index of this name, on a worker thread. Errors never show where it is stored."""
    index = index_of(call, name)
    try:
        return await call.work(lambda: function(index), long=long)
    except (Overloaded, TooLarge, DeadlineExceeded):
        raise
    except (InputError, ModelError, WorkError) as error:
        error_class = InputError if isinstance(error, InputError) else WorkError
        raise error_class(_hide_location(str(error), index.location, name)) from error


def _hide_location(message: str, location: str, name: str) -> str:
    message = message.replace(str(Path(location).resolve()), name)
    return message.replace(location, name) if "/" in location else message


async def search_index(call: Call, name: str, body: IndexQuestion) -> Response:
    """The answer of an index."""
    call = with_model_of(call, index_of(call, name))
    check_where(body.where)
    cross = _needed_reranker(call) if body.rerank else None
    query = await _query(call, name, body)

    def work(index: Index) -> tuple[Answer, Calibration | None]:
        results = index.search(
            query,
            body.k,
            where=body.where,
            offset=body.offset,
            hybrid=body.hybrid,
            rerank=cross,
            exact=body.exact,
        )
        return results, _calibration(call, name, index)

    results, calibration = await on_index(call, name, work, long=body.rerank)
    rows = _add_percentiles([hit.row() for hit in results], calibration)
    kind = _score_kind(call, body)
    how = {
        "scored_by": results.scored_by,
        "score_kind": kind,
        "exact": results.exact,
        "seconds": results.seconds,
    }
    return json_response({"hits": await _add_relations(call, body.query, rows), **how})


async def _query(call: Call, name: str, body: IndexQuestion) -> str | Vectors:
    """The vector of the query, from a batch with other requests; the query itself where the index needs its words."""
    if body.hybrid or body.rerank:
        return body.query
    wanted = index_of(call, name).query_options_for(call.model)
    options = None if wanted is None else _batched(wanted)
    if options is None:
        return body.query
    vector: Vectors = (await call.embed([body.query], options)).vectors[0]
    return vector if vector.any() else body.query  # zeros have no direction: the index refuses the query


def _batched(wanted: EncodeOptions) -> EmbedOptions | None:
    """These options for the batcher; None: they need something that the batcher does not offer."""
    shared = {name: getattr(wanted, name) for name in ("prompt", "prompt_name", "normalize", "dim")}
    unimportant = {name: getattr(wanted, name) for name in ("threads", "memory", "progress")}
    on_long = wanted.on_long if wanted.on_long in ("warn", "truncate") else "warn"
    same = wanted == EncodeOptions(**shared, **unimportant, on_long=on_long)
    return EmbedOptions(**shared) if same else None


def _calibration(call: Call, name: str, index: Index) -> Calibration | None:
    """Computed again whenever the index has grown by half. Runs on a worker thread."""
    size = int(math.log(1 + len(index), 1.5))
    return call.services.calibrations.cached((name, size), lambda: (index.sample_vectors(), None))
