"""A real Ray cluster of several nodes on this machine, started by `ray start`; stops only its own processes."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

LIMIT = 90.0  # seconds for a node to start or to be detected as lost
STORE = str(100_000_000)


class RayCluster:
    """`address` of the head; `environment` of clients. With `networks`, each node has its own network."""

    def __init__(self, cores=2, networks=None):
        self.networks = networks
        self.folder = Path(tempfile.mkdtemp(prefix="gr-", dir="/tmp"))  # the path of a socket must be short
        token = self.folder / "token"
        token.write_text(secrets.token_hex(32))
        self.environment = os.environ | {
            "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN_PATH": str(token),
            "OMP_NUM_THREADS": "1",
        }
        for name in ("RAY_ADDRESS", "RAY_TMPDIR"):
            self.environment.pop(name, None)
        self.address = f"{networks.hosts[0] if networks else '127.0.0.1'}:{free_port()}"
        self.nodes = []
        try:
            head = ("--head", "--port", self.address.split(":")[1], "--include-dashboard", "false")
            self._start(cores, *head, "--temp-dir", str(self.folder / "ray"))
        except BaseException:
            self.close()
            raise

    def add_node(self, cores=2):
        """The process of a further node."""
        return self._start(cores, "--address", self.address)

    def workers(self, node=None, doing=r"(Encode|Tile|Search)Worker"):
        """Process ids of the workers of gemel, of one node or of all; Ray puts their class into the process title."""
        sessions = [node.pid] if node else [each.pid for each in self.nodes]
        return [
            pid
            for pid, session, title in processes()
            if session in sessions and re.match(f"ray::{doing}", title)
        ]

    def kill_node(self, node):
        """kill -9 of all processes of the node."""
        for pid, session, _ in processes():
            if session == node.pid:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        node.wait()
        self.nodes.remove(node)

    def close(self):
        for node in list(reversed(self.nodes)):
            self.kill_node(node)
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.close()

    def _start(self, cores, *arguments):
        command = [
            Path(sys.executable).parent / "ray",
            "start",
            "--block",
            "--disable-usage-stats",
            *arguments,
        ]
        command += ["--num-cpus", str(cores), "--object-store-memory", STORE]
        if self.networks:
            machine = min(len(self.nodes), 1)
            command = self.networks.inside(
                machine, [*command, "--node-ip-address", self.networks.hosts[machine]]
            )
        log = self.folder / f"node-{len(self.nodes)}.log"
        with log.open("wb") as out:
            node = subprocess.Popen(
                command, env=self.environment, stdout=out, stderr=out, start_new_session=True
            )
        self.nodes.append(node)
        until(lambda: "Ray runtime started" in log.read_text() or node.poll() is not None)
        assert node.poll() is None, log.read_text()
        return node


def processes():
    """(pid, session, command line) of all."""
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with contextlib.suppress(OSError, ValueError):
                session = int((folder / "stat").read_text().rpartition(")")[2].split()[3])
                yield int(folder.name), session, (folder / "cmdline").read_text().replace("\0", " ")


def until(met, limit=LIMIT):
    """Wait until a condition on other processes is true."""
    end = time.monotonic() + limit
    while not (result := met()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)
    return result


def free_port():
    """Outside the range in which Ray's workers listen (10002 to 19999)."""
    while True:
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        if not 10_000 <= port < 20_000:
            return port
