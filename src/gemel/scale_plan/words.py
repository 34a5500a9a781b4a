"""Numbers for a person: three digits and a unit."""

from __future__ import annotations

_BYTES = ("bytes", "kB", "MB", "GB", "TB", "PB")
_COUNTS = ((1e12, " T"), (1e9, " B"), (1e6, " M"))
_TIMES = ((24 * 365, "years"), (24, "days"), (1, "hours"), (1 / 60, "min"))


def size(count: float) -> str:
    """Bytes."""
    for unit in _BYTES[:-1]:
        if round(count, 1) < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.0f} {_BYTES[-1]}"


def amount(count: float) -> str:
    """A number: 950, 12,300, 4.56 M, 7.8 B."""
    for unit, name in _COUNTS:
        if count >= unit:
            return f"{count / unit:,.3g}{name}" if count < 1000 * unit else f"{count / unit:,.0f}{name}"
    return f"{count:,.0f}" if count >= 100 else f"{count:.3g}"


def moment(seconds: float) -> str:
    """A short time."""
    return f"{seconds * 1e3:.3g} ms" if seconds < 1 else f"{seconds:,.3g} s"


def duration(hours: float) -> str:
    """A time, in the largest unit of which it has two."""
    for unit, name in _TIMES:
        if hours >= 2 * unit:
            count = hours / unit
            return f"{count:,.0f} {name}" if count >= 100 else f"{count:.3g} {name}"
    return moment(hours * 3600)
