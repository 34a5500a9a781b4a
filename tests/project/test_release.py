"""What a release contains, and that its check covers every extra. The check itself is `python release/check.py`."""

from __future__ import annotations

import ast
import email
import json
import re
import sys
import tomllib
from pathlib import Path

import pytest

import gemel

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "release")]

from check import CORE_TESTS, MOST_DEPENDENCIES  # noqa: E402
from contents import (  # noqa: E402
    ENCODER_ONLY,
    IN_ARCHIVE,
    IN_WHEEL,
    KERNELS,
    LEVELS,
    wrong_in_archive,
    wrong_in_wheel,
)
from footprint import components, is_allowed, license_of, not_allowed  # noqa: E402
from promises import DEVELOPERS, PROMISES, program  # noqa: E402

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WHEEL = [
    *IN_WHEEL,
    *(
        f"{kernel}{level}.so"
        for level in LEVELS["x86_64"]
        for kernel in (KERNELS[:1] if level in ENCODER_ONLY else KERNELS)
    ),
    *(f"gemel-0.1.0.dist-info/licenses/{name}" for name in ("LICENSE", "NOTICE")),
]
ARCHIVE = [f"gemel-0.1.0/{name}" for name in IN_ARCHIVE]
LARGEST = 3_000_000
"""Bytes of a wheel, as in release/wheels.py."""


def recorded():
    """Steps of release/results.json. The check, which writes it, leaves out tests with this word in their name."""
    return json.loads((ROOT / "release" / "results.json").read_text(encoding="utf-8"))["steps"]


def pythons_that_passed():
    """Versions such as 3.14.8, as release/results.json has them."""
    steps = recorded().items()
    return [facts["version"] for name, facts in steps if name.startswith("Python ") and "failed" not in facts]


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
    for levels in LEVELS.values():
        assert [level for level in levels if f'"{level}"' not in setup] == []
    named = re.search(r"^ENCODER_ONLY = (\(.*\))", setup, flags=re.MULTILINE)
    assert ast.literal_eval(named[1]) == ENCODER_ONLY
    assert all(f'"{kernel.removesuffix("/_").replace("/", ".")}"' in setup for kernel in KERNELS)


def test_the_tests_of_the_check_exist():
    assert [name for name in CORE_TESTS if not (ROOT / name).is_file()] == []


def test_the_core_has_few_dependencies_and_each_has_its_reason():
    record = (ROOT / "docs" / "decisions" / "0002-dependencies.md").read_text(encoding="utf-8")
    names = [re.match(r"[\w-]+", line)[0] for line in PROJECT["dependencies"]]
    assert len(names) <= MOST_DEPENDENCIES
    assert [name for name in names if f"| {name} |" not in record] == []


def test_the_recorded_wheels_are_small_and_reproducible():
    steps = recorded()
    files = {each["file"]: each["bytes"] for each in steps["wheels"]["files"]}
    for system in ("manylinux", "musllinux"):
        for machine in ("x86_64", "aarch64"):
            assert [name for name in files if system in name and name.endswith(f"_{machine}.whl")]
    assert max(files.values()) <= LARGEST
    assert steps["same bytes"]["wheels"] == len(files)


def test_the_recorded_pythons_are_those_of_the_classifiers():
    claimed = {line.rpartition(" ")[2] for line in PROJECT["classifiers"] if ":: Python :: 3." in line}
    assert claimed <= {".".join(version.split(".")[:2]) for version in pythons_that_passed()}


def test_the_recorded_vectors_have_the_same_bits_on_every_platform():
    steps = recorded()
    levels = {"x86_64": steps["same vectors"], "aarch64": steps["aarch64"], "musl": steps["musl"]}
    fused = {
        value
        for machine, facts in levels.items()
        for level, value in facts["levels"].items()
        if machine == "aarch64" or level != "baseline"  # x86_64 does not fuse multiply and add there
    }
    assert len(fused) == 1


def test_the_install_page_has_the_recorded_numbers():
    steps = recorded()
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    core = steps["core footprint"]
    expected = [
        f"| the core, installed ({len(core['packages'])} packages) | {core['bytes'] / 1e6:.0f} MB |",
        f"| installation of the core with an empty cache of pip | {core['seconds']:.0f} s |",
        f"| tests of the core pass on Python | {', '.join(pythons_that_passed())} |",
    ]
    for each in steps["wheels"]["files"]:
        system = "manylinux" if "manylinux" in each["file"] else "musllinux"
        machine = "x86_64" if each["file"].endswith("_x86_64.whl") else "aarch64"
        expected.append(f"| wheel for {system}, {machine} | {each['bytes'] / 1e6:.1f} MB |")
    for name in PROMISES:
        if name != "core" and "failed" not in steps[name]:
            row = re.search(rf"^\| `{name}` \| .* \| (.*) \|$", page, flags=re.MULTILINE)
            assert row is not None and row[1] == f"{steps[name]['bytes'] / 1e6:,.0f} MB", name
    assert [line for line in expected if line not in page] == []


@pytest.mark.parametrize(
    ("expression", "allowed"),
    [
        ("BSD-3-Clause AND 0BSD AND MIT AND Zlib AND CC0-1.0", True),
        ("Apache-2.0 OR BSD-2-Clause", True),
        ("GPL-3.0-only OR MIT", True),
        ("Apache-2.0 WITH LLVM-exception", True),
        ("(MIT OR GPL-2.0-only) AND GPL-3.0-only", False),
        ("GPL-3.0-only", False),
        ("unknown", False),
    ],
)
def test_a_license_is_allowed_if_all_its_parts_are(expression, allowed):
    assert is_allowed(expression) == allowed


def test_licenses_are_found_in_all_the_ways_that_packages_name_them():
    def read(*lines):
        return license_of(email.message_from_string("\n".join(lines)))

    assert read("License-Expression: MIT", "License: other") == "MIT"
    assert read("License: Apache License 2.0") == "Apache-2.0"
    assert read("License: BSD", "Classifier: License :: OSI Approved :: BSD License") == "BSD-3-Clause"
    assert read("Classifier: License :: OSI Approved :: MIT License") == "MIT"
    assert read("License: Whole text", "Classifier: License :: OSI Approved :: MIT License") == "MIT"
    assert read("License: MIT License", "        ", "        Copyright (c)") == "MIT"
    assert read("License: Apache 2.0 License") == "Apache-2.0"
    assert read("Name: x") == "unknown"


def test_the_list_of_components_names_packages_and_what_they_need():
    rows = [
        {"name": "gemel", "version": "1", "license": "Apache-2.0", "requires": ["numpy", "absent"]},
        {"name": "numpy", "version": "2", "license": "BSD-3-Clause", "requires": []},
        {"name": "odd", "version": "3", "license": "GPL-3.0-only", "requires": []},
    ]
    listed = components(rows, "gemel", "1", "2026-01-01T00:00:00+00:00")
    assert (listed["bomFormat"], listed["metadata"]["component"]["name"]) == ("CycloneDX", "gemel")
    assert [each["purl"] for each in listed["components"]] == ["pkg:pypi/numpy@2", "pkg:pypi/odd@3"]
    assert listed["dependencies"][0] == {"ref": "pkg:pypi/gemel@1", "dependsOn": ["pkg:pypi/numpy@2"]}
    assert not_allowed(rows) == ["license of odd: GPL-3.0-only"]


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
