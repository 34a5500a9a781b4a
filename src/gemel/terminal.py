"""Terminal output: a progress line for long work, and text of unknown origin made safe to print.

Texts of data files, names of files and messages of other programs may contain escape sequences that clear the screen,
set the title, write to the clipboard, or change the direction of writing so that a line reads as another one.
"""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Callable
from datetime import date
from time import perf_counter
from typing import Any

_LIVE_S = 0.2  # seconds between two updates of a line on a terminal

PLAIN_S = 30.0
"""Seconds between two lines where standard error is a file or a pipe; work that ends sooner writes none."""


class StatusLine:
    """The state of long work on standard error, silent unless `shown`.

    On a terminal and in a notebook it is one line that is overwritten; in a log it is a new line every half minute.
    """

    def __init__(self, *, shown: bool, clock: Callable[[], float] = perf_counter) -> None:
        """`clock` returns seconds."""
        self.shown, self.live, self._clock = shown, is_live(), clock
        self._written = clock()
        self._lines = 0
        self._width = 0

    def due(self) -> bool:
        """Whether it is time for an update; if so, the next one is due an interval later."""
        now = self._clock()
        due = self.shown and now - self._written >= (_LIVE_S if self.live else PLAIN_S)
        if due:
            self._written = now
        return due

    def write(self, text: str) -> None:
        """Write the state."""
        if self.shown:
            sys.stderr.write("\r" + text.ljust(self._width) if self.live else text + "\n")
            sys.stderr.flush()
            self._width, self._lines = max(self._width, len(text)), self._lines + 1

    def say(self, sentence: str, state: str) -> None:
        """Write a sentence of its own, above the state."""
        if self.shown:
            sentence = printable(sentence)
            sys.stderr.write(f"\r{sentence.ljust(self._width)}\n" if self.live else sentence + "\n")
        if self.live:
            self.write(state)

    def close(self, state: str) -> None:
        """Write the last state; not in a log that has had no line so far."""
        if self.live or self._lines:
            self.write(state)
        if self.shown and self.live:
            sys.stderr.write("\n")


def is_live() -> bool:
    """Whether a line on standard error can be overwritten: on a terminal, and in a notebook."""
    return sys.stderr is not None and (sys.stderr.isatty() or "ipykernel" in sys.modules)


class Progress:
    """A `StatusLine` that says how much is done, how fast, and the time left. Any thread may count."""

    def __init__(self, total: float | None, unit: str, *, shown: bool, what: str | None = None) -> None:
        """`total` None: unknown, so no time left is shown. `what`: the name of the work, written before the count."""
        self._total, self._unit, self._what = total, unit, what
        self._start = self._done = 0
        self._started = perf_counter()
        self._line = StatusLine(shown=shown)
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        """Count `count` more as done."""
        with self._lock:
            self._done += count
            self._update()

    def reached(self, done: int, total: float | None, *, before: int = 0) -> None:
        """`done` of `total` so far, where the total is only estimated on the way; `before`: done by earlier runs."""
        with self._lock:
            self._done, self._total, self._start = done, total, before
            self._update()

    def close(self) -> None:
        """Write the last state of the line and end it."""
        self._line.close(self._state())

    def _update(self) -> None:
        if self._line.due():
            self._line.write(self._state())

    def _state(self) -> str:
        rate = (self._done - self._start) / max(perf_counter() - self._started, 1e-9)
        of = "" if self._total is None else f" of {self._total:,.0f}"
        unit = _SINGULAR.sub(_one, self._unit, 1) if (self._total or self._done) == 1 else self._unit
        parts = [f"{self._done:,}{of} {unit}", f"{rate:,.0f}/s"]
        if self._total is not None and rate > 0:
            parts.append(f"{clock((self._total - self._done) / rate)} left")
        return (f"{self._what}: " if self._what else "") + ", ".join(parts)


_SINGULAR = re.compile(r"(ie)?s\b")


def _one(plural: re.Match[str]) -> str:
    return "y" if plural[1] else ""


def counted(count: int, one: str, many: str | None = None) -> str:
    """A number with its noun: "1 text", "2,000 texts"; `many` where the plural is irregular."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"


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
    return _UNSAFE.sub(_escaped, json.dumps(value, ensure_ascii=False, default=json_value, **settings))


def json_value(value: object) -> object:
    """Dates and times as ISO 8601, arrays of numbers as lists: the `default` of json.dumps."""
    if isinstance(value, date):
        return value.isoformat()
    if hasattr(value, "tolist"):  # without an import of NumPy
        return value.tolist()
    raise TypeError(f"{type(value).__name__} is not a JSON type")


def _shown(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}"


def _escaped(match: re.Match[str]) -> str:
    return f"\\u{ord(match[0]):04x}"
