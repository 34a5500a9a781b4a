"""What the server counts while it runs, for /status and, in the form of Prometheus, for /metrics.

Plain numbers, cheap to change. Only the event loop changes them, so there is no lock.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from time import perf_counter
from typing import TYPE_CHECKING

from gemel.serve.limits import memory_bytes

if TYPE_CHECKING:
    from prometheus_client.core import HistogramMetricFamily, Metric

    from gemel.serve.services import Services

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


# For Prometheus.


class Metrics:
    """The answer of /metrics; several servers may run in one process."""

    def __init__(self, services: Services) -> None:
        from prometheus_client import CollectorRegistry

        self._registry = CollectorRegistry()
        self._registry.register(ServerCollector(services))

    def page(self) -> bytes:
        from prometheus_client import generate_latest

        return generate_latest(self._registry)


class ServerCollector:
    """The metrics of one server, for the registry of prometheus_client."""

    def __init__(self, services: Services) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        counters = self._services.counters
        yield _histograms(
            "gemel_stage_seconds", "Time of a request or batch by stage.", "stage", counters.stages
        )
        yield _histograms("gemel_batch_texts", "Texts of a batch.", None, {"": counters.batch_texts})
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        from prometheus_client.core import CounterMetricFamily

        counters = self._services.counters
        yield CounterMetricFamily("gemel_texts", "Texts that were answered.", counters.texts.total)
        yield CounterMetricFamily("gemel_tokens", "Tokens that were computed.", counters.tokens.total)
        yield CounterMetricFamily("gemel_cache_hits", "Texts answered from memory.", counters.cache_hits)
        yield CounterMetricFamily("gemel_cache_misses", "Texts that were computed.", counters.cache_misses)
        yield CounterMetricFamily(
            "gemel_shared", "Texts already under way for another request.", counters.shared
        )
        yield CounterMetricFamily(
            "gemel_failed_texts", "Texts that the engine failed at.", counters.failed_batches
        )
        rejected = CounterMetricFamily("gemel_rejected", "Requests refused, by reason.", labels=["reason"])
        for reason, count in counters.rejected.items():
            rejected.add_metric([reason], count)
        yield rejected
        answers = CounterMetricFamily(
            "gemel_requests", "Answers by route and status.", labels=["route", "status"]
        )
        for (route, status), count in counters.answers.items():
            answers.add_metric([route, str(status)], count)
        yield answers

    def _gauges(self) -> Iterator[Metric]:
        from prometheus_client.core import GaugeMetricFamily

        services = self._services
        batcher = services.batcher
        yield GaugeMetricFamily("gemel_queue_tokens", "Tokens that wait.", batcher.queue_tokens)
        yield GaugeMetricFamily(
            "gemel_queue_tokens_limit", "Tokens that may wait.", services.limits.queue_tokens
        )
        yield GaugeMetricFamily("gemel_busy_workers", "Workers that compute now.", batcher.workers.busy)
        yield GaugeMetricFamily("gemel_cache_bytes", "Memory of the kept vectors.", batcher.cache.bytes)
        yield GaugeMetricFamily("gemel_memory_bytes", "Resident memory of the process.", memory_bytes())
        seconds = perf_counter() - services.counters.started
        yield GaugeMetricFamily("gemel_uptime_seconds", "Since the model was loaded.", seconds)


def _histograms(
    name: str, help: str, label: str | None, parts: Mapping[str, Histogram]
) -> HistogramMetricFamily:
    from prometheus_client.core import HistogramMetricFamily

    family = HistogramMetricFamily(name, help, labels=[label] if label else [])
    for part, histogram in parts.items():
        bounds = [*map(str, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric([part] if label else [], list(zip(bounds, counts, strict=True)), histogram.sum)
    return family
