"""Fresh processes: time to the first vector and its memory, `import gemel`, `gemel --help`."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers import surroundings

# What a user writes, no more. {model} and {prepared} are folders.
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
        raise StartError((done.stderr.strip().splitlines() or ["no message"])[-1][:300])
    return done.stderr if errors else done.stdout
