"""From an answer to bytes: orjson writes arrays of numpy as they are, so no vector is ever a Python list."""

from __future__ import annotations

from typing import Any

import orjson
from fastapi import Response

_OPTIONS = orjson.OPT_SERIALIZE_NUMPY


def answer(content: Any, status: int = 200) -> Response:  # noqa: ANN401 - any JSON
    """A JSON response. Arrays must be contiguous; a NaN becomes null."""
    return Response(orjson.dumps(content, option=_OPTIONS), status, media_type="application/json")
