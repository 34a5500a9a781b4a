"""The nginx example of docs/serve.md, started for real in front of two servers."""

import json
import re
import shutil
import signal
import socket
import subprocess
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from serve_case import app_of, live, make_services
from serve_fake import FakeModel

PAGE = Path(__file__).parent.parent / "docs" / "serve.md"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")
WHOLE = """
daemon off; worker_processes 1; pid {folder}/nginx.pid; error_log {folder}/error.log; {user}
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body; proxy_temp_path {folder}/proxy; fastcgi_temp_path {folder}/fast;
    uwsgi_temp_path {folder}/uwsgi; scgi_temp_path {folder}/scgi;
    {example}
}}
"""


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return listening.getsockname()[1]


def ask(place, text):
    connection = HTTPConnection(place, timeout=20)
    body = json.dumps({"model": "fake", "input": text})
    connection.request("POST", "/v1/embeddings", body, {"content-type": "application/json"})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer


def wait_for(place, process, folder):
    for _ in range(500):
        try:
            socket.create_connection(place.split(":"), timeout=1).close()
            return
        except OSError:
            assert process.poll() is None, (folder / "error.log").read_text()
            threading.Event().wait(0.01)
    raise AssertionError("nginx does not listen")


@pytest.mark.skipif(NGINX is None, reason="nginx is not installed")
def test_the_example_of_the_docs_spreads_requests_and_survives_a_server(tmp_path):
    example = re.search(r"```nginx\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1]
    first, second = make_services(FakeModel()), make_services(FakeModel())
    port = free_port()
    with live(app_of(second)) as stays:
        with live(app_of(first)) as leaves:
            for old, new in (("8081", leaves), ("8082", stays)):
                example = example.replace(old, new.rpartition(":")[2])
            example = example.replace("127.0.0.1:8080", f"127.0.0.1:{port}")
            user = "user root;" if Path("/proc/self").stat().st_uid == 0 else ""
            config = tmp_path / "nginx.conf"
            config.write_text(WHOLE.format(folder=tmp_path, example=example, user=user))
            process = subprocess.Popen([NGINX, "-c", config, "-e", tmp_path / "error.log"])
            place = f"127.0.0.1:{port}"
            try:
                wait_for(place, process, tmp_path)
                answers = [ask(place, f"text {n}") for n in range(20)]
                assert [answer.status for answer in answers] == [200] * 20
                assert all(len(answer.headers["x-request-id"]) == 32 for answer in answers)
                assert first.figures.texts.total and second.figures.texts.total
            except BaseException:
                process.kill()
                raise
        try:
            assert [ask(place, f"after {n}").status for n in range(20)] == [200] * 20
            connection = HTTPConnection(place, timeout=20)
            connection.request("GET", "/metrics")
            assert connection.getresponse().status == 403
            connection.close()
        finally:
            process.send_signal(signal.SIGQUIT)
            process.wait(20)
