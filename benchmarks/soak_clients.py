"""The clients of `soak.py`: good ones that compare every bit, greedy ones with the largest requests, and bad ones."""

from __future__ import annotations

import asyncio
import base64
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from gemel.types import Vectors

PAUSE = 0.01  # between two requests of a client: the number of requests is bounded by time
GONE = (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, EOFError)


@dataclass
class Expected:
    """What the server must answer: computed in this process, without it."""

    texts: list[str]
    vectors: Vectors
    hits: list[list[tuple[str, float]]]
    """For each of the first texts: ids and scores among the documents that never change."""
    stable: str
    """The condition that those documents meet."""


@dataclass
class Seen:
    """What the clients of one kind saw."""

    statuses: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """Of answers with status 200."""

    def note(self, status: int, began: float) -> None:
        self.statuses[str(status)] += 1
        if status == 200:
            self.seconds.append(time.perf_counter() - began)
        if status >= 500 and status != 503:
            self.wrong.append(f"status {status}")

    def report(self) -> dict[str, Any]:
        ordered = sorted(self.seconds)
        at = lambda share: round(1000 * ordered[int(share * (len(ordered) - 1))], 1) if ordered else None  # noqa: E731
        times = {"p50_ms": at(0.5), "p99_ms": at(0.99), "longest_ms": at(1.0)}
        return {
            "answers": dict(sorted(self.statuses.items())),
            "wrong": len(self.wrong),
            "first_wrong": self.wrong[:5],
            **times,
        }


class Client:
    """One connection that is kept, and opened again when it is closed."""

    def __init__(self, port: int, key: str | None) -> None:
        self._port, self._key = port, key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, path: str, body: bytes, *, seconds: float = 60.0) -> tuple[int, bytes]:
        return await asyncio.wait_for(self._post(path, body), seconds)

    async def _post(self, path: str, body: bytes) -> tuple[int, bytes]:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        writer.write(request_of(path, body, self._key))
        lines = (await reader.readuntil(b"\r\n\r\n")).lower()
        content = await _content(reader, lines)
        if b"connection: close" in lines:
            self.close()
        return int(lines.split()[1]), content

    def close(self) -> None:
        if self._streams is not None:
            self._streams[1].close()
            self._streams = None


async def _content(reader: asyncio.StreamReader, head: bytes) -> bytes:
    """The body of an answer; large ones come in chunks."""
    if b"transfer-encoding: chunked" not in head:
        return await reader.readexactly(int(head.split(b"content-length: ")[1].split(b"\r\n")[0]))
    parts = []
    while size := int(await reader.readuntil(b"\r\n"), 16):
        parts.append(await reader.readexactly(size))
        await reader.readexactly(2)
    await reader.readexactly(2)
    return b"".join(parts)


def request_of(path: str, body: bytes, key: str | None) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "host: localhost", "content-type: application/json"]
    lines += [f"authorization: Bearer {key}"] if key else []
    return "\r\n".join([*lines, f"content-length: {len(body)}", "", ""]).encode() + body


async def good(port: int, key: str, end: float, expected: Expected, seen: Seen, seed: int) -> None:
    """Retries if it was refused or disconnected; every answer must be bit-identical."""
    draw, client = random.Random(seed), Client(port, key)
    while time.monotonic() < end:
        ask = draw.choice((_embed, _embed, _embed, _search))
        try:
            if await ask(client, expected, seen, draw) != 200:
                await asyncio.sleep(0.2)
        except TimeoutError:
            seen.wrong.append("no answer within 60 seconds")
            client.close()
        except GONE:
            seen.statuses["cut off"] += 1
            client.close()
            await asyncio.sleep(0.2)
        await asyncio.sleep(PAUSE)
    client.close()


async def _embed(client: Client, expected: Expected, seen: Seen, draw: random.Random) -> int:
    rows = draw.choices(range(len(expected.texts)), k=draw.choice((1, 1, 1, 8, 40)))
    body = {"model": "m", "input": [expected.texts[row] for row in rows], "encoding_format": "base64"}
    began = time.perf_counter()
    status, content = await client.post("/v1/embeddings", json.dumps(body).encode())
    seen.note(status, began)
    if status == 200:
        data = [base64.b64decode(row["embedding"]) for row in json.loads(content)["data"]]
        got = np.stack([np.frombuffer(row, dtype="<f4") for row in data])
        if not np.array_equal(got, expected.vectors[rows]):
            seen.wrong.append(f"other bits for rows {rows[:5]}")
    return status


