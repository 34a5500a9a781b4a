"""Tasks on threads: compiled code and numpy let go of the interpreter while they work."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from gemel.errors import InputError

Task = TypeVar("Task")


def thread_count(threads: int | None) -> int:
    """None: as many as this process may use."""
    if threads is None:
        available = getattr(os, "sched_getaffinity", None)
        return len(available(0)) if available else os.cpu_count() or 1
    if isinstance(threads, bool) or not isinstance(threads, int) or threads < 1:
        raise InputError(f"threads must be a whole number of at least 1, or None for all, got {threads!r}")
    return threads


def in_threads(work: Callable[[Task], None], tasks: Iterable[Task], threads: int) -> None:
    """Does all tasks; the first error ends the rest and is raised."""
    todo = list(tasks)
    if threads == 1 or len(todo) < 2:
        for task in todo:
            work(task)
        return
    with ThreadPoolExecutor(min(threads, len(todo))) as pool:
        futures = [pool.submit(work, task) for task in todo]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise
