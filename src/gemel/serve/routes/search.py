"""POST /search: the texts of an index, or of the request itself, that are nearest to a query."""

from __future__ import annotations

from time import perf_counter
from typing import Any

import numpy as np
from fastapi import APIRouter, Request, Response
from pydantic import Field, model_validator

from gemel.cross_options import CrossOptions
from gemel.errors import InputError
from gemel.nearest import Hits, search
from gemel.serve.port import Ask, Services
from gemel.serve.routes.answering import answer
from gemel.serve.routes.calibrations import Calibrations
from gemel.serve.routes.hits import SearchAnswer, with_percentiles, with_relations
from gemel.serve.routes.index_search import IndexQuestion, search_index
from gemel.serve.routes.reading import Texts, client_of, example, read, takes
from gemel.serve.routes.scoring import ranker
from gemel.serve.routes.texts import check_sizes, embed_sides, unit
from gemel.types import Vectors
from gemel.word_search import BM25Index, fuse

_CANDIDATES = 50  # texts that fusion and reranking look at


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


def add_search(routes: APIRouter, services: Services, calibrations: Calibrations) -> None:
    """Add the route."""

    @routes.post("/search", response_model=SearchAnswer, openapi_extra=takes(SearchRequest), tags=["Search"])
    async def search(request: Request) -> Response:
        """The nearest texts, best first."""
        asked = await read(request, SearchRequest)
        check_sizes(services, [asked.query], "query")
        ask = Ask(client=client_of(request))
        if asked.index is not None:
            return await search_index(services, calibrations, asked.index, asked, ask)
        return await _search_texts(services, calibrations, asked, ask)


async def _search_texts(
    services: Services, calibrations: Calibrations, asked: SearchRequest, ask: Ask
) -> Response:
    started, texts = perf_counter(), asked.texts or []
    check_sizes(services, texts, "texts")
    both = Ask(client=ask.client, normalize=unit(services.model))
    query, known = await embed_sides(services, asked.query, texts, both)

    def work() -> list[dict[str, Any]]:
        found = _found(services, asked, query.vectors, known.vectors)
        return with_percentiles(found, calibrations.between(ask.client, known.vectors))

    rows = await with_relations(
        services, asked.query, await services.work(work, client=ask.client, long=asked.rerank), ask
    )
    by = "cross" if asked.rerank else "fusion" if asked.hybrid else "cosine"
    return answer({"hits": rows, "scored_by": by, "exact": True, "seconds": perf_counter() - started})


def _found(services: Services, asked: SearchRequest, query: Vectors, known: Vectors) -> list[dict[str, Any]]:
    """Rows without their meaning. Runs on a worker thread."""
    texts, last = asked.texts or [], asked.offset + asked.k
    width = min(max(last, _CANDIDATES) if asked.hybrid or asked.rerank else last, len(texts))
    hits = search(query, known, width)
    if asked.hybrid:
        hits = fuse([hits, BM25Index(texts).rank([asked.query], width)], width)
    if asked.rerank:
        hits = _reranked(services, asked.query, texts, hits)
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
        for place, score in list(places)[asked.offset : last]
        if place >= 0
    ]


def _reranked(services: Services, query: str, texts: list[str], hits: Hits) -> Hits:
    cross = ranker(services)
    if cross is None:
        raise InputError("no cross-encoder is loaded that could rerank. Start the server with --rerank")
    places = hits.index[0][hits.index[0] >= 0]
    found = cross.rank(query, [texts[place] for place in places], options=CrossOptions(on_long="truncate"))
    return Hits(places[found.index][None], found.score[None])
