"""One line on standard error for long work: how much, how fast, how long still. Nothing when nobody watches."""

from __future__ import annotations

import sys
import threading
from time import perf_counter

_EVERY = 0.2  # seconds between two updates of the line


class Progress:
    """Counts from any thread; writes at most a few times a second."""

    def __init__(self, total: int | None, unit: str, *, shown: bool) -> None:
        """`total` None: the end is not known, so no time left is shown."""
        self._total, self._unit, self._shown = total, unit, shown
        self._done = 0
        self._started = self._written = perf_counter()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """`count` more are done."""
        with self._lock:
            self._done += count
            now = perf_counter()
            if self._shown and now - self._written >= _EVERY:
                self._written = now
                self._write(now)

    def close(self) -> None:
        """Leaves the last state of the line and ends it."""
        if self._shown:
            self._write(perf_counter())
            sys.stderr.write("\n")

    def _write(self, now: float) -> None:
        rate = self._done / max(now - self._started, 1e-9)
        parts = [
            f"{self._done:,}" + (f" of {self._total:,}" if self._total is not None else "") + f" {self._unit}"
        ]
        parts.append(f"{rate:,.0f}/s")
        if self._total is not None and rate > 0:
            parts.append(f"{clock((self._total - self._done) / rate)} left")
        sys.stderr.write("\r" + ", ".join(parts).ljust(72))
        sys.stderr.flush()


def clock(seconds: float) -> str:
    """1:02:03, or 2:03 below an hour."""
    minutes, rest = divmod(max(0, int(seconds + 0.5)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
