"""A question to an index: what may be asked, and the answer as JSON. For POST /search and /indexes/{name}/search."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from fastapi import Response
from pydantic import Field

from gemel.errors import InputError, ModelError, WorkError
from gemel.index.index import Index
from gemel.serve.errors import RouteError
from gemel.serve.limits import Overloaded, TooLate
from gemel.serve.port import Ask, Services
from gemel.serve.routes.answering import answer
from gemel.serve.routes.calibrations import Calibrations
from gemel.serve.routes.hits import with_percentiles, with_relations
from gemel.serve.routes.reading import Own, example
from gemel.serve.routes.scoring import ranker

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


async def on_index(services: Services, name: str, function: Callable[[Index], Done]) -> Done:
    """`function` of the index of this name, on a worker thread. Its errors say the name, never the place."""
    index = index_of(services, name)
    try:
        return await services.work(lambda: function(index))
    except (Overloaded, TooLate):
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
    cross = ranker(services) if asked.rerank else None
    if asked.rerank and cross is None:
        raise InputError("no cross-encoder is loaded that could rerank. Start the server with --rerank")
    found = await on_index(
        services,
        name,
        lambda index: index.search(
            asked.query,
            asked.k,
            where=asked.where,
            offset=asked.offset,
            hybrid=asked.hybrid,
            rerank=cross,
            exact=asked.exact,
        ),
    )
    rows = with_percentiles([hit.row() for hit in found], None)
    said = {"scored_by": found.scored_by, "exact": found.exact, "seconds": found.seconds}
    return answer({"hits": await with_relations(services, asked.query, rows, ask), **said})
