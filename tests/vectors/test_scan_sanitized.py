"""The scan's tiles under the compiler's sanitizers: no access out of bounds, no undefined behavior, no data race."""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
SOURCES = HERE.parent / "src" / "gemel" / "vectors" / "scan" / "native"
COMPILER = shutil.which("g++") or shutil.which("clang++")


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("sanitizer", ["address,undefined", "thread"])
def test_the_tiles_are_clean(tmp_path, sanitizer):
    program = tmp_path / "sanitize"
    flags = ["-O1", "-g", "-std=c++17", "-pthread", "-march=native", f"-fsanitize={sanitizer}", "-w"]
    command = [
        COMPILER,
        *flags,
        "-fno-sanitize-recover=all",
        f"-I{SOURCES}",
        HERE / "support" / "sanitize_scan.cpp",
    ]
    built = subprocess.run([*command, "-o", program], capture_output=True, text=True, check=False)
    if "cannot find" in built.stderr or "unrecognized" in built.stderr:
        pytest.skip(f"the compiler has no {sanitizer} sanitizer: {built.stderr.splitlines()[-1]}")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0 and "clean" in ran.stdout, ran.stderr[-3000:]
