"""Work that is not a forward pass (index searches, pairs, clusters, reranking, writes): a few threads, used in turns.

A thread at work cannot be stopped, so what may run and wait is bounded for each client; clients take turns, and long
jobs never take the last free thread, so that a search does not wait behind another client's clusters.
"""

from __future__ import annotations

import asyncio
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gemel.serve.counters import Figures
from gemel.serve.limits import Limits, Overloaded, TooLate

T = TypeVar("T")

THREADS = 2  # jobs that run at once
SHORT_PER_LONG = 4  # short jobs of a client that may run or wait, for each long one
CLIENTS = 8  # clients that may have as much waiting as one client may
RETRY_SECONDS = 5.0


@dataclass(eq=False)
class _Job:
    function: Callable[[], Any]
    client: str
    long: bool
    done: asyncio.Future[Any]
    begun: bool = False


class ClientTurns:
    """Jobs of several clients: the client that waited longest goes next, and of one client its oldest job."""

    def __init__(self) -> None:
        self._clients: OrderedDict[str, deque[_Job]] = OrderedDict()

    def put(self, job: _Job) -> None:
        self._clients.setdefault(job.client, deque()).append(job)

    def next(self) -> _Job | None:
        """None: nobody waits. Jobs that were given up are left out."""
        while self._clients:
            client, jobs = self._clients.popitem(last=False)
            job = jobs.popleft()
            if jobs:
                self._clients[client] = jobs  # behind all others
            if not job.done.done():
                return job
        return None


class Jobs:
    """Used on one event loop."""

    def __init__(self, limits: Limits, figures: Figures, *, threads: int = THREADS) -> None:
        self._limits, self._figures, self._threads = limits, figures, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gemel-work")
        self._waiting = {False: ClientTurns(), True: ClientTurns()}
        self._running = {False: 0, True: 0}
        self._closed = False
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._requests: Counter[str] = Counter()

    def __len__(self) -> int:
        """Jobs that run or wait."""
        return self._counts.total()

    @contextmanager
    def reserve(self, client: str) -> Iterator[None]:
        """Around all that a long request does: refuses it before its texts are encoded, not after."""
        most = self._limits.client_jobs
        self._check(self._requests[client], most, self._requests.total())
        self._requests[client] += 1
        try:
            yield
        finally:
            self._requests[client] -= 1
            if not self._requests[client]:
                del self._requests[client]

    async def run(self, function: Callable[[], T], *, client: str, long: bool, seconds: float | None) -> T:
        """What `function` gives. One that is over its time is waited for by nobody, but keeps its thread."""
        most = self._limits.client_jobs * (1 if long else SHORT_PER_LONG)
        total = sum(count for (_, kind), count in self._counts.items() if kind == long)
        self._check(self._counts[client, long], most, total)
        allowed = min(seconds or self._limits.seconds, self._limits.seconds)
        job = _Job(function, client, long, asyncio.get_running_loop().create_future())
        self._counts[client, long] += 1
        self._waiting[long].put(job)
        self._start()
        try:
            finished, _ = await asyncio.wait({job.done}, timeout=allowed)
        except asyncio.CancelledError:
            self._give_up(job)
            raise
        if not finished:
            self._give_up(job)
            self._figures.rejected["deadline"] += 1
            raise TooLate(f"the answer was not ready within {allowed:g} s. Ask for less at once")
        result: T = job.done.result()
        return result

    def close(self) -> None:
        """What waits is never begun; what runs goes on, as a thread cannot be stopped."""
        self._closed = True
        for turns in self._waiting.values():
            while (job := turns.next()) is not None:
                self._give_up(job)
        self._pool.shutdown(wait=False)

    def _start(self) -> None:
        """Give free threads to those whose turn it is."""
        while self._free() and (job := self._next()) is not None:
            job.begun = True
            self._running[job.long] += 1
            loop = job.done.get_loop()
            running = self._pool.submit(job.function)
            running.add_done_callback(partial(self._tell, loop, job))

    def _free(self) -> bool:
        return not self._closed and sum(self._running.values()) < self._threads

    def _next(self) -> _Job | None:
        """A long job where none runs, else a short one: neither kind waits for all of the other."""
        if not self._running[True] and (job := self._waiting[True].next()) is not None:
            return job
        if (job := self._waiting[False].next()) is not None:
            return job
        return self._waiting[True].next() if self._running[True] < self._threads - 1 else None

    def _tell(self, loop: asyncio.AbstractEventLoop, job: _Job, running: Future[Any]) -> None:
        """On the job's thread."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, job, running)

    def _finish(self, job: _Job, running: Future[Any]) -> None:
        self._running[job.long] -= 1
        self._uncount(job)
        if not job.done.done():
            if running.cancelled():
                job.done.cancel()
            elif (error := running.exception()) is not None:
                job.done.set_exception(error)
            else:
                job.done.set_result(running.result())
        self._start()

    def _give_up(self, job: _Job) -> None:
        """One that has not begun never will; of one that has, nobody sees the result."""
        if not job.done.done():
            job.done.cancel()
            if not job.begun:
                self._uncount(job)

    def _uncount(self, job: _Job) -> None:
        self._counts[job.client, job.long] -= 1
        if not self._counts[job.client, job.long]:
            del self._counts[job.client, job.long]

    def _check(self, count: int, most: int, total: int) -> None:
        if count >= most or total >= CLIENTS * most:
            self._figures.rejected["work"] += 1
            whose = f"{count} longer requests of this client" if count >= most else f"{total} longer requests"
            raise Overloaded(f"{whose} run or wait already. Try again in {RETRY_SECONDS:g} s", RETRY_SECONDS)
