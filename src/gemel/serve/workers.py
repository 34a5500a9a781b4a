"""Threads that compute: each takes the next batch as soon as it is done with one, so that no core waits for Python.

A batch that fails is divided until the text that fails stands alone.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

from gemel.encoder.tokenizer import Windows
from gemel.serve.port import BatchKey
from gemel.serve.queue import Job, Priority, Waiting
from gemel.types import Vectors

Compute = Callable[[BatchKey, Sequence[Windows], bool], Vectors]
"""Vectors of texts of one kind; the last argument says that all cores are free for them."""

BATCH_SECONDS = 0.025  # of work in a batch
MIXED_SECONDS = 0.010  # the same while single queries come too: they wait for at most one of these
MIXED_MEMORY = 1.0  # seconds after a single query during which more are expected
COMPANY_SECONDS = 0.002  # a small batch waits for others so long, when more are on their way
FIRST_GUESS = 4000.0  # tokens a second and core, before anything was measured
LEARNING = 0.1  # weight of the newest batch in the measured speed

log = logging.getLogger("gemel.serve")


@dataclass(frozen=True, slots=True, eq=False)
class Finished:
    """One batch: for each job its vector, or why there is none."""

    jobs: Sequence[Job]
    results: Sequence[Vectors | Exception]
    taken: float
    seconds: float


class Workers:
    """`threads` workers over one queue. `deliver` is called from their threads."""

    def __init__(
        self,
        compute: Compute,
        deliver: Callable[[Finished], None],
        *,
        threads: int,
        batch_tokens: int,
        mixed: bool = False,
    ) -> None:
        """`mixed`: the engine takes texts of several lengths in one call."""
        self.waiting = Waiting(mixed=mixed)
        self.lock = threading.Lock()
        self.tokens_per_second = FIRST_GUESS
        """Of one worker, measured."""
        self.last_finish = perf_counter()
        self.busy = 0
        self._compute, self._deliver = compute, deliver
        self._threads, self._batch_tokens = threads, batch_tokens
        self._ready = threading.Condition(self.lock)
        self._single_seen = self._last_put = -1e9
        self._gap = 1.0  # seconds between two arrivals, measured
        self._stopped = False
        self._running = [
            threading.Thread(target=self._work, name=f"gemel-worker-{number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._running:
            thread.start()

    def put(self, jobs: Sequence[Job]) -> None:
        """From any thread; the jobs begin at once if a worker is idle."""
        with self._ready:
            now = perf_counter()
            self._gap += LEARNING * (min(now - self._last_put, 1.0) - self._gap)
            self._last_put = now
            if jobs[0].rank is not Priority.LARGE:
                self._single_seen = now
            for job in jobs:
                self.waiting.put(job)
            self._ready.notify(len(jobs))

    def drop(self, jobs: Sequence[Job]) -> None:
        """Take back what still waits and nobody wants."""
        with self.lock:
            for job in jobs:
                self.waiting.drop(job)

    def wait_seconds(self) -> float:
        """Until what waits now is done, as far as one can tell."""
        return self.waiting.tokens / (self.tokens_per_second * self._threads)

    def stop(self) -> None:
        """No further batch is begun; the running ones are waited for."""
        with self._ready:
            self._stopped = True
            self._ready.notify_all()
        for thread in self._running:
            thread.join()

    def _work(self) -> None:
        while (batch := self._next()) is not None:
            jobs, alone = batch
            taken = perf_counter()
            try:
                results = self._results(jobs, alone)
            finally:
                seconds = perf_counter() - taken
                with self.lock:
                    self.busy -= 1
                    self.last_finish = taken + seconds
                    speed = sum(job.length for job in jobs) / max(seconds, 1e-9)
                    self.tokens_per_second += LEARNING * (speed - self.tokens_per_second)
            self._deliver(Finished(jobs, results, taken, seconds))

    def _next(self) -> tuple[list[Job], bool] | None:
        """The next batch, and whether it has all cores; None: the end."""
        with self._ready:
            while not self._stopped:
                if not len(self.waiting):
                    self._ready.wait()
                    continue
                self._wait_for_company()
                jobs = self.waiting.take(self._budget())
                if jobs:
                    alone = not self.busy and not len(self.waiting)
                    self.busy += 1
                    if len(self.waiting):
                        self._ready.notify()  # this thread may have been woken in place of an idle one
                    return jobs, alone
            return None

    def _wait_for_company(self) -> None:
        """A moment, and only while others compute, little waits, and one more is likely to come within it."""
        end = perf_counter() + COMPANY_SECONDS
        while self.busy and self._gap < COMPANY_SECONDS and self._little_waits() and not self._stopped:
            left = end - perf_counter()
            if left <= 0:
                return
            self._ready.wait(left)

    def _little_waits(self) -> bool:
        waiting = self.waiting
        return 0 < waiting.tokens < self._batch_tokens // 4 and not waiting.count[Priority.URGENT]

    def _budget(self) -> int:
        """Tokens of the next batch. Full ones where only small requests wait: these finish sooner together."""
        if not self.waiting.count[Priority.LARGE]:
            return self._batch_tokens
        mixed = perf_counter() - self._single_seen < MIXED_MEMORY
        tokens = int(self.tokens_per_second * (MIXED_SECONDS if mixed else BATCH_SECONDS))
        # Never so few that the batches themselves make the measured speed fall.
        return max(self._batch_tokens // (8 if mixed else 4), min(self._batch_tokens, tokens))

    def _results(self, jobs: Sequence[Job], alone: bool) -> list[Vectors | Exception]:
        try:
            return list(self._compute(jobs[0].kind, [job.windows for job in jobs], alone))
        except Exception as error:
            if len(jobs) == 1:
                log.error("a text of %d tokens fails: %s", jobs[0].length, type(error).__name__)
                return [error]
        half = len(jobs) // 2
        return [*self._results(jobs[:half], alone), *self._results(jobs[half:], alone)]
