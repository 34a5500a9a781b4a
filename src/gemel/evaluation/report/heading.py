"""When and with what a report was made."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version


@dataclass(frozen=True)
class Heading:
    """The first lines of a report."""

    date: str
    versions: tuple[str, ...]
    """Name and number of each, such as "Python 3.11.9"."""


def heading(date: datetime | None = None) -> Heading:
    """The heading of a report made at `date`, or now."""
    moment = (date or datetime.now(UTC)).isoformat(sep=" ", timespec="minutes")
    versions = (
        f"gemel {version('gemel')}",
        f"Python {platform.python_version()}",
        f"NumPy {version('numpy')}",
    )
    return Heading(moment, versions)
