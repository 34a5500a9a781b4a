"""Check a release: build it from the committed files, inspect it, install it as a user would, run the tutorial.

    python release/check.py                          everything: an hour and several GB, including torch
    python release/check.py --only core,index,serve  some of the environments
    python release/check.py --only tutorial

Each environment is new and contains gemel with one extra and nothing else. To check another Python, run this with it.
"""

from __future__ import annotations

import argparse
import os
import platform
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "release")]

from contents import wrong_in_archive, wrong_in_wheel  # noqa: E402
from promises import DEVELOPERS, PROMISES, program  # noqa: E402

TORCH = "torch==2.13.0"  # as in the Makefile: a version range would download gigabytes of GPU libraries
TUTORIAL_EXTRAS = "index,serve,evaluate"
ENVIRONMENTS = [*PROMISES, "all", "tutorial"]


class Failed(Exception):
    """A step of the check did not pass; its text says which and why."""


def main() -> int:
    """Run the requested steps; 0 if all of them pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help=f"of: {', '.join(ENVIRONMENTS)}; separated by commas")
    parser.add_argument("--keep", type=Path, help="a folder for the wheel and the archive")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else ENVIRONMENTS
    unknown = set(names) - set(ENVIRONMENTS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(ENVIRONMENTS)}")
    with tempfile.TemporaryDirectory(prefix="release-check-") as scratch:
        folder = Path(scratch)
        try:
            wheel = build(folder, arguments.keep or folder / "dist")
        except Failed as error:
            report(f"FAILED build: {error}")
            return 1
        failed = [name for name in names if not passes(name, wheel, folder)]
    report(f"{len(names) - len(failed)} of {len(names)} passed on Python {platform.python_version()}")
    return 1 if failed else 0


def build(folder: Path, dist: Path) -> Path:
    """The wheel, built through the source archive from the committed files; both are inspected."""
    source, tools = folder / "source", folder / "tools"
    source.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=source, input=archive, check=True)
    python = environment(tools, "build", "twine")
    run([python, "-m", "build", "--outdir", dist, source], "python -m build")
    wheel, packed = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    run([python, "-m", "twine", "check", "--strict", wheel, packed], "twine check")
    with zipfile.ZipFile(wheel) as inside:
        wrong = wrong_in_wheel(inside.namelist(), platform.machine())
    with tarfile.open(packed) as inside:
        wrong += wrong_in_archive(inside.getnames())
    if wrong:
        raise Failed("; ".join(wrong))
    report(f"built {wheel.name} and {packed.name}, twine check passed, contents are complete")
    return wheel


def passes(name: str, wheel: Path, folder: Path) -> bool:
    """Create one environment, check it and delete it."""
    home = folder / name
    try:
        if name == "tutorial":
            tutorial(wheel, home)
        else:
            promise(name, wheel, home)
    except Failed as error:
        report(f"FAILED {name}: {error}")
        return False
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=False)
    report(f"passed {name}")
    return True


def promise(environment_name: str, wheel: Path, home: Path) -> None:
    """Check that gemel with one extra, or with all of them, works."""
    everything = environment_name == "all"
    wanted = [name for name in PROMISES if name != "core"] if everything else [environment_name]
    extras = "" if environment_name == "core" else f"[{','.join(wanted)}]"
    first = [TORCH] if {"train", "lora", "mteb", "bertopic"} & set(wanted) else []
    python = environment(home / "venv", *first, f"{wheel}{extras}")
    run([python, "-m", "pip", "check"], "pip check")
    run([python.with_name("gemel"), "info"], "gemel info")
    for name in ["core", *wanted] if everything else wanted:
        work = home / name
        work.mkdir()
        make = f"import sys; sys.path[:0] = [{str(ROOT / 'tests' / 'support')!r}]; import tiny; tiny.tiny_bert('model')"
        run([python, "-c", make], "the small model", work)
        run([python, "-c", program(name)], f"what {name} promises", work)


def tutorial(wheel: Path, home: Path) -> None:
    """Run the whole tutorial, with the model that its first lines download."""
    python = environment(home / "venv", f"{wheel}[{TUTORIAL_EXTRAS}]")
    work = home / "work"
    work.mkdir()
    variables = {
        "GEMEL_CACHE": str(home / "cache"),
        "GEMEL_DOCS_REAL_MODEL": "1",
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
        "COLUMNS": "100",
    }
    run(
        [python.with_name("gemel"), "models", "pull", "all-MiniLM-L6-v2"],
        "gemel models pull",
        work,
        variables,
    )
    page, runner = ROOT / "docs" / "tutorial.md", ROOT / "tests" / "support" / "doc_blocks.py"
    run([python, runner, page], "docs/tutorial.md", work, variables)


def environment(folder: Path, *packages: str) -> Path:
    """The Python of a new environment with these packages, installed one after the other."""
    run([sys.executable, "-m", "venv", folder], "python -m venv")
    python = folder / "bin" / "python"
    for package in packages:
        run([python, "-m", "pip", "install", "--quiet", package], f"pip install {package}")
    return python


def run(
    command: list[str | Path], label: str, folder: Path | None = None, more: dict[str, str] | None = None
) -> None:
    """Run a command that must succeed; its last lines of output are the reason if it does not."""
    variables = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "GEMEL_CACHE")}
    done = subprocess.run(
        list(map(str, command)),
        cwd=folder,
        env={**variables, **(more or {})},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        lines = (done.stderr or done.stdout).strip().splitlines()
        raise Failed(f"{label}: {' | '.join(lines[-5:])}")


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


assert not DEVELOPERS & set(PROMISES)

if __name__ == "__main__":
    sys.exit(main())
