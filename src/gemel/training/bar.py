"""One line on standard error while a model is trained. Nothing when nobody watches."""

from __future__ import annotations

import sys
from collections.abc import Callable
from time import perf_counter

from gemel.printable import printable
from gemel.progress import clock as clock_text

_EVERY = 0.2  # seconds between two updates of the line
_MEMORY = 0.95  # how much of the smoothed loss stays when a step is added


class Bar:
    """`step 1,200 of 5,400, loss 0.8123, 410 texts/s, 12:40 left, spearman 61.20`."""

    def __init__(
        self, steps: int, *, shown: bool, start: int = 0, clock: Callable[[], float] = perf_counter
    ) -> None:
        """`start` is the step that a resumed run begins after; `clock` gives seconds."""
        self._steps, self._shown, self._start, self._clock = steps, shown, start, clock
        self._step, self._texts, self._busy = start, 0, 0.0
        self._loss: Smoothed = Smoothed(_MEMORY)
        self._score = ""
        self._begun = self._mark = self._written = clock()
        self._width = 0

    def step(self, step: int, loss: float, texts: int) -> None:
        """A step is done; `texts` went through the encoder in it."""
        now = self._clock()
        self._busy += now - self._mark
        self._mark, self._step, self._texts = now, step, self._texts + texts
        self._loss.add(loss)
        if self._shown and now - self._written >= _EVERY:
            self._written = now
            self._write(now)

    def evaluated(self, said: str) -> None:
        """An evaluation ended, such as "spearman 61.20". Its time does not count for texts/s, but for the time left."""
        self._score, self._mark = said, self._clock()

    def say(self, sentence: str) -> None:
        """A line of its own above the bar."""
        if self._shown:
            sys.stderr.write("\r" + printable(sentence).ljust(self._width) + "\n")
            self._write(self._clock())

    def close(self) -> None:
        """Leaves the last state of the line and ends it."""
        if self._shown:
            self._write(self._clock())
            sys.stderr.write("\n")

    def _write(self, now: float) -> None:
        parts = [f"step {self._step:,} of {self._steps:,}"]
        done = self._step - self._start
        if done > 0:
            left = (now - self._begun) / done * (self._steps - self._step)
            parts += [
                f"loss {self._loss.value:.4f}",
                f"{self._texts / max(self._busy, 1e-9):,.0f} texts/s",
                f"{clock_text(left)} left",
            ]
        parts += [self._score] if self._score else []
        line = ", ".join(parts)
        sys.stderr.write("\r" + line.ljust(self._width))
        sys.stderr.flush()
        self._width = max(len(line), self._width)


class Smoothed:
    """A running mean in which older numbers count less and less; the first ones are not pulled towards zero."""

    def __init__(self, memory: float) -> None:
        """`memory` is the share of the old that stays: 0.95 looks back over about 20 numbers."""
        self._memory, self._sum, self._weight = memory, 0.0, 0.0

    def add(self, number: float) -> float:
        """The mean with this number in it."""
        self._sum = self._memory * self._sum + (1 - self._memory) * number
        self._weight = self._memory * self._weight + (1 - self._memory)
        return self.value

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0
