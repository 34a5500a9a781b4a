"""Bodies within the size limit that are expensive: counted before parsing, answered fast, small in memory."""

import asyncio
import ctypes
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.serve.test_process import serving

import gemel
from gemel.errors import InputError
from gemel.serve import routes as reading
from gemel.serve.connection import STEP, JsonCount
from gemel.serve.options import Limits, TooLarge
from gemel.serve.protocols import indexes, pairs, tei
from serve_case import app_of, client, make_services
from tiny import tiny_bert

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))
import serve_bodies  # noqa: E402 - the same kinds as the benchmark

KINDS = serve_bodies.kinds()
LINUX = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
SECONDS = 10.0  # for /health/live on any machine, however busy; benchmarks/serve_bodies.py measures it


def count(body, piece=STEP, limits=None):
    counted = JsonCount(limits or Limits())
    for start in range(0, len(body), piece):
        counted.feed(body[start : start + piece])
    return counted


def expected(tree):
    """Values, containers, strings of a tree, and its depth, counted by recursion."""
    if isinstance(tree, str):
        return 1, 0, 1, 0
    if not isinstance(tree, list | dict):
        return 1, 0, 0, 0
    parts = [expected(part) for part in (tree.values() if isinstance(tree, dict) else tree)]
    names = len(tree) if isinstance(tree, dict) else 0
    values, containers, strings = (sum(part[at] for part in parts) for at in range(3))
    return values + 1, containers + 1, strings + names, 1 + max((part[3] for part in parts), default=0)


TREES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(alphabet='a"\\,[]{}: é😀\n'),
    lambda inside: st.lists(inside) | st.dictionaries(st.text(alphabet='b"\\]'), inside),
)


