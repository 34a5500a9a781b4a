"""From an answer to bytes: orjson writes arrays of numpy as they are, so no vector is ever a Python list.

A large answer is written and sent part by part: writing it at once would hold up everything else, and need its memory
twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

import numpy as np
import orjson
from fastapi import Response
from starlette.responses import StreamingResponse

from gemel.types import Vectors

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY

LARGE_NUMBERS = 200_000  # in an answer that is written at once: about 2 MB of JSON, some milliseconds


def answer(content: Any, status: int = 200) -> Response:  # noqa: ANN401 - any JSON
    """A JSON response. Arrays must be contiguous; a NaN becomes null."""
    return Response(dumps(content), status, media_type="application/json")


def dumps(content: Any) -> bytes:  # noqa: ANN401 - any JSON
    return orjson.dumps(content, option=_OPTIONS)


def answer_list(
    count: int,
    numbers: int,
    part: Callable[[int, int], Sequence[Any]],
    *,
    before: bytes = b"",
    after: bytes = b"",
) -> Response:
    """A list of `count` elements that have `numbers` numbers each, `part(start, stop)` of them at a time.

    `before` and `after` are JSON around the list.
    """
    step = max(1, LARGE_NUMBERS // max(1, numbers))
    if count <= step:
        return Response(before + dumps(part(0, count)) + after, media_type="application/json")

    async def parts() -> AsyncIterator[bytes]:
        yield before + b"["
        for start in range(0, count, step):
            written = await asyncio.to_thread(_part, part, start, min(start + step, count))
            yield (b"," if start else b"") + written[1:-1]
        yield b"]" + after

    return StreamingResponse(parts(), media_type="application/json")


def _part(part: Callable[[int, int], Sequence[Any]], start: int, stop: int) -> bytes:
    return dumps(part(start, stop))


def answer_vectors(vectors: Vectors) -> Response:
    """(n, dim) as a list of lists."""
    rows = np.ascontiguousarray(vectors)
    return answer_list(len(rows), rows.shape[1], lambda start, stop: rows[start:stop])  # type: ignore[arg-type, return-value]


def answer_written(parts: Sequence[bytes]) -> Response:
    """A list whose elements are JSON already."""

    async def pieces() -> AsyncIterator[bytes]:
        for at, part in enumerate(parts):
            yield (b"," if at else b"[") + part
        yield b"]" if parts else b"[]"

    return StreamingResponse(pieces(), media_type="application/json")
