"""Misbehaving clients alongside good ones whose vectors are compared bit for bit; and a server killed under load."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np

from gemel.types import Vectors
from serve_bodies import kinds
from serve_client import Connection, request_of
from serve_systems import Server

MB = 1_000_000


async def _slow(port: int, draw: random.Random) -> None:
    """A body that is sent byte by byte and never completed."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(b"POST /v1/embeddings HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000\r\n\r\n")
    for _ in range(draw.randint(1, 5)):
        writer.write(b"{")
        await asyncio.sleep(0.2)
    writer.close()


async def _hang_up(port: int, draw: random.Random) -> None:
    """A large request whose client disconnects."""
    _, writer = await asyncio.open_connection("127.0.0.1", port)
    body = json.dumps({"model": "m", "input": [f"gone {draw.random()}" for _ in range(500)]}).encode()
    writer.write(request_of(body))
    await writer.drain()
    await asyncio.sleep(draw.random() * 0.2)
    writer.close()


BODIES = (
    b"{not json",
    b"[" * 100_000,
    b'{"input": "\\ud800"}',
    b'{"input": "nul \\u0000 inside"}',
    b'{"input": ' + b"9" * 10_000 + b"}",
    b'{"input": "' + b"x" * (10 * MB) + b'"}',
    b'{"input": "' + b"x" * (20 * MB) + b'"}',
    json.dumps({"input": ["many"] * 100_000}).encode(),
    *(kind.make() for kind in kinds() if kind.path == "/v1/embeddings" and "strings" in kind.name),
    b"\xff\xfe\x00",
    b"",
)


async def _bad(port: int, model: str, end: float, seen: Counter[str], seed: int) -> None:
    draw = random.Random(seed)
    connection = Connection(port, model)
    while time.perf_counter() < end:
        kind = draw.choice(("slow", "hang up", "body"))
        try:
            if kind == "body":
                status, _ = await connection.post(draw.choice(BODIES))
                seen[str(status)] += 1
            else:
                await (_slow if kind == "slow" else _hang_up)(port, draw)
                seen[kind] += 1
        except (OSError, asyncio.IncompleteReadError):
            seen["closed"] += 1
            connection.close()
        await asyncio.sleep(0.02)
    connection.close()


async def _good(
    port: int, model: str, end: float, texts: list[str], expected: Vectors, seen: Counter[str], seed: int
) -> None:
    """Retries what was refused or cut off; every answer must be bit-identical."""
    draw, connection = random.Random(seed), Connection(port, model)
    while time.perf_counter() < end:
        rows = draw.choices(range(len(texts)), k=draw.choice((1, 1, 1, 20)))
        while True:
            try:
                status, content = await connection.embed(
                    [texts[row] for row in rows], encoding_format="base64"
                )
            except (OSError, asyncio.IncompleteReadError):
                seen["retried"] += 1
                connection.close()
                await asyncio.sleep(0.1)
                continue
            if status == 200:
                break
            seen[f"retried {status}"] += 1
            await asyncio.sleep(0.1)
        data = [base64.b64decode(row["embedding"]) for row in json.loads(content)["data"]]
        got = np.stack([np.frombuffer(row, dtype="<f4") for row in data])
        seen["right" if np.array_equal(got, expected[rows]) else "WRONG"] += 1
    connection.close()


def bad_clients(server: Server, texts: list[str], expected: Vectors, *, minutes: float) -> dict[str, Any]:
    """Eight bad clients and eight good ones; the memory of the server is sampled twice per second."""
    bad: Counter[str] = Counter()
    good: Counter[str] = Counter()
    memory: list[int] = []

    async def go() -> None:
        end = time.perf_counter() + 60 * minutes
        tasks = [asyncio.create_task(_bad(server.port, server.model, end, bad, seed)) for seed in range(8)]
        tasks += [
            asyncio.create_task(_good(server.port, server.model, end, texts, expected, good, seed))
            for seed in range(8)
        ]
        while time.perf_counter() < end:
            memory.append(resident(server.pid))
            await asyncio.sleep(0.5)
        await asyncio.gather(*tasks)

    before = resident(server.pid)
    asyncio.run(go())
    third = max(1, len(memory) // 3)
    return {
        "minutes": minutes,
        "good": dict(good),
        "bad": dict(bad),
        "alive": server.alive(),
        "memory_mb": {
            "before": round(before / MB),
            "peak": round(max(memory) / MB),
            "median_first_third": round(sorted(memory[:third])[third // 2] / MB),
            "median_last_third": round(sorted(memory[-third:])[third // 2] / MB),
        },
    }


def killed(
    server: Server, texts: list[str], expected: Vectors, *, seconds: float, times: int
) -> dict[str, Any]:
    """kill -9 under load, `times` times, and a new process at the same port each time; clients retry."""
    seen: Counter[str] = Counter()
    back: list[float] = []

    async def go() -> None:
        end = time.perf_counter() + seconds
        tasks = [
            asyncio.create_task(_good(server.port, server.model, end, texts, expected, seen, seed))
            for seed in range(8)
        ]
        for _ in range(times):
            await asyncio.sleep(seconds / (times + 1))
            os.kill(server.pid, signal.SIGKILL)
            start = time.perf_counter()
            await asyncio.to_thread(server.restart)
            back.append(round(time.perf_counter() - start, 2))
        await asyncio.gather(*tasks)

    asyncio.run(go())
    return {"kills": times, "seconds_until_ready": back, "requests": dict(seen)}


def resident(pid: int) -> int:
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")
