"""Bodies within the size limit that are expensive: how long the server is blocked, and how much memory each costs.

    python benchmarks/serve_bodies.py               all kinds, with all-MiniLM-L6-v2; writes results/serve-bodies.json
    python benchmarks/serve_bodies.py --quick       the same without a results file
    python benchmarks/serve_bodies.py --only embed  kinds whose name holds a word

While a body is sent and answered, another connection asks /health/live without a pause; the longest wait is what a
health check would have seen. Memory is the largest resident size since the body began, above the size before it.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from http.client import HTTPConnection, HTTPException
from pathlib import Path

MB = 1_000_000
BODY_LIMIT = 16 * MB
LARGE = 15_900_000  # bytes: just below the default limit
GOALS = {"live_ms": 100.0, "memory_mb": 3 * BODY_LIMIT / MB}


@dataclass(frozen=True)
class BodyKind:
    """One kind of body; made when it is sent, as all of them together are half a gigabyte."""

    name: str
    path: str
    make: Callable[[], bytes]


@dataclass(frozen=True)
class BodyResult:
    """What one body did to the server."""

    name: str
    path: str
    bytes: int
    status: int
    seconds: float
    live_ms: float
    """The longest wait of /health/live meanwhile."""
    memory_mb: float
    """Peak above the size before."""
    kept_mb: float
    """Still there a second later."""


def _list(field: str, element: bytes, count: int, last: bytes | None = None, rest: bytes = b"") -> bytes:
    inside = b",".join([element] * count + ([] if last is None else [last]))
    return b'{"%s":[%s]%s}' % (field.encode(), inside, rest)


def _fill(field: str, element: bytes, rest: bytes = b"") -> bytes:
    """As many elements as fit into a body."""
    return _list(field, element, (LARGE - len(rest)) // (len(element) + 1), rest=rest)


def _fields(count: int, value: bytes = b"1", *, same: bool = False) -> bytes:
    names = (
        b'"inputs":%s' % value if same else b'"unknown%d":%s' % (number, value) for number in range(count)
    )
    return b"{" + b",".join(names) + b"}"


def _text(field: str, unit: bytes, most: int, texts: int = 1, rest: bytes = b"") -> bytes:
    each = unit * (most // texts // len(unit))
    return _list(field, b'"' + each + b'"', texts, rest=rest)


MODEL = b',"model":"m"'
WORDS = b"some words of a plain text "


def kinds() -> list[BodyKind]:
    """Every kind, from all protocols."""
    return [
        BodyKind(f"{path} {what}", path, make) for path, what, make in (*_counts(), *_shapes(), *_legal())
    ]


def _counts() -> list[tuple[str, str, Callable[[], bytes]]]:
    """Too many of something."""
    ids = b'"ids"'
    return [
        ("/embed", "200,000 empty objects", lambda: _list("inputs", b"{}", 200_000)),
        ("/embed", "3 MB of empty objects", lambda: _list("inputs", b"{}", MB)),
        ("/embed", "empty objects", lambda: _fill("inputs", b"{}")),
        ("/", "empty lists", lambda: _fill("inputs", b"[]")),
        ("/v1/embeddings", "3.9 M strings", lambda: _fill("input", b'"a"', MODEL)),
        ("/v1/embeddings", "7.5 M integers", lambda: _fill("input", b"1", MODEL)),
        ("/v1/embeddings", "null", lambda: _fill("input", b"null", MODEL)),
        ("/v1/embeddings", "200,000 strings", lambda: _list("input", b'"a"', 200_000, rest=MODEL)),
        ("/pairs", "300,000 unknown fields", lambda: _fields(300_000)),
        ("/pairs", "100,000 unknown fields", lambda: _fields(100_000)),
        ("/embed", "100,000 unknown fields", lambda: _fields(100_000)),
        ("/embed", "190,000 times the same field", lambda: _fields(190_000, b'"a"', same=True)),
        ("/v2/rerank", "200,000 documents", lambda: _list("documents", b'"a"', 200_000, rest=b',"query":"a"')),
        ("/v1/rerank", "20,000 objects", lambda: _list("documents", b'{"text":"a"}', 20_000, rest=b',"query":"a"')),
        ("/predict", "20,000 pairs", lambda: _list("inputs", b'["a","b"]', 20_000)),
        ("/similarity", "source and no object", lambda: _list("inputs", b'{"source_sentence":1}', 20_000)),
        ("/decode", "20,000 lists", lambda: b'{%s:[%s]}' % (ids, b",".join([b"[5,6,7]"] * 20_000))),
        ("/tokenize", "200,000 strings", lambda: _list("inputs", b'"a"', 200_000)),
    ]  # fmt: skip


def _shapes() -> list[tuple[str, str, Callable[[], bytes]]]:
    """Numbers, strings and brackets that are costly to read."""
    return [
        ("/embed", "brackets", lambda: b"[" * LARGE),
        ("/embed", "lists of lists of lists", lambda: _list("inputs", b"[" * 17 + b"]" * 17, 1_000)),
        ("/v1/embeddings", "a number of 15.9 M digits", lambda: _list("input", b"9" * LARGE, 1, rest=MODEL)),
        ("/v1/embeddings", "numbers of 4,000 digits", lambda: _fill("input", b"9" * 4000, MODEL)),
        ("/v1/embeddings", "1,200 numbers of 4,000 digits", lambda: _list("input", b"9" * 4000, 1200, rest=MODEL)),
        ("/decode", "long fractions", lambda: _fill("ids", b"0." + b"12345" * 6)),
        ("/search", "a key of 15.9 M characters", lambda: b'{"%s":1}' % (b"k" * LARGE)),
        ("/search", "a key of 3.9 M characters", lambda: b'{"%s":1}' % (b"k" * 3_900_000)),
        ("/rerank", "a text of 15.9 M characters", lambda: _text("texts", b"x", LARGE, rest=b',"query":"a"')),
        ("/clusters", "texts of 3.9 M characters", lambda: _text("texts", WORDS, 3_900_000, 400)),
        ("/embed", "3.9 M wide characters", lambda: _text("inputs", "a\U0001f600".encode(), 9_700_000, 100)),
        ("/embed", "3.9 M characters of four bytes", lambda: _text("inputs", "\U0001f600".encode(), 15_600_000, 100)),
        ("/embed", "escaped line ends", lambda: _text("inputs", b"\\n", 3_900_000, 100)),
        ("/embed", "escaped characters", lambda: _text("inputs", b"\\ud83d\\ude00", 3_900_000, 100)),
        ("/relation", "backslashes", lambda: b'{"left":["' + b"\\" * LARGE + b'"]}'),
        ("/explain", "quotation marks", lambda: b'"' * LARGE),
        ("/explain", "spaces", lambda: b" " * LARGE),
        ("/v1/embeddings", "integers, then a string", lambda: _list("input", b"12", 499_000, b'"a"', MODEL)),
        ("/v1/embeddings", "strings, then an integer", lambda: _list("input", b'"a"', 199_000, b"1", MODEL)),
        ("/embed", "lists of integers, then a string", lambda: _list("inputs", b"[1,2]", 20_000, b'"a"')),
    ]  # fmt: skip


def _legal() -> list[tuple[str, str, Callable[[], bytes]]]:
    """Within every limit that can be checked from the bytes; the server has to do the work, or to detect it later."""
    return [
        ("/v1/embeddings", "499,000 token ids", lambda: _list("input", b"2158", 499_000, rest=MODEL)),
        ("/v1/embeddings", "2,000 lists of 249 token ids",
         lambda: _list("input", b"[%s]" % b",".join([b"2158"] * 249), 2000, rest=MODEL)),
        ("/tokenize", "400,000 tokens", lambda: _text("inputs", b"man ", 1_600_000, 2000)),
        ("/decode", "499,000 token ids", lambda: _list("ids", b"2158", 499_000)),
        ("/decode", "10 lists of 49,000 token ids",
         lambda: _list("ids", b"[%s]" % b",".join([b"2158"] * 49_000), 10)),
        ("/v1/embeddings", "a list of 49,000 token ids", lambda: _list("input", b"2158", 49_000, rest=MODEL)),
        ("/embed", "20 texts of 200,000 characters", lambda: _text("inputs", b"a b ", 4_000_000 - 400, 20)),
        ("/embed", "a text of 199,996 characters", lambda: _text("inputs", b"a b ", 199_996)),
        ("/embed", "2,000 texts", lambda: b'{"inputs":[%s]}' % b",".join(b'"text %d"' % n for n in range(2000))),
        ("/embed_all", "10,000 tokens", lambda: _text("inputs", b"man ", 40_000, 100)),
        ("/embed", "2,000 texts that are the same", lambda: _text("inputs", b"man ", 400_000, 2000)),
    ]  # fmt: skip


class LiveProbe:
    """Polls /health/live on its own thread."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._stop = threading.Event()
        self.longest = 0.0
        self.count = 0
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def __enter__(self) -> LiveProbe:
        self._thread.start()
        while not self.count and self._thread.is_alive():
            time.sleep(0.001)
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _ask(self) -> None:
        connection = HTTPConnection(self._address, timeout=120)
        while not self._stop.is_set():
            start = time.perf_counter()
            connection.request("GET", "/health/live")
            connection.getresponse().read()
            self.longest = max(self.longest, time.perf_counter() - start)
            self.count += 1
            time.sleep(0.002)
        connection.close()


