"""metrics.jsonl: all that happened in a run, one JSON object a line, on disk as soon as it is written.

Every line has `kind`, `step` and `time`. A resumed run cuts off what it will do again, so that in the end the file
says the same as that of a run that was never stopped, but for the fields in `TIMED`.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, TypeAlias

from gemel.encode_folder.storage import whole_file
from gemel.errors import InputError, WorkError

FILE = "metrics.jsonl"
TIMED = frozenset({"time", "seconds", "texts_per_second"})
"""Fields that differ between two runs that do the same."""
Kind: TypeAlias = Literal[
    "start", "step", "evaluation", "health", "similarities", "warning", "checkpoint", "resume", "end"
]
Line: TypeAlias = dict[str, Any]


class Journal:
    """Appends lines; `close` it, or use it in a `with`."""

    def __init__(self, path: Path | None, file: BinaryIO | None) -> None:
        """Use `open` or `nowhere`."""
        self._path, self._file = path, file

    @classmethod
    def open(cls, path: Path | str, resume_at_step: int | None = None) -> Journal:
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
    def nowhere(cls) -> Journal:
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

    def __enter__(self) -> Journal:
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
