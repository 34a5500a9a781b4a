"""One connection: what uvicorn leaves open is closed here, before any key was seen: endless and slow headers."""

from __future__ import annotations

from asyncio import TimerHandle
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

HEADER_SECONDS = 15.0  # from the first byte of a request, or from the connection, until its headers are there
HEADER_BYTES = 64_000  # of the first line and all headers of a request
HEADER_COUNT = 200
STALLED_SECONDS = 30.0  # in which a client must have read some of an answer that waits for it


class Connection(HttpToolsProtocol):  # type: ignore[misc, unused-ignore]
    """Closed when a request's headers are too long (431) or too slow, and when nothing comes at all."""

    _slow: TimerHandle | None = None
    """Closes the connection, unless headers are complete before."""
    _begun = False
    """Some of a request's headers are there, not all."""
    _bytes = 0
    """Of such headers, from the second part that arrives: the first may hold the end of another request."""
    _too_long = False
    _unread: TimerHandle | None = None
    """Looks whether a client that is slow to read its answer still reads."""

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
        if self.transport.is_closing():  # refused already: what was on its way is not parsed
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
            raise ValueError(
                "the headers are too long"
            )  # the parser stops, and `send_400_response` is called
        super().on_headers_complete()

    def send_400_response(self, msg: str) -> None:
        if self._too_long:
            self._refuse()
        else:
            super().send_400_response(msg)

    def _watch_reading(self, before: int = -1) -> None:
        """Close the connection when as much of the answer waits as at the last look: nobody reads it."""
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
        if not self._answering():  # else it would stand in the middle of that answer
            words = b"the headers of the request are too long: at most %d bytes and %d headers are taken" % (
                HEADER_BYTES,
                HEADER_COUNT,
            )
            lines = [
                STATUS_LINE[431] + b"content-type: text/plain; charset=utf-8",
                b"content-length: %d" % len(words),
                b"connection: close",
            ]
            self.transport.write(b"\r\n".join([*lines, b"", words]))
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
        if self._answering():  # nothing is read meanwhile: the client is not to blame
            self._wait_for_headers()
        elif not self.transport.is_closing():
            self.transport.close()
