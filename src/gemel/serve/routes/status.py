"""GET /status: what the server does at this moment, for its page and for people."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from pydantic import RootModel

from gemel.serve.port import Services
from gemel.serve.routes.answering import answer


class Status(RootModel[dict[str, Any]]):
    """Throughput, latency by stage, queue, batches, cache, memory, uptime."""


def add_status(routes: APIRouter, services: Services) -> None:
    """Add the route."""

    @routes.get("/status", response_model=Status, tags=["Server"])
    async def status() -> Response:
        """Live figures."""
        return answer(services.status())
