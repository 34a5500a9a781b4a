"""A virtual environment for each peer, made once; and a fresh one with gemel only, to measure its size."""

from __future__ import annotations

import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from systems import ENVIRONMENTS

CONSTRAINTS = Path(__file__).parent / "peers" / "constraints.txt"
DONE = "benchmark-ready"  # written last, so that an interrupted installation is detected and repeated


class InstallError(Exception):
    """A peer's environment could not be made; the text is its reason in the report."""


@dataclass(frozen=True)
class Environments:
    folder: Path
    install: bool
    """False: use existing environments and change nothing."""

    def python(self, name: str) -> Path:
        """The interpreter of the environment `name`; created first if it is missing and installing is allowed."""
        target = self.folder / name
        python = target / "bin" / "python"
        if self.install and not (target / DONE).exists():
            _make(target, ENVIRONMENTS[name])
        if not python.exists():
            raise InstallError(f"no environment {name!r} in {self.folder.name}/")
        return python


def _run(*command: str | Path) -> None:
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        errors = [line for line in lines if "error" in line.lower()] or lines
        raise InstallError(
            f"{' '.join(map(str, command[2:]))[:80]}: {errors[-1][:300] if errors else 'failed'}"
        )


def _make(target: Path, steps: list[list[str]]) -> None:
    print(f"installing {target.name} ...", file=sys.stderr, flush=True)
    _run(sys.executable, "-m", "venv", "--clear", target)
    for step in steps:
        verb, *rest = step
        limits = ["--constraint", CONSTRAINTS] if verb == "install" else []
        _run(target / "bin" / "python", "-m", "pip", verb, "--quiet", *limits, *rest)
    (target / DONE).touch()


def installed_mb(folder: Path, project: Path) -> float:
    """MB (10^6 bytes) of site-packages after `pip install gemel` alone, without pip and setuptools."""
    target, source = folder / "gemel-alone", folder / "gemel-source"
    # A build inside the checkout would leave files there and pick up those of an earlier one.
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(
        project / "src", source / "src", ignore=shutil.ignore_patterns("*.egg-info", "__pycache__")
    )
    for file in project.iterdir():
        if file.is_file():
            shutil.copy(file, source)
    _run(sys.executable, "-m", "venv", "--clear", target)
    _run(target / "bin" / "python", "-m", "pip", "install", "--quiet", source)
    packages = next((target / "lib").glob("python*/site-packages"))
    return size_mb(packages, leave_out=("pip", "setuptools", "_distutils_hack", "pkg_resources"))


def size_mb(packages: Path, leave_out: tuple[str, ...]) -> float:
    """Sum of the files below `packages`, except the named packages and their metadata folders."""
    total = 0
    for entry in packages.iterdir():
        if entry.name.split("-")[0] in leave_out or entry.name.startswith("distutils-precedence"):
            continue
        files = entry.rglob("*") if entry.is_dir() else [entry]
        total += sum(file.stat().st_size for file in files if file.is_file() and not file.is_symlink())
    return total / 1e6
