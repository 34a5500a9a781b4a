"""A real server under load for minutes: good, bad and greedy clients, kills, restarts, an index with another writer.

`make soak MINUTES=10` or `python benchmarks/soak.py --minutes 10`. All traffic stays on 127.0.0.1. Every answer to a
good client is compared bit for bit with one computed in this process. In the first half the server and the writer are
killed; the second half shows whether memory, file handles and threads stay constant. Exits with 1 if something was
wrong.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tools" / "docs"), str(ROOT / "tests" / "support")]  # for svg_parts and tiny

import svg_parts as svg  # noqa: E402

import soak_clients as clients  # noqa: E402
from machine import describe  # noqa: E402
from soak_clients import Expected, Seen  # noqa: E402

RESULT = ROOT / "benchmarks" / "results" / "soak.json"
PICTURE = ROOT / "docs" / "pictures" / "soak.svg"
STABLE = 300  # documents that are never changed
MODEL = "all-MiniLM-L6-v2"
STEADY = 1.25  # how much memory may grow between the first and the last third of the half without kills
START_SECONDS = 120


@dataclass
class Sample:
    second: float
    memory_mb: float
    handles: int
    threads: int


@dataclass
class Watched:
    """What was sampled, and when processes were killed."""

    samples: list[Sample] = field(default_factory=list)
    kills: list[float] = field(default_factory=list)
    back: list[float] = field(default_factory=list)
    """Seconds from a kill until the server was ready again."""
    writer_kills: int = 0
    deaths: list[str] = field(default_factory=list)
    """Unexpected exits of the server."""


class Server:
    """`gemel serve` on a fixed port, with keys and an index."""

    def __init__(self, model: str, location: Path, keys: Path, log: Path) -> None:
        with socket.socket() as tried:
            tried.bind(("127.0.0.1", 0))
            self.port = tried.getsockname()[1]
        self._command = [
            sys.executable,
            "-m",
            "gemel",
            "serve",
            "--model",
            model,
            "--name",
            "m",
            "--port",
            str(self.port),
        ]
        self._command += ["--index", f"notes={location}", "--api-key-file", str(keys), "--log", "none"]
        self._log = log
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        assert self.process is not None, "started first"
        return self.process.pid

    def start(self) -> None:
        """Returns after the first forward pass."""
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, stderr=log, env=environment())
        end = time.monotonic() + START_SECONDS
        while time.monotonic() < end:
            with contextlib.suppress(urllib.error.URLError, OSError):
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health/ready", timeout=5).close()
                return
            if self.process.poll() is not None:
                break
            time.sleep(0.1)
        raise SystemExit(f"the server did not start: {self._log.read_text(errors='replace')[-2000:]}")

    def stop(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(60)


class Writer:
    """Another process that writes to the same index; every acknowledged batch is a line of its log."""

    def __init__(self, model: str, location: Path, log: Path) -> None:
        self._command = [sys.executable, __file__, "--write", str(location), "--model", model]
        self.log = log
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self._command, stdout=log, env=environment())

    def stop(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(30)

    def acknowledged(self) -> dict[str, str]:
        """Id to text of every document that was acknowledged; a line that a kill cut short does not count."""
        actual: dict[str, str] = {}
        for line in self.log.read_bytes().split(b"\n")[:-1]:
            batch = json.loads(line)
            actual.update(batch["written"])
            for name in batch["deleted"]:
                actual.pop(name, None)
        return actual


def environment() -> dict[str, str]:
    return {**os.environ, "GEMEL_CONFIG": "none", "GEMEL_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument(
        "--model", default=None, help=f"default: {MODEL} where it is in the cache, else a tiny one"
    )
    parser.add_argument("--json", type=Path, default=RESULT)
    parser.add_argument("--picture", type=Path, default=PICTURE)
    parser.add_argument("--write", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.write:
        write_forever(given.write, given.model)
    with tempfile.TemporaryDirectory(prefix="gemel-soak-") as name:
        result, watched = soak(given.minutes, given.model, Path(name))
    given.json.parent.mkdir(parents=True, exist_ok=True)
    given.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    given.picture.write_text(picture(watched, result), encoding="utf-8")
    print(
        json.dumps(
            {key: result[key] for key in ("minutes", "requests", "kills", "documents", "problems")}, indent=1
        )
    )
    return 1 if result["problems"] else 0


# ---- the run ----


def soak(minutes: float, model_name: str | None, folder: Path) -> tuple[dict[str, Any], Watched]:
    import gemel

    source = model_name or _default_model(folder)
    model = gemel.load(source, offline=True)
    location = folder / "index"
    expected = prepare(model, location)
    keys = {name: secrets.token_hex(16) for name in ("good", "greedy", "bad")}
    (folder / "keys").write_text("".join(f"{name}:{key}\n" for name, key in keys.items()))
    server = Server(source, location, folder / "keys", folder / "server.log")
    writer = Writer(source, location, folder / "writer.log")
    seen = {name: Seen() for name in keys}
    watched = Watched()
    server.start()
    writer.start()
    try:
        asyncio.run(_go(minutes, server, writer, keys, expected, seen, watched))
        stopped = server.stop(signal.SIGTERM)
    finally:
        for each in (server.process, writer.process):
            if each is not None and each.poll() is None:
                each.kill()
                each.wait(30)
    documents = check_documents(location, model, writer)
    result = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "machine": describe(),
        "model": model.name,
        "minutes": minutes,
        "clients": {"good": 4, "greedy": 2, "bad": 3},
        "requests": {name: each.report() for name, each in seen.items()},
        "kills": {
            "server": len(watched.kills),
            "seconds_until_ready": [round(each, 2) for each in watched.back],
            "writer": watched.writer_kills,
        },
        "ended_with": stopped,
        "documents": documents,
        "server": figures(watched),
    }
    result["problems"] = problems(result, seen, watched, minutes)
    return result, watched


def _default_model(folder: Path) -> str:
    from gemel.checkpoint.sources import find_model
    from gemel.errors import GemelError

    try:
        find_model(MODEL, offline=True)
        return MODEL
    except GemelError:
        from tiny import tiny_bert

        return str(tiny_bert(folder / "tiny"))


def prepare(model: Any, location: Path) -> Expected:  # noqa: ANN401 - a gemel.Model
    """The index with the documents that stay, and the answers that the server has to give."""
    import gemel

    texts = [
        f"document {n} speaks of {_WORDS[n % 20]} and {_WORDS[(n // 20) % 20]} in the year {1900 + n}"
        for n in range(STABLE)
    ]
    vectors = model.encode(texts, on_long="truncate")
    with gemel.open_index(location, model, fields={"part": "int"}) as index:
        index.add(texts, ids=[f"stable-{n}" for n in range(STABLE)], fields={"part": [0] * STABLE})
        actual = []
        for text in texts[:40]:
            answer = index.search(text, 5, where="part = 0", exact=True)
            actual.append([(hit.id, float(hit.score)) for hit in answer.hits])
    return Expected(texts, vectors, actual, "part = 0")


_WORDS = [
    "rain", "music", "stocks", "travel", "football", "cooking", "history", "physics", "gardens", "trains",
    "poems", "cities", "rivers", "law", "medicine", "birds", "bridges", "sleep", "money", "winter",
]  # fmt: skip


async def _go(
    minutes: float, server: Server, writer: Writer, keys: dict[str, str], expected: Expected,
    seen: dict[str, Seen], watched: Watched,
) -> None:  # fmt: skip
    begun = time.monotonic()
    end = begun + 60 * minutes
    tasks = [clients.good(server.port, keys["good"], end, expected, seen["good"], seed) for seed in range(4)]
    tasks += [
        clients.greedy(server.port, keys["greedy"], end, expected.texts, seen["greedy"], seed)
        for seed in range(2)
    ]
    tasks += [clients.bad(server.port, keys["bad"], end, seen["bad"], seed) for seed in range(3)]
    running = [asyncio.create_task(task) for task in tasks]
    running.append(asyncio.create_task(_sample(begun, end, server, watched)))
    await _kill(begun, minutes, server, writer, watched)
    await asyncio.gather(*running)


async def _kill(begun: float, minutes: float, server: Server, writer: Writer, watched: Watched) -> None:
    """SIGKILL to the server and to the writer, in turn, spread over the first half."""
    times = max(2, round(minutes))
    for number in range(times):
        wait = begun + 30 * minutes * (number + 1) / times - time.monotonic()
        await asyncio.sleep(max(0.0, wait))
        if server.process is not None and server.process.poll() is not None:
            watched.deaths.append(f"the server ended by itself with {server.process.returncode}")
        else:
            server.stop(signal.SIGKILL)
        watched.kills.append(time.monotonic() - begun)
        start = time.monotonic()
        await asyncio.to_thread(server.start)
        watched.back.append(time.monotonic() - start)
        await asyncio.to_thread(writer.stop)
        watched.writer_kills += 1
        writer.start()


async def _sample(begun: float, end: float, server: Server, watched: Watched) -> None:
    while time.monotonic() < end:
        with contextlib.suppress(OSError, ValueError, IndexError):
            here = Path(f"/proc/{server.pid}")
            pages = int((here / "statm").read_text().split()[1])
            threads = int((here / "status").read_text().split("Threads:")[1].split()[0])
            memory = pages * os.sysconf("SC_PAGE_SIZE") / 1e6
            handles = len(list((here / "fd").iterdir()))
            watched.samples.append(
                Sample(round(time.monotonic() - begun, 1), round(memory, 1), handles, threads)
            )
        await asyncio.sleep(1.0)


# ---- the process that writes ----


def write_forever(location: Path, model: str) -> None:
    """Adds, changes and deletes documents until it is killed; reports each batch once it is on disk."""
    import gemel

    with gemel.open_index(location, gemel.load(model, offline=True)) as index:
        number = 0
        while True:
            ids = [f"moving-{(number * 7 + each) % 200}" for each in range(10)]
            texts = {name: f"{name} in round {number} of process {os.getpid()}" for name in ids}
            index.upsert(list(texts.values()), ids=list(texts), fields={"part": [1] * len(texts)})
            deleted = ids[:2] if number % 5 == 4 else []
            if deleted:
                index.delete(deleted)
            sys.stdout.write(json.dumps({"written": texts, "deleted": deleted}) + "\n")
            sys.stdout.flush()
            number += 1
            if number % 50 == 0:
                index.compact()
            time.sleep(0.1)


def check_documents(location: Path, model: Any, writer: Writer) -> dict[str, Any]:  # noqa: ANN401
    """Every acknowledged document is there, with the text of its last batch or of one that a kill interrupted."""
    import gemel

    acknowledged = writer.acknowledged()
    with gemel.open_index(location, model) as index:
        there = {each.id: each.text for each in index.get(list(acknowledged))}
        stable = index.count("part = 0").documents
        verified = index.verify()
        total = len(index)
    missing = [name for name in acknowledged if name not in there]
    changed = [name for name, text in acknowledged.items() if name in there and there[name] != text]
    return {
        "acknowledged": len(acknowledged),
        "missing": len(missing),
        "changed_by_an_open_batch": len(changed),
        "stable": stable,
        "in_the_index": total,
        "verified": verified.ok,
        "failed_checks": [f"{check.name}: {check.detail}" for check in verified.checks if not check.ok],
    }


# ---- what it says ----


def figures(watched: Watched) -> dict[str, Any]:
    """Of the whole run, and of the half without kills."""
    calm = [
        each for each in watched.samples if each.second > (watched.kills[-1] if watched.kills else 0) + 10
    ]
    third = max(1, len(calm) // 3)

    def thirds(name: str) -> dict[str, float]:
        values = [getattr(each, name) for each in calm] or [0]
        middle = lambda part: sorted(part)[len(part) // 2]  # noqa: E731
        return {
            "first_third": middle(values[:third]),
            "last_third": middle(values[-third:]),
            "peak": max(values),
        }

    rows = {name: thirds(name) for name in ("memory_mb", "handles", "threads")}
    peak = max((each.memory_mb for each in watched.samples), default=0.0)
    return {
        "peak_memory_mb": peak,
        "without_kills": rows,
        "samples": [list(vars(each).values()) for each in watched.samples[::2]],
    }


def problems(result: dict[str, Any], seen: dict[str, Seen], watched: Watched, minutes: float) -> list[str]:
    actual = [f"{name}: {wrong}" for name, each in seen.items() for wrong in each.wrong[:3]]
    actual += watched.deaths
    if result["ended_with"] != 0:
        actual.append(f"after SIGTERM the server ended with {result['ended_with']}")
    documents = result["documents"]
    if documents["missing"] or documents["stable"] != STABLE:
        actual.append(
            f"{documents['missing']} acknowledged documents are missing, {documents['stable']} of {STABLE} stable ones"
        )
    actual += [f"gemel index verify: {each}" for each in documents.get("failed_checks", [])]
    if minutes >= 5:
        for name, row in result["server"]["without_kills"].items():
            if row["last_third"] > STEADY * row["first_third"] + 5:
                actual.append(
                    f"{name} grew from {row['first_third']} to {row['last_third']} in the half without kills"
                )
    return actual


def picture(watched: Watched, result: dict[str, Any]) -> str:
    """Memory, file handles and threads over time; a line where the server was killed."""
    width, height, left, top = 760, 150, 70, 60
    rows = (
        ("memory_mb", "memory, MB", svg.BLUE),
        ("handles", "file handles", svg.ORANGE),
        ("threads", "threads", svg.GREEN),
    )
    longest = max([each.second for each in watched.samples] or [1.0])
    parts = [
        svg.words(
            width / 2,
            28,
            f"gemel serve for {result['minutes']:g} minutes with good, greedy and bad clients",
            size=16,
        )
    ]
    for number, (name, title, color) in enumerate(rows):
        base = top + number * (height + 40) + height
        values = [getattr(each, name) for each in watched.samples] or [0]
        most = max(values) * 1.1 or 1
        x = lambda second: left + second / longest * (width - left - 20)  # noqa: E731
        y = lambda value, base=base, most=most: base - value / most * height  # noqa: E731
        parts.append(svg.box(left, base - height, width - left - 20, height))
        parts.append(svg.words(left, base - height - 8, title, anchor="start"))
        parts += [
            svg.words(left - 6, y(tick) + 4, f"{tick:.0f}", size=11, anchor="end")
            for tick in (0, max(values))
        ]
        parts += [svg.line(x(kill), base - height, x(kill), base, stroke=svg.LINE) for kill in watched.kills]
        points = " ".join(
            f"{svg.number(x(each.second))},{svg.number(y(getattr(each, name)))}" for each in watched.samples
        )
        parts.append(f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.5"/>')
    bottom = top + 3 * (height + 40)
    parts.append(svg.words(left, bottom, "0 s", size=11, anchor="start"))
    parts.append(
        svg.words(width - 20, bottom, f"{longest:.0f} s; gray lines: SIGKILL", size=11, anchor="end")
    )
    about = "Memory, file handles and threads of the server, every second; it is killed in the first half."
    return svg.drawing(width, bottom + 20, "A server under load", about, parts)


if __name__ == "__main__":
    sys.exit(main())
