"""OpenTelemetry spans around requests, when the package is there and a provider was set up; else nothing."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

Span = Callable[[str], AbstractContextManager[Any]]


def find_tracer() -> Span:
    """What makes a span of a name. OpenTelemetry is set up before: `opentelemetry-instrument gemel serve`."""
    try:
        from opentelemetry import trace
    except ImportError:
        return lambda _: nullcontext()
    provider = trace.get_tracer_provider()
    if isinstance(provider, trace.ProxyTracerProvider | trace.NoOpTracerProvider):
        return lambda _: nullcontext()
    span: Span = trace.get_tracer("gemel.serve").start_as_current_span
    return span
