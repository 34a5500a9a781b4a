"""POST /search: the texts of an index, or of the request itself, that are nearest to a query.

Answers of a search as JSON: one shape for an index and for texts of the request.

A question to an index: what may be asked, and the answer as JSON. For POST /search and /indexes/{name}/search.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any, Literal, TypeAlias, TypeVar

import numpy as np
from pydantic import BaseModel, Field, model_validator
from starlette.requests import Request
from starlette.responses import Response

from gemel.errors import InputError, ModelError, WorkError
from gemel.index.for_servers import query_options, sample_vectors
from gemel.index.index import Index
from gemel.index.results import Answer
from gemel.options import CrossOptions, EncodeOptions
from gemel.serve.errors import PlainError, RouteError
from gemel.serve.limits import Overloaded, TooLarge, TooLate
from gemel.serve.port import Ask, Services
from gemel.serve.protocols.cohere import ranker
from gemel.serve.protocols.pairs import Calibrations
from gemel.serve.protocols.requests import Own, Texts, answer, client_of, example
from gemel.serve.protocols.texts import check_sizes, check_where, embed_many, embed_sides, unit
from gemel.serve.routes import Routes
from gemel.types import Vectors
from gemel.vectors.bm25 import BM25Index, fuse
from gemel.vectors.calibration import Calibration
from gemel.vectors.search import Hits, search

_CANDIDATES = 50  # texts that fusion and reranking look at

WHERE = 'a condition on fields, such as lang = \'en\' and year >= 2020, or {"lang": "en"}'


class IndexQuestion(Own):
    """A query to one index."""

    model_config = example(query="Who plays music?", k=3)

    query: str
    k: int = Field(10, ge=1, le=1000, description="Answers")
    offset: int = Field(0, ge=0, le=10_000, description="Answers to leave out at the top, for pages")
    where: Where | None = Field(None, description=WHERE)
    hybrid: bool = Field(False, description="Fuse the ranking by vectors with one by words (BM25)")
    exact: bool = Field(False, description="Compare every passage, however many there are")
    rerank: bool = Field(False, description="Order the best anew by the cross-encoder")


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
    def _one_place(self) -> SearchRequest:
        if (self.index is None) == (self.texts is None):
            raise ValueError("give either index, the name of one, or texts")
        if self.texts is not None and self.where is not None:
            raise ValueError("where filters by the fields of an index; texts have none")
        return self


def routes(services: Services, calibrations: Calibrations) -> Routes:
    """The route of this chapter."""
    route = Routes("Search", error=PlainError)

    @route.post("/search", SearchAnswer)
    async def search(request: Request, body: SearchRequest) -> Response:
        """The nearest texts, best first."""
        check_sizes(services, [body.query], "query")
        ask = Ask(client=client_of(request))
        if body.index is not None:
            return await search_index(services, calibrations, body.index, body, ask)
        return await _search_texts(services, calibrations, body, ask)

    return route


async def _search_texts(
    services: Services, calibrations: Calibrations, body: SearchRequest, ask: Ask
) -> Response:
    started, texts = perf_counter(), body.texts or []
    check_sizes(services, texts, "texts")
    both = Ask(client=ask.client, normalize=unit(services.model))
    query, known = await embed_sides(services, body.query, texts, both)

    def work() -> list[dict[str, Any]]:
        found = _found(services, body, query.vectors, known.vectors)
        return with_percentiles(found, calibrations.between(ask.client, known.vectors))

    rows = await with_relations(
        services, body.query, await services.work(work, client=ask.client, long=body.rerank), ask
    )
    by = "cross" if body.rerank else "fusion" if body.hybrid else "cosine"
    return answer({"hits": rows, "scored_by": by, "exact": True, "seconds": perf_counter() - started})


def _found(services: Services, body: SearchRequest, query: Vectors, known: Vectors) -> list[dict[str, Any]]:
    """Rows without their meaning. Runs on a worker thread."""
    texts, last = body.texts or [], body.offset + body.k
    width = min(max(last, _CANDIDATES) if body.hybrid or body.rerank else last, len(texts))
    hits = search(query, known, width)
    if body.hybrid:
        hits = fuse([hits, BM25Index(texts).rank([body.query], width)], width)
    if body.rerank:
        hits = _reranked(services, body.query, texts, hits)
    cosine = np.clip(known @ query[0], -1, 1)
    places = zip(hits.index[0].tolist(), hits.score[0].tolist(), strict=True)
    return [
        {
            "id": str(place),
            "score": score,
            "cosine": float(cosine[place]),
            "text": texts[place],
            "part": 0,
            "fields": {},
        }
        for place, score in list(places)[body.offset : last]
        if place >= 0
    ]


def _reranked(services: Services, query: str, texts: list[str], hits: Hits) -> Hits:
    cross = ranker(services)
    if cross is None:
        raise InputError("no cross-encoder is loaded that could rerank. Start the server with --rerank")
    places = hits.index[0][hits.index[0] >= 0]
    found = cross.rank(query, [texts[place] for place in places], options=CrossOptions(on_long="truncate"))
    return Hits(places[found.index][None], found.score[None])


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


Where: TypeAlias = str | dict[str, Any]

Done = TypeVar("Done")


def index_of(services: Services, name: str) -> Index:
    """The index of this name, or a refusal (404)."""
    if name not in services.indexes:
        known = ", ".join(services.indexes) or "none"
        raise RouteError(
            404, f"no index {name[:100]!r} is open here. Open: {known}", code="index_not_found", param="index"
        )
    return services.indexes[name]


async def on_index(
    services: Services, name: str, function: Callable[[Index], Done], client: str, *, long: bool = False
) -> Done:
    """`function` of the index of this name, on a worker thread. Its errors say the name, never the place."""
    index = index_of(services, name)
    try:
        return await services.work(lambda: function(index), client=client, long=long)
    except (Overloaded, TooLarge, TooLate):
        raise
    except (InputError, ModelError, WorkError) as error:
        kind = InputError if isinstance(error, InputError) else WorkError
        raise kind(_without_place(str(error), index.place, name)) from error


def _without_place(message: str, place: str, name: str) -> str:
    if "/" not in place:
        return message.replace(str(Path(place).resolve()), name)
    return message.replace(str(Path(place).resolve()), name).replace(place, name)


async def search_index(
    services: Services, calibrations: Calibrations, name: str, body: IndexQuestion, ask: Ask
) -> Response:
    """The answer of an index."""
    index_of(services, name)
    check_where(body.where)
    cross = ranker(services) if body.rerank else None
    if body.rerank and cross is None:
        raise InputError("no cross-encoder is loaded that could rerank. Start the server with --rerank")
    query = await _query(services, name, body, ask)

    def work(index: Index) -> tuple[Answer, Calibration | None]:
        found = index.search(
            query,
            body.k,
            where=body.where,
            offset=body.offset,
            hybrid=body.hybrid,
            rerank=cross,
            exact=body.exact,
        )
        return found, _calibration(calibrations, name, index)

    found, calibration = await on_index(services, name, work, ask.client, long=body.rerank)
    rows = with_percentiles([hit.row() for hit in found], calibration)
    said = {"scored_by": found.scored_by, "exact": found.exact, "seconds": found.seconds}
    return answer({"hits": await with_relations(services, body.query, rows, ask), **said})


async def _query(services: Services, name: str, body: IndexQuestion, ask: Ask) -> str | Vectors:
    """The vector of the query, made in a batch with those of other requests; its words where they are needed."""
    if body.hybrid or body.rerank:
        return body.query
    options = query_options(index_of(services, name), services.model)
    usual = EncodeOptions() if options is None else _only_asked(options)
    if options is None or options != usual:
        return body.query
    said = replace(
        ask,
        prompt=options.prompt,
        prompt_name=options.prompt_name,
        normalize=options.normalize,
        dim=options.dim,
    )
    vector: Vectors = (await services.embed([body.query], said)).vectors[0]
    return (
        vector if vector.any() else body.query
    )  # zeros have no direction; the index knows what to say of them


def _only_asked(options: EncodeOptions) -> EncodeOptions:
    """The part of the options that a request to the batcher can say."""
    return EncodeOptions(
        prompt=options.prompt,
        prompt_name=options.prompt_name,
        normalize=options.normalize,
        dim=options.dim,
        on_long=options.on_long if options.on_long in ("warn", "truncate") else "warn",
        threads=options.threads,
        memory=options.memory,
        progress=options.progress,
    )


def _calibration(calibrations: Calibrations, name: str, index: Index) -> Calibration | None:
    """Made anew whenever the index has grown by half. Runs on a worker thread."""
    size = int(math.log(1 + len(index), 1.5))
    return calibrations.kept((name, size), lambda: (sample_vectors(index), None))