@given(TREES.filter(lambda tree: isinstance(tree, list | dict)), st.integers(1, 40), st.booleans())
@settings(max_examples=50, deadline=None)
def test_values_are_counted_in_pieces_of_any_size(tree, piece, ascii_only):
    counted = count(json.dumps(tree, ensure_ascii=ascii_only).encode(), piece)
    values, containers, strings, depth = expected(tree)
    assert (counted.containers, counted.quotes // 2, counted.depth) == (containers, strings, 0)
    assert values - containers - 1 <= counted.values <= values + containers  # commas and brackets
    assert depth <= 20


@pytest.mark.parametrize(
    ("body", "what"),
    [
        (b"[" + b'"a",' * 300_000, "204,800 strings"),
        (b"[" + b"{}," * 30_000, "20,480 lists and objects"),
        (b"[" + b"1," * 600_000, "501,000 values"),
        (b'["' + b"x" * 5_000_000, "4,000,000 characters in its strings"),
        (b"[" + b"9" * 6_000_000, "5,010,000 digits in its numbers"),
    ],
)
@pytest.mark.parametrize("piece", [STEP, 1_000_000])
def test_each_limit_is_one_that_raising_another_raises(body, what, piece):
    with pytest.raises(TooLarge, match=what):
        count(body, piece)
    count(body, piece, Limits(texts=10_000, tokens=2_000_000))


@pytest.mark.parametrize("piece", [1, 2, 3, 7, STEP])
def test_an_escape_may_be_divided_between_two_pieces(piece):
    body = json.dumps(['\\"[[[', "\\\\", '"' * 9, "[[["]).encode()
    counted = count(body, piece)
    assert (counted.quotes, counted.containers, counted.depth) == (8, 1, 0)


def errors_of(kind, content):
    """How many errors pydantic makes of a content."""
    from pydantic import ValidationError

    try:
        kind.model_validate(content)
    except ValidationError as error:
        return error.error_count()
    return 0


@pytest.mark.parametrize(
    ("kind", "content"),
    [
        (tei.EmbedRequest, {"inputs": [{}] * 1000}),
        (tei.EmbedRequest, {"inputs": [1] * 1000 + ["a"]}),
        (tei.EmbedRequest, {"inputs": ["a"] * 1000 + [1]}),
        (tei.EmbedRequest, {"inputs": [[{}] * 1000] * 10}),
        (tei.RootRequest, {"inputs": [{}] * 1000}),
        (tei.PredictRequest, {"inputs": [[{}]] * 1000}),
        (tei.DecodeRequest, {"ids": ["a"] * 1000}),
        (pairs.PairsRequest, {f"field {number}": 1 for number in range(1000)}),
        (pairs.PairsRequest, {"texts": [1] * 1000, "other": [1] * 1000}),
        (indexes.AddRequest, {"documents": [{}] * 1000}),
        (indexes.AddRequest, {"documents": [{"text": "a", **{f"x{n}": 1 for n in range(1000)}}]}),
        (
            indexes.AddRequest,
            {"documents": [{"text": "a", "fields": {f"x{n}": [[]] for n in range(1000)}}]},
        ),
    ],
)
def test_a_thousand_mistakes_are_a_few_errors(kind, content):
    assert 1 <= errors_of(kind, content) <= 10


def test_an_unknown_field_inside_a_document_is_named_and_cut():
    body = json.dumps({"documents": [{"text": "a"}, {"text": "b", "k" * 10_000: 1}]}).encode()
    headers = [(b"content-type", b"application/json")]
    scope = {"type": "http", "headers": headers, "state": {"body": body}}
    with pytest.raises(InputError, match=r"documents\[1\]: unknown field 'kkk") as refused:
        asyncio.run(reading.parse_body(scope, indexes.AddRequest))
    assert len(str(refused.value)) < 300
    assert "body" not in scope["state"]  # its bytes are freed


def test_a_large_body_is_parsed_on_another_thread(tmp_path, monkeypatch):
    model = gemel.load(tiny_bert(tmp_path / "tiny"))
    used = []
    parsed = reading._parsed

    def note(body):
        import threading

        used.append(threading.current_thread().name)
        return parsed(body)

    monkeypatch.setattr(reading, "_parsed", note)

    async def go():
        services = make_services(model)
        async with client(app_of(services)) as http:
            small = await http.post("/embed", json={"inputs": "a"})
            large = await http.post("/embed", json={"inputs": ["a " * 50_000]})
        await services.close()
        return small.status_code, large.status_code

    assert asyncio.run(go()) == (200, 200)
    assert used[0] == "MainThread" and used[1].startswith("gemel-parse")


def test_large_answers_are_the_same_in_parts(tmp_path, monkeypatch):
    model = gemel.load(tiny_bert(tmp_path / "tiny"))
    texts = [f"a man number {number}" for number in range(40)]
    requests = [
        ("/embed", {"inputs": texts}),
        ("/embed_all", {"inputs": texts}),
        ("/tokenize", {"inputs": texts}),
        ("/v1/embeddings", {"input": texts, "model": "tiny"}),
        ("/v1/embeddings", {"input": texts, "model": "tiny", "encoding_format": "base64"}),
    ]

    async def go():
        services = make_services(model)
        async with client(app_of(services)) as http:
            answers = [(await http.post(path, json=body)).json() for path, body in requests]
        await services.close()
        return answers

    complete = asyncio.run(go())
    monkeypatch.setattr("gemel.serve.routes.LARGE_NUMBERS", 100)
    assert asyncio.run(go()) == complete


def test_a_long_text_has_the_tokens_that_it_has_in_one_call(tmp_path):
    tokenizer = gemel.load(tiny_bert(tmp_path / "tiny")).tokenizer
    text = "a man plays. " * 2000  # more than what is tokenized in one call that holds up other threads
    ids = tokenizer._tokenizer.encode(text, add_special_tokens=False).ids
    assert (
        tokenizer.content([text])[0].tolist() == tokenizer.content([text], parallel=False)[0].tolist() == ids
    )
    assert [piece.id for piece in tokenizer.pieces(text, special=False)] == ids
    assert len(tokenizer.offsets(text)) == len(ids)


def test_there_are_twenty_kinds_from_every_protocol():
    paths = {kind.path for kind in KINDS}
    assert len(KINDS) >= 20 and len({kind.name for kind in KINDS}) == len(KINDS)
    assert {"/v1/embeddings", "/v1/rerank", "/v2/rerank", "/embed", "/", "/pairs", "/search"} <= paths


@LINUX
def test_no_body_within_the_size_limit_blocks_the_server_or_fills_its_memory(tmp_path):
    """All kinds except those with real work for the model."""
    hostile = [kind for kind in KINDS if kind.name not in {each.name for each in KINDS[-11:]}]
    assert len(hostile) >= 30
    with serving(tiny_bert(tmp_path / "tiny"), "--log", "none", "--name", "m") as (process, address):
        assert serve_bodies.post(address, "/embed", b'{"inputs": ["a", "b"]}') == 200
        for kind in hostile:
            result = serve_bodies.send(address, kind, process.pid, settle=0.0)
            assert result.status in (200, 400, 404, 413, 424), result
            assert result.live_ms < 1000 * SECONDS, result
            assert result.memory_mb < serve_bodies.GOALS["memory_mb"] + 16, result
        assert process.poll() is None
        assert serve_bodies.post(address, "/embed", b'{"inputs": ["a", "b"]}') == 200


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="an allocator other than glibc's")
def test_freed_memory_is_given_back():
    code = """
from gemel.serve.telemetry import memory_bytes, trim_memory
large = [bytearray(b"x" * 100_000) for _ in range(400)]
above = bytearray(b"x" * 100_000)
del large
before = memory_bytes()
trim_memory()
print(before - memory_bytes())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert int(done.stdout) > 30_000_000