def send(address: str, kind: BodyKind, pid: int, *, settle: float = 1.0) -> BodyResult:
    """One body to a server of this machine; its memory is measured again after `settle` seconds."""
    body = kind.make()
    before = _status(pid, "VmRSS")
    Path(f"/proc/{pid}/clear_refs").write_text("5")  # resets the peak
    start = time.perf_counter()
    with LiveProbe(address) as live:
        status = post(address, kind.path, body)
        seconds = time.perf_counter() - start
    peak = _status(pid, "VmHWM")
    time.sleep(settle)
    return BodyResult(
        kind.name, kind.path, len(body), status, round(seconds, 3), round(1000 * live.longest, 1),
        round((peak - before) / MB, 1), round((_status(pid, "VmRSS") - before) / MB, 1),
    )  # fmt: skip


def post(address: str, path: str, body: bytes) -> int:
    """The status; 0 where the server closed the connection while the body was on its way."""
    connection = HTTPConnection(address, timeout=120)
    with contextlib.suppress(OSError):  # refused before all of it was sent; there may still be an answer
        connection.request("POST", path, body, {"content-type": "application/json"})
    try:
        answer = connection.getresponse()
        answer.read()
        return answer.status
    except (OSError, HTTPException):
        return 0
    finally:
        connection.close()


