"""Terminal output: a progress line for long work, and text of unknown origin made safe to print.

Texts of data files, names of files and messages of other programs may contain escape sequences that clear the screen,
set the title, write to the clipboard, or change the direction of writing so that a line reads as another one.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from datetime import date
from time import perf_counter
from typing import Any

_EVERY = 0.2  # seconds between two updates of the line


class Progress:
    """A line on standard error: how much is done, how fast, time left. Any thread may count; silent unless `shown`."""

    def __init__(self, total: int | None, unit: str, *, shown: bool) -> None:
        """`total` None: unknown, so no time left is shown."""
        self._total, self._unit, self._shown = total, unit, shown
        self._done = 0
        self._started = self._written = perf_counter()
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count `count` more as done; the line is updated a few times per second."""
        with self._lock:
            self._done += count
            now = perf_counter()
            if self._shown and now - self._written >= _EVERY:
                self._written = now
                self._write(now)

    def close(self) -> None:
        """Write the last state of the line and end it."""
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


# C0 except tab and line feed, DEL and C1; direction of writing; other line breaks; lone surrogates.
_CONTROLS = r"\x00-\x08\x0b-\x1f\x7f-\x9f"

_DIRECTIONS = r"\u202a-\u202e\u2066-\u2069"

_UNSAFE = re.compile(f"[{_CONTROLS}{_DIRECTIONS}\u2028\u2029\ud800-\udfff]")


def printable(text: str) -> str:
    r"""The text with control characters of terminals shown as `\x1b` or `\u202e`. Line feeds and tabs stay."""
    return _UNSAFE.sub(_shown, text)


def printable_json(value: Any, **settings: Any) -> str:  # noqa: ANN401 - whatever JSON can hold
    r"""One line of JSON that parses to `value` and is safe to print: control characters are written as `\u009b`."""
    # json.dumps escapes C0; the rest of the pattern can only be inside of strings.
    return _UNSAFE.sub(_escaped, json.dumps(value, ensure_ascii=False, default=iso_date, **settings))


def iso_date(value: object) -> str:
    """Dates and times as ISO 8601: the `default` of json.dumps."""
    if isinstance(value, date):
        return value.isoformat()
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
