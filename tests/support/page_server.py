"""A test server for the page: the page's own router, and routes with fixed answers."""

import asyncio
import threading

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from gemel.serve.protocols.operations import page_routes

TRAP = '<img src=x onerror="window.trapped = 1">'
KEY = "a-key-that-is-long-enough"


class PageServer:
    """Runs in a thread. `requests` has (path, body) of each request; `wants_key` makes it answer 401."""

    def __init__(self):
        self.requests = []
        self.wants_key = False
        self.fails = None
        self.holds = lambda path, body: False
        """An answer waits as long as this is true."""
        self.app = self._app()
        config = uvicorn.Config(self.app, port=0, log_level="error", lifespan="off", ws="none")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self):
        self._thread.start()
        while not self._server.started:
            threading.Event().wait(0.01)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    def __exit__(self, *_):
        self._server.should_exit = True
        self._thread.join(10)

    def bodies(self, path):
        return [body for requested, body in self.requests if requested == path]

    def _app(self):
        answers = {
            "/search": search,
            "/pairs": pairs,
            "/clusters": clusters,
            "/explain": explain,
        }
        routes = [Route(path, self._route(answer), methods=["POST"]) for path, answer in answers.items()]
        for path, answer in {
            "/indexes": INDEXES,
            "/status": STATUS,
            "/v1/models": MODELS,
            "/info": INFO,
        }.items():
            routes.append(Route(path, self._route(answer)))
        return Starlette(routes=[*page_routes(), *routes])

    def _route(self, answer):
        async def route(request: Request):
            path = request.url.path
            body = await request.json() if request.method == "POST" else None
            if self.wants_key and request.headers.get("authorization") != f"Bearer {KEY}":
                return JSONResponse({"error": {"message": "an API key is needed"}}, 401)
            self.requests.append((path, body))
            if self.fails is not None and body is not None:
                return JSONResponse({"error": {"message": self.fails}}, 429, {"Retry-After": "3"})
            while self.holds(path, body):
                await asyncio.sleep(0.01)
            return JSONResponse(answer(body) if callable(answer) else answer)

        return route


MODELS = {"object": "list", "data": [{"id": "tiny-model", "object": "model"}]}
INFO = {
    "model_id": "tiny-model",
    "model_type": {
        "embedding": {"pooling": "mean"},
        "sparse": {"model_id": "tiny-splade"},
        "late_interaction": {"model_id": "tiny-colbert"},
    },
    "max_input_length": 256,
    "version": "0.1.0",
}
NOTES = {"name": "notes", "documents": 1234, "fields": {"lang": "text"}}
INDEXES = {"indexes": [{**NOTES, "modes": ["dense", "sparse", "words", "hybrid"], "mode": "dense"}]}
STATUS = {
    "model": "tiny-model",
    "engine": "native",
    "uptime_seconds": 3725.0,
    "throughput": {"requests_per_second": 64.0, "texts_per_second": 812.4, "tokens_per_second": 9200.0},
    "latency": {"total": {"p50": 0.0042, "p95": 0.0131, "p99": 0.02}},
    "queue": {"texts": 3, "tokens": 41},
    "batches": {"count": 9, "texts_p50": 8, "failed": 0},
    "cache": {"hits": 30, "misses": 10},
    "memory_bytes": 312_000_000,
    "rejected": {"queue": 2},
}


def search(body):
    texts = body.get("texts") or ["A note of the index.", TRAP, "Another note."]
    mode = body.get("mode", "dense")
    dense = mode in ("dense", "hybrid")
    hits = [
        {
            "id": str(position),
            "score": 0.9 - 0.1 * position,
            "cosine": 0.9 - 0.1 * position if dense else None,
            "percentile": (99.96 if position == 0 else 80.0) if dense else None,
            "text": text,
            "part": 0,
            "fields": {"lang": "en"} if "index" in body else {},
            "relation": {"entailment": 0.8, "neutral": 0.2} if position == 0 else None,
        }
        for position, text in enumerate(texts[: body["k"]])
    ]
    by = {"dense": "cosine", "hybrid": "fusion"}.get(mode, mode)
    return {"hits": hits, "mode": mode, "scored_by": by, "exact": True, "seconds": 0.0042}


def pairs(body):
    texts = body["texts"]
    result = [
        {
            "left": at,
            "right": at + 1,
            "score": 0.95 - 0.01 * at,
            "percentile": 99.999 - at,
            "expected_false": 0.01 * (at + 1),
            "left_text": texts[at],
            "right_text": texts[at + 1],
        }
        for at in range(min(len(texts) - 1, 150))
    ]
    return {
        "pairs": result,
        "complete": True,
        "compared": len(texts) * (len(texts) - 1) // 2,
        "seconds": 1.26,
    }


def clusters(body):
    count = len(body["texts"])
    labels = [-1 if at == count - 1 else at % 3 for at in range(count)]
    members = {label: [at for at in range(count) if labels[at] == label] for label in range(3)}
    return {
        "clusters": [
            {"label": label, "size": len(own), "title": f"theme {label}", "members": own}
            for label, own in members.items()
        ],
        "points": [
            {"x": (at % 5) / 5, "y": at / count, "cluster": labels[at], "index": at} for at in range(count)
        ],
    }


def matches(body):
    """Each word of the query that is in the text, what it would add, and one that is only meant."""
    text, query = body["right"], body["left"].split()
    there = [word for word in query if word in text]
    rows = [
        {
            "left": word,
            "right": word,
            "adds": 2.0 / (1 + at),
            "spans": [[text.index(word), text.index(word) + len(word)]],
        }
        for at, word in enumerate(there)
    ]
    rows += [{"left": "[MASK]", "right": "meant", "adds": 0.25, "spans": []}] * (body["mode"] == "late")
    rows += [{"left": "meant", "right": "meant", "adds": 0.25, "spans": []}] * (body["mode"] == "sparse")
    missing = [word for word in query if word not in text]
    score = sum(row["adds"] for row in rows)
    texts = {"left": body["left"], "right": text}
    return {**texts, "mode": body["mode"], "score": score, "matches": rows, "missing": missing}


def explain(body):
    if body.get("mode", "dense") != "dense":
        return matches(body)
    left, right = body["left"].split(), body["right"].split()
    table = [
        [0.4 / (len(left) * len(right)) * (1 + (i == j)) - 0.05 * (i == j + 1) for j in range(len(right))]
        for i in range(len(left))
    ]
    return {
        "left": body["left"],
        "right": body["right"],
        "score": sum(map(sum, table)),
        "left_tokens": ["[CLS]", *left],
        "right_tokens": right,
        "table": [[0.0] * len(right), *table],
        "left_words": left,
        "right_words": right,
        "word_table": table,
    }
