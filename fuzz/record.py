"""The record of one process; every input is written to disk before it runs, so it survives if the process dies."""

from __future__ import annotations

import hashlib
import json
import mmap
import re
import resource
import struct
import traceback
from dataclasses import dataclass
from pathlib import Path

from fuzz.target import ROOT, Job, Target

_HEAD = struct.Struct("<QQQQ")  # inputs, of them refused, findings, bytes of the input that runs
_ROOM = 1 << 20


class State:
    """A small file that the child writes and the parent reads while both run."""

    def __init__(self, path: Path, *, new: bool = False) -> None:
        if new:
            path.write_bytes(bytes(_HEAD.size + _ROOM))
        with path.open("r+b") as stream:
            self._memory = mmap.mmap(stream.fileno(), 0)

    @property
    def counts(self) -> tuple[int, int, int]:
        """Inputs, how many of them were refused with a GemelError, findings."""
        inputs, refused, findings, _ = _HEAD.unpack_from(self._memory)
        return inputs, refused, findings

    def last(self) -> bytes:
        """The input that runs, or ran last."""
        length = _HEAD.unpack_from(self._memory)[3]
        return self._memory[_HEAD.size : _HEAD.size + length]

    def write(self, counts: tuple[int, int, int], data: bytes) -> None:
        data = data[:_ROOM]
        self._memory[_HEAD.size : _HEAD.size + len(data)] = data
        _HEAD.pack_into(self._memory, 0, *counts, len(data))


@dataclass(frozen=True)
class Finding:
    """A violation of the rules, and the first input that caused it."""

    target: str
    what: str
    where: str
    """The innermost function of gemel."""
    trace: str

    @property
    def key(self) -> str:
        """Usually equal for two findings with the same cause."""
        text = f"{self.target} {self.what.partition(':')[0]} {self.where}"
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    def save(self, folder: Path, data: bytes) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{self.target}-{self.key}.json"
        if not path.exists():
            path.with_suffix(".input").write_bytes(data)
            report = {"target": self.target, "what": self.what, "where": self.where, "trace": self.trace}
            path.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


class Recorder:
    """Runs inputs of one target, one by one, and saves those that break its rule. It continues after a finding."""

    def __init__(self, target: Target, job: Job, state: State, findings: Path) -> None:
        from gemel.errors import GemelError

        self._target, self._job, self._state, self._folder = target, job, state, findings
        self._expected = GemelError
        self.inputs, self.refused, self.findings = state.counts

    def __call__(self, data: bytes) -> None:
        self._state.write((self.inputs, self.refused, self.findings), data)
        before = _peak_mb()
        try:
            self._job.run(data)
        except self._expected:
            self.refused += 1
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # a panic of a Rust library is not an Exception
            self._found(_described(self._target.name, error), data)
        self.inputs += 1
        grown = _peak_mb() - before
        if grown > self._target.limit_mb:
            finding = Finding(self._target.name, f"memory: one input added {grown:,.0f} MB", "", "")
            self._found(finding, data)
        self._state.write((self.inputs, self.refused, self.findings), data)

    def _found(self, finding: Finding, data: bytes) -> None:
        self.findings += 1
        finding.save(self._folder, data)


def _described(target: str, error: BaseException) -> Finding:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/src/gemel/" in frame.filename]
    where = f"{own[-1].filename.partition('/src/gemel/')[2]}:{own[-1].name}" if own else ""
    what = f"{type(error).__name__}: {str(error)[:300]}"
    trace = "".join(traceback.format_list(frames[-12:]))
    return Finding(target, what, where, re.sub(re.escape(str(ROOT)) + "/", "", trace))


def _peak_mb() -> float:
    """Peak of this program. On Linux `ru_maxrss` starts with the memory of the parent process."""
    try:
        status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000
    return int(status.partition("VmHWM:")[2].split()[0]) / 1000
