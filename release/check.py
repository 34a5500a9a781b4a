"""Check a release: build it from the committed files, inspect it, install it as a user would, run the tutorial.

    python release/check.py                          everything: hours and several GB, including torch
    python release/check.py --dist dist              try wheels that release/wheels.py has built
    python release/check.py --only source,core,index some of the steps
    python release/check.py --dist dist --only pythons --python pythons/forky-amd64/usr/bin/python3.14
    python release/check.py --dist dist --only aarch64 --arm pythons/trixie-arm64/usr/bin/python3.13
    python release/check.py --dist dist --missing    only what has not passed yet for this commit

Each environment is new and contains gemel with one extra and nothing else; no compiler is in its PATH. After each step
the results are written to release/results.json, and the list of components to release/gemel.cdx.json.
"""

from __future__ import annotations

import argparse
import atexit
import hashlib
import json
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
import zipfile
from collections.abc import Callable
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "release")]

from contents import wrong_in_archive, wrong_in_wheel  # noqa: E402
from footprint import components, not_allowed  # noqa: E402
from promises import DEVELOPERS, PROMISES, VECTORS, program  # noqa: E402
from pythons import Interpreter, emulated, found, version_of  # noqa: E402

TORCH = "torch==2.13.0"  # as in the Makefile: a version range would download gigabytes of GPU libraries
TUTORIAL_EXTRAS = "index,serve,evaluate"
ENVIRONMENTS = [*PROMISES, "all", "tutorial"]
STEPS = [
    *("source", "wheels", "same bytes", "core footprint", "same vectors", "pythons", "aarch64", "musl"),
    *("first run", *ENVIRONMENTS),
]
RESULTS = ROOT / "release" / "results.json"
COMPONENTS = ROOT / "release" / "gemel.cdx.json"
MOST_BYTES = 150_000_000
"""Of the core and all that it depends on."""
MOST_DEPENDENCIES = 6
TARGET_SECONDS = 20
"""Of a cold installation of the core. It depends on the network: the best of three counts, and it is only recorded."""
CORE_TESTS = (
    *("tests/vectors/test_search.py", "tests/vectors/test_pairs.py", "tests/files/test_rows.py"),
    *(
        "tests/encoder/test_native_engine.py",
        "tests/encoder/test_network.py",
        "tests/encoder/test_batches.py",
    ),
    *("tests/checkpoint/test_folder.py", "tests/project/test_release.py"),
)
"""What runs on every version of Python; tests that need an extra are skipped there."""


class Failed(Exception):
    """A step of the check did not pass; its text says which and why."""


def main() -> int:
    """Run the requested steps; 0 if all of them pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", help=f"of: {', '.join(STEPS)}; separated by commas")
    parser.add_argument(
        "--keep", type=Path, help="a folder for the wheel and the archive that are built here"
    )
    parser.add_argument("--dist", type=Path, help="a folder with the wheels of release/wheels.py")
    parser.add_argument("--python", action="append", default=[], help="another interpreter; may be repeated")
    parser.add_argument("--arm", type=Path, help="a Python of release/pythons.py for arm64")
    parser.add_argument("--musl", type=Path, help="a Python that was built with musl")
    parser.add_argument("--missing", action="store_true", help="skip steps that passed for this commit")
    arguments = parser.parse_args()
    names = STEPS if arguments.only is None else arguments.only.split(",")
    unknown = set(names) - set(STEPS)
    if unknown:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. Known: {', '.join(STEPS)}")
    results = Results(names, arguments.missing)
    with tempfile.TemporaryDirectory(prefix="release-check-") as scratch:
        folder = Path(scratch)
        results.step("source", lambda: source(folder, arguments.keep or folder / "dist"))
        built = next((arguments.keep or folder / "dist").glob("*.whl"), None)
        wheels = sorted(arguments.dist.glob("*.whl")) if arguments.dist else [built] if built else []
        results.step("wheels", lambda: describe(wheels))
        if arguments.dist:
            results.step("same bytes", lambda: same_bytes(wheels, folder / "again"))
        own = next((each for each in wheels if is_for(each, "manylinux", platform.machine())), built)
        if own is None:
            report("there is no wheel for this machine")
            return 1
        results.step("core footprint", lambda: footprint(own, folder / "footprint"))
        results.step("same vectors", lambda: same_vectors(own, built, folder))
        for each in found(arguments.python) if "pythons" in names else []:
            name = f"Python {each.version}"
            results.step(name, lambda each=each: interpreter(each, own, folder), "pythons")
        foreign = {"aarch64": ("manylinux", arguments.arm), "musl": ("musllinux", arguments.musl)}
        for label, (kind, path) in foreign.items():
            if path is not None:
                machine = "aarch64" if label == "aarch64" else platform.machine()
                wheel = next((each for each in wheels if is_for(each, kind, machine)), None)
                results.step(label, lambda w=wheel, p=path, k=label: foreign_platform(k, w, own, p, folder))
        results.step("first run", lambda: first_run(own, folder / "first-run"))
        for name in ENVIRONMENTS:
            results.step(name, lambda name=name: environment_of(name, own, folder))
    return results.summary()


class Results:
    """The rows of the table, and the file of results. Each step names the commit that it tried."""

    def __init__(self, wanted: list[str], missing: bool) -> None:
        self.wanted = wanted
        self.commit = git("rev-parse", "HEAD")
        self.own: dict[str, dict[str, Any]] = {}
        self.skip = {
            name
            for name, facts in self.rows().items()
            if missing and "failed" not in facts and facts["commit"] == self.commit
        }

    def rows(self) -> dict[str, dict[str, Any]]:
        """Steps of this run, and those in the file that it did not repeat: two runs may go side by side."""
        before = json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.is_file() else {}
        return {**before.get("steps", {}), **self.own}

    def step(self, name: str, work: Callable[[], dict[str, Any]], kind: str | None = None) -> None:
        """Run one step, unless it is not among the requested ones or has passed before."""
        if name in self.skip or (kind or name) not in self.wanted:
            return
        started = time.monotonic()
        try:
            facts = work()
        except Failed as error:
            facts = {"failed": str(error)}
        seconds = round(time.monotonic() - started)
        self.own[name] = {**facts, "commit": self.commit}
        self.write()
        shown = ", ".join(
            f"{key} {value}" for key, value in facts.items() if isinstance(value, str | int | float)
        )
        report(f"{'FAILED' if 'failed' in facts else 'passed'}  {name:16} {seconds:5} s  {shown}")

    def write(self) -> None:
        facts = {
            "date": datetime.now(UTC).date().isoformat(),
            "machine": f"{platform.system()} {platform.machine()}",
            "steps": self.rows(),
        }
        RESULTS.write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")

    def summary(self) -> int:
        """Print how many steps passed, those of earlier runs included; 0 if all of them."""
        rows = self.rows()
        failed = [name for name, facts in rows.items() if "failed" in facts]
        report(f"{len(rows) - len(failed)} of {len(rows)} passed; written to {RESULTS.name}")
        return 1 if failed else 0


def source(folder: Path, dist: Path) -> dict[str, Any]:
    """The archive and a wheel from it, of the committed files, inspected; the archive also without a compiler."""
    files, tools = folder / "source", folder / "tools"
    files.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x"], cwd=files, input=archive, check=True)
    python = environment(tools, "build", "twine", "setuptools>=77")
    variables = {"SOURCE_DATE_EPOCH": git("log", "-1", "--format=%ct")}
    run(
        [python, "-m", "build", "--no-isolation", "--outdir", dist, files], "python -m build", None, variables
    )
    wheel, packed = next(dist.glob("*.whl")), next(dist.glob("*.tar.gz"))
    run([python, "-m", "twine", "check", "--strict", wheel, packed], "twine check")
    with zipfile.ZipFile(wheel) as inside:
        wrong = wrong_in_wheel(inside.namelist(), platform.machine())
    with tarfile.open(packed) as inside:
        wrong += wrong_in_archive(inside.getnames())
    if wrong:
        raise Failed("; ".join(wrong))
    home = folder / "no-compiler"
    python = environment(home, packed, isolated=True)
    small_model(python, home)
    facts = json.loads(
        run([python, "-c", VECTORS], "vectors without a kernel", home, {"PYTHONWARNINGS": "ignore"})
    )
    if facts["engine"] != "numpy":
        raise Failed(f"installed without a compiler, the engine is {facts['engine']}, not numpy")
    shutil.rmtree(home)
    return {**described(packed), "without a compiler": facts["engine"]}


def describe(wheels: list[Path]) -> dict[str, Any]:
    """Names, sizes and hashes. release/wheels.py has inspected them."""
    if not wheels:
        raise Failed("there is none")
    return {"files": [described(each) for each in wheels], "number": len(wheels)}


def same_bytes(wheels: list[Path], again: Path) -> dict[str, Any]:
    """A second build of the same commit gives the same files: it is reproducible, and --dist is of this commit."""
    run([sys.executable, ROOT / "release" / "wheels.py", "-o", again], "release/wheels.py")
    other = [each.name for each in wheels if not same_content(each, again / each.name)]
    if other:
        raise Failed(f"a second build of this commit has other bytes: {', '.join(other)}")
    return {"wheels": len(wheels)}


def same_content(one: Path, two: Path) -> bool:
    return two.is_file() and one.read_bytes() == two.read_bytes()


def described(path: Path) -> dict[str, Any]:
    content = path.read_bytes()
    return {"file": path.name, "bytes": len(content), "sha256": hashlib.sha256(content).hexdigest()}


def is_for(wheel: Path, kind: str, machine: str) -> bool:
    return kind in wheel.name and wheel.name.endswith(f"_{machine}.whl")


def footprint(wheel: Path, home: Path) -> dict[str, Any]:
    """Sizes, licenses and the time of a cold installation of the core; writes the list of components."""
    python, attempts = home / "bin" / "python", []
    while len(attempts) < 3 and min(attempts, default=TARGET_SECONDS + 1) > TARGET_SECONDS:
        run([sys.executable, "-m", "venv", "--without-pip", "--clear", home], "python -m venv")
        installer()
        started = time.monotonic()
        install(python, "--no-cache-dir", wheel)
        attempts.append(round(time.monotonic() - started, 1))
    rows = json.loads(run([python, ROOT / "release" / "footprint.py", "--json"], "footprint.py"))
    total = sum(row["bytes"] for row in rows)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    wrong = not_allowed(rows)
    if len(project["dependencies"]) > MOST_DEPENDENCIES:
        wrong.append(f"{len(project['dependencies'])} dependencies, more than {MOST_DEPENDENCIES}")
    if total > MOST_BYTES:
        wrong.append(f"{total:,} bytes, more than {MOST_BYTES:,}")
    if wrong:
        raise Failed("; ".join(wrong))
    moment = datetime.fromtimestamp(int(git("log", "-1", "--format=%ct")), UTC).isoformat()
    listed = components(rows, project["name"], project["version"], moment)
    COMPONENTS.write_text(json.dumps(listed, indent=1) + "\n", encoding="utf-8")
    return {
        "bytes": total,
        "seconds": min(attempts),
        "seconds of each attempt": attempts,
        "packages": [{key: row[key] for key in ("name", "version", "license", "bytes")} for row in rows],
    }


def same_vectors(wheel: Path, built: Path | None, folder: Path) -> dict[str, Any]:
    """The kernels of the wheel and those that this machine's compiler builds give the same bits, on every level."""
    if built is None:
        raise Failed("nothing to compare with: run the step source, too, or give its --keep")
    expected = None
    for label, each in {"wheel": wheel, "source": built}.items():
        python = environment(folder / f"vectors-{label}", each, isolated=True)
        small_model(python, folder)
        facts = json.loads(run([python, "-c", VECTORS], f"vectors of the {label}", folder))
        if facts["engine"] != "native":
            raise Failed(f"the {label} has the engine {facts['engine']}")
        if expected is not None and facts["levels"] != expected["levels"]:
            raise Failed(f"other vectors: {facts['levels']} and {expected['levels']}")
        expected = facts
    return {"levels": facts["levels"]}


