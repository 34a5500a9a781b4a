"""Fresh processes: time to the first vector and its memory, `import gemel`, `gemel --help`."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from crew import without_paths
from workers import say, surroundings

# Exactly what a user writes. {model} and {prepared} are folders.
PROGRAMS = {
    "gemel": "import gemel; v = gemel.load({model!r}).encode(['hello world'])",
    "gemel-int8": "import gemel; v = gemel.load({model!r}, precision='int8').encode(['hello world'])",
    "st-torch": (
        "from sentence_transformers import SentenceTransformer\n"
        "v = SentenceTransformer({model!r}, device='cpu').encode(['hello world'])"
    ),
    "fastembed": (
        "from fastembed import TextEmbedding\n"
        "from fastembed.common.model_description import ModelSource, PoolingType\n"
        "TextEmbedding.add_custom_model(model='local/model', pooling=PoolingType.MEAN, normalization=True,\n"
        "    sources=ModelSource(url='unused'), dim=384, model_file='onnx/model.onnx')\n"
        "v = list(TextEmbedding('local/model', specific_model_path={prepared!r}).embed(['hello world']))"
    ),
}
# The clock is the system's, so the parent's start and the child's end can be compared.
_REPORT = """
import time
now = time.monotonic()
peak = [line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM")][0]
print("measured", now, int(peak) * 1024 / 1e6)
"""


class StartError(Exception):
    """A program did not run; the text is its last line."""


@dataclass(frozen=True)
class Start:
    seconds: float
    peak_mb: float


def measure_starts(
    pythons: dict[str, Path], folders: dict[str, str], threads: int, times: int
) -> dict[str, dict[str, Any]]:
    """Best of `times` fresh processes for every system that has a program here, in turns."""
    alive = {name: PROGRAMS[name].format(**folders) for name in pythons if name in PROGRAMS}
    result: dict[str, list[Start]] = {name: [] for name in alive}
    report: dict[str, dict[str, Any]] = {}
    for turn in range(times + 1):  # the first one only warms the disk cache
        for name, program in list(alive.items()):
            try:
                one = first_vector(pythons[name], program, threads, ours=name.startswith("gemel"))
            except (StartError, subprocess.TimeoutExpired) as error:
                say(f"start of {name}: FAILED, {error}")
                report[name] = {"failed": _reason(error)}
                del alive[name]
                continue
            if turn:
                result[name].append(one)
    for name in alive:
        seconds = [one.seconds for one in result[name]]
        peak = min(one.peak_mb for one in result[name])
        report[name] = {"best_seconds": min(seconds), "peak_mb": peak, "seconds": seconds}
        say(f"{name}: first vector after {min(seconds):.2f} s")
    return report


def measure_own(threads: int, times: int) -> dict[str, Any]:
    """`import gemel` and `gemel --help`, best of `times`, and what the latter loads."""
    try:
        return {
            "import_seconds": min(import_seconds(threads) for _ in range(times)),
            "help_seconds": min(help_seconds(threads) for _ in range(times)),
            "help_imports": help_imports(threads),
        }
    except (StartError, subprocess.TimeoutExpired) as error:
        say(f"import gemel, gemel --help: FAILED, {error}")
        return {"start_failed": _reason(error)}


def first_vector(python: Path, program: str, threads: int, *, ours: bool) -> Start:
    """One fresh process, from its start to the moment the vector is there; ending it is not counted."""
    start = time.monotonic()
    output = _output([python, "-c", program + _REPORT], threads, ours=ours)
    _, now, peak = next(line for line in output.splitlines() if line.startswith("measured")).split()
    return Start(float(now) - start, float(peak))


def import_seconds(threads: int) -> float:
    """`import gemel` inside a fresh interpreter; the interpreter's own start is not counted."""
    program = "import time; t = time.perf_counter(); import gemel; print(time.perf_counter() - t)"
    return float(_output([sys.executable, "-c", program], threads, ours=True))


def help_seconds(threads: int) -> float:
    """`gemel --help`, the whole process."""
    start = time.monotonic()
    _output([sys.executable, "-m", "gemel", "--help"], threads, ours=True)
    return time.monotonic() - start


def help_imports(threads: int) -> list[str]:
    """Heavy packages that `gemel --help` loads; should be none."""
    command = [sys.executable, "-X", "importtime", "-m", "gemel", "--help"]
    log = _output(command, threads, ours=True, errors=True)
    loaded = {line.rsplit("|", 1)[-1].strip() for line in log.splitlines() if line.startswith("import time:")}
    return sorted(
        loaded & {"numpy", "onnx", "onnxruntime", "tokenizers", "torch", "transformers", "safetensors"}
    )


def _reason(error: Exception) -> str:
    # a timeout names the whole command, folders and all
    return "took too long" if isinstance(error, subprocess.TimeoutExpired) else str(error)


def _output(command: list[Any], threads: int, *, ours: bool, errors: bool = False) -> str:
    done = subprocess.run(
        [str(part) for part in command],
        capture_output=True,
        text=True,
        env=surroundings(threads, ours=ours),
        timeout=300,
        check=False,
    )
    if done.returncode:
        raise StartError(without_paths((done.stderr.strip().splitlines() or ["no message"])[-1][:300]))
    return done.stderr if errors else done.stdout
