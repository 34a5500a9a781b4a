"""HTTP: requests to the application by protocol, and raw bytes to the connection. Always an answer, never a 500."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from fuzz.target import Job, WrongAnswerError, target

SECONDS = 40.0  # the first request for clusters imports much, and the machine may be busy
POST = {
    "/v1/embeddings": {"model": "m", "input": ["a man", "a cat"], "encoding_format": "base64", "dimensions": 8},
    "/embed": {"inputs": ["a man"], "normalize": True, "truncate": True, "truncation_direction": "right"},
    "/embed_all": {"inputs": "a man", "truncate": True},
    "/embed_sparse": {"inputs": "a man"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b", "c"]}},
    "/": {"inputs": ["a man"]},
    "/rerank": {"query": "a", "texts": ["b", "c"], "return_text": True, "raw_scores": False, "truncate": True},
    "/predict": {"inputs": [["a", "b"], ["c", "d"]], "raw_scores": True},
    "/tokenize": {"inputs": ["a man"], "add_special_tokens": True},
    "/decode": {"ids": [[2, 5, 3]], "skip_special_tokens": True},
    "/v1/rerank": {"model": "c", "query": "a", "documents": ["b", {"text": "c"}], "top_n": 1},
    "/v2/rerank": {"model": "c", "query": "a", "documents": ["b", "c"], "top_n": 1},
    "/v1/score": {"model": "c", "text_1": "a", "text_2": ["b", "c"], "truncate_prompt_tokens": -1},
    "/v2/embed": {"model": "m", "texts": ["a man"], "input_type": "query", "embedding_types": ["float", "binary"],
                  "output_dimension": 8, "truncate": "START"},
    "/v1/embed": {"model": "m", "texts": ["a man"], "embedding_types": ["base64"], "truncate": "END"},
    "/api/embed": {"model": "m:latest", "input": ["a man"], "truncate": True, "dimensions": 8, "options": {}},
    "/api/embeddings": {"model": "m", "prompt": "a man"},
    "/openai/deployments/m/embeddings": {"input": [{"text": "a"}], "embedding_type": ["float", "base64"]},
    "/embeddings": {"input": ["a"], "output_dtype": "int8", "output_dimension": 8, "input_type": "query"},
    "/search": {"query": "a", "texts": ["b", "c", "d"], "k": 2, "offset": 0, "hybrid": True, "rerank": True},
    "/pairs": {"texts": ["a", "b", "a"], "k": 2, "min_score": 0.1, "relation": True},
    "/clusters": {"texts": ["a", "b", "c", "d"], "method": "k-means", "k": 2},
    "/explain": {"left": "a man", "right": "a cat", "mode": "words"},
    "/v1/sparse": {"model": "splade", "input": ["a man"], "input_type": "query", "max_active_dims": 3},
    "/relation": {"left": ["a"], "right": ["b"]},
    "/indexes/notes/search": {"query": "a man", "k": 3, "where": "year >= 1", "mode": "hybrid", "weights": {"words": 2},
                              "offset": 0},
    "/indexes/notes/get": {"ids": ["a", "zzz"]},
    "/indexes/notes/documents": {"existing": "replace", "documents": [{"id": "a", "text": "b", "fields": {"year": 3}}]},
}  # fmt: skip
GET = ("/", "/health", "/health/live", "/health/ready", "/metrics", "/status", "/info", "/v1/models", "/v1/models/m",
       "/openapi.json", "/page/api.js", "/indexes", "/indexes/notes")  # fmt: skip
COVERS = tuple(
    f"gemel.serve.{name}"
    for name in (
        "connection",
        "errors",
        "routes",
        "app",
        "options",
        "protocols.texts",
        "protocols.openai",
        "protocols.tei",
        "protocols.operations",
        "protocols.cohere",
        "protocols.rerank",
        "protocols.ollama",
        "protocols.search",
        "protocols.sparse",
        "protocols.pairs",
        "protocols.explain",
        "protocols.indexes",
    )
)


def _app(folder: Path) -> tuple[Any, Any]:
    """The application around tiny models and an index in memory, and its services."""
    from gemel.index.open import open_index
    from gemel.serve.options import Limits
    from gemel.texts.late_model import load_late
    from gemel.texts.sparse_model import load_sparse
    from serve_case import app_of, make_services
    from serve_models import light_cross, related_model
    from tiny_late import tiny_late
    from tiny_sparse import tiny_sparse

    model = related_model(folder)
    index = open_index(":memory:", model, fields={"year": "int", "lang": "text"})
    index.add(["a man", "the cat is sleeping"], ids=["a", "b"], fields={"year": [1, 2], "lang": ["en", None]})
    limits = Limits(texts=300, pair_texts=600, characters=5000)
    services = make_services(
        model,
        cross=light_cross(folder / "cross"),
        sparse=load_sparse(tiny_sparse(folder / "splade")),
        late=load_late(tiny_late(folder / "colbert")),
        indexes={"notes": index},
        limits=limits,
        name="m",
        cross_name="c",
        threads=1,
    )
    return app_of(services), services


def _request(method: str, path: str, body: object = None) -> bytes:
    head = f"{method} {path}\nhost: localhost\ncontent-type: application/json\n"
    return head.encode() + b"\n" + (b"" if body is None else json.dumps(body).encode())


@target("http", "http", *COVERS, limit_seconds=60.0)
def http(folder: Path) -> Job:
    """A request as lines: `POST /embed`, headers, an empty line, the body."""
    app, _ = _app(folder)
    loop = asyncio.new_event_loop()
    seeds = [_request("POST", path, body) for path, body in POST.items()] + [
        _request("GET", path) for path in GET
    ]
    seeds += [
        _request("DELETE", "/indexes/notes/documents", {"ids": ["zzz"]}),
        _request("HEAD", "/"),
        _request("OPTIONS", "/embed"),
    ]

    def ask(data: bytes) -> None:
        status, body = loop.run_until_complete(asyncio.wait_for(_answer(app, data), SECONDS))
        if status >= 500 and status not in (501, 503):
            raise WrongAnswerError(f"status {status}: {body[:300]!r}")

    return Job(seeds, ask, loop.close)


async def _answer(app: Any, data: bytes) -> tuple[int, bytes]:  # noqa: ANN401 - the application
    head, _, body = data.partition(b"\n\n")
    first, *lines = head.split(b"\n")
    method, _, address = first.partition(b" ")
    path, _, query = address.partition(b"?")
    headers = [tuple(part.strip() for part in line.split(b":", 1)) for line in lines if b":" in line]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method.decode("latin-1").upper(),
        "scheme": "http", "path": unquote_to_bytes(path).decode("utf-8", "replace") or "/", "raw_path": path,
        "query_string": query, "root_path": "",
        "headers": [(name.lower(), value) for name, value in headers], "state": {},
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 80),
    }  # fmt: skip
    parts = [body[: len(body) // 2], body[len(body) // 2 :]]
    status, answer = 0, b""

    async def receive() -> dict[str, Any]:
        if parts:
            return {"type": "http.request", "body": parts.pop(0), "more_body": bool(parts)}
        return await asyncio.Event().wait()  # type: ignore[return-value]  # the client stays and waits

    async def send(message: dict[str, Any]) -> None:
        nonlocal status, answer
        status = message.get("status", status)
        answer += message.get("body", b"")

    await app(scope, receive, send)
    return status, answer


class _Transport(asyncio.Transport):
    """A socket that keeps what is written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.written, self.closing = b"", False

    def get_extra_info(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        return ("127.0.0.1", 1) if name in ("peername", "sockname") else default

    def write(self, data: bytes) -> None:  # type: ignore[override]
        self.written += bytes(data)

    def is_closing(self) -> bool:
        return self.closing

    def close(self) -> None:
        self.closing = True

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...


@target(
    "http-bytes",
    "lines",
    "gemel.serve.connection",
    "gemel.serve.app",
    limit_seconds=60.0,
)
def http_bytes(folder: Path) -> Job:
    """Raw bytes to the connection, in two parts, then the client hangs up."""
    import uvicorn
    from uvicorn.server import ServerState

    from gemel.serve.connection import Connection

    app, _ = _app(folder)
    loop = asyncio.new_event_loop()
    config = uvicorn.Config(app, http=Connection, log_level="critical", lifespan="off", ws="none")
    config.load()
    body = b'{"inputs": "a man"}'
    good = (
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s"
        % (len(body), body)
    )
    chunked = (
        b"POST /embed HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n13\r\n"
        + body
        + b"\r\n0\r\n\r\n"
    )
    seeds = [
        good,
        good + good,
        chunked,
        b"GET /health/live HTTP/1.0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
    ]

    async def talk(data: bytes) -> bytes:
        state = ServerState()
        transport = _Transport()
        connection = Connection(config=config, server_state=state, app_state={}, _loop=loop)
        connection.connection_made(transport)
        for part in (data[: len(data) // 2], data[len(data) // 2 :]):
            if part and not transport.is_closing():
                connection.data_received(part)
            await asyncio.sleep(0)
        if state.tasks:
            await asyncio.wait(set(state.tasks), timeout=0.05)  # an incomplete body is waited for
        connection.connection_lost(None)
        if state.tasks:
            _, late = await asyncio.wait(set(state.tasks), timeout=SECONDS)
            if late:
                raise WrongAnswerError("a request continues after its client disconnected")
        return transport.written

    def ask(data: bytes) -> None:
        for line in loop.run_until_complete(talk(data)).split(b"\r\n"):
            if line.startswith(b"HTTP/1.1 5") and not line.startswith((b"HTTP/1.1 501", b"HTTP/1.1 503")):
                raise WrongAnswerError(line.decode("latin-1"))

    return Job(seeds, ask, loop.close)
