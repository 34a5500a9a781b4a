"""A pool of workers on a Ray cluster: calls go to free workers, and to others when a worker is lost.

The retries of Ray are off: it would keep the calls of a lost worker for its replacement, and wait for free cores for
that one even while other workers are idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from time import monotonic
from typing import Any, Protocol

from gemel.errors import GemelError, WorkError

Call = tuple[Any, ...]

_DEPTH = 2  # calls per worker: one that runs and the next

_TRIES = 4  # lost workers until a call is considered the cause

_STARTS = 3  # workers that may die before one is ready, as a multiple of the pool's size

_START_TIMEOUT = 600.0  # seconds to wait for the first worker; a cluster may have to start machines

_SHARE = 0.9  # of a core per thread: some of every large node is left for others


class Worker(Protocol):
    """The methods of a worker class."""

    def ready(self) -> Any:  # noqa: ANN401 - each class its own
        """Called once, first; its result must be the same for all workers of a pool."""

    def work(self, *call: Any) -> Any: ...  # noqa: ANN401


WorkerClass = type[Any]


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
    """Starts workers, gives them calls, and replaces those that are lost."""

    def __init__(
        self,
        ray: Any,  # noqa: ANN401 - the module
        worker: WorkerClass,
        arguments: Call,
        size: int,
        threads: int,
        counts: Counts,
    ) -> None:
        self._ray, self._counts, self._arguments = ray, counts, arguments
        # SPREAD: equally many on each node, so that a lost node costs only its share.
        placed = {"num_cpus": _SHARE * threads, "scheduling_strategy": "SPREAD"}
        self._class = ray.remote(max_restarts=0, max_task_retries=0, **placed)(worker)
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
