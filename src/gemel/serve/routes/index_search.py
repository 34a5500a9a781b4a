"""A question to an index: what may be asked, and the answer as JSON. For POST /search and /indexes/{name}/search."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fastapi import Response
from pydantic import Field

from gemel.calibration import Calibration
from gemel.errors import InputError, ModelError, WorkError
from gemel.index.for_servers import query_options, sample_vectors
from gemel.index.index import Index
from gemel.index.types import Answer
from gemel.options import EncodeOptions
from gemel.serve.errors import RouteError
from gemel.serve.limits import Overloaded, TooLarge, TooLate
from gemel.serve.port import Ask, Services
from gemel.serve.routes.answering import answer
from gemel.serve.routes.calibrations import Calibrations
from gemel.serve.routes.hits import with_percentiles, with_relations
from gemel.serve.routes.reading import Own, example
from gemel.serve.routes.scoring import ranker
from gemel.serve.routes.texts import check_where
from gemel.types import Vectors

Where: TypeAlias = str | dict[str, Any]
Done = TypeVar("Done")
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
    services: Services, calibrations: Calibrations, name: str, asked: IndexQuestion, ask: Ask
) -> Response:
    """The answer of an index."""
    index_of(services, name)
    check_where(asked.where)
    cross = ranker(services) if asked.rerank else None
    if asked.rerank and cross is None:
        raise InputError("no cross-encoder is loaded that could rerank. Start the server with --rerank")
    query = await _query(services, name, asked, ask)

    def work(index: Index) -> tuple[Answer, Calibration | None]:
        found = index.search(
            query,
            asked.k,
            where=asked.where,
            offset=asked.offset,
            hybrid=asked.hybrid,
            rerank=cross,
            exact=asked.exact,
        )
        return found, _calibration(calibrations, name, index)

    found, calibration = await on_index(services, name, work, ask.client, long=asked.rerank)
    rows = with_percentiles([hit.row() for hit in found], calibration)
    said = {"scored_by": found.scored_by, "exact": found.exact, "seconds": found.seconds}
    return answer({"hits": await with_relations(services, asked.query, rows, ask), **said})


async def _query(services: Services, name: str, asked: IndexQuestion, ask: Ask) -> str | Vectors:
    """The vector of the query, made in a batch with those of other requests; its words where they are needed."""
    if asked.hybrid or asked.rerank:
        return asked.query
    options = query_options(index_of(services, name), services.model)
    usual = EncodeOptions() if options is None else _only_asked(options)
    if options is None or options != usual:
        return asked.query
    said = replace(
        ask,
        prompt=options.prompt,
        prompt_name=options.prompt_name,
        normalize=options.normalize,
        dim=options.dim,
    )
    vector: Vectors = (await services.embed([asked.query], said)).vectors[0]
    return (
        vector if vector.any() else asked.query
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
