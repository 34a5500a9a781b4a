"""Interpreters to try wheels with: those of this machine, and others out of packages of Debian.

    python release/pythons.py                                           list those that the check would use
    python release/pythons.py --debian 3.14,3.15 --suite forky -o pythons   newer ones for this processor
    python release/pythons.py --debian 3.13 --suite trixie --machine arm64 -o pythons   for an emulator

The packages are unpacked, not installed: nothing outside of the folder changes. They come from the archive that apt
uses on this machine, or from --mirror. Needs mmdebstrap and patchelf, and qemu-user-static for another processor.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

OLDEST = (3, 11)
"""As `requires-python` of pyproject.toml."""
TRIPLES = {"amd64": "x86_64-linux-gnu", "arm64": "aarch64-linux-gnu"}


@dataclass(frozen=True)
class Interpreter:
    """A Python that can be started."""

    version: str
    command: tuple[str, ...]
    """The program, after its emulator if it needs one."""


def found(more: list[str]) -> list[Interpreter]:
    """Interpreters of supported versions: `more` paths, this one, pyenv's and those of PATH; one per minor version."""
    folders = [Path(folder) for folder in os.environ.get("PATH", "").split(os.pathsep) if folder]
    pyenv = sorted((Path.home() / ".pyenv" / "versions").glob("3.*/bin/python"))
    candidates = [*map(Path, more), Path(sys.executable), *pyenv]
    candidates += [path for folder in folders for path in sorted(folder.glob("python3.[0-9]*"))]
    result: dict[str, Interpreter] = {}
    for path in candidates:
        if not re.fullmatch(r"python[0-9.]*", path.name):
            continue
        version = version_of([str(path)])
        minor = ".".join(version.split(".")[:2]) if version else ""
        if version and tuple(map(int, minor.split("."))) >= OLDEST and minor not in result:
            result[minor] = Interpreter(version, (str(path),))
    return [result[minor] for minor in sorted(result, key=lambda name: int(name.split(".")[1]))]


def version_of(command: list[str], needs: str = "ctypes, ssl, venv") -> str | None:
    """Such as 3.14.8; None where it does not start or lacks a module that is needed to make environments."""
    program = f"import platform, {needs}; print(platform.python_version())"
    try:
        done = subprocess.run(
            [*command, "-c", program], capture_output=True, text=True, check=False, timeout=60
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def own_mirror() -> str:
    """The address of Debian's archive in the sources of apt."""
    command = ["apt-get", "indextargets", "--format", "$(REPO_URI)"]
    command += ["Created-By: Packages", "Origin: Debian", "Label: Debian"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if not done.stdout.strip():
        raise SystemExit(
            "apt has no source of Debian here, or no lists yet: run apt-get update, or give --mirror"
        )
    return done.stdout.split()[0]


def from_debian(versions: list[str], suite: str, machine: str, out: Path, mirror: str) -> list[Path]:
    """Programs of these versions, unpacked into a folder of their own."""
    root = (out / f"{suite}-{machine}").absolute()
    out.mkdir(parents=True, exist_ok=True)
    subprocess.run(
        [
            "mmdebstrap",
            "--variant=extract",
            f"--architectures={machine}",
            "--aptopt=Acquire::Check-Valid-Until false",  # testing may be some days old on a mirror
            # NumPy's wheels expect the C++ library of the system.
            f"--include={','.join(['libstdc++6', *(f'python{version}' for version in versions)])}",
            *(suite, str(root), mirror),
        ],
        check=True,
    )
    libraries = root / "usr" / "lib" / TRIPLES[machine]
    programs = [root / "usr" / "bin" / f"python{version}" for version in versions]
    if machine == "amd64":
        (loader,) = libraries.glob("ld-linux-*.so.*")
        for program in programs:
            # The program finds its C library in the folder, and so does every library that it loads.
            search = ["--force-rpath", "--set-rpath", str(libraries)]
            subprocess.run(["patchelf", "--set-interpreter", str(loader), *search, str(program)], check=True)
    elif not (root / "lib").exists():
        (root / "lib").symlink_to("usr/lib")  # where the emulator looks for the loader
    return programs


def emulated(program: Path) -> Interpreter:
    """An interpreter of Debian for ARM, run by QEMU with all instructions."""
    root = program.parents[2]
    qemu = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64") or "qemu-aarch64-static"
    command = (qemu, "-cpu", "max", "-L", str(root), str(program))
    version = version_of(list(command))
    if version is None:
        raise SystemExit(f"{' '.join(command)} does not start")
    return Interpreter(version, command)


def main() -> int:
    """List interpreters, or unpack more of them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--debian", help="versions to unpack, separated by commas")
    parser.add_argument("--suite", default="forky", help="a release of Debian that has them")
    parser.add_argument("--machine", default="amd64", choices=TRIPLES)
    parser.add_argument("--mirror", help="an archive of Debian; that of apt if it is not given")
    parser.add_argument("-o", "--out", type=Path, default=Path("pythons"), help="a folder")
    arguments = parser.parse_args()
    if arguments.debian:
        versions, mirror = arguments.debian.split(","), arguments.mirror or own_mirror()
        for program in from_debian(versions, arguments.suite, arguments.machine, arguments.out, mirror):
            sys.stdout.write(f"{program}\n")
        return 0
    for each in found([]):
        sys.stdout.write(f"{each.version:8} {' '.join(each.command)}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
