"""Our own routes, put together: search, pairs, clusters, explain, relation, indexes, status."""

from __future__ import annotations

from fastapi import APIRouter

from gemel.serve.port import Services
from gemel.serve.routes.calibrations import Calibrations
from gemel.serve.routes.clusters import add_clusters
from gemel.serve.routes.explain import add_explain
from gemel.serve.routes.failures import PlainError, errors
from gemel.serve.routes.indexes import add_indexes
from gemel.serve.routes.pairs import add_pairs
from gemel.serve.routes.relation import add_relation
from gemel.serve.routes.search import add_search
from gemel.serve.routes.status import add_status


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
