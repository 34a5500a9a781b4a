"""Work that is not a forward pass (index searches, pairs, clusters, reranking, writes) on a few threads.

A running thread cannot be stopped, so what may run and wait is bounded for each client; clients take turns, and long
jobs never take the last free thread, so that a search does not wait behind another client's clusters.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from gemel.serve.counters import Counters
from gemel.serve.limits import DeadlineExceeded, Limits, Overloaded
from gemel.serve.queue import RoundRobin

T = TypeVar("T")

THREADS = 2  # jobs that run at once
SHORT_PER_LONG = 4  # short jobs of a client that may run or wait, for each long one
CLIENTS = 8  # clients that may have as much waiting as one client may
RETRY_SECONDS = 5.0


@dataclass(eq=False)
class ThreadJob:
    """One computation that waits or runs."""

    function: Callable[[], Any]
    client: str
    long: bool
    done: asyncio.Future[Any]
    begun: bool = False

    @property
    def waiting(self) -> bool:
        return not self.done.done()


class Jobs:
    """The threads and their queue. Used on one event loop."""

    def __init__(self, limits: Limits, counters: Counters, *, threads: int = THREADS) -> None:
        self._limits, self._counters, self._threads = limits, counters, threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gemel-work")
        self._waiting = {long: RoundRobin[ThreadJob]() for long in (False, True)}
        self._running = {False: 0, True: 0}
        self._closed = False
        self._counts: Counter[tuple[str, bool]] = Counter()
        self._requests: Counter[str] = Counter()

    def __len__(self) -> int:
        """Jobs that run or wait."""
        return self._counts.total()

    @contextmanager
    def reserve(self, client: str) -> Iterator[None]:
        """Around all that a long request does: refuse it before its texts are encoded, not after."""
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
        """The result of `function`. After its time nobody waits for it, but it keeps its thread."""
        most = self._limits.client_jobs * (1 if long else SHORT_PER_LONG)
        total = sum(count for (_, is_long), count in self._counts.items() if is_long == long)
        self._check(self._counts[client, long], most, total)
        allowed = min(seconds or self._limits.seconds, self._limits.seconds)
        job = ThreadJob(function, client, long, asyncio.get_running_loop().create_future())
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
            self._counters.rejected["deadline"] += 1
            raise DeadlineExceeded(f"the answer was not ready within {allowed:g} s. Ask for less at once")
        result: T = job.done.result()
        return result

    def close(self) -> None:
        """Begin nothing that waits; what runs continues, as a thread cannot be stopped."""
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
            running.add_done_callback(partial(self._deliver, loop, job))

    def _free(self) -> bool:
        return not self._closed and sum(self._running.values()) < self._threads

    def _next(self) -> ThreadJob | None:
        """A long job where none runs, else a short one: neither waits for all of the other."""
        if not self._running[True] and (job := self._waiting[True].next()) is not None:
            return job
        if (job := self._waiting[False].next()) is not None:
            return job
        return self._waiting[True].next() if self._running[True] < self._threads - 1 else None

    def _deliver(self, loop: asyncio.AbstractEventLoop, job: ThreadJob, running: Future[Any]) -> None:
        """On the thread of the job."""
        if not loop.is_closed():
            loop.call_soon_threadsafe(self._finish, job, running)

    def _finish(self, job: ThreadJob, running: Future[Any]) -> None:
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

    def _give_up(self, job: ThreadJob) -> None:
        """A job that has not begun never will; nobody sees the result of one that has."""
        if not job.done.done():
            job.done.cancel()
            if not job.begun:
                self._uncount(job)

    def _uncount(self, job: ThreadJob) -> None:
        self._counts[job.client, job.long] -= 1
        if not self._counts[job.client, job.long]:
            del self._counts[job.client, job.long]

    def _check(self, count: int, most: int, total: int) -> None:
        if count >= most or total >= CLIENTS * most:
            self._counters.rejected["work"] += 1
            whose = f"{count} longer requests of this client" if count >= most else f"{total} longer requests"
            raise Overloaded(f"{whose} run or wait already. Try again in {RETRY_SECONDS:g} s", RETRY_SECONDS)
