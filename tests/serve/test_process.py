"""`gemel serve` as a process: it prints its address, answers, drains at the first signal, stops at the second."""

import json
import os
import re
import signal
import subprocess
import sys
import threading
from contextlib import contextmanager
from http.client import HTTPConnection

import pytest

from gemel.cli.main import main
from tiny import tiny_bert


@contextmanager
def serving(folder, *flags, **variables):
    """The process and its host:port, once it is ready."""
    command = [sys.executable, "-m", "gemel", "serve", "--model", str(folder), "--port", "0", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        output = process.stderr.readline()
        address = re.search(r"http://([\d.:]+) ", output)
        assert address, output + process.stderr.read()
        assert "try: curl http://" in process.stderr.readline()
        yield process, address[1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def embed(host, text="a man", **headers):
    connection = HTTPConnection(host, timeout=30)
    body = json.dumps({"model": "tiny", "input": text})
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json", **headers})
    answer = connection.getresponse()
    content = json.loads(answer.read())
    connection.close()
    return answer.status, content


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("process") / "tiny")


def test_it_serves_and_ends_with_zero_at_sigterm_after_its_last_answer(folder):
    with serving(folder, "--log", "json") as (process, host):
        assert embed(host)[0] == 200
        slow = HTTPConnection(host, timeout=30)
        slow.putrequest("POST", "/v1/embeddings")
        body = json.dumps({"model": "tiny", "input": "a cat"}).encode()
        slow.putheader("content-type", "application/json")
        slow.putheader("content-length", str(len(body)))
        slow.endheaders(body[:5])  # under way when the signal comes
        assert embed(host)[0] == 200
        process.send_signal(signal.SIGTERM)
        slow.send(body[5:])
        assert slow.getresponse().status == 200
        slow.close()
        assert process.wait(20) == 0
        lines = [json.loads(line) for line in process.stderr]
        assert [line["status"] for line in lines] == [200] * 3


def test_the_second_signal_stops_immediately(folder):
    with serving(folder, "--log", "none", "--body-seconds", "60") as (process, host):
        slow = HTTPConnection(host, timeout=30)
        slow.putrequest("POST", "/v1/embeddings")
        slow.putheader("content-length", "100")
        slow.endheaders(b"{")
        assert embed(host)[0] == 200
        process.send_signal(signal.SIGTERM)
        threading.Event().wait(0.05)
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        slow.close()


def test_keys_of_the_environment_count(folder):
    key = "a-key-for-this-test-0123456789"
    with serving(folder, "--log", "none", GEMEL_API_KEYS=f"anna:{key}") as (_, host):
        assert embed(host)[0] == 401
        assert embed(host, authorization=f"Bearer {key}")[0] == 200


def test_a_process_over_its_memory_ends_to_be_restarted(folder):
    with serving(folder, "--log", "none", "--memory-limit", "1MB") as (process, _):
        assert process.wait(20) == 1
        assert "over its limit of 1 MB; it ended so that it can be restarted" in process.stderr.read()


OVER_ITS_MEMORY = """
import asyncio, sys, time
from gemel.cli.main import main
from gemel.serve import run

def ready(_):
    def say(address, services):
        asyncio.get_running_loop().create_task(services.jobs.run(lambda: time.sleep(60)))
    return say

run.memory_bytes = lambda: 10**12
import gemel.cli.verbs.serve
gemel.cli.verbs.serve._say_ready = ready
arguments = ["--port", "0", "--log", "none", "--memory-limit", "1GB", "--grace-seconds", "1"]
sys.exit(main(["serve", "--model", sys.argv[1], *arguments]))
"""


def test_a_process_over_its_memory_does_not_wait_for_a_long_job(folder):
    command = [sys.executable, "-c", OVER_ITS_MEMORY, str(folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=40, check=False)
    assert done.returncode == 1
    assert "gemel serve: the memory of the server grew to 1,000,000 MB" in done.stderr


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--host", "0.0.0.0"], "Give --api-key-file, or --insecure"),
        (["--port", "70000"], "port must be from 0 to 65535"),
        (["--api-key-file", "absent.txt"], "the API keys cannot be read"),
        (["--model", "./absent-model"], "absent-model"),
        (["--host", "192.0.2.1", "--insecure"], "cannot listen on 192.0.2.1"),
        (
            ["--ssl-certfile", "absent.pem"],
            "HTTPS with absent.pem: No such file or directory. Give --ssl-certfile",
        ),
        (["--ssl-certfile", __file__], "no certificate with its private key in PEM was found"),
    ],
)
def test_a_wrong_request_is_refused_with_one_line(capsys, monkeypatch, flags, message):
    monkeypatch.delenv("GEMEL_API_KEYS", raising=False)
    assert main(["serve", "--port", "0", *flags]) == 2
    output = capsys.readouterr().err
    assert message in output and len(output.splitlines()) == 1
