"""Write docs/reference/serve-api.md: a real request to every route of the server, with its answer.

This is not part of `generate.py`, because it needs the default model. Long answers are shortened.
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import uvicorn

from gemel.index.open import open_index
from gemel.model import load
from gemel.serve.app import create_app
from gemel.serve.options import ServeOptions
from gemel.serve.services import Services

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "serve-api.md"
MODEL = "all-MiniLM-L6-v2"
GUITAR, MUSIC, STOCKS = (
    "A man is playing a guitar.",
    "Someone plays an instrument.",
    "The stock market fell today.",
)
TEXTS = [GUITAR, MUSIC, STOCKS]
CHANGING = {
    *("created", "seconds", "engine", "uptime_seconds", "throughput", "total", "latency"),
    *("queue", "batches", "cache", "rejected", "memory_bytes", "total_duration"),
}
"""Fields whose values differ between calls or machines; they are not shown."""

HEAD = """# HTTP routes of the server

Written by `tools/docs/serve_api.py`, which sent these requests to a server with all-MiniLM-L6-v2 and an index `notes`.
Long answers are shortened with `…`, which also replaces values that differ from call to call. To start and operate a
server, see [how to serve](../how-to/serve.md); `GET /openapi.json` describes every field.

Bodies are uncompressed JSON with the header `content-type: application/json`. If the server has keys, add
`-H "authorization: Bearer KEY"`. A request over a limit gets 413, a request that finds the queue full gets 429 with
`retry-after`, an invalid request gets 400; the message in the answer states the problem.

| routes | format of errors |
|---|---|
| `/v1/...`, `/openai/...`, `/embeddings`, `/score` | `{"error": {"message", "type", "param", "code"}, "detail"}` |
| `/v1/embed`, `/v2/embed`, `/v2/rerank` | `{"message", "error": {"message", "type"}}` |
| `/api/...` | `{"error"}`, as in Ollama |
| those of text-embeddings-inference | `{"error", "error_type"}`, as in text-embeddings-inference |
| all others | `{"error": {"message", "type"}}` |

The first form is that of the OpenAI API, with `detail` for clients of Voyage; in the second, clients of Cohere read
`message`.
"""
OPENAI = """## OpenAI

```python
import openai

client = openai.OpenAI(base_url="http://localhost:8080/v1", api_key="unused")
answer = client.embeddings.create(model="all-MiniLM-L6-v2", input=["A man is playing a guitar."])
vector = answer.data[0].embedding
```

`input` is a string, a list of strings or of objects `{"text": ...}`, a list of token ids, or a list of such lists.
**Token ids are refused unless the server was started with `--accept-token-ids`**, and must then come from the tokenizer
of the served model: they are decoded to text without special tokens, and the text is encoded; ids that do not survive
this round trip are refused. Ids of tiktoken mean other words: `OpenAIEmbeddings` of LangChain sends such ids unless it
is created with `check_embedding_ctx_length=False`. `encoding_format` is `float` or `base64` (the bytes, little-endian).
`dimensions` keeps the first dimensions and normalizes again; use it with models that were trained for it (Matryoshka).
Vectors have length 1. Texts over the model's maximum length are truncated; `usage` counts the tokens that were used,
including special tokens. `model` may be left out if one model is loaded, and named with or without the owner of its
repository. `prompt_name` is an extension that selects a prompt of the model.

Fields of Voyage (`input_type`, `output_dtype`, `output_dimension`, `truncation`), Jina (`task`, `embedding_type`,
`truncate`, `normalized`) and vLLM are honored, or refused where they would change the answer and cannot be honored.
Fields that have no meaning here are ignored. `/embeddings` (infinity), `/openai/v1/embeddings` and
`/openai/deployments/NAME/embeddings?api-version=...` (Azure) are the same route.
"""
TEI = """## text-embeddings-inference

```python
from huggingface_hub import InferenceClient

client = InferenceClient(model="http://localhost:8080")
vectors = client.feature_extraction(["A man is playing a guitar."])
scores = client.sentence_similarity(
    "A man is playing a guitar.", other_sentences=["Someone plays an instrument."]
)
```

