"""One target in one process: `python -m fuzz.child NAME WORK --seconds 10 --engine atheris`.

With atheris (libFuzzer for Python) gemel's bytecode is instrumented as it is imported, and comparisons guide the
mutation too. Without it a built-in loop keeps inputs that reach new lines. Both use the mutations of `mutate.py`.
"""

from __future__ import annotations

import argparse
import faulthandler
import hashlib
import json
import os
import random
import resource
import sys
import tempfile
import time
import warnings
from pathlib import Path

from fuzz.coverage import Lines
from fuzz.mutate import LARGEST, mutate
from fuzz.record import Recorder, State
from fuzz.target import Job, Target, load_targets

TIME_OF_SEEDS = 20.0
ADDRESS_SPACE = (
    8 * 2**30
)  # bytes on top of what the libraries map: a larger allocation is an error and does not swap


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("work", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", type=Path, help="an empty folder to work in; the caller removes it")
    parser.add_argument("--engine", choices=("atheris", "own", "measure"), default="own")
    given = parser.parse_args()
    faulthandler.enable()
    warnings.simplefilter("ignore")
    (given.work / "corpus").mkdir(parents=True, exist_ok=True)
    run = {"atheris": _with_atheris, "own": _own, "measure": _measure}[given.engine]
    if given.folder is not None:
        os.chdir(given.folder)
        run(given, given.folder)
        return
    with tempfile.TemporaryDirectory(prefix="gemel-fuzz-", dir=memory_folder()) as folder:
        os.chdir(folder)
        run(given, Path(folder))


def memory_folder() -> str | None:
    """Where files live in memory: a folder is copied thousands of times."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def _prepared(given: argparse.Namespace, folder: Path) -> tuple[Target, Job, Recorder]:
    target = load_targets()[given.name]
    job = target.make(folder)
    state = State(given.work / "state")
    recorder = Recorder(target, job, state, given.work / "findings")
    end = time.monotonic() + TIME_OF_SEEDS
    for seed in job.seeds:  # imports everything that is needed later
        recorder(seed)
        if time.monotonic() > end:
            break
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + ADDRESS_SPACE, resource.RLIM_INFINITY))
    return target, job, recorder


def _with_atheris(given: argparse.Namespace, folder: Path) -> None:
    import atheris

    with atheris.instrument_imports(include=["gemel"]):
        target, job, recorder = _prepared(given, folder)
    for seed in job.seeds:
        keep(given.work / "corpus", seed)

    def change(data: bytes, most: int, seed: int) -> bytes:
        rng = random.Random(seed)
        changed = mutate(data, target.kind, rng) if rng.random() < 0.6 else atheris.Mutate(data, most)
        return changed[:most]

    options = [
        f"-max_total_time={max(1, round(given.seconds))}",
        f"-seed={given.seed + 1}",
        f"-max_len={LARGEST}",
        "-len_control=0",
        "-rss_limit_mb=0",  # the parent and the recorder watch memory and time
        "-timeout=1000000",  # 0 would let its alarm end the process
        "-print_final_stats=1",
        "-verbosity=0",
    ]
    atheris.Setup([sys.argv[0], *options, str(given.work / "corpus")], recorder, custom_mutator=change)
    atheris.Fuzz()  # does not return


def _own(given: argparse.Namespace, folder: Path) -> None:
    target, job, recorder = _prepared(given, folder)
    corpus = [*job.seeds, *(path.read_bytes() for path in sorted((given.work / "corpus").iterdir()))]
    end, rng = time.monotonic() + given.seconds, random.Random(given.seed)
    lines = Lines(target.covers)
    with lines:
        for seed in corpus[:200]:
            recorder(seed)
        while time.monotonic() < end:
            data = mutate(rng.choice(corpus), target.kind, rng)
            before = len(lines.seen)
            recorder(data)
            if len(lines.seen) > before:
                corpus.append(data)
                keep(given.work / "corpus", data)
    job.close()


def _measure(given: argparse.Namespace, folder: Path) -> None:
    """The lines that the kept inputs reach together."""
    target = load_targets()[given.name]
    job = target.make(folder)
    recorder = Recorder(
        target, job, State(given.work / "measured", new=True), given.work / "measured-findings"
    )
    inputs = [*job.seeds, *(path.read_bytes() for path in sorted((given.work / "corpus").iterdir()))]
    end = time.monotonic() + given.seconds
    with Lines(target.covers) as lines:
        for data in inputs:
            recorder(data)
            if time.monotonic() > end:
                break
    could = lines.executable()
    result = {"lines": len(lines.seen & could), "of": len(could), "kept_inputs": len(inputs)}
    (given.work / "coverage.json").write_text(json.dumps(result) + "\n", encoding="utf-8")
    job.close()


def keep(folder: Path, data: bytes) -> None:
    """An input of the corpus, under the name that libFuzzer gives it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / hashlib.sha1(data).hexdigest()).write_bytes(data)


if __name__ == "__main__":
    main()
