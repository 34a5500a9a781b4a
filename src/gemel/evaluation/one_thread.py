"""Many small matrix products, one thread: handing them around costs more than it saves, and order never changes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from gemel.errors import MissingExtra


@contextmanager
def one_thread(feature: str) -> Iterator[None]:
    """Inside, numpy, scipy and scikit-learn compute on one thread. `feature` is what an error calls the work."""
    try:
        from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]
    except ImportError as error:
        # It comes with scikit-learn, which is what the extra names.
        raise MissingExtra(feature, "threadpoolctl", "evaluate") from error
    with threadpool_limits(limits=1):
        yield