def interpreter(python: Interpreter, wheel: Path, folder: Path) -> dict[str, Any]:
    """The wheel on a version of Python: the native engine, what the core promises, and the tests of the core."""
    home = folder / f"python-{python.version}"
    own = environment(home / "venv", wheel, base=python.command[0], isolated=True)
    facts = json.loads(run([own, "-m", "gemel", "info", "--json"], "gemel info"))
    if not facts["engines"]["native"]["kernels"]:
        raise Failed("no kernel runs")
    install(own, "pytest>=8.3", "hypothesis>=6.120", "pytest-timeout>=2.3")
    # Tests of the recorded results are about the last release, not about this interpreter.
    command = [own, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not recorded", *CORE_TESTS]
    shown = run(command, "the tests of the core", ROOT, {"PATH": without_compiler(own)})
    shutil.rmtree(home)
    counts = shown.strip().splitlines()[-1].strip("= ")
    return {
        "version": facts["python"],
        "kernels": list(facts["engines"]["native"]["kernels"]),
        "tests": counts,
    }


def foreign_platform(label: str, wheel: Path | None, own: Path, path: Path, folder: Path) -> dict[str, Any]:
    """A wheel of another platform, in an interpreter that has no environments: packages are in a folder."""
    if wheel is None:
        raise Failed("no wheel for it in --dist")
    if label == "aarch64":
        python = emulated(path)
    else:
        version = version_of([str(path)], "ctypes")  # pip does not run in it
        if version is None:
            raise Failed(f"{path} does not start")
        python = Interpreter(version, (str(path),))
    tags = (
        ("manylinux_2_17_aarch64", "manylinux_2_28_aarch64")
        if label == "aarch64"
        else (f"musllinux_1_2_{platform.machine()}",)
    )
    minor = ".".join(python.version.split(".")[:2])
    packages = folder / f"packages-{label}"
    chosen = [word for tag in tags for word in ("--platform", tag)]
    run(
        [
            *(installer(), "-m", "pip", "install", "--quiet", "--target", packages),
            *("--only-binary", ":all:", "--python-version", minor, *chosen, wheel),
        ],
        "pip install",
    )
    if not (folder / "model").exists():  # `same_vectors` was skipped
        small_model(environment(folder / f"model-for-{label}", own), folder)
    variables = {"PYTHONPATH": str(packages)}
    facts = json.loads(run([*python.command, "-c", VECTORS], f"vectors on {label}", folder, variables))
    if facts["engine"] != "native":
        raise Failed(f"the engine is {facts['engine']}")
    run([*python.command, "-c", program("core")], "what the core promises", folder, variables)
    return {"version": python.version, "wheel": wheel.name, "levels": facts["levels"]}


def first_run(wheel: Path, home: Path) -> dict[str, Any]:
    """Try gemel with one command, from pipx and from uv: the demonstration, and the screen without a verb."""
    python = environment(home / "tools", "pipx", "uv")
    variables = {
        "PIPX_HOME": str(home / "pipx"),
        "UV_CACHE_DIR": str(home / "uv"),
        "UV_TOOL_DIR": str(home / "uv-tools"),
        "UV_PYTHON": str(Path(sys.base_prefix) / "bin" / "python3"),  # it would download one
        "PATH": without_compiler(python),
        "COLUMNS": "100",
    }
    commands = {
        "pipx run": [python.with_name("pipx"), "run", "--spec", wheel, "gemel"],
        "uvx": [python.with_name("uvx"), "--from", wheel, "gemel"],
    }
    facts: dict[str, Any] = {}
    for label, command in commands.items():
        variables["GEMEL_CACHE"] = str(home / "cache" / label)
        started = time.monotonic()
        shown = run([*command, "demo"], f"{label} gemel demo", home, variables)
        facts[f"{label} seconds"] = round(time.monotonic() - started, 1)
        if "gemel search FILE" not in shown:
            raise Failed(f"{label} gemel demo printed: {shown[-200:]}")
        shown = run(command, f"{label} gemel", home, variables)
        if "gemel demo" not in shown:
            raise Failed(f"{label} gemel printed: {shown[:200]}")
    subprocess.run(["rm", "-rf", str(home)], check=False)
    return facts


def environment_of(name: str, wheel: Path, folder: Path) -> dict[str, Any]:
    """Create one environment, check it and delete it."""
    home = folder / name
    try:
        if name == "tutorial":
            return tutorial(wheel, home)
        return promise(name, wheel, home)
    finally:
        subprocess.run(["rm", "-rf", str(home)], check=False)


def promise(environment_name: str, wheel: Path, home: Path) -> dict[str, Any]:
    """Check that gemel with one extra, or with all of them, works."""
    everything = environment_name == "all"
    wanted = [name for name in PROMISES if name != "core"] if everything else [environment_name]
    extras = "" if environment_name == "core" else f"[{','.join(wanted)}]"
    first = [TORCH] if {"train", "lora", "mteb", "bertopic"} & set(wanted) else []
    python = environment(home / "venv", *first, f"{wheel}{extras}", isolated=True)
    run([installer(), "-m", "pip", "--python", python, "check"], "pip check")
    run([python.with_name("gemel"), "info"], "gemel info")
    for name in ["core", *wanted] if everything else wanted:
        work = home / name
        work.mkdir()
        small_model(python, work)
        run([python, "-c", program(name)], f"what {name} promises", work)
    return contents_of(python)


def tutorial(wheel: Path, home: Path) -> dict[str, Any]:
    """Run the whole tutorial, with the model that its first lines download."""
    python = environment(home / "venv", f"{wheel}[{TUTORIAL_EXTRAS}]", isolated=True)
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
    return contents_of(python)


def contents_of(python: Path) -> dict[str, Any]:
    """Number and bytes of the packages of an environment; every license must be allowed."""
    rows = json.loads(run([python, ROOT / "release" / "footprint.py", "--json"], "footprint.py"))
    wrong = not_allowed(rows)
    if wrong:
        raise Failed("; ".join(wrong))
    return {"packages": len(rows), "bytes": sum(row["bytes"] for row in rows)}


def small_model(python: Path, folder: Path) -> None:
    """A random model in `folder`/model."""
    if not (folder / "model").exists():
        support = str(ROOT / "tests" / "support")
        make = f"import sys; sys.path[:0] = [{support!r}]; import tiny; tiny.tiny_bert('model')"
        run([python, "-c", make], "the small model", folder)


def environment(
    folder: Path, *packages: str | Path, base: str = sys.executable, isolated: bool = False
) -> Path:
    """The Python of a new environment with these packages, installed one after the other.

    `isolated`: without a compiler in the PATH, as on a machine of a user.
    """
    run([base, "-m", "venv", "--without-pip", folder], "python -m venv")
    python = folder / "bin" / "python"
    for package in packages:
        install(python, package, more={"PATH": without_compiler(python)} if isolated else None)
    return python


def install(python: Path, *packages: str | Path, more: dict[str, str] | None = None) -> None:
    """One new pip installs into all of them: some interpreters have none, and an old one fails on a new Python."""
    command = [installer(), "-m", "pip", "--python", python, "install", "--quiet", *packages]
    run(command, f"pip install {' '.join(map(str, packages))}", None, more)


@cache
def installer() -> Path:
    """The Python of an environment with the newest pip; deleted when the check ends."""
    folder = Path(tempfile.mkdtemp(prefix="release-pip-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    run([sys.executable, "-m", "venv", folder], "python -m venv")
    run([folder / "bin" / "python", "-m", "pip", "install", "--quiet", "--upgrade", "pip"], "pip install pip")
    return folder / "bin" / "python"


def without_compiler(python: Path) -> str:
    """A PATH with the programs of an environment and a shell, and nothing to compile with."""
    folder = python.parent.parent / "no-compiler"
    folder.mkdir(exist_ok=True)
    for name in ("sh", "rm", "mkdir", "cat", "ls", "head", "env", "git", "realpath", "dirname"):
        program_path = shutil.which(name)
        if program_path and not (folder / name).exists():
            (folder / name).symlink_to(program_path)
    return f"{python.parent}{os.pathsep}{folder}"


def run(
    command: list[str | Path], label: str, folder: Path | None = None, more: dict[str, str] | None = None
) -> str:
    """The output of a command that must succeed; its last lines are the reason if it does not."""
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
        lines = (done.stderr.strip() or done.stdout.strip()).splitlines()
        raise Failed(f"{label}: {' | '.join(lines[-5:])}")
    return done.stdout


def git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()


def report(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


assert not DEVELOPERS & set(PROMISES)

if __name__ == "__main__":
    sys.exit(main())
