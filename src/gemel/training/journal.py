"""What a run records: metrics.jsonl, experiment trackers, and the progress line on standard error.

Every line of metrics.jsonl is a JSON object with `kind`, `step` and `time`. A resumed run removes the lines of the
steps that it repeats, so that the file ends up equal to that of an uninterrupted run, except for the fields in `TIMED`.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError, WorkError, did_you_mean
from gemel.files.atomic import sync_open, write_atomic
from gemel.terminal import StatusLine
from gemel.terminal import clock as clock_text
from gemel.training.watch import SimilaritySample

if TYPE_CHECKING:
    from accelerate import Accelerator

FILE = "metrics.jsonl"

TIMED = frozenset({"time", "seconds", "texts_per_second"})
"""Fields that differ between two equal runs."""

Kind: TypeAlias = Literal[
    "start", "step", "evaluation", "health", "similarities", "facts", "warning", "checkpoint", "resume", "end"
]

Line: TypeAlias = dict[str, Any]


class MetricsJournal:
    """Appends lines to metrics.jsonl; `close` it, or use it in a `with`."""

    def __init__(self, path: Path | None, file: BinaryIO | None) -> None:
        """Use `open` or `nowhere`."""
        self._path, self._file = path, file

    @classmethod
    def open(cls, path: Path | str, resume_at_step: int | None = None) -> MetricsJournal:
        """A new journal, or the existing one up to the checkpoint of `resume_at_step`.

        Write the line of a checkpoint before the checkpoint itself, and everything else of the step before that line:
        then every checkpoint is in the journal, and the steps after its line are repeated on a resume.
        """
        path = Path(path)
        try:
            if resume_at_step is not None and path.exists():
                lines = _until(read_journal(path), resume_at_step)
                write_atomic(path, b"".join(map(_encoded, lines)), exclusive=True)
                return cls(path, path.open("ab"))
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(path, path.open("wb"))
        except OSError as error:
            raise WorkError(f"cannot write the metrics to {path}: {error.strerror or error}") from error

    @classmethod
    def nowhere(cls) -> MetricsJournal:
        """Discards all lines: for all processes except the first."""
        return cls(None, None)

    def write(self, kind: Kind, step: int, **values: Any) -> None:
        """One line. A number that is not finite becomes null: JSON has no NaN."""
        if self._file is None:
            return
        moment = datetime.now(UTC).isoformat(timespec="milliseconds")
        line = {"kind": kind, "step": step, "time": moment, **values}
        try:
            self._file.write(_encoded(line))
            self._file.flush()
            if kind == "checkpoint":
                sync_open(self._file)
        except OSError as error:
            raise WorkError(f"cannot write the metrics to {self._path}: {error.strerror or error}") from error

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> MetricsJournal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_journal(path: Path | str) -> list[Line]:
    """All complete lines, in order; a last line that was cut off by a kill is left out."""
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read the metrics in {path}: {error.strerror or error}") from error
    lines = []
    for number, text in enumerate(content.split(b"\n")[:-1], start=1):
        try:
            line = json.loads(text)
        except ValueError as error:
            raise InputError(f"{path}:{number}: not JSON ({error})") from error
        if not isinstance(line, dict) or not isinstance(line.get("step"), int) or "kind" not in line:
            raise InputError(f"{path}:{number}: a line of the metrics must have a kind and a step")
        lines.append(line)
    return lines


def untimed(lines: Iterable[Line]) -> list[Line]:
    """The lines without the fields in `TIMED`, and without the lines of kind "resume"."""
    return [
        {name: value for name, value in line.items() if name not in TIMED}
        for line in lines
        if line["kind"] != "resume"
    ]


def _until(lines: list[Line], step: int) -> list[Line]:
    """Up to the line of the checkpoint of this step; if there is none, all lines up to the step."""
    for index, line in enumerate(lines):
        if line["kind"] == "checkpoint" and line["step"] == step:
            return lines[: index + 1]
    return [line for line in lines if line["step"] <= step] if step > 0 else []


def _encoded(line: Line) -> bytes:
    return json.dumps(_plain(line), ensure_ascii=False, allow_nan=False).encode("utf-8", "replace") + b"\n"


def _plain(value: Any) -> Any:  # noqa: ANN401 - whatever a run measures
    if isinstance(value, dict):
        return {str(name): _plain(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    if hasattr(value, "tolist"):  # an array or a number of NumPy
        return _plain(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


Floats: TypeAlias = NDArray[np.float64]

POINTS = 600
"""More points than this cannot be distinguished in a plot."""


@dataclass(frozen=True, eq=False)
class Series:
    """A metric over the steps; all values are finite."""

    steps: Floats
    values: Floats

    def __len__(self) -> int:
        return len(self.steps)

    def smoothed(self) -> Series:
        """A moving average over about a fiftieth of the points, at least ten."""
        mean = Smoothed(1 - 1 / max(10, len(self) / 50))
        return Series(self.steps, np.array([mean.add(value) for value in self.values.tolist()]))

    def thinned(self) -> Series:
        """At most `POINTS` points: the lowest and the highest of each interval, so that no peak is lost."""
        if len(self) <= POINTS:
            return self
        chosen: set[int] = {0, len(self) - 1}
        for part in np.array_split(np.arange(len(self)), POINTS // 2 - 1):
            chosen |= {int(part[self.values[part].argmin()]), int(part[self.values[part].argmax()])}
        order = sorted(chosen)
        return Series(self.steps[order], self.values[order])


def series(journal: Sequence[Line], kind: str, name: str) -> Series:
    """The field `name` of all lines of this kind; missing and non-finite values are left out."""
    points = [
        (line["step"], line[name])
        for line in journal
        if line["kind"] == kind and isinstance(line.get(name), int | float)
    ]
    table = np.array(points, dtype=np.float64).reshape(-1, 2)
    table = table[np.isfinite(table).all(axis=1)]
    return Series(table[:, 0], table[:, 1])


def similarities_of(journal: Sequence[Line]) -> tuple[SimilaritySample | None, SimilaritySample | None]:
    """The first and the last histograms in the journal; None if missing."""
    samples = [SimilaritySample.from_json(line) for line in journal if line["kind"] == "similarities"]
    return (samples[0] if samples else None), (samples[-1] if len(samples) > 1 else None)


def warnings_of(journal: Sequence[Line]) -> list[str]:
    return [str(line["text"]) for line in journal if line["kind"] == "warning" and line.get("text")]


PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}
"""Tracker to the packages of which it needs one; the first is the one to install."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse an unknown tracker, or one whose package is missing (accelerate would silently leave it out)."""
    for name in names:
        if name not in PACKAGES:
            hint = did_you_mean(name, PACKAGES)
            raise InputError(f"unknown tracker {name!r}.{hint} Known: {', '.join(PACKAGES)}")
        if not any(find_spec(package) for package in PACKAGES[name]):
            package = PACKAGES[name][0]
            raise InputError(
                f"tracker {name!r} needs the package {package!r}, which is not installed. Install it with: "
                f"pip install {package}"
            )


