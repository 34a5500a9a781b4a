"""Our own routes, put together: search, pairs, clusters, explain, relation, indexes, status.

GET /status: what the server does at this moment, for its page and for people.
"""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import RootModel

from gemel.serve.errors import PlainError, errors
from gemel.serve.port import Services
from gemel.serve.protocols.clusters import add_clusters
from gemel.serve.protocols.explain import add_explain, add_relation
from gemel.serve.protocols.indexes import add_indexes
from gemel.serve.protocols.pairs import Calibrations, add_pairs
from gemel.serve.protocols.requests import answer
from gemel.serve.protocols.search import add_search


def router(services: Services) -> APIRouter:
    """All of them; they share what is known of scores."""
    routes = APIRouter(responses=errors(PlainError))
    calibrations = Calibrations()
    add_search(routes, services, calibrations)
    add_pairs(routes, services, calibrations)
    add_clusters(routes, services)
    add_explain(routes, services)
    add_relation(routes, services)
    add_indexes(routes, services, calibrations)
    add_status(routes, services)
    return routes


class Status(RootModel[dict[str, Any]]):
    """Throughput, latency by stage, queue, batches, cache, memory, uptime."""


def add_status(routes: APIRouter, services: Services) -> None:
    """Add the route."""

    @routes.get("/status", response_model=Status, tags=["Server"])
    async def status() -> Response:
        """Live figures."""
        return answer(services.status())
