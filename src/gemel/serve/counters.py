"""What the server counts while it runs, for /status and /metrics.

Plain numbers, cheap to change. Only the event loop changes them, so there is no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Sequence
from time import perf_counter

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

STAGES = ("queue", "tokenise", "compute", "total")

RECENT = 512  # values that medians and percentiles are taken from

WINDOW = 10  # seconds that a rate is taken over


class Histogram:
    """Counts by upper bound, and the last values for percentiles."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0
        self.recent: deque[float] = deque(maxlen=RECENT)

    def add(self, value: float) -> None:
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value
        self.recent.append(value)

    @property
    def count(self) -> int:
        return sum(self.counts)

    def percentile(self, share: float) -> float | None:
        """Of the recent values; None before the first."""
        if not self.recent:
            return None
        ordered = sorted(self.recent)
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


class Rate:
    """How many per second, over the last whole seconds."""

    def __init__(self) -> None:
        self.total = 0
        self._seconds: deque[list[int]] = deque(maxlen=WINDOW + 1)

    def add(self, count: int) -> None:
        self.total += count
        second = int(perf_counter())
        if not self._seconds or self._seconds[-1][0] != second:
            self._seconds.append([second, 0])
        self._seconds[-1][1] += count

    def per_second(self) -> float:
        now = int(perf_counter())
        return sum(count for second, count in self._seconds if now - WINDOW <= second < now) / WINDOW


class Counters:
    """All counters of one server."""

    def __init__(self) -> None:
        self.started = perf_counter()
        self.stages = {stage: Histogram(SECONDS) for stage in STAGES}
        self.batch_texts = Histogram(SIZES)
        self.texts, self.tokens, self.requests = Rate(), Rate(), Rate()
        self.cache_hits = self.cache_misses = self.shared = 0
        self.failed_batches = 0
        self.rejected: Counter[str] = Counter()
        """By reason, such as queue, memory, too_large, deadline."""
        self.answers: Counter[tuple[str, int]] = Counter()
        """By route and status."""

    def stage(self, name: str, seconds: float) -> None:
        self.stages[name].add(seconds)

    def summary(self) -> dict[str, object]:
        """For /status: rates over the last seconds, totals, percentiles of the recent values."""
        rates = {"requests": self.requests, "texts": self.texts, "tokens": self.tokens}
        return {
            "uptime_seconds": round(perf_counter() - self.started, 1),
            "throughput": {f"{name}_per_second": rate.per_second() for name, rate in rates.items()},
            "total": {name: rate.total for name, rate in rates.items()},
            "latency": {
                stage: {f"p{share}": times.percentile(share / 100) for share in (50, 95, 99)}
                for stage, times in self.stages.items()
            },
            "batches": {
                "count": self.batch_texts.count,
                "texts_p50": self.batch_texts.percentile(0.5),
                "failed": self.failed_batches,
            },
            "rejected": dict(self.rejected),
        }
