"""metrics.jsonl: all that happened in a run, one JSON object a line, on disk as soon as it is written.

Every line has `kind`, `step` and `time`. A resumed run cuts off what it will do again, so that in the end the file
says the same as that of a run that was never stopped, but for the fields in `TIMED`.

Metrics to TensorBoard, Weights & Biases or MLflow, through accelerate's trackers; to none unless asked.

The journal is the record of a run. A tracker is a copy of it elsewhere, so one that fails ends itself, not the run.

One line on standard error while a model is trained. Nothing when nobody watches.
"""

from __future__ import annotations

import json
import math
import os
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, TypeAlias

from gemel.errors import InputError, WorkError
from gemel.files.atomic import whole_file
from gemel.terminal import clock as clock_text
from gemel.terminal import printable

if TYPE_CHECKING:
    from accelerate import Accelerator

FILE = "metrics.jsonl"

TIMED = frozenset({"time", "seconds", "texts_per_second"})
"""Fields that differ between two runs that do the same."""

Kind: TypeAlias = Literal[
    "start", "step", "evaluation", "health", "similarities", "warning", "checkpoint", "resume", "end"
]

Line: TypeAlias = dict[str, Any]


class MetricsJournal:
    """Appends lines; `close` it, or use it in a `with`."""

    def __init__(self, path: Path | None, file: BinaryIO | None) -> None:
        """Use `open` or `nowhere`."""
        self._path, self._file = path, file

    @classmethod
    def open(cls, path: Path | str, resume_at_step: int | None = None) -> MetricsJournal:
        """A new journal, or the one that is there up to the checkpoint of `resume_at_step`.

        Write the line of a checkpoint before the checkpoint itself, and all else that belongs to the step before that
        line: then a checkpoint that exists is in the journal, and what follows its line is done again on a resume.
        """
        path = Path(path)
        try:
            if resume_at_step is not None and path.exists():
                kept = _until(read_journal(path), resume_at_step)
                with whole_file(path) as temporary:
                    temporary.write_bytes(b"".join(map(_encoded, kept)))
                return cls(path, path.open("ab"))
            path.parent.mkdir(parents=True, exist_ok=True)
            return cls(path, path.open("wb"))
        except OSError as error:
            raise WorkError(f"cannot write the metrics to {path}: {error.strerror or error}") from error

    @classmethod
    def nowhere(cls) -> MetricsJournal:
        """Takes lines and keeps none: for all processes but the first."""
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
                os.fsync(self._file.fileno())
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
    """All whole lines, in order; a last one that a kill cut short is left out."""
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
            raise InputError(f"{path}:{number}: a line of a journal has a kind and a step")
        lines.append(line)
    return lines


def untimed(lines: Iterable[Line]) -> list[Line]:
    """The lines without what differs from run to run, and without those that say that a run was resumed."""
    return [
        {name: value for name, value in line.items() if name not in TIMED}
        for line in lines
        if line["kind"] != "resume"
    ]


def _until(lines: list[Line], step: int) -> list[Line]:
    """Up to the line of the checkpoint of this step; without such a line, all that is not after the step."""
    for place, line in enumerate(lines):
        if line["kind"] == "checkpoint" and line["step"] == step:
            return lines[: place + 1]
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


PACKAGES = {"tensorboard": ("tensorboard", "tensorboardX"), "wandb": ("wandb",), "mlflow": ("mlflow",)}
"""Name of each tracker to the packages of which one must be there; the first is the one to install."""


def check_trackers(names: Sequence[str]) -> None:
    """Refuse a name that is not known, or whose package is not installed (accelerate would leave it out in silence)."""
    for name in names:
        if name not in PACKAGES:
            close = get_close_matches(name, PACKAGES, n=1)
            hint = f" Did you mean {close[0]!r}?" if close else ""
            raise InputError(f"unknown tracker {name!r}.{hint} Known: {', '.join(PACKAGES)}")
        if not any(find_spec(package) for package in PACKAGES[name]):
            package = PACKAGES[name][0]
            raise InputError(
                f"tracker {name!r} needs the package {package!r}, which is not installed. Install it with: "
                f"pip install {package}"
            )


class Trackers:
    """The trackers of one run; without names all methods do nothing."""

    def __init__(
        self,
        accelerator: Accelerator,
        names: Sequence[str],
        run_name: str,
        options: Mapping[str, Any],
        *,
        folder: Path | str | None = None,
    ) -> None:
        """`options` are shown as the run's settings; `folder` is where TensorBoard's files go, ./runs if not given."""
        check_trackers(names)
        self._accelerator: Accelerator | None = accelerator if names else None
        if not names:
            return
        from accelerate.utils import LoggerType

        accelerator.project_configuration.logging_dir = str(folder or accelerator.logging_dir or "runs")
        accelerator.log_with = [LoggerType(name) for name in dict.fromkeys(names)]
        try:
            accelerator.init_trackers(run_name, config=_flat(options))
        except Exception as error:  # whatever a tracker raises: no key, no server, no disk
            raise WorkError(
                f"cannot report to {', '.join(names)}: {error}. Train without tracker, or set it up first"
            ) from error

    def log(self, values: Mapping[str, Any], step: int) -> None:
        """Numbers of this step; those that are None are left out."""
        if self._accelerator is None:
            return
        known = {name: value for name, value in values.items() if value is not None}
        try:
            self._accelerator.log(known, step=step)
        except Exception as error:  # as above; hours of work must not end with a lost connection
            self._accelerator = None
            warnings.warn(
                f"a tracker failed at step {step} and gets nothing more: {error}. The metrics are in the journal",
                stacklevel=2,
            )

    def end(self) -> None:
        """Let the trackers write what they still hold."""
        if self._accelerator is None:
            return
        # Not accelerator.end_training(), which also takes down the process group, and others may still need that.
        for tracker in self._accelerator.trackers:
            tracker.finish()
        self._accelerator.trackers, self._accelerator = [], None


def _flat(options: Mapping[str, Any]) -> dict[str, str | int | float | bool]:
    """Settings as trackers take them: TensorBoard refuses lists, and leaves out what is None."""
    return {
        name: value if isinstance(value, str | int | float | bool) else _text(value)
        for name, value in options.items()
    }


def _text(value: object) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


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
