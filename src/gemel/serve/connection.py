"""One HTTP connection: limits on headers, slow clients, and the bodies of requests.

Headers that are too long or too slow close the connection before any key is checked. A body is read within its bytes
and its time, and its JSON is counted while it arrives: the number of values, strings and brackets is bounded before a
single Python object is made, as sixteen million bytes of `{},{},` would otherwise become gigabytes.
"""

from __future__ import annotations

import asyncio
from asyncio import TimerHandle
from typing import TYPE_CHECKING, Any

import numpy as np
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from gemel.errors import InputError
from gemel.serve.errors import RouteError
from gemel.serve.options import Limits, TooLarge

if TYPE_CHECKING:
    from starlette.types import Receive

HEADER_SECONDS = 15.0  # from the first byte of a request, or the connection, until its headers are complete
HEADER_BYTES = 64_000  # of the first line and all headers of a request
HEADER_COUNT = 200
STALLED_SECONDS = 30.0  # within which a client must read some of an answer that is being sent
CONTINUE = b"HTTP/1.1 100 "  # the server waits for the body; the answer comes later


class Connection(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
    """Closed when a request's headers are too long (431) or too slow, and when nothing comes at all."""

    _slow: TimerHandle | None = None
    """Closes the connection, unless headers are complete before."""
    _begun = False
    """Some headers of a request have arrived, not all."""
    _bytes = 0
    """Of such headers, from the second part that arrives: the first may contain the end of another request."""
    _too_long = False
    _unread: TimerHandle | None = None
    """Checks whether a client that is slow to read its answer still reads."""

    def connection_made(self, transport: Any) -> None:  # noqa: ANN401 - asyncio's or uvloop's
        super().connection_made(transport)
        self._wait_for_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        self._stop_watching()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._watch_reading()

    def resume_writing(self) -> None:
        self._stop_watching()
        super().resume_writing()

    def data_received(self, data: bytes) -> None:
        if self.transport.is_closing():  # refused already: what still arrives is not parsed
            return
        self._bytes += len(data) if self._begun else 0
        super().data_received(data)
        if self._begun and self._bytes > HEADER_BYTES:
            self._refuse()
        elif self._begun or not self._answering():
            self._wait_for_headers()  # also after a lone line end, which stops uvicorn's own clock

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begun, self._bytes = True, 0

    def on_headers_complete(self) -> None:
        self._begun = False
        self._stop_waiting()
        size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if size > HEADER_BYTES or len(self.headers) > HEADER_COUNT:
            self._too_long = True
            raise ValueError("the headers are too long")  # the parser stops and calls `send_400_response`
        before = self.cycle
        super().on_headers_complete()
        if (
            self.cycle is not before and self.scope["method"] != "HEAD"
        ):  # whose answer has no body to wait for
            self.cycle.transport = AnswerTransport(self.transport)

    def send_400_response(self, msg: str) -> None:
        if self._too_long:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _watch_reading(self, before: int = -1) -> None:
        """Close the connection if nothing of the answer was read since the last check."""
        left = self.transport.get_write_buffer_size()
        if left == before:
            self.transport.abort()
        else:
            self._stop_watching()
            self._unread = self.loop.call_later(STALLED_SECONDS, self._watch_reading, left)

    def _stop_watching(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self) -> None:
        if not self._answering():  # else it would be written into that answer
            most = b"at most %d bytes and %d headers are taken" % (HEADER_BYTES, HEADER_COUNT)
            message = b"the headers of the request are too long: " + most
            lines = [
                STATUS_LINE[431] + b"content-type: text/plain; charset=utf-8",
                b"content-length: %d" % len(message),
                b"connection: close",
            ]
            self.transport.write(b"\r\n".join([*lines, b"", message]))
        self.transport.close()

    def _wait_for_headers(self) -> None:
        if self._slow is None and not self.transport.is_closing():
            self._slow = self.loop.call_later(HEADER_SECONDS, self._end)

    def _stop_waiting(self) -> None:
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _end(self) -> None:
        self._slow = None
        if self._answering():  # nothing is read meanwhile, so the client is not slow
            self._wait_for_headers()
        elif not self.transport.is_closing():
            self.transport.close()


class AnswerTransport:
    """The transport of one answer: its headers are sent together with the first part of its body, in one system call.

    Two calls would also wake the client twice.
    """

    __slots__ = ("_headers", "_sent", "_transport")

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport = transport
        self._headers: bytes | None = None
        self._sent = False

    def write(self, data: bytes) -> None:
        if self._sent or data.startswith(CONTINUE):
            self._transport.write(data)
        elif self._headers is None:
            self._headers = data
        else:
            self._transport.writelines((self._headers, data))
            self._sent = True

    def close(self) -> None:
        if self._headers is not None and not self._sent:  # the application failed between them
            self._transport.write(self._headers)
            self._sent = True
        self._transport.close()

    def is_closing(self) -> bool:
        return self._transport.is_closing()


# The body.

STEP = 65_536  # bytes counted at once; the event loop answers others between two steps

_OTHER, _SPACE, _COMMA, _COLON, _OPEN, _CLOSE = range(6)

_KINDS = np.zeros(256, np.uint8)

for _bytes, _kind in ((b" \t\r\n", _SPACE), (b",", _COMMA), (b":", _COLON), (b"[{", _OPEN), (b"]}", _CLOSE)):
    _KINDS[list(_bytes)] = _kind

_STEPS = np.zeros(6, np.int8)

_STEPS[_OPEN], _STEPS[_CLOSE] = 1, -1


class ClientDisconnected(Exception):
    """The client disconnected before its request was complete."""


class JsonCount:
    """Counts the parts of JSON that arrives in pieces, and refuses it at the first limit it exceeds.

    Works on bytes only, in a few passes over each piece whose cost does not depend on the content. What is not JSON may
    be counted wrongly, but only from its first mistake on, where a parser stops too.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.values = self.containers = self.quotes = self.characters = self.bare_bytes = self.depth = 0
        self._in_string = False
        self._escape = b""  # a backslash at the end of a piece, whose other half is in the next one

    def feed(self, piece: bytes) -> None:
        """Count the next bytes."""
        for start in range(0, len(piece), STEP):
            self._count(piece[start : start + STEP])

    def _count(self, piece: bytes) -> None:
        codes = np.frombuffer(self._without_escapes(piece), np.uint8)
        quotes = codes == ord('"')
        # 1 from an opening quote up to the byte before the closing one.
        inside = np.cumsum(quotes, dtype=np.uint8)
        inside += self._in_string
        inside &= 1
        kinds = _KINDS[codes]
        kinds[inside.view(bool) | quotes] = _SPACE
        counts = np.bincount(kinds, minlength=6).tolist()
        self.quotes += int(np.count_nonzero(quotes))
        self.characters += int(np.count_nonzero(inside.view(bool) & ((codes & 0xC0) != 0x80)))
        self.bare_bytes += counts[_OTHER]
        self.values += counts[_COMMA] + counts[_OPEN]
        self.containers += counts[_OPEN]
        self._in_string = bool(self.quotes % 2)
        if counts[_OPEN] or counts[_CLOSE]:
            self._follow_depth(kinds)
        self._check()

    def _without_escapes(self, piece: bytes) -> bytes:
        """The piece with one plain byte for each escaped quote or backslash."""
        piece = self._escape + piece
        self._escape = b"\\" if (len(piece) - len(piece.rstrip(b"\\"))) % 2 else b""
        if self._escape:
            piece = piece[:-1]
        return piece.replace(b"\\\\", b"_").replace(b'\\"', b"_") if b"\\" in piece else piece

    def _follow_depth(self, kinds: np.ndarray[Any, np.dtype[np.uint8]]) -> None:
        depths = np.cumsum(_STEPS[kinds], dtype=np.int32)
        deepest, lowest = self.depth + int(depths.max()), self.depth + int(depths.min())
        self.depth += int(depths[-1])
        if deepest > self._limits.json_depth or lowest < 0:
            raise InputError(
                f"the JSON is deeper than {self._limits.json_depth} brackets within brackets, or its brackets do not "
                "match"
            )

    def _check(self) -> None:
        limits = self._limits
        for count, most, what, flag in (
            (self.quotes // 2, limits.json_strings, "strings", "--max-texts"),
            (self.containers, limits.json_containers, "lists and objects", "--max-texts"),
            (self.values, limits.json_values, "values", "--max-tokens"),
            (self.characters, limits.json_characters, "characters in its strings", "--max-tokens"),
            (self.bare_bytes, limits.json_bare_bytes, "digits in its numbers", "--max-tokens"),
        ):
            if count > most:
                raise TooLarge(
                    f"the body has more than {most:,} {what}, the most that is taken at once. Send several "
                    f"requests, or start the server with a higher {flag}"
                )


async def read_body(receive: Receive, stated: int | None, limits: Limits, seconds: float) -> bytes:
    """All of the body within `seconds`. `stated` is its Content-Length, None where it comes in chunks."""
    most = limits.body_bytes
    if stated is not None and stated > most:
        raise TooLarge(f"the body has {stated:,} bytes, at most {most:,} are taken")
    try:
        async with asyncio.timeout(seconds):
            return await _read_all(receive, limits)
    except TimeoutError:
        raise RouteError(408, f"the body did not arrive within {seconds:g} s", code="slow_body") from None


async def _read_all(receive: Receive, limits: Limits) -> bytes:
    count, tail, size, more = JsonCount(limits), bytearray(), 0, True
    parts: list[bytes] = []
    while more:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        more = bool(message.get("more_body"))
        tail += message.get("body", b"")
        if size + len(tail) > limits.body_bytes:
            raise TooLarge(
                f"the body has more than {limits.body_bytes:,} bytes, which is the most that is taken"
            )
        if not more and not parts and is_small(tail, limits):
            return bytes(tail)
        while len(tail) >= STEP or (tail and not more):
            part = bytes(tail[:STEP])
            del tail[:STEP]  # cheap: a bytearray only moves its start
            count.feed(part)
            parts.append(part)
            size += len(part)
            if tail:
                await asyncio.sleep(0)
    return b"".join(parts)


def is_small(content: bytes | bytearray, limits: Limits) -> bool:
    """Too few bytes and brackets to exceed any limit: most requests are not counted."""
    if len(content) > min(limits.json_strings, limits.json_containers, STEP):
        return False
    return content.count(b"[") + content.count(b"{") <= limits.json_depth
