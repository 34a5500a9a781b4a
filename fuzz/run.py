"""`make fuzz MINUTES=n`: shares the minutes among all targets, one process at a time, and writes a summary.

`python -m fuzz.run --minutes 10 [--only NAME ...] [--engine own]`. A process that hangs, dies or takes too much memory
is a finding, and the next process continues with the inputs that were kept. Exits with 1 if there is a finding.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from fuzz import kernels
from fuzz.child import memory_folder
from fuzz.record import Finding, State
from fuzz.target import ROOT, Target, load_targets

RESULTS = ROOT / "build" / "fuzz" / "results.json"
START_SECONDS = 120.0  # imports, tiny models and seeds, on a busy machine
MEASURE_SECONDS = 8.0  # for the coverage of one target's inputs
POLL = 0.2
TRIES = 20  # maximum number of processes for one target if they die


@dataclass
class Outcome:
    """The result of one target."""

    engine: str
    inputs: int = 0
    refused: int = 0
    seconds: float = 0.0
    restarts: int = 0
    peak_mb: int = 0
    coverage: dict[str, int] = field(default_factory=dict)
    findings: list[dict[str, str]] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m fuzz.run")
    parser.add_argument("--minutes", type=float, default=5.0, help="for all targets together")
    parser.add_argument("--only", nargs="*", default=[], help="names, or how names begin")
    parser.add_argument("--engine", choices=("atheris", "own"), help="default: atheris where it is installed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--work", type=Path, default=ROOT / "build" / "fuzz", help="corpus and findings are kept here"
    )
    parser.add_argument(
        "--json", type=Path, default=RESULTS, help="where the summary goes; fuzz/results.json is the kept one"
    )
    parser.add_argument("--no-measure", dest="measure", action="store_false", help="no coverage at the end")
    parser.add_argument("--add", action="store_true", help="add to the counts of the summary that is there")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that children and the server are stopped
    engine = given.engine or ("atheris" if find_spec("atheris") else "own")
    targets = [each for each in load_targets().values() if _wanted(each.name, given.only)]
    programs = [name for name in kernels.PROGRAMS if _wanted(name, given.only)]
    if not targets and not programs:
        parser.error("no such target: " + " ".join(given.only))
    print(_about(engine), flush=True)
    share = given.minutes * 60 / (len(targets) + len(programs))
    outcomes: dict[str, Outcome] = {}
    before = json.loads(given.json.read_text()) if given.add and given.json.is_file() else {}
    with _postgres(any(each.postgres for each in targets)):
        for each in targets:
            outcomes[each.name] = _fuzzed(each, engine, share, given)
            _say(each.name, outcomes[each.name])
            _write(given.json, before, engine, outcomes)  # after each: a run may be stopped
    for name in programs:
        outcomes[name] = _kernel(name, share, given)
        _say(name, outcomes[name])
        _write(given.json, before, engine, outcomes)
    print(_closing(json.loads(given.json.read_text())), given.json)
    return 1 if any(outcome.findings for outcome in outcomes.values()) else 0


def _wanted(name: str, only: list[str]) -> bool:
    return not only or any(name.startswith(start) for start in only)


def _about(engine: str) -> str:
    words = (
        "atheris guides by coverage"
        if engine == "atheris"
        else "no atheris: a loop of our own guides by lines"
    )
    return f"{words}; kernels: {kernels.how()}"


def _say(name: str, outcome: Outcome) -> None:
    covered = outcome.coverage
    lines = f", {covered['lines']}/{covered['of']} lines" if "of" in covered else ""
    result = "".join(f"\n    {each['what'][:150]} at {each['where']}" for each in outcome.findings)
    print(f"{name}: {outcome.inputs:,} inputs, {outcome.refused:,} refused{lines}{result}", flush=True)


# ---- one target of Python ----


def _fuzzed(target: Target, engine: str, seconds: float, given: argparse.Namespace) -> Outcome:
    work = given.work / target.name
    shutil.rmtree(work / "findings", ignore_errors=True)
    (work / "coverage.json").unlink(missing_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    state = State(work / "state", new=True)
    outcome = Outcome(engine)
    begun = time.monotonic()
    while (left := seconds - (time.monotonic() - begun)) > 0.5:
        # The child may be killed, and libFuzzer exits without cleanup: its folder is removed here.
        with tempfile.TemporaryDirectory(prefix="gemel-fuzz-", dir=memory_folder()) as folder:
            words = ["--folder", folder, "--seed", str(given.seed + outcome.restarts), "--seconds", str(left)]
            _watched(
                target, [*_command(target.name, work), "--engine", engine, *words], left, work, state, outcome
            )
        outcome.restarts += 1
        if outcome.restarts >= TRIES:
            break
    outcome.seconds = round(time.monotonic() - begun, 1)
    outcome.restarts -= 1
    outcome.inputs, outcome.refused, _ = state.counts
    if given.measure:
        _measured(target, work)
    if (work / "coverage.json").is_file():
        outcome.coverage = json.loads((work / "coverage.json").read_text())
    for path in sorted((work / "findings").glob("*.json")):
        outcome.findings.append({**json.loads(path.read_text()), "input": str(path.with_suffix(".input"))})
    return outcome


def _measured(target: Target, work: Path) -> None:
    """Writes coverage.json: the lines that all kept inputs reach."""
    command = [*_command(target.name, work), "--engine", "measure", "--seconds", str(MEASURE_SECONDS)]
    with contextlib.suppress(subprocess.TimeoutExpired):
        limit = START_SECONDS + 2 * MEASURE_SECONDS
        subprocess.run(command, env=_environment(), cwd=ROOT, capture_output=True, check=False, timeout=limit)


def _command(name: str, work: Path) -> list[str]:
    return [sys.executable, "-m", "fuzz.child", name, str(work)]


def _environment() -> dict[str, str]:
    """The environment of a child: no user settings, no network, its own caches, one thread."""
    home = ROOT / "build" / "fuzz" / "home"
    home.mkdir(parents=True, exist_ok=True)
    fixed = {
        "GEMEL_CONFIG": "none",
        "GEMEL_OFFLINE": "1",
        "GEMEL_CACHE": str(home / "cache"),
        "HOME": str(home),
    }
    return {
        **os.environ,
        **fixed,
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }


def _watched(
    target: Target, command: list[str], seconds: float, work: Path, state: State, outcome: Outcome
) -> None:
    """One process, until its time is over; a hang, a crash or too much memory becomes a finding."""
    log_path = work / "log"
    with log_path.open("wb") as log:
        child = subprocess.Popen(
            command, env=_environment(), cwd=ROOT, stdout=log, stderr=log, start_new_session=True
        )
    watch = _Watch(target, seconds, state)
    reason = ""
    try:
        while child.poll() is None:
            time.sleep(POLL)
            used = _resident_mb(child.pid)
            outcome.peak_mb = max(outcome.peak_mb, used)
            if reason := watch.look(used):
                _stop(child)
    except BaseException:
        _stop(child)
        raise
    if not reason and child.returncode < 0:
        reason = f"killed by {signal.Signals(-child.returncode).name}"
    elif not reason and child.returncode > 0:
        reason = f"the process ended with {child.returncode}"
    if reason:
        told = log_path.read_text(errors="replace")
        Finding(target.name, reason, "", told[-3000:]).save(work / "findings", state.last())


class _Watch:
    """Whether a process makes progress from input to input, within its memory."""

    def __init__(self, target: Target, seconds: float, state: State) -> None:
        self._target, self._state = target, state
        self._first = self._last = state.counts[0]
        self._moved = time.monotonic()
        self._end = self._moved + seconds + START_SECONDS
        self._baseline = 0
        """MB when the first inputs had run."""

    def look(self, used: int) -> str:
        """Why it has to be stopped; empty: continue."""
        now, inputs = time.monotonic(), self._state.counts[0]
        if inputs != self._last:
            self._moved, self._last = now, inputs
            self._baseline = self._baseline or used
        if self._baseline and used > self._baseline + 2 * self._target.limit_mb:
            return f"memory: {used:,} MB, {used - self._baseline:,} MB more than at the start"
        if inputs > self._first and now - self._moved > self._target.limit_seconds:
            return f"hang: no answer within {self._target.limit_seconds:.0f} seconds"
        return "hang: the process did not end in time" if now > self._end else ""


def _stop(child: subprocess.Popen[bytes]) -> None:
    """SIGABRT first: Python's fault handler then prints where it was."""
    for number in (signal.SIGABRT, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(10)
            return


def _resident_mb(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") // 10**6
    except (OSError, IndexError, ValueError):
        return 0


@contextlib.contextmanager
def _postgres(wanted: bool) -> Iterator[None]:
    """A server for the targets that compare stores, where its programs are installed."""
    from postgres_server import RealServer, programs

    if not wanted or programs() is None:
        yield
        return
    server = RealServer()
    try:
        server.start()
        os.environ["GEMEL_FUZZ_POSTGRES"] = server.url("postgres")
        yield
    finally:
        os.environ.pop("GEMEL_FUZZ_POSTGRES", None)
        server.remove()


# ---- the kernels, which are programs ----


def _kernel(name: str, seconds: float, given: argparse.Namespace) -> Outcome:
    work = given.work / name
    work.mkdir(parents=True, exist_ok=True)
    ran = kernels.run(name, work, seconds, given.seed)
    outcome = Outcome(ran.engine, ran.inputs, 0, ran.seconds, 0, ran.peak_mb, ran.coverage)
    if ran.failure:
        outcome.findings.append(
            {"target": name, "what": ran.failure[:300], "where": "", "trace": ran.failure[-3000:]}
        )
    return outcome


# ---- the summary ----


def _write(path: Path, before: dict[str, Any], engine: str, outcomes: dict[str, Outcome]) -> None:
    targets: dict[str, Any] = dict(before.get("targets", {}))
    for name, outcome in outcomes.items():
        earlier = targets.get(name, {})
        targets[name] = {
            "engine": outcome.engine,
            "inputs": outcome.inputs + earlier.get("inputs", 0),
            "refused": outcome.refused + earlier.get("refused", 0),
            "seconds": round(outcome.seconds + earlier.get("seconds", 0.0), 1),
            "peak_mb": max(outcome.peak_mb, earlier.get("peak_mb", 0)),
            "coverage": outcome.coverage or earlier.get("coverage", {}),
            "findings": [f"{each['what'][:200]} at {each['where']}" for each in outcome.findings],
        }
    rows = targets.values()
    lines = [row["coverage"] for row in rows if "of" in row["coverage"]]
    summary = {
        "date": datetime.now(UTC).isoformat(timespec="minutes"),
        "engine": engine,
        "kernels": kernels.how(),
        "targets_run": len(targets),
        "inputs": sum(row["inputs"] for row in rows),
        "seconds": round(sum(row["seconds"] for row in rows)),
        "line_coverage": round(
            sum(each["lines"] for each in lines) / max(1, sum(each["of"] for each in lines)), 3
        ),
        "findings": sum(len(row["findings"]) for row in rows),
        "targets": targets,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def _closing(summary: dict[str, Any]) -> str:
    return (
        f"{summary['inputs']:,} inputs to {summary['targets_run']} targets in {summary['seconds'] / 60:.0f} minutes, "
        f"{summary['line_coverage']:.0%} of the readers' lines, {summary['findings']} findings:"
    )


if __name__ == "__main__":
    sys.exit(main())
