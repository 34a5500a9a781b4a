"""What the server records about itself: the log, the counters of /status and /metrics, spans, and its memory.

The log has one line for each request on standard error, never with a text, a key or the message of an error. Counters
are plain numbers, cheap to change; only the event loop changes them, so there is no lock. Spans of OpenTelemetry are
made when the package is installed and a provider was set up.
"""

from __future__ import annotations

import ctypes
import errno
import logging
import os
import re
import sys
import threading
import traceback
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Any

import orjson

from gemel.serve.options import LogFormat

OWN_LOGGERS = ("gemel", "uvicorn", "asyncio")
"""Their messages contain nothing of a request."""
_OS_ERROR = re.compile(r"\(os error (\d{1,4})\)")


class RequestLog:
    """Writes lines in the chosen format."""

    def __init__(self, format: LogFormat) -> None:
        self._format = format

    def line(self, event: str, **fields: Any) -> None:
        if self._format == "none":
            return
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self._format == "json":
            text = orjson.dumps({"time": now, "event": event, **fields}).decode()
        else:
            text = " ".join([now, event, *(f"{name}={value}" for name, value in fields.items())])
        sys.stderr.write(text + "\n")

    def failure(self, error: BaseException, **fields: Any) -> None:
        """Where an error came from, without its message, which may quote a text."""
        reason = reason_of(error)
        if reason is not None:
            fields["reason"] = reason
        innermost = traceback.extract_tb(error.__traceback__)[-8:]
        frames = [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}" for frame in innermost]
        self.line("failure", error=type(error).__name__, frames=frames, **fields)


def reason_of(error: BaseException) -> str | None:
    """The message of the operating system ("No space left on device") behind an error; None: there is none.

    Of the error or of those it came from. Native libraries write its number into their message.
    """
    seen: set[int] = set()
    each: BaseException | None = error
    while each is not None and id(each) not in seen:
        seen.add(id(each))
        if isinstance(each, MemoryError):
            return os.strerror(errno.ENOMEM)
        if isinstance(each, OSError) and each.errno is not None:
            return os.strerror(each.errno)
        number = _OS_ERROR.search(str(each))
        if number is not None:
            return os.strerror(int(number[1]))
        each = each.__cause__ or each.__context__
    return None


class LogHandler(logging.Handler):
    """Writes what libraries log as lines of the same form, without tracebacks between them."""

    def __init__(self, log: RequestLog) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        fields: dict[str, Any] = {"logger": record.name, "level": record.levelname.lower()}
        error = record.exc_info[1] if record.exc_info else None
        if error is not None:
            self._log.failure(error, **fields)
        elif record.name.split(".")[0] in OWN_LOGGERS:
            self._log.line("log", message=record.getMessage().partition("\n")[0], **fields)
        else:  # its message may quote a request
            self._log.line("log", location=f"{record.filename}:{record.lineno} {record.funcName}", **fields)


@contextmanager
def capture_logging(log: RequestLog) -> Iterator[None]:
    """Meanwhile logging, warnings and errors of threads are written as lines of `log`."""
    root, handler = logging.getLogger(), LogHandler(log)
    hook = threading.excepthook
    root.addHandler(handler)
    logging.captureWarnings(True)
    threading.excepthook = lambda given: (
        log.failure(given.exc_value, thread=getattr(given.thread, "name", None)) if given.exc_value else None
    )
    try:
        yield
    finally:
        threading.excepthook = hook
        logging.captureWarnings(False)
        root.removeHandler(handler)


Span = Callable[[str], AbstractContextManager[Any]]
"""Makes a span of OpenTelemetry, given its name."""


def find_tracer() -> Span:
    """A function that makes a span of a name, as set up by `opentelemetry-instrument gemel serve`; else a no-op."""
    try:
        from opentelemetry import trace
    except ImportError:
        return lambda _: nullcontext()
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return lambda _: nullcontext()
    span: Span = trace.get_tracer("gemel.serve").start_as_current_span
    return span


# Counters.

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)

STAGES = ("queue", "tokenize", "compute", "total")

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


# Memory.

_STATM = Path("/proc/self/statm")


def memory_bytes() -> int:
    """Resident bytes of this process; 0 where the system does not report it."""
    try:
        pages = int(_STATM.read_bytes().split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """Resident bytes without those of mapped files, which the system can take back; 0 where it does not report it."""
    try:
        _, resident, shared, *_ = map(int, _STATM.read_bytes().split())
    except OSError:
        return 0
    return (resident - shared) * os.sysconf("SC_PAGE_SIZE")


def trim_memory() -> None:
    """Make glibc return freed memory to the system; other allocators do so by themselves. Takes a while."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if os.name == "posix" else None
    if trim is not None:
        trim(0)
