"""A lightweight client, because it shares the cores with the server it measures: one socket, no library."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Load:
    """What one kind of client saw."""

    texts: int = 1
    """Of each request."""
    seconds: float = 0.0
    latencies: list[float] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)

    def percentile(self, share: float) -> float:
        ordered = sorted(self.latencies)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")

    @property
    def texts_per_second(self) -> float | None:
        return self.texts * len(self.latencies) / self.seconds if self.seconds else None

    def report(self) -> dict[str, Any]:
        return {
            "requests": len(self.latencies),
            "per_second": round(len(self.latencies) / self.seconds, 2) if self.seconds else None,
            "texts_per_second": round(self.texts_per_second, 1) if self.texts_per_second else None,
            "p50_ms": round(1000 * self.percentile(0.50), 2),
            "p95_ms": round(1000 * self.percentile(0.95), 2),
            "p99_ms": round(1000 * self.percentile(0.99), 2),
            "errors": self.errors,
        }


def request_of(body: bytes) -> bytes:
    """A complete request for embeddings."""
    lines = ("POST /v1/embeddings HTTP/1.1", "host: localhost", "content-type: application/json")
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


class Connection:
    """HTTP/1.1 with kept-alive connections, just enough of it."""

    def __init__(self, port: int, model: str) -> None:
        self._port, self._model = port, model
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def embed(self, texts: str | list[str], **fields: Any) -> tuple[int, bytes]:
        body = json.dumps({"model": self._model, "input": texts, **fields}).encode()
        return await self.post(body)

    async def post(self, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request_of(body))
        lines = (await reader.readuntil(b"\r\n\r\n")).lower()
        content = await _content(reader, lines)
        if b"connection: close" in lines:
            self.close()
        return int(lines.split()[1]), content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _content(reader: asyncio.StreamReader, headers: bytes) -> bytes:
    """The body of an answer; a large one comes in chunks."""
    if b"content-length: " in headers:
        size = int(headers.split(b"content-length: ")[1].split(b"\r\n")[0])
        return await reader.readexactly(size)
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


async def keep_asking(
    port: int, model: str, load: Load, end: float, next_input: Callable[[], str | list[str]], **fields: Any
) -> None:
    """One client: the next request as soon as the last is answered, until `end`."""
    connection = Connection(port, model)
    try:
        while time.perf_counter() < end:
            inputs = next_input()
            start = time.perf_counter()
            try:
                status, _ = await connection.embed(inputs, **fields)
            except (OSError, asyncio.IncompleteReadError) as error:
                load.errors[type(error).__name__] = load.errors.get(type(error).__name__, 0) + 1
                connection.close()
                await asyncio.sleep(0.05)
                continue
            if status == 200:
                load.latencies.append(time.perf_counter() - start)
            else:
                load.errors[str(status)] = load.errors.get(str(status), 0) + 1
                await asyncio.sleep(0.05)
    finally:
        connection.close()


def singles(port: int, model: str, texts: list[str], *, clients: int, seconds: float) -> Load:
    """`clients` clients, one sentence per request, each sentence once."""
    waiting = iter(texts)
    return _ask(port, model, Load(), lambda: next(waiting), clients, seconds)


def groups(port: int, model: str, texts: list[str], *, clients: int, size: int, seconds: float) -> Load:
    """`clients` clients with `size` sentences per request, each sentence once."""
    waiting = iter(texts)
    return _ask(port, model, Load(texts=size), lambda: [next(waiting) for _ in range(size)], clients, seconds)


def _ask(
    port: int,
    model: str,
    load: Load,
    next_input: Callable[[], str | list[str]],
    clients: int,
    seconds: float,
) -> Load:
    async def go() -> None:
        start = time.perf_counter()
        end = start + seconds
        tasks = [keep_asking(port, model, load, end, next_input) for _ in range(clients)]
        await asyncio.gather(*tasks)
        load.seconds = time.perf_counter() - start

    asyncio.run(go())
    return load


def mixed(port: int, model: str, texts: list[str], *, large: int, seconds: float) -> tuple[Load, Load]:
    """One client with single queries alongside two with requests of `large` texts: what each saw."""
    one, many, waiting = Load(), Load(texts=large), iter(texts)

    async def go() -> None:
        start = time.perf_counter()
        end = start + seconds
        tasks = [
            keep_asking(port, model, many, end, lambda: [next(waiting) for _ in range(large)])
            for _ in range(2)
        ]
        tasks.append(keep_asking(port, model, one, end, lambda: next(waiting)))
        await asyncio.gather(*tasks)
        one.seconds = many.seconds = time.perf_counter() - start

    asyncio.run(go())
    return one, many
