"""/metrics for Prometheus, made out of the figures when it is asked for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import accumulate
from time import perf_counter

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric

from gemel.serve.counters import Histogram
from gemel.serve.limits import memory_bytes
from gemel.serve.services import ServerServices


class ServerCollector:
    """Reads, never changes."""

    def __init__(self, services: ServerServices) -> None:
        self._services = services

    def collect(self) -> Iterator[Metric]:
        figures = self._services.figures
        yield _histograms(
            "gemel_stage_seconds", "Time of a request or batch by stage.", "stage", figures.stages
        )
        yield _histograms("gemel_batch_texts", "Texts of a batch.", None, {"": figures.batch_texts})
        yield from self._counters()
        yield from self._gauges()

    def _counters(self) -> Iterator[Metric]:
        figures = self._services.figures
        yield CounterMetricFamily("gemel_texts", "Texts that were answered.", figures.texts.total)
        yield CounterMetricFamily("gemel_tokens", "Tokens that were computed.", figures.tokens.total)
        yield CounterMetricFamily("gemel_cache_hits", "Texts answered from memory.", figures.cache_hits)
        yield CounterMetricFamily("gemel_cache_misses", "Texts that were computed.", figures.cache_misses)
        yield CounterMetricFamily(
            "gemel_shared", "Texts already under way for another request.", figures.shared
        )
        yield CounterMetricFamily(
            "gemel_failed_texts", "Texts that the engine failed at.", figures.failed_batches
        )
        rejected = CounterMetricFamily("gemel_rejected", "Requests refused, by reason.", labels=["reason"])
        for reason, count in figures.rejected.items():
            rejected.add_metric([reason], count)
        yield rejected
        answers = CounterMetricFamily(
            "gemel_requests", "Answers by route and status.", labels=["route", "status"]
        )
        for (route, status), count in figures.answers.items():
            answers.add_metric([route, str(status)], count)
        yield answers

    def _gauges(self) -> Iterator[Metric]:
        services = self._services
        batcher = services.batcher
        yield GaugeMetricFamily("gemel_queue_tokens", "Tokens that wait.", batcher.queue_tokens)
        yield GaugeMetricFamily(
            "gemel_queue_tokens_limit", "Tokens that may wait.", services.limits.queue_tokens
        )
        yield GaugeMetricFamily("gemel_busy_workers", "Workers that compute now.", batcher.workers.busy)
        yield GaugeMetricFamily("gemel_cache_bytes", "Memory of the kept vectors.", batcher.cache.bytes)
        yield GaugeMetricFamily("gemel_memory_bytes", "Resident memory of the process.", memory_bytes())
        seconds = perf_counter() - services.figures.started
        yield GaugeMetricFamily("gemel_uptime_seconds", "Since the model was loaded.", seconds)


def _histograms(
    name: str, help: str, label: str | None, parts: Mapping[str, Histogram]
) -> HistogramMetricFamily:
    family = HistogramMetricFamily(name, help, labels=[label] if label else [])
    for part, histogram in parts.items():
        bounds = [*map(str, histogram.bounds), "+Inf"]
        counts = accumulate(histogram.counts)
        family.add_metric([part] if label else [], list(zip(bounds, counts, strict=True)), histogram.sum)
    return family


class Metrics:
    """The page of one server; several may live in one process."""

    def __init__(self, services: ServerServices) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(ServerCollector(services))

    def page(self) -> bytes:
        return generate_latest(self._registry)
