"""The kernel under the compiler's sanitizers: no access out of bounds, no undefined behavior, no data race."""

import shutil
import subprocess
from pathlib import Path

import pytest

from gemel.encoder.engines.native import levels

HERE = Path(__file__).parents[1]
KERNEL = HERE.parent / "src" / "gemel" / "encoder" / "native"
COMPILER = shutil.which("g++") or shutil.which("clang++")
SANITIZERS = ["address,undefined", "thread"]
LEVELS = {"this processor": [], "AMX, emulated": ["-DGEMEL_EMULATE_AMX"]}


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("sanitizer", SANITIZERS)
def test_the_kernel_is_clean(tmp_path, sanitizer, level):
    if LEVELS[level] and "avx512vnni" not in levels():
        pytest.skip("the vectors around the emulated instructions need avx512vnni")
    program = tmp_path / "sanitize"
    flags = ["-O1", "-g", "-std=c++17", "-pthread", "-march=native", "-ffp-contract=off", "-w"]
    command = [
        COMPILER,
        *flags,
        *LEVELS[level],
        f"-fsanitize={sanitizer}",
        "-fno-sanitize-recover=all",
        f"-I{KERNEL}",
        HERE / "support" / "sanitize.cpp",
        "-o",
        program,
    ]
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr or "unrecognized" in built.stderr:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer: {built.stderr.splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "clean" in ran.stdout, ran.stderr[-3000:]
