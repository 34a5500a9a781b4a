"""The compared servers, each a process with the same model and number of threads."""

from __future__ import annotations

import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from pathlib import Path

from environments import Environments
from workers import surroundings

PEERS = Path(__file__).parent / "peers"


class ServerError(Exception):
    """A server did not start; the text is its last line."""


@dataclass
class Server:
    """One running server."""

    name: str
    model: str
    """The name of the model in requests."""
    port: int
    command: list[str]
    health: str
    threads: int
    log: Path
    process: subprocess.Popen[bytes] = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    @property
    def pid(self) -> int:
        return self.process.pid

    def restart(self) -> None:
        """A new process; returns when it answers."""
        if hasattr(self, "process"):
            self.process.wait()
        with self.log.open("ab") as errors:
            variables = surroundings(self.threads, ours=self.name == "gemel")
            self.process = subprocess.Popen(
                self.command, stdout=subprocess.DEVNULL, stderr=errors, env=variables
            )
        end = time.monotonic() + 120
        while not self._answers():
            if self.process.poll() is not None or time.monotonic() > end:
                lines = self.log.read_text(errors="replace").strip().splitlines()
                self.close()
                raise ServerError(f"{self.name}: {lines[-1] if lines else 'no answer'}")
            time.sleep(0.02)

    def alive(self) -> bool:
        return self.process.poll() is None and self._answers()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{self.health}", timeout=5) as answer:
                return answer.status == 200
        except (urllib.error.URLError, OSError):
            return False


def start(name: str, model: Path, threads: int, environments: Environments, work: Path) -> Server:
    """One of gemel, st-fastapi, infinity."""
    port = _free_port()
    log = work / f"serve-{name}.log"
    log.unlink(missing_ok=True)
    health = "/health"
    if name == "gemel":
        flags = ["--port", str(port), "--threads", str(threads), "--name", "m", "--log", "none"]
        command = [sys.executable, "-m", "gemel", "serve", "--model", str(model), *flags]
        health = "/health/ready"
    elif name == "st-fastapi":
        python = environments.python("stserve")
        command = [str(python), str(PEERS / "serve_st.py"), str(model), str(port), str(threads)]
    else:
        python = environments.python("infinity")
        flags = ["--served-model-name", "m", "--port", str(port), "--engine", "torch", "--device", "cpu"]
        flags += ["--no-bettertransformer", "--host", "127.0.0.1", "--url-prefix", "/v1"]
        command = [str(python.with_name("infinity_emb")), "v2", "--model-id", str(model), *flags]
    return Server(name, "m", port, command, health, threads, log)


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        return int(listening.getsockname()[1])
