"""The kernel cross-compiled for ARM and run by an emulator: the same bits as on this processor. No speed is measured.

Needs the packages g++-aarch64-linux-gnu and qemu-user of Debian.
"""

import shutil
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parents[1]
KERNEL = HERE.parent / "src" / "gemel" / "encoder" / "native"
HOST, CROSS = shutil.which("g++"), shutil.which("aarch64-linux-gnu-g++")
EMULATOR = shutil.which("qemu-aarch64")
FUSES = (
    "fma" in Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else False
)
LEVELS = {
    "baseline": "armv8-a",
    "neon-dotprod": "armv8.2-a+dotprod",
    "neon-i8mm": "armv8.6-a+i8mm+bf16",
}
BFLOAT16 = "2 "  # how the lines of that kind begin

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CROSS is None or EMULATOR is None, reason="needs g++-aarch64-linux-gnu and qemu-user"),
]


def digests(compiler, flags, folder, *runner):
    """The printed digests of all shapes; the program itself checks batch invariance."""
    program = folder / "program"
    basic = ["-O2", "-std=c++17", "-w", "-pthread", "-ffp-contract=off", "-fno-math-errno", f"-I{KERNEL}"]
    subprocess.run([compiler, *basic, *flags, HERE / "support" / "sanitize.cpp", "-o", program], check=True)
    ran = subprocess.run([*runner, program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stdout[-500:] + ran.stderr[-500:]
    return ran.stdout.splitlines()


@pytest.fixture(scope="module")
def expected(tmp_path_factory):
    """float32 and int8 on this processor."""
    if HOST is None or not FUSES:
        pytest.skip("this processor does not fuse multiply and add, so its bits differ")
    lines = digests(HOST, ["-mavx2", "-mfma"], tmp_path_factory.mktemp("host"))
    return [line for line in lines if not line.startswith(BFLOAT16)]


@pytest.mark.parametrize("level", LEVELS)
def test_float32_and_int8_have_the_bits_of_this_processor(level, expected, tmp_path):
    flags = ["-static", f"-march={LEVELS[level]}"]
    lines = digests(CROSS, flags, tmp_path, EMULATOR, "-cpu", "max")
    assert [line for line in lines if not line.startswith(BFLOAT16)] == expected
    assert any(line.startswith(BFLOAT16) for line in lines) == (level == "neon-i8mm")
