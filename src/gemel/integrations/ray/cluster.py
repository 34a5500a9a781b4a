"""A connection to a Ray cluster, and the one pool of workers of a job: calls go to free workers.

When a worker is lost, its calls go to others. The retries of Ray are off: it would keep the calls of a lost worker for
its replacement, and wait for free cores for that one even while other workers are idle.
"""

from __future__ import annotations

import os
import socket
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import chdir, contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from time import monotonic, perf_counter
from typing import Any

from gemel.errors import GemelError, InputError, MissingExtra, WorkError
from gemel.files.machine import core_limits, disable_usage_reports, environment_of_process

Call = tuple[Any, ...]

_DEPTH = 2  # calls per worker: one that runs and the next

_TRIES = 4  # lost workers until a call is considered the cause

_STARTS = 3  # workers that may die before one is ready, as a multiple of the pool's size

_START_TIMEOUT = 600.0  # seconds to wait for the first worker; a cluster may have to start machines

_SHARE = 0.9  # of a core per thread: some of every large node is left for others

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

    def pool(self, worker: type[Any], *arguments: Any, key: object) -> Pool:
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
            workers=self.workers,
            nodes=len(self.nodes),
            nodes_lost=len(self.nodes - alive),
            seconds=round(perf_counter() - self._started, 3),
            **asdict(self.counts),
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
        # Ray itself counts the cores of the machine, whatever the affinity, and finds only some quotas.
        ray.init(address="local", include_dashboard=False, num_cpus=core_limits().allowed, **quiet)
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


@dataclass(eq=False)
class _Task:
    number: int
    call: Call
    tries: int = 0


@dataclass(eq=False)
class _Handle:
    actor: Any
    ready: bool = False
    tasks: int = 0


