"""A pool of workers on a cluster: calls go to those that are free, and to others when a worker is lost.

Ray's own retries are off: it would keep the calls of a lost worker for the one that takes its place, and wait for a
place for that one even where other workers stand idle.

What a job on a cluster did, counted while it runs: for the line at its end and for a machine as JSON.
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

_DEPTH = 2  # calls that a worker has at once: one it works on, one it goes on with

_TRIES = 4  # times that a call may lose its worker before it is taken for the cause

_STARTS = 3  # times that a pool's number of workers may die before one of them is ready

_PATIENCE = 600.0  # seconds to wait for the first worker; a cluster may have to start machines

_SHARE = 0.9  # of a core that a thread asks for: some of every large node is left for others


class Worker(Protocol):
    """What a class of workers has."""

    def ready(self) -> Any:  # noqa: ANN401 - each class its own
        """Called once, first; says what all workers of a pool must agree on."""

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
    """Workers that are started, fed, watched and replaced."""

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
        # SPREAD: as many on each node as on the others, so that a lost node costs its share and no more.
        placed = {"num_cpus": _SHARE * threads, "scheduling_strategy": "SPREAD"}
        self._class = ray.remote(max_restarts=0, max_task_retries=0, **placed)(worker)
        self._handles: list[_Handle] = []
        self._watched: dict[Any, tuple[_Handle, _Task | None]] = {}
        self._again: deque[_Task] = deque()
        self._failed_starts = 0
        self._said: Any = None
        self._last_sign = monotonic()
        self.size = size
        """Workers that are wanted."""
        for _ in range(size):
            self._start()

    def expect(self, said: Any) -> None:  # noqa: ANN401
        """What every worker has to say when it is ready."""
        self._said = said

    def as_done(self, calls: Iterable[Call]) -> Iterator[tuple[Call, Any]]:
        """Each call with its result, in the order in which they end. A call is taken when a worker is free for it."""
        for task, value in self._run(calls, lambda given: True):
            yield task.call, value

    def in_order(self, calls: Iterable[Call]) -> Iterator[Any]:
        """The results in the order of the calls, which are taken a few ahead of what was fetched."""
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
        """What ended since the last look; waits for something to end."""
        done, _ = self._ray.wait(list(self._watched), num_returns=1, timeout=1.0)
        if not done and not any(handle.ready for handle in self._handles):
            self._check_patience()
        for ref in done:
            if ref not in self._watched:  # of a worker that was given up a moment ago
                continue
            handle, task = self._watched[ref]
            try:
                value = self._ray.get(ref)
            except self._ray.exceptions.RayTaskError as error:
                raise _own(error) from error
            except self._ray.exceptions.RayError as error:
                self._lose(handle, error)
                continue
            del self._watched[ref]
            if task is None:
                self._welcome(handle, value)
            else:
                handle.tasks -= 1
                self._counts.tasks += 1
                yield task, value

    def _forget(self) -> None:
        """Calls of a run that was left early: their results are not waited for."""
        self._again.clear()
        for ref, (handle, task) in list(self._watched.items()):
            if task is not None:
                del self._watched[ref]
                handle.tasks -= 1

    # Workers come and go.

    def _start(self) -> None:
        handle = _Handle(self._class.remote(*self._arguments))
        self._handles.append(handle)
        self._watched[handle.actor.ready.remote()] = (handle, None)

    def _welcome(self, handle: _Handle, said: Any) -> None:  # noqa: ANN401
        if self._said is not None and said != self._said:
            raise WorkError(
                f"a machine of the cluster would compute other bits: expected {self._said!r}, it has {said!r}. "
                "Use machines with the same model files, gemel and processor features"
            )
        self._said = said
        handle.ready, self._failed_starts, self._last_sign = True, 0, monotonic()

    def _lose(self, handle: _Handle, error: Exception) -> None:
        """The worker is given up, its calls wait for others, a new one takes its place as soon as there is room."""
        self._kill(handle)
        self._handles.remove(handle)
        self._counts.workers_lost += 1
        self._last_sign = monotonic()
        self._failed_starts += not handle.ready
        held = [(ref, task) for ref, (owner, task) in self._watched.items() if owner is handle]
        for place, (ref, task) in enumerate(held):
            del self._watched[ref]
            if task is not None:
                task.tries += place == 0  # it worked on the first; the others waited behind it
                self._retry(task, error)
        if self._failed_starts < _STARTS * self.size:
            self._start()
        elif not self._handles:  # while others work, the job goes on with those
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

    def _check_patience(self) -> None:
        if monotonic() - self._last_sign > _PATIENCE:
            raise WorkError(
                f"no worker could start within {_PATIENCE:.0f} s: the cluster has no room. Free: "
                f"{self._ray.available_resources().get('CPU', 0):g} cores"
            )


def _own(error: Any) -> GemelError:  # noqa: ANN401 - Ray's wrapper around what a worker raised
    cause = error.cause
    return cause if isinstance(cause, GemelError) else WorkError(f"a worker failed: {_short(cause)}")


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0] if lines else ''}"


@dataclass
class Counts:
    """Grows while the job runs."""

    tasks: int = 0
    """Finished, each counted once."""
    retries: int = 0
    """Times that a task was given out again because its worker was lost."""
    workers_lost: int = 0


@dataclass(frozen=True)
class JobSummary:
    """The whole job."""

    verb: str
    rows: int
    """Texts, documents or queries that this run was about."""
    tasks: int
    retries: int
    workers: int
    workers_lost: int
    nodes: int
    """Of the cluster when the job began."""
    nodes_lost: int
    seconds: float

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    def line(self) -> str:
        """One line for a person."""
        lost = (
            f", {self.retries:,} tasks done again ({self.workers_lost:,} workers and {self.nodes_lost:,} nodes lost)"
            if self.retries or self.workers_lost or self.nodes_lost
            else ""
        )
        return (
            f"on Ray: {self.tasks:,} tasks on {self.workers:,} workers of {self.nodes:,} nodes{lost}, "
            f"{self.seconds:.1f} s"
        )