async def _search(client: Client, expected: Expected, seen: Seen, draw: random.Random) -> int:
    row = draw.randrange(len(expected.hits))
    body = {
        "query": expected.texts[row],
        "k": len(expected.hits[row]),
        "where": expected.stable,
        "exact": True,
    }
    began = time.perf_counter()
    status, content = await client.post("/indexes/notes/search", json.dumps(body).encode())
    seen.note(status, began)
    if status == 200:
        hits = [(hit["id"], float(np.float32(hit["score"]))) for hit in json.loads(content)["hits"]]
        if hits != expected.hits[row]:
            seen.wrong.append(f"other hits for text {row}: {hits[:2]} instead of {expected.hits[row][:2]}")
    return status


async def greedy(port: int, key: str, end: float, texts: list[str], seen: Seen, seed: int) -> None:
    """As many texts and pairs per request as the server accepts, one request after the other."""
    draw, client = random.Random(seed), Client(port, key)
    while time.monotonic() < end:
        many = [f"{draw.choice(texts)} {draw.randrange(10**6)}" for _ in range(draw.choice((200, 500, 1000)))]
        path, body = draw.choice(
            (
                ("/v1/embeddings", {"model": "m", "input": many}),
                ("/embed", {"inputs": many}),
                ("/pairs", {"texts": many[:300], "k": 50}),
                ("/clusters", {"texts": many[:200]}),
            )
        )
        began = time.perf_counter()
        try:
            status, _ = await client.post(path, json.dumps(body).encode(), seconds=90.0)
            seen.note(status, began)
        except TimeoutError:
            seen.statuses["no answer"] += 1
            client.close()
        except GONE:
            seen.statuses["cut off"] += 1
            client.close()
            await asyncio.sleep(0.2)
        await asyncio.sleep(PAUSE)
    client.close()


BODIES: tuple[bytes, ...] = (
    b"{not json",
    b"[" * 100_000,
    b"",
    b"\xff\xfe\x00",
    b'{"inputs": "\\ud800"}',
    b'{"inputs": "nul \\u0000 inside"}',
    b'{"inputs": ' + b"9" * 10_000 + b"}",
    b'{"inputs": "' + b"x" * 2_000_000 + b'"}',
    b'{"inputs": [' + b"{}," * 50_000 + b"{}]}",
    b'{"inputs": [' + b'"",' * 100_000 + b'""]}',
    b'{"inputs": [' + b"1," * 200_000 + b"1]}",
    b"{" + b",".join(b'"k%d": 1' % n for n in range(30_000)) + b"}",
    json.dumps({"inputs": ["many"] * 100_000}).encode(),
)
PATHS = (
    "/embed",
    "/v1/embeddings",
    "/rerank",
    "/search",
    "/pairs",
    "/indexes/notes/search",
    "/nowhere",
    "/decode",
)


async def bad(port: int, key: str, end: float, seen: Seen, seed: int) -> None:
    """Broken bodies, wrong keys, slow bodies, lost clients, bytes that are not HTTP."""
    draw = random.Random(seed)
    client, unauthorized = Client(port, key), Client(port, "not-a-key-of-this-server")
    while time.monotonic() < end:
        kind = draw.choice(("body", "body", "key", "slow", "gone", "bytes"))
        try:
            if kind in ("body", "key"):
                who = client if kind == "body" else unauthorized
                began = time.perf_counter()
                status, _ = await who.post(draw.choice(PATHS), draw.choice(BODIES))
                seen.note(status, began)
                if kind == "key" and status == 200:
                    seen.wrong.append("a wrong key was let in")
            else:
                await {"slow": _slow, "gone": _gone, "bytes": _bytes}[kind](port, key, draw)
                seen.statuses[kind] += 1
        except TimeoutError:
            seen.statuses["no answer"] += 1
        except GONE:
            seen.statuses["cut off"] += 1
            await asyncio.sleep(0.2)
        if draw.random() < 0.2:
            client.close()
            unauthorized.close()
        await asyncio.sleep(5 * PAUSE)
    client.close()
    unauthorized.close()


async def _slow(port: int, key: str, draw: random.Random) -> None:
    """A body that is sent byte by byte and never completed."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request_of("/embed", b"", key).replace(b"content-length: 0", b"content-length: 1000"))
    for _ in range(draw.randint(1, 4)):
        writer.write(b"{")
        await asyncio.sleep(0.2)
    writer.close()


async def _gone(port: int, key: str, draw: random.Random) -> None:
    """A large request whose client disconnects."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"inputs": [f"gone {draw.random()}" for _ in range(300)]}).encode()
    writer.write(request_of("/embed", body, key))
    await writer.drain()
    await asyncio.sleep(draw.random() * 0.2)
    writer.close()


async def _bytes(port: int, key: str, draw: random.Random) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(draw.randbytes(draw.choice((1, 40, 2000))) + b"\r\n\r\n")
    try:
        await asyncio.wait_for(reader.read(1000), 2.0)
    except TimeoutError:
        pass
    finally:
        writer.close()
