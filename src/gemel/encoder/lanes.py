"""Batches on cores: each lane is a thread that takes the next batch when it is done with one.

An engine call leaves Python's lock and uses one core, so lanes = cores; which lane runs a batch changes no bit.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Batch = TypeVar("Batch")


def usable_cores() -> int:
    """Cores that this process may run on; a container's limit counts where the system shows it."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


class Lanes:
    """Threads that are kept between calls, because each keeps its working memory."""

    def __init__(self) -> None:
        self._pool: ThreadPoolExecutor | None = None
        self._threads = 0
        self._process = 0
        self._lock = threading.Lock()

    def run(self, work: Callable[[Batch], None], batches: Sequence[Batch], threads: int) -> None:
        """`work(batch)` for all batches; the first error stops all lanes and is raised."""
        if threads == 1 or len(batches) <= 1:
            for batch in batches:
                work(batch)
            return
        waiting, lock = iter(batches), threading.Lock()
        futures = [
            self._lanes(threads).submit(_drain, work, waiting, lock)
            for _ in range(min(threads, len(batches)))
        ]
        try:
            for future in futures:
                future.result()
        finally:
            with lock:  # after an error: nothing further is started
                for _ in waiting:
                    pass

    def _lanes(self, threads: int) -> ThreadPoolExecutor:
        with self._lock:
            # Threads do not live on in a forked child, so a pool belongs to one process.
            if self._pool is None or self._threads < threads or self._process != os.getpid():
                self._pool = ThreadPoolExecutor(threads, thread_name_prefix="gemel-lane")
                self._threads, self._process = threads, os.getpid()
            return self._pool


def _drain(work: Callable[[Batch], None], waiting: Iterable[Batch], lock: threading.Lock) -> None:
    source = iter(waiting)
    while True:
        with lock:
            batch = next(source, None)
        if batch is None:
            return
        work(batch)
