"""What a release contains, and that its check covers every extra. The check itself is `python release/check.py`."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from pathlib import Path

import pytest

import gemel

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "release")]

from contents import IN_ARCHIVE, IN_WHEEL, KERNELS, LEVELS, wrong_in_archive, wrong_in_wheel  # noqa: E402
from promises import DEVELOPERS, PROMISES, program  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WHEEL = [
    *IN_WHEEL,
    *(f"{kernel}{level}.so" for kernel in KERNELS for level in LEVELS["x86_64"]),
    *(f"gemel-0.1.0.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")),
]
ARCHIVE = [f"gemel-0.1.0/{name}" for name in IN_ARCHIVE]


def test_every_extra_for_users_has_a_promise():
    extras = set(PROJECT["optional-dependencies"]) - DEVELOPERS
    assert extras == set(PROMISES) - {"core"}, "add a row to release/promises.py"


@pytest.mark.parametrize("extra", PROMISES)
def test_a_promise_is_a_program(extra):
    ast.parse(program(extra))


def test_the_core_keeps_its_promise_here(tmp_path, monkeypatch):
    from tiny import tiny_bert

    if gemel.load(tiny_bert(tmp_path / "model")).engine_name != "native":
        pytest.skip("no kernel was compiled here")
    monkeypatch.chdir(tmp_path)
    exec(compile(program("core"), "core", "exec"), {})


def test_a_complete_release_has_no_findings():
    assert wrong_in_wheel(WHEEL, "x86_64") == []
    assert wrong_in_archive(ARCHIVE) == []


def test_missing_and_unwanted_files_of_a_wheel_are_named():
    missing = [
        name for name in WHEEL if "avx2" not in name and "py.typed" not in name and "NOTICE" not in name
    ]
    result = wrong_in_wheel([*missing, "tests/test_a.py", "gemel/__pycache__/a.pyc"], "x86_64")
    assert result == [
        "missing: gemel/py.typed",
        "not compiled: gemel/encoder/native/_avx2",
        "not compiled: gemel/vectors/scan/native/_avx2",
        "missing: NOTICE",
        "not gemel's: tests",
        "unwanted: tests/test_a.py",
        "unwanted: gemel/__pycache__/a.pyc",
    ]
    assert wrong_in_archive([*ARCHIVE[1:], "gemel-0.1.0/tests/a.py"])[0] == f"missing: {IN_ARCHIVE[0]}"


def test_every_file_that_an_archive_needs_is_in_the_tree():
    assert [name for name in IN_ARCHIVE if not (ROOT / name).is_file()] == []


def test_the_kernels_of_the_check_are_those_of_setup():
    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    assert all(f'"{level}"' in setup for level in LEVELS["x86_64"])
    assert all(f'"{kernel.removesuffix("/_").replace("/", ".")}"' in setup for kernel in KERNELS)


def test_the_version_is_the_same_everywhere():
    citation = (ROOT / "CITATION.cff").read_text(encoding="utf-8")
    cited = re.search(r"^version: (\S+)$", citation, flags=re.MULTILINE)
    assert PROJECT["version"] == gemel.__version__ == cited[1]


def test_the_citation_can_be_read():
    yaml = pytest.importorskip("yaml", reason="comes with the train extra")
    read = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (read["cff-version"], read["type"], read["license"]) == ("1.2.0", "software", PROJECT["license"])
    assert read["authors"] == [{"name": "The gemel authors"}]
    assert read["references"][0]["url"].endswith("1908.10084")
