"""The body of a request: read whole, within its bytes and its time, and no deeper than allowed, before it is parsed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from gemel.errors import InputError
from gemel.serve.errors import RouteError
from gemel.serve.limits import TooLarge

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]

_NOT_STRUCTURE = bytes(set(range(256)) - set(b'"[]{}'))
_SQUARE = bytes.maketrans(b"{}", b"[]")
_STRING = re.compile(rb'"[^"]*"')


class Gone(Exception):
    """The client went away before its request was whole."""


async def read_body(receive: Receive, stated: int | None, most: int, seconds: float) -> bytes:
    """All of the body within `seconds`. `stated` is its Content-Length, None where it comes in chunks."""
    if stated is not None and stated > most:
        raise TooLarge(f"the body has {stated:,} bytes, at most {most:,} are taken")
    try:
        async with asyncio.timeout(seconds):
            return await _parts(receive, most)
    except TimeoutError:
        raise RouteError(408, f"the body did not arrive within {seconds:g} s", code="slow_body") from None


async def _parts(receive: Receive, most: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Gone
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > most:
            raise TooLarge(f"the body has more than {most:,} bytes, which is the most that is taken")
        if not message.get("more_body"):
            return parts[0] if len(parts) == 1 else b"".join(parts)


def check_depth(body: bytes, most: int) -> None:
    """Refuse JSON with more than `most` brackets within brackets; looks at bytes only, in a few passes over them."""
    if body.count(b"[") + body.count(b"{") <= most:
        return
    # Escapes out, then everything but quotes and brackets, then strings: what is left is the structure alone.
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"").translate(_SQUARE, _NOT_STRUCTURE)
    bare = _STRING.sub(b"", bare.replace(b'""', b""))
    for _ in range(most):
        smaller = bare.replace(b"[]", b"")
        if len(smaller) == len(bare):
            break
        bare = smaller
    if b"[" in bare:
        raise InputError(
            f"the JSON is deeper than {most} brackets within brackets, or its brackets do not match"
        )
