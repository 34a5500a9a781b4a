"""The nginx example of docs/how-to/serve.md, run in front of two servers, one of which ends or is killed."""

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path

import numpy as np
import pytest

import gemel
from serve_case import app_of, live, make_services
from serve_fake import FakeModel
from tiny import tiny_bert

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
CONFIG = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; {user}
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fast;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {example}
}}
"""

ROUNDS = 6  # of each of four clients: a vector, a document, a search

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def ask(address, text):
    connection = HTTPConnection(address, timeout=20)
    body = json.dumps({"model": "fake", "input": text})
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def wait_for(address, process, folder):
    for _ in range(500):
        try:
            socket.create_connection(address.split(":"), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, (folder / "error.log").read_text()
            threading.Event().wait(0.01)
    raise AssertionError("nginx does not listen")


@contextmanager
def nginx(folder, *servers, change=("", "")):
    """nginx with the example of the docs in front of these two; its host:port. `change`: old and new words of it."""
    example = re.search(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    port = free_port()
    for old, server in zip(("8081", "8082"), servers, strict=True):
        example = example.replace(old, server.rpartition(":")[2])
    example = example.replace("127.0.0.1:8080", f"127.0.0.1:{port}").replace(*change)
    user = "user root;" if Path("/proc/self").stat().st_uid == 0 else ""
    config = folder / "nginx.conf"
    config.write_text(CONFIG.format(folder=folder, example=example, user=user))
    process = subprocess.Popen([NGINX, "-c", config, "-e", folder / "error.log"])
    try:
        wait_for(f"127.0.0.1:{port}", process, folder)
        yield f"127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGQUIT)
        process.wait(20)


def test_the_example_of_the_docs_spreads_requests_and_survives_a_server(tmp_path):
    first, second = make_services(FakeModel()), make_services(FakeModel())
    with live(app_of(second)) as stays, ExitStack() as leaving:
        leaves = leaving.enter_context(live(app_of(first)))
        with nginx(tmp_path, leaves, stays) as address:
            answers = [ask(address, f"text {n}") for n in range(20)]
            assert [answer.status for answer in answers] == [200] * 20
            assert all(len(answer.headers["x-request-id"]) == 32 for answer in answers)
            assert first.counters.texts.total and second.counters.texts.total
            leaving.close()
            assert [ask(address, f"after {n}").status for n in range(20)] == [200] * 20
            connection = HTTPConnection(address, timeout=20)
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 403
            connection.close()


@contextmanager
def serving(model, index):
    """A separate server process on the index folder, and its host:port."""
    command = [sys.executable, "-m", "gemel", "serve", "--model", model, "--index", f"notes={index}"]
    command += ["--port", "0", "--threads", "1", "--log", "none"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        lines = [process.stderr.readline() for _ in range(3)]
        assert lines[-1].startswith("try: curl"), "".join(lines) + process.stderr.read()
        yield process, re.search(r"http://([\d.:]+) ", lines[0])[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


class Client:
    """Retries until it gets an answer; counts the retries."""

    def __init__(self, address, answered):
        self._address, self._answered = address, answered
        self.again = 0

    def post(self, route, content):
        for _ in range(200):
            connection = HTTPConnection(self._address, timeout=20)
            try:
                connection.request("POST", route, json.dumps(content), {"content-type": "application/json"})
                answer = connection.getresponse()
                body = answer.read()
                if answer.status == 200:
                    self._answered.release()
                    return json.loads(body)
                assert answer.status in (429, 502, 503, 504), body
            except (OSError, HTTPException):
                pass
            finally:
                connection.close()
            self.again += 1
            threading.Event().wait(0.02)
        raise AssertionError("never answered")

    def work(self, name, rounds, out):
        for n in range(rounds):
            text = f"a man {name} {n}"
            vector = self.post("/v1/embeddings", {"model": "tiny", "input": text})["data"][0]["embedding"]
            document = {"id": f"{name}-{n}", "text": text}
            self.post("/indexes/notes/documents", {"documents": [document], "existing": "replace"})
            hits = self.post("/indexes/notes/search", {"query": text, "k": 5})["hits"]
            out.append((text, vector, f"{name}-{n}" in [hit["id"] for hit in hits]))


@pytest.mark.timeout(200)
def test_one_of_two_servers_of_an_index_is_killed_and_no_request_is_lost(tmp_path):
    pytest.importorskip("lance", reason="an index in a folder needs lance")
    model, index = str(tiny_bert(tmp_path / "tiny")), tmp_path / "notes"
    with gemel.open_index(index, model=model) as made:
        made.add([f"the cat {n}" for n in range(50)], ids=[f"old-{n}" for n in range(50)])
    answered, done = threading.Semaphore(0), []
    # Clients write here, so nginx itself repeats nothing that may have arrived: the docs say so.
    change = ("http_503 non_idempotent", "http_503")
    with (
        serving(model, index) as (dies, first),
        serving(model, index) as (_, second),
        nginx(tmp_path, first, second, change=change) as address,
    ):
        clients = [Client(address, answered) for _ in range(4)]
        threads = [
            threading.Thread(target=client.work, args=(f"c{number}", ROUNDS, done))
            for number, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for _ in range(4 * ROUNDS):  # of three times as many
            assert answered.acquire(timeout=60)
        dies.kill()  # SIGKILL, with four requests under way
        for thread in threads:
            thread.join(100)
    assert len(done) == 4 * ROUNDS
    assert dies.returncode == -signal.SIGKILL
    vectors = gemel.load(model).encode([text for text, _, _ in done], normalize=True)
    np.testing.assert_allclose([vector for _, vector, _ in done], vectors, atol=1e-6)
    assert all(result for _, _, result in done)
    with gemel.open_index(index) as after:
        assert len(after) == 50 + 4 * ROUNDS
