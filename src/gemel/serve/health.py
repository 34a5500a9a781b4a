"""Whether the server lives and whether it computes: /health/live, /health/ready, and /health as others name it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from time import perf_counter

import orjson
from fastapi import APIRouter, Response

PROBE_SECONDS = 5.0  # a forward pass of one short text that takes longer is none


@dataclass(frozen=True)
class Ready:
    """What a load balancer is told."""

    ready: bool
    reason: str | None = None
    forward_seconds: float | None = None
    """Of the last forward pass, its wait included."""
    age_seconds: float | None = None


class Health:
    """Makes a real forward pass when the last one is too old; several askers share one."""

    def __init__(self, probe: Callable[[str], Awaitable[float]], *, fresh_seconds: float) -> None:
        self.draining = False
        self._probe, self._fresh = probe, fresh_seconds
        self._last: tuple[float, float] | None = None  # when it ended, how long it took
        self._lock = asyncio.Lock()
        self._count = 0

    async def ready(self) -> Ready:
        if self.draining:
            return Ready(False, "the server is going down")
        async with self._lock:
            if self._last is None or perf_counter() - self._last[0] > self._fresh:
                try:
                    await self._forward()
                except TimeoutError:
                    return Ready(False, f"no forward pass within {PROBE_SECONDS:g} s: the queue stands still")
                except Exception as error:
                    return Ready(False, f"the forward pass fails ({type(error).__name__})")
        assert self._last is not None
        return Ready(True, None, round(self._last[1], 6), round(perf_counter() - self._last[0], 3))

    async def _forward(self) -> None:
        self._last = None
        self._count += 1
        # A text of its own each time: a remembered vector would say nothing.
        seconds = await asyncio.wait_for(self._probe(f"is anybody there, {self._count}"), PROBE_SECONDS)
        self._last = perf_counter(), seconds


def router(health: Health) -> APIRouter:
    routes = APIRouter(tags=["health"])

    @routes.get("/health/live", summary="The process answers")
    async def live() -> Response:
        return Response(b'{"live":true}', media_type="application/json")

    @routes.get("/health/ready", summary="The model computes", responses={503: {"description": "Not now"}})
    async def ready() -> Response:
        return _answer(await health.ready())

    @routes.get("/health", summary="The model computes", responses={503: {"description": "Not now"}})
    async def plain() -> Response:
        return _answer(await health.ready())

    return routes


def _answer(state: Ready) -> Response:
    status = 200 if state.ready else 503
    return Response(orjson.dumps(state), status, media_type="application/json")