class Pool:
    """Starts workers, gives them calls, and replaces those that are lost.

    A worker has two methods: `ready()`, called once and first, with the same result for all workers of the pool, and
    `work(*call)`.
    """

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - the module
        worker: type[Any],
        arguments: Call,
        size: int,
        threads: int,
        counts: Counts,
    ) -> None:
        self._ray, self._counts, self._arguments = ray, counts, arguments
        # SPREAD: equally many on each node, so that a lost node costs only its share.
        placed = {"num_cpus": _SHARE * threads, "scheduling_strategy": "SPREAD"}
        environment = {"env_vars": environment_of_process(threads)}
        self._class = ray.remote(max_restarts=0, max_task_retries=0, runtime_env=environment, **placed)(
            worker
        )
        self._handles: list[_Handle] = []
        self._watched: dict[Any, tuple[_Handle, _Task | None]] = {}
        self._again: deque[_Task] = deque()
        self._failed_starts = 0
        self._expected: Any = None
        self._last_change = monotonic()
        self.size = size
        """The number of workers to have."""
        for _ in range(size):
            self._start()

    def expect(self, value: Any) -> None:  # noqa: ANN401
        """The result that `ready` of every worker must have."""
        self._expected = value

    def as_done(self, calls: Iterable[Call]) -> Iterator[tuple[Call, Any]]:
        """Each call with its result, as they finish. A call is read when a worker is free for it."""
        for task, value in self._run(calls, lambda given: True):
            yield task.call, value

    def in_order(self, calls: Iterable[Call]) -> Iterator[Any]:
        """The results in the order of the calls, of which a few are read ahead."""
        done: dict[int, Any] = {}
        following, most = 0, 2 * _DEPTH * self.size + 2

        def room(given: int) -> bool:
            return given - following < most

        for task, value in self._run(calls, room):
            done[task.number] = value
            while following in done:
                yield done.pop(following)
                following += 1

    def close(self) -> None:
        """End all workers."""
        for handle in self._handles:
            self._kill(handle)
        self._handles, self._watched = [], {}
        self._again.clear()

    # The loop.

    def _run(self, calls: Iterable[Call], room: Callable[[int], bool]) -> Iterator[tuple[_Task, Any]]:
        source = enumerate(calls)
        given, more = 0, True
        try:
            while True:
                for handle in self._free():
                    task = self._again.popleft() if self._again else None
                    if task is None and more and room(given):
                        number, call = next(source, (0, None))
                        more = call is not None
                        task = None if call is None else _Task(number, call)
                        given += task is not None
                    if task is None:
                        break
                    self._give(handle, task)
                if not more and not self._again and not self._busy():
                    return
                yield from self._finished()
        finally:
            self._forget()

    def _free(self) -> Iterator[_Handle]:
        """Workers that can take a call, the idle ones first."""
        for depth in range(_DEPTH):
            for handle in list(self._handles):
                if handle.ready and handle.tasks == depth:
                    yield handle

    def _busy(self) -> bool:
        return any(handle.tasks for handle in self._handles)

    def _give(self, handle: _Handle, task: _Task) -> None:
        self._watched[handle.actor.work.remote(*task.call)] = (handle, task)
        handle.tasks += 1

    def _finished(self) -> Iterator[tuple[_Task, Any]]:
        """The tasks that finished since the last call; waits up to a second for one."""
        done, _ = self._ray.wait(list(self._watched), num_returns=1, timeout=1.0)
        if not done and not any(handle.ready for handle in self._handles):
            self._check_timeout()
        for ref in done:
            if ref not in self._watched:  # of a worker that was just lost
                continue
            handle, task = self._watched[ref]
            try:
                value = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                raise _unwrap(error) from error
            except self._ray.exceptions.RayError as error:
                self._lose(handle, error)
                continue
            del self._watched[ref]
            if task is None:
                self._set_ready(handle, value)
            else:
                handle.tasks -= 1
                self._counts.tasks += 1
                yield task, value

    def _forget(self) -> None:
        """Drop the calls of a run that ended early, without waiting for their results."""
        self._again.clear()
        for ref, (handle, task) in list(self._watched.items()):
            if task is not None:
                del self._watched[ref]
                handle.tasks -= 1

    # Start and loss of workers.

    def _start(self) -> None:
        handle = _Handle(self._class.remote(*self._arguments))
        self._handles.append(handle)
        self._watched[handle.actor.ready.remote()] = (handle, None)

    def _set_ready(self, handle: _Handle, value: Any) -> None:  # noqa: ANN401
        if self._expected is not None and value != self._expected:
            raise WorkError(
                f"a machine of the cluster would compute other bits: expected {self._expected!r}, it has {value!r}. "
                "Use machines with the same model files, gemel and processor features"
            )
        self._expected = value
        handle.ready, self._failed_starts, self._last_change = True, 0, monotonic()

    def _lose(self, handle: _Handle, error: Exception) -> None:
        """Remove the worker, queue its calls for others, and start a new one, which waits for free cores."""
        self._kill(handle)
        self._handles.remove(handle)
        self._counts.workers_lost += 1
        self._last_change = monotonic()
        self._failed_starts += not handle.ready
        lost = [(ref, task) for ref, (owner, task) in self._watched.items() if owner is handle]
        for i, (ref, task) in enumerate(lost):
            del self._watched[ref]
            if task is not None:
                task.tries += i == 0  # the first was running, the others were queued
                self._retry(task, error)
        if self._failed_starts < _STARTS * self.size:
            self._start()
        elif not self._handles:  # with other workers the job continues
            raise WorkError(
                f"{self._failed_starts} workers in a row died before they were ready; the last: {_short(error)}"
            )

    def _retry(self, task: _Task, error: Exception) -> None:
        if task.tries >= _TRIES:
            raise WorkError(
                f"task {task.number} lost its worker {task.tries} times, so it is not tried again; the last time: "
                f"{_short(error)}"
            )
        self._counts.retries += 1
        self._again.append(task)

    def _kill(self, handle: _Handle) -> None:
        with suppress(self._ray.exceptions.RayError):  # it may be dead already
            self._ray.kill(handle.actor)

    def _check_timeout(self) -> None:
        if monotonic() - self._last_change > _START_TIMEOUT:
            raise WorkError(
                f"no worker could start within {_START_TIMEOUT:.0f} s: the cluster has too few free cores. Free: "
                f"{self._ray.available_resources().get('CPU', 0):g} cores"
            )


def _unwrap(error: Any) -> GemelError:  # noqa: ANN401 - Ray's wrapper around what a worker raised
    cause = error.cause
    return cause if isinstance(cause, GemelError) else WorkError(f"a worker failed: {_short(cause)}")


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


@dataclass
class Counts:
    """Counts of a running job."""

    tasks: int = 0
    """Finished, each counted once."""
    retries: int = 0
    """How often a task was sent again because its worker was lost."""
    workers_lost: int = 0


@dataclass(frozen=True)
class JobSummary:
    """Counts and time of a finished job."""

    verb: str
    rows: int
    """Texts, documents or queries of this run."""
    tasks: int
    retries: int
    workers: int
    workers_lost: int
    nodes: int
    """Nodes of the cluster when the job started."""
    nodes_lost: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """One line of text."""
        lost = (
            f", {self.retries:,} tasks done again ({self.workers_lost:,} workers and {self.nodes_lost:,} nodes lost)"
            if self.retries or self.workers_lost or self.nodes_lost
            else ""
        )
        return (
            f"on Ray: {self.tasks:,} tasks on {self.workers:,} workers of {self.nodes:,} nodes{lost}, "
            f"{self.seconds:.1f} s"
        )
