"""Connects to a Ray cluster: its address, the number of workers, and the one pool of workers of a job."""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir, contextmanager
from pathlib import Path
from time import perf_counter
from typing import Any

from gemel.errors import InputError, MissingExtra, WorkError
from gemel.files.isolation import disable_usage_reports
from gemel.integrations.ray.pool import Counts, JobSummary, Pool, WorkerClass

_TIMEOUT = 10.0  # seconds for an address to respond

_CLIENT_PORT = "10001"  # of Ray Client, which is another protocol


class RayCluster:
    """A connection to Ray, made by `open_cluster`."""

    def __init__(self, ray: Any, workers: int | None, threads: int) -> None:  # noqa: ANN401 - the module
        self._ray = ray
        alive = self._alive()
        self.threads = threads
        self.nodes = frozenset(node["NodeID"] for node in alive)
        cores = [int(node["Resources"].get("CPU", 0)) // threads for node in alive]
        self.workers = workers or max(1, sum(cores))
        self.counts = Counts()
        self._started = perf_counter()
        self._pool: Pool | None = None
        self._key: object = None

    def pool(self, worker: WorkerClass, *arguments: Any, key: object) -> Pool:
        """Workers of this class: those of the last call if its `key` was equal, else new ones instead of them.

        There is one pool at a time: two would wait for each other's cores.
        """
        if self._pool is None or self._key != key:
            self.end_pool()
            self._pool = Pool(self._ray, worker, arguments, self.workers, self.threads, self.counts)
            self._key = key
        return self._pool

    def put(self, value: Any) -> Any:  # noqa: ANN401 - any array, and Ray's name for it
        """The value in the memory of the cluster: one copy per node, for all of its workers."""
        return None if value is None else self._ray.put(value)

    def end_pool(self) -> None:
        """End the workers, which frees their cores."""
        if self._pool is not None:
            self._pool.close()
        self._pool = self._key = None

    def summary(self, verb: str, rows: int) -> JobSummary:
        """Counts since the cluster was opened."""
        alive = {node["NodeID"] for node in self._alive()}
        return JobSummary(
            verb=verb,
            rows=rows,
            tasks=self.counts.tasks,
            retries=self.counts.retries,
            workers=self.workers,
            workers_lost=self.counts.workers_lost,
            nodes=len(self.nodes),
            nodes_lost=len(self.nodes - alive),
            seconds=round(perf_counter() - self._started, 3),
        )

    def _alive(self) -> list[dict[str, Any]]:
        return [node for node in self._ray.nodes() if node["Alive"]]


@contextmanager
def open_cluster(on: str = "ray", *, workers: int | None = None, threads: int = 1) -> Iterator[RayCluster]:
    """The cluster at `on`, connected inside a `with` block.

    on: "ray": the cluster of RAY_ADDRESS or the one that runs on this machine, else one is started here and ended
    afterwards. "ray://host:port": the port of `ray start --head`; this machine must be one of its nodes.
    workers: processes, each with `threads` cores; None: as many as the cluster has cores for. If there are not enough
    cores, some start later.
    """
    address = address_of(on)
    ray = _ray()
    ours = not ray.is_initialized()
    # The folder may be the working directory of workers until they end.
    with tempfile.TemporaryDirectory(prefix="gemel-ray-", ignore_cleanup_errors=True) as empty:
        if ours:
            with _folder_for_workers(empty):
                _connect(ray, address)
        elif address is not None and ray.get_runtime_context().gcs_address != address:
            joined = ray.get_runtime_context().gcs_address
            raise InputError(f"this process is connected to the Ray cluster {joined}, not to {address}")
        cluster = None
        try:
            cluster = RayCluster(ray, workers, threads)
            yield cluster
        finally:
            if cluster is not None:
                cluster.end_pool()
            if ours:
                ray.shutdown()


def address_of(on: str) -> str | None:
    """host:port, or None for "ray"."""
    name, _, address = on.partition("://")
    host, _, port = address.rpartition(":")
    if name != "ray" or (on != "ray" and not (host and port.isdecimal())):
        raise InputError(f"on must be 'ray' or 'ray://host:port', got {on!r}")
    if port == _CLIENT_PORT:
        raise InputError(
            f"{on!r} is the port of Ray Client. Give the port of the cluster (ray start --head --port, usually 6379), "
            "on a machine of the cluster"
        )
    return address or None


def _ray() -> Any:  # noqa: ANN401 - the module
    disable_usage_reports("ray")
    try:
        import ray
    except ImportError as error:
        raise MissingExtra("work on a Ray cluster", "ray", "ray") from error
    return ray


@contextmanager
def _folder_for_workers(empty: str) -> Iterator[None]:
    """Ray puts the working directory of the driver on the import path of the workers.

    A program that does not import from there, such as the command `gemel`, must not let them import files that are next
    to the data. Workers find models by absolute paths and need no directory.
    """
    if Path.cwd() in {Path(each).absolute() for each in sys.path}:
        yield
        return
    with chdir(empty):
        yield


def _connect(ray: Any, address: str | None) -> None:  # noqa: ANN401
    # No notice about accelerators in the output of the command.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    quiet = {"logging_level": "error", "log_to_driver": False}
    if address is not None:
        _check_reachable(address)  # Ray would try for many minutes
    try:
        ray.init(address=address or "auto", **quiet)
    except ConnectionError as error:
        if address is not None or os.environ.get("RAY_ADDRESS"):
            raise _unreachable(address or os.environ["RAY_ADDRESS"], error) from error
        ray.init(address="local", include_dashboard=False, **quiet)
    except (ValueError, RuntimeError) as error:
        raise _unreachable(address or "RAY_ADDRESS", error) from error


def _check_reachable(address: str) -> None:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_TIMEOUT).close()
    except OSError as error:
        raise _unreachable(address, error) from error


def _unreachable(address: str, error: Exception) -> WorkError:
    first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return WorkError(
        f"cannot connect to the Ray cluster at {address}: {first}. Run this on a machine of the cluster, and give the "
        "port of ray start --head"
    )