class Trackers:
    """Copies metrics to TensorBoard, Weights & Biases or MLflow, through accelerate; without names it does nothing.

    A tracker that fails is switched off and the run continues, since the journal has everything.
    """

    def __init__(
        self,
        accelerator: Accelerator,
        names: Sequence[str],
        run_name: str,
        options: Mapping[str, Any],
        *,
        folder: Path | str | None = None,
    ) -> None:
        """`options` are shown as the run's settings; `folder` is for TensorBoard's files, ./runs by default."""
        check_trackers(names)
        self._accelerator: Accelerator | None = accelerator if names else None
        if not names:
            return
        from accelerate.utils import LoggerType

        accelerator.project_configuration.logging_dir = str(folder or accelerator.logging_dir or "runs")
        accelerator.log_with = [LoggerType(name) for name in dict.fromkeys(names)]
        try:
            accelerator.init_trackers(run_name, config=_flat(options))
        except Exception as error:  # anything a tracker raises: no key, no server, no disk
            raise WorkError(
                f"cannot log to {', '.join(names)}: {error}. Train without tracker, or set it up first"
            ) from error

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of this step; those that are None are left out."""
        if self._accelerator is None:
            return
        present = {name: value for name, value in values.items() if value is not None}
        try:
            self._accelerator.log(present, step=step)
        except Exception as error:  # a lost connection must not end hours of work
            self._accelerator = None
            warnings.warn(
                f"a tracker failed at step {step} and is switched off: {error}. The metrics are in the journal",
                stacklevel=2,
            )

    def end(self) -> None:
        """Let the trackers write what they have buffered."""
        if self._accelerator is None:
            return
        # Not accelerator.end_training(), which also ends the process group that others may still need.
        for tracker in self._accelerator.trackers:
            tracker.finish()
        self._accelerator.trackers, self._accelerator = [], None


def _flat(options: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Settings as trackers accept them: TensorBoard refuses lists and drops None."""
    return {
        name: value if isinstance(value, str | int | float | bool) else _text(value)
        for name, value in options.items()
    }


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