def _status(pid: int, name: str) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(name + ":"):
            return int(line.split()[1]) * 1024
    raise LookupError(name)


def main(arguments: list[str] | None = None) -> None:
    import gemel
    from comparison_flags import WORK, comparison, environments_of, result_file
    from machine import describe
    from serve_systems import start

    parse = comparison(__doc__, "serve-bodies.json")
    parse.add_argument("--model", default="all-MiniLM-L6-v2")
    parse.add_argument("--only", default="", help="kinds whose name holds this")
    options = parse.parse_args(arguments)
    folder = Path(gemel.load(options.model, offline=True).checkpoint.folder)
    (WORK / "work").mkdir(parents=True, exist_ok=True)
    server = start("gemel", folder, options.threads, environments_of(options), WORK / "work")
    result: list[BodyResult] = []
    try:
        address = f"127.0.0.1:{server.port}"
        post(address, "/embed", b'{"inputs": ["warm", "up"]}')
        for kind in kinds():
            if options.only in kind.name:
                result.append(send(address, kind, server.pid))
                print(json.dumps(asdict(result[-1])), file=sys.stderr, flush=True)
        alive = server.alive()
    finally:
        server.close()
    whole = {
        "made": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": describe(),
        "goals": GOALS,
        "alive": alive,
        "worst": {name: max(getattr(each, name) for each in result) for name in GOALS},
        "bodies": [asdict(each) for each in result],
    }
    if out := None if options.only else result_file(options):
        out.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    print(json.dumps({"alive": alive, **whole["worst"]}))


if __name__ == "__main__":
    main()
