"""The C++ kernels as separate programs, under the address and undefined-behavior sanitizers.

clang with libFuzzer guides by coverage (Debian: `apt install clang libclang-rt-14-dev`). Without it the same source is
compiled by g++ with a loop over random inputs. Without a compiler nothing is run.
"""

from __future__ import annotations

import re
import resource
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from fuzz.target import ROOT

PROGRAMS = {
    "kernel-encoder": ("fuzz_encoder.cpp", "encoder"),
    "kernel-wordpiece": ("fuzz_wordpiece.cpp", "encoder"),
    "kernel-scan": ("fuzz_scan.cpp", "scan"),
}
"""Name: source in `fuzz/native`, and the package whose kernel it includes."""
SECONDS_TO_BUILD = 900
_FLAGS = [
    "-O1",
    "-g",
    "-std=c++17",
    "-pthread",
    "-march=native",
    "-ffp-contract=off",
    "-fno-sanitize-recover=all",
    "-w",
]

_EMPTY = """#include <cstddef>
#include <cstdint>
extern "C" int LLVMFuzzerTestOneInput(const uint8_t *, size_t) { return 0; }
"""


@dataclass
class Ran:
    engine: str
    inputs: int = 0
    seconds: float = 0.0
    peak_mb: int = 0
    coverage: dict[str, int] = field(default_factory=dict)
    """libFuzzer's own: edges of the program, and features (edges with counts)."""
    failure: str = ""


@cache
def compiler() -> tuple[str, bool] | None:
    """Its path, and whether it has libFuzzer."""
    names = ["clang++", *(f"clang++-{version}" for version in range(22, 13, -1))]
    for name in filter(None, map(shutil.which, names)):
        tried = subprocess.run(
            [name, "-fsanitize=fuzzer,address", "-x", "c++", "-", "-o", "/dev/null"],
            input=_EMPTY,
            capture_output=True, text=True, check=False, timeout=SECONDS_TO_BUILD,
        )  # fmt: skip
        if tried.returncode == 0:
            return name, True
    plain = shutil.which("g++") or shutil.which("clang++")
    return (plain, False) if plain else None


def how() -> str:
    """Which of the three ways this machine supports."""
    result = compiler()
    if result is None:
        return "not run: no C++ compiler"
    return (
        "libFuzzer, ASan and UBSan" if result[1] else "random inputs, ASan and UBSan: no clang with libFuzzer"
    )


def build(name: str, work: Path) -> Path:
    """The program, compiled for this processor."""
    result = compiler()
    assert result is not None, "a compiler was there a moment ago"
    path, fuzzer = result
    source, package = PROGRAMS[name]
    program = work / "program"
    sanitizers = "fuzzer,address,undefined" if fuzzer else "address,undefined"
    include = ROOT / "src" / "gemel" / package / "native"
    command = [
        path,
        *_FLAGS,
        f"-fsanitize={sanitizers}",
        *([] if fuzzer else ["-DFUZZ_MAIN"]),
        f"-I{include}",
    ]
    command += [str(ROOT / "fuzz" / "native" / source), "-o", str(program)]
    built = subprocess.run(command, capture_output=True, text=True, check=False, timeout=SECONDS_TO_BUILD)
    if built.returncode:
        raise RuntimeError(f"{name} cannot be compiled: {built.stderr[-2000:]}")
    return program


def run(name: str, work: Path, seconds: float, seed: int) -> Ran:
    """Build and run one program for the given number of seconds."""
    result = compiler()
    if result is None:
        return Ran("not run: no C++ compiler")
    work = work.absolute()
    try:
        program = build(name, work)
    except (RuntimeError, subprocess.TimeoutExpired) as error:
        return Ran("not run", failure=str(error))
    corpus = work / "corpus"
    corpus.mkdir(exist_ok=True)
    if result[1]:
        options = [
            f"-max_total_time={max(1, round(seconds))}",
            f"-seed={seed + 1}",
            "-max_len=512",
            "-timeout=60",
        ]
        command = [str(program), *options, "-rss_limit_mb=2000", "-print_final_stats=1", str(corpus)]
    else:
        command = [str(program), str(seconds), str(seed)]
    begun = time.monotonic()
    ended = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=work, timeout=seconds + 300
    )
    told = ended.stdout + ended.stderr
    ran = Ran("libFuzzer" if result[1] else "random inputs", seconds=round(time.monotonic() - begun, 1))
    counted = re.findall(r"(?:stat::number_of_executed_units: |^#|inputs )(\d+)", told, re.MULTILINE)
    ran.inputs = max(map(int, counted), default=0)
    if edges := re.findall(r"cov: (\d+) ft: (\d+)", told):
        ran.coverage = {"edges": int(edges[-1][0]), "features": int(edges[-1][1])}
    ran.peak_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss // 1000
    if ended.returncode:
        ran.failure = f"the program ended with {ended.returncode}: {told[-2500:]}"
    return ran