`truncate: false` refuses texts over the model's maximum length; otherwise they are truncated at the end or, with
`truncation_direction: "Left"`, at the beginning. `POST /` is `/embed`, or `/similarity` if `inputs` has a
`source_sentence`. `/embed_sparse` needs a server with `--sparse`, and answers 424 without: see
[sparse vectors](#sparse-vectors).
"""
RERANK = """
`/rerank`, `/v2/rerank` and `/v1/rerank` return the scores of the cross-encoder of `--rerank` after a sigmoid
(`raw_scores`: the output itself). Without a cross-encoder, the model of `--late` scores; with both, it does so for
requests that name it as `model`. They then return (1 + x) / 2, where x is the MaxSim divided by the number of vectors
of the query (`raw_scores`: the MaxSim). Without either they return (1 + cosine) / 2 (`raw_scores`: the cosine), as in
the answer above. `/v1/score` returns the cross-encoder's score after a sigmoid, the MaxSim, or the cosine.
`meta.score_kind` of `/v1/rerank` and `/v2/rerank` says which: `probability`, `maxsim` or `cosine`.

`/predict` and `/relation` need a model with a classification head (`gemel train --objective classification`) or a
cross-encoder with classes. Their inputs are pairs of texts. Without either:
"""
COHERE = """## Cohere

`input_type` selects the model's prompt for queries or documents, if it has one. `embedding_types` are `float`, `int8`,
`uint8`, `binary`, `ubinary` and `base64`; `truncate` is `END`, `START` or `NONE`, which refuses long texts. Images are
refused.
"""
OLDER = """## Jina, Voyage, vLLM, infinity

`/v1/rerank` is the format that these share: documents may be objects with a `text`, `top_k` is another word for
`top_n`, and the rows are in `results` and in `data`. `/rerank` is the same if the body has `documents` instead of
`texts`. `/v1/score` (also `/score`) pairs `text_1` with each of `text_2`, or one to one.
"""
OLLAMA = """## Ollama

`options` and `keep_alive` are ignored. A model may be named `NAME:latest`.
"""
OWN = """## Search, pairs, clusters

`/search` searches an index (`"index": "notes"`) or the texts of the request. `percentile` is the percentage of random
pairs of these texts, or of passages of the index, with a lower cosine; it is null for fewer than 46 texts. For an index
it is estimated from a sample of up to 2,000 passages, drawn again when the index has grown by half. `relation` contains
the probabilities of the model's classification head, or null if there is none. Use `k` and `offset` for paging.

| `mode` | ranks by | `scored_by` |
|---|---|---|
| `dense` | vectors | `cosine` |
| `sparse` | weights of words (`--sparse`); texts without a common word are left out | `sparse`: their product |
| `late` | vectors of tokens (`--late`) | `late`: the MaxSim |
| `words` | words; texts without one of the query are left out | `words`: BM25 |
| `hybrid` | several of these rankings, fused with `weights` | `fusion`: reciprocal ranks |

Without a `mode` it is that of the index, `hybrid` if there are `weights`, or `dense` for texts. `hybrid` fuses all that
there is, without words where there are weights of words; a weight of 0 leaves a ranking out. `"hybrid": true` is short
for that mode. `rerank` sorts the best results again, with the cross-encoder (`scored_by`: `cross`) or else by late
interaction. `cosine` is null if the search did not use vectors. An index has the modes of the vectors that it stores.
"""
PAIRS = """
Give one of `k`, `min_score` and `expected_false` (the number of random pairs that may be included; needs 46 texts or
more); `other` compares two sets of texts. At most 10,000 pairs are returned; `complete` is false if there were more.
"""
CLUSTERS = """
`min_score` selects communities, `k` selects k-means; `method` can be any method of `gemel cluster`. The coordinates of
the map come from t-SNE for up to 1,000 texts and from PCA for more, or as `layout` says. Agglomerative clustering,
HDBSCAN and an explicit t-SNE accept at most 2,000 texts here: for more use `gemel cluster`.
"""
EXPLAIN = """## Explanations

Both tables sum to the score; a negative cell lowers it. Texts may have up to 512 tokens.
"""
MATCHES = """
With another `mode`, `left` is a query and `right` a text that it found. `sparse` lists the words of both with the
product of their weights, `late` the best token of the text for each token of the query with the product of their
vectors, `words` the common words. `adds` of all `matches` sums to the score. `spans` says where a match is in the text,
in characters (code points); it is empty for a word that the sparse encoder adds to the text, and for special tokens.
`missing` has the words of the query that the text lacks. With `index`, the models of that index are used, and its rules
for words.
"""
SPARSE = """## Sparse vectors

A server that was started with `--sparse` has two routes for weights of words. `/embed_sparse` is that of
text-embeddings-inference: `inputs`, `truncate`, `truncation_direction` and `prompt_name` as in `/embed`; the answer
has, for each input, a list of `{"index": …, "value": …}`, by ascending index (the id of the token). `/v1/sparse` also
names the tokens, heaviest first:

```text
{"object": "list", "data": [{"index": 0, "object": "sparse_embedding", "indices": […], "values": […],
  "tokens": […]}], "model": …, "dimensions": …, "usage": …}
```

`input_type` is `query` or `document`: with the prompt and the modules of that side, if the encoder has them (for
`/embed_sparse`, `prompt_name` is one of these words). `max_active_dims` keeps only the largest weights. Without
`--sparse`:
"""
INDEXES = """## Indexes

These routes use the indexes that the operator opened with `--index`, by the names given there. A document has a `text`,
an `id` (derived from the text if no document has one) and `fields`; `existing` controls what happens to existing ids:
`error`, `replace`, `skip`. A write to a folder or to PostgreSQL is on disk when it is answered. `where` accepts
`"lang = 'en' and year >= 2020"` or `{"lang": "en", "year": {">=": 2020}}`.

Searches take the options of `index.search` in Python: `group_by` and `per_group`, `min_score`, `diversity`, `recall`,
`candidates`, `exact`. `more_like` searches by examples. `list` goes through all documents page by page: `next` of an
answer is `after` of the next request. `get` and `list` return stored vectors if `vectors` names their kinds.
"""
SNAPSHOTS = """With `--snapshots FOLDER`, `POST /indexes/NAME/snapshots` copies an index as it is now to a folder below
`FOLDER/NAME`, while it is in use, and `GET` lists these copies. Keys that are read-only may list them, not make them.
The operator restores one with `gemel index restore FOLDER/NAME/SNAPSHOT LOCATION`. Without that option:
"""


class Example(NamedTuple):
    """One request."""

    path: str
    body: Any = None
    method: str = "POST"

    @property
    def curl(self) -> str:
        address = f"http://localhost:8080{self.path}"
        address = f"'{address}'" if "?" in address else address  # for the shell
        if self.body is None:
            return f"curl {address}"
        verb = "" if self.method == "POST" else f"-X {self.method} "
        content = json.dumps(self.body, ensure_ascii=False).replace("'", "'\\''")
        return f"curl {verb}{address} -H 'content-type: application/json' \\\n  -d '{content}'"


DOCUMENTS = [
    {"id": "a1", "text": GUITAR, "fields": {"lang": "en", "year": 2020}},
    {"id": "a2", "text": STOCKS, "fields": {"lang": "en", "year": 2024}},
]
PARTS: list[str | Example] = [
    HEAD,
    OPENAI,
    Example("/v1/embeddings", {"model": MODEL, "input": [GUITAR, MUSIC]}),
    Example(
        "/v1/embeddings", {"model": MODEL, "input": GUITAR, "dimensions": 4, "encoding_format": "base64"}
    ),
    Example("/v1/embeddings", {"input": [{"text": GUITAR}], "embedding_type": ["float", "ubinary"]}),
    Example("/v1/embeddings", {"input": GUITAR, "output_dtype": "int8", "output_dimension": 8}),
    Example("/v1/embeddings", {"input": [[32, 893, 374, 5737, 264, 17418, 13]]}),
    Example("/openai/deployments/all-MiniLM-L6-v2/embeddings?api-version=2024-02-01", {"input": GUITAR}),
    Example("/v1/models", method="GET"),
    Example("/v1/embeddings", {"model": "text-embedding-3-small", "input": GUITAR}),
    TEI,
    Example("/embed", {"inputs": GUITAR, "dimensions": 3}),
    Example("/embed_all", {"inputs": GUITAR}),
    Example("/similarity", {"inputs": {"source_sentence": GUITAR, "sentences": [MUSIC, STOCKS]}}),
    Example("/tokenize", {"inputs": "A man is playing"}),
    Example("/decode", {"ids": [101, 1037, 2158, 2003, 2652, 102]}),
    Example("/info", method="GET"),
    Example("/rerank", {"query": "Who plays music?", "texts": TEXTS}),
    RERANK,
    Example("/predict", {"inputs": [GUITAR, MUSIC]}),
    COHERE,
    Example("/v2/embed", {"model": MODEL, "texts": [GUITAR], "input_type": "search_document"}),
    Example("/v2/embed", {"texts": [GUITAR], "embedding_types": ["int8", "ubinary"], "output_dimension": 16}),
    Example("/v1/embed", {"model": MODEL, "texts": [GUITAR, MUSIC]}),
    Example("/v2/rerank", {"model": MODEL, "query": "Who plays music?", "documents": TEXTS, "top_n": 2}),
    OLDER,
    Example(
        "/v1/rerank",
        {
            "query": "Who plays music?",
            "documents": [STOCKS, {"text": GUITAR}],
            "top_n": 1,
            "return_documents": True,
        },
    ),
    Example("/v1/score", {"text_1": "Who plays music?", "text_2": [GUITAR, STOCKS]}),
    OLLAMA,
    Example("/api/embed", {"model": MODEL, "input": [GUITAR, MUSIC]}),
    Example("/api/embeddings", {"model": MODEL, "prompt": GUITAR}),
    Example("/api/tags", method="GET"),
    SPARSE,
    Example("/embed_sparse", {"inputs": GUITAR}),
    Example("/v1/sparse", {"input": GUITAR, "input_type": "document", "max_active_dims": 8}),
    OWN,
    Example("/search", {"query": "Who plays music?", "texts": TEXTS, "k": 2}),
    Example("/search", {"query": "guitar", "texts": TEXTS, "mode": "words"}),
    Example("/search", {"query": "guitar", "texts": TEXTS, "mode": "late"}),
    PAIRS,
    Example("/pairs", {"texts": TEXTS, "k": 1}),
    CLUSTERS,
    Example("/clusters", {"texts": TEXTS, "min_score": 0.5}),
    EXPLAIN,
    Example("/explain", {"left": "guitar music", "right": "a song"}),
    MATCHES,
    Example("/explain", {"left": "playing the guitar", "right": GUITAR, "mode": "words"}),
    Example("/relation", {"left": [GUITAR], "right": [MUSIC]}),
    INDEXES,
    Example("/indexes/notes/documents", {"documents": DOCUMENTS, "existing": "replace"}),
    Example("/indexes", method="GET"),
    Example("/indexes/notes", method="GET"),
    Example(
        "/indexes/notes/search", {"query": "falling shares", "k": 1, "where": "lang = 'en' and year >= 2021"}
    ),
    Example("/indexes/notes/search", {"query": "music", "k": 2, "group_by": "lang"}),
    Example("/indexes/notes/more_like", {"ids": ["a1"], "k": 1}),
    Example("/indexes/notes/facets", {"field": "lang"}),
    Example("/indexes/notes/count", {"where": "year >= 2021"}),
    Example("/indexes/notes/list", {"limit": 1}),
    Example("/indexes/notes/get", {"ids": ["a1"], "vectors": ["dense"]}),
    Example("/indexes/notes/documents", {"ids": ["a1"], "fields": {"lang": "fr"}}, "PATCH"),
    Example("/indexes/notes/documents", {"where": {"year": {"<": 2021}}}, "DELETE"),
    Example("/search", {"query": "falling shares", "index": "elsewhere"}),
    SNAPSHOTS,
    Example("/indexes/notes/snapshots", {}),
    "## The server itself\n\n`GET /status` returns the metrics of the web page; `/health` and `/metrics` are described "
    "in [how to serve](../how-to/serve.md).",
    Example("/status", method="GET"),
]


@contextmanager
def served() -> Iterator[httpx.Client]:
    """A client of a server on a free port."""
    model = load(MODEL)
    with open_index(":memory:", model) as index:
        app = create_app(Services(model, indexes={"notes": index}), ServeOptions(log="none"))
        server = uvicorn.Server(uvicorn.Config(app, port=0, log_level="error"))
        thread = threading.Thread(target=server.run, daemon=True)
        thread.start()
        while not server.started:
            thread.join(0.01)
        address = f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
        with httpx.Client(base_url=address, timeout=60) as client:
            yield client
        server.should_exit = True
        thread.join()


def run_example(client: httpx.Client, example: Example) -> str:
    """The request and its answer, as markdown."""
    answer = client.request(example.method, example.path, json=example.body)
    status = "" if answer.status_code == 200 else f"{answer.status_code}: "
    content = json.dumps(short(answer.json()), ensure_ascii=False).replace('"…"', "…")
    title = f"### {example.method} {example.path}"
    return f"{title}\n\n```sh\n{example.curl}\n```\n```text\n{status}{_wrapped(content)}\n```"


def short(content: Any, key: str = "") -> Any:  # noqa: ANN401 - any JSON
    """The answer with long lists cut, numbers rounded and changing values left out."""
    if key in CHANGING or (key == "id" and isinstance(content, str) and len(content) >= 36):
        return "…"
    if isinstance(content, dict):
        return {name: short(value, name) for name, value in content.items()}
    if isinstance(content, list):
        few = 3 if content and isinstance(content[0], float | int | list) else 4
        cut = [short(each) for each in content[:few]]
        return [*cut, "…"] if len(content) > few else cut
    return round(content, 4) if isinstance(content, float) else content


def _wrapped(content: str, width: int = 116) -> str:
    lines, line = [], ""
    for word in content.split(" "):
        if line and len(line) + 1 + len(word) > width:
            lines.append(line)
            line = "  " + word
        else:
            line = f"{line} {word}" if line else word
    return "\n".join([*lines, line])


def main() -> None:
    with served() as client:
        parts = [part if isinstance(part, str) else run_example(client, part) for part in PARTS]
    PAGE.write_text("\n\n".join(part.strip() for part in parts) + "\n", encoding="utf-8")
    sys.stderr.write(f"{PAGE} written\n")


if __name__ == "__main__":
    main()