_MEMORY = 0.95  # weight of the earlier steps in the smoothed loss


class Bar:
    """The progress line: `step 1,200 of 5,400, loss 0.8123, 410 texts/s, 12:40 left, spearman 61.20`."""

    def __init__(
        self, steps: int, *, shown: bool, start: int = 0, clock: Callable[[], float] = perf_counter
    ) -> None:
        """`start`: steps done before a resume; `clock` returns seconds."""
        self._steps, self._start, self._clock = steps, start, clock
        self._step, self._texts, self._busy = start, 0, 0.0
        self._loss: Smoothed = Smoothed(_MEMORY)
        self._score = ""
        self._started = self._resumed = clock()
        self._line = StatusLine(shown=shown, clock=clock)

    def step(self, step: int, loss: float, texts: int) -> None:
        """A step is done; `texts` went through the encoder in it."""
        now = self._clock()
        self._busy += now - self._resumed
        self._resumed, self._step, self._texts = now, step, self._texts + texts
        self._loss.add(loss)
        if self._line.due():
            self._line.write(self._state())

    def evaluated(self, score: str) -> None:
        """An evaluation ended with `score`, such as "spearman 61.20". Its time does not count for texts/s."""
        self._score, self._resumed = score, self._clock()

    def say(self, sentence: str) -> None:
        """Print a line above the progress line."""
        self._line.say(sentence, self._state())

    def close(self) -> None:
        """Print the last state and end the line."""
        self._line.close(self._state())

    def _state(self) -> str:
        parts = [f"step {self._step:,} of {self._steps:,}"]
        done = self._step - self._start
        if done > 0:
            left = (self._clock() - self._started) / done * (self._steps - self._step)
            parts += [
                f"loss {self._loss.value:.4f}",
                f"{self._texts / max(self._busy, 1e-9):,.0f} texts/s",
                f"{clock_text(left)} left",
            ]
        return ", ".join([*parts, self._score] if self._score else parts)


class Smoothed:
    """An exponential moving average, with the correction for the first values (as in Adam)."""

    def __init__(self, memory: float) -> None:
        """`memory` is the weight of the earlier values: 0.95 averages about 20 of them."""
        self._memory, self._sum, self._weight = memory, 0.0, 0.0

    def add(self, number: float) -> float:
        """The mean with this number in it."""
        self._sum = self._memory * self._sum + (1 - self._memory) * number
        self._weight = self._memory * self._weight + (1 - self._memory)
        return self.value

    @property
    def value(self) -> float:
        return self._sum / self._weight if self._weight else 0.0
