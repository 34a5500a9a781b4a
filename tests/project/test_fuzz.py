"""Each fuzz target briefly, its earlier findings, and that the runner detects crashes, hangs and memory use."""

import asyncio
import json
import random
import subprocess
import sys
import time
import warnings
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from fuzz import kernels  # noqa: E402
from fuzz import run as fuzz_run  # noqa: E402
from fuzz.coverage import Lines  # noqa: E402
from fuzz.damage import damaged_copy, files_of, seeds  # noqa: E402
from fuzz.mutate import mutate  # noqa: E402
from fuzz.target import TARGETS, cases, load_targets  # noqa: E402

from gemel.errors import GemelError  # noqa: E402

load_targets()
NEEDS = {
    "index-": "lance",
    "where-": "lance",
    "http": "starlette",
    "read-document-pdf": "pypdf",
    "read-document-docx": "docx",
    "read-document-html": "selectolax",
    "read-document-md": "selectolax",
    "read-parquet": "pyarrow",
    "encoded-parquet": "pyarrow",
    "snapshot": "torch",
    "cluster": "sklearn",
    "config-": "transformers",
    "gguf": "gguf",
}
SLOW = ("config-torch",)
INPUTS, SECONDS = 25, 0.25  # of each target, whichever comes first


@pytest.fixture(scope="module")
def jobs(tmp_path_factory):
    """Each target is built once, in its own folder."""
    made = {}

    def job(name):
        for start, package in NEEDS.items():
            if name.startswith(start) and name != "config-bert":
                pytest.importorskip(package)
        if name.startswith("index-") and find_spec("gemel.index.open") is None:
            pytest.skip("without gemel index repair a damaged index raises errors of its libraries")
        if name not in made:
            made[name] = TARGETS[name].make(tmp_path_factory.mktemp(name.replace(".", "-")))
        return made[name]

    yield job
    for each in made.values():
        each.close()


def feed(job, data):
    """Only a GemelError may be raised."""
    with warnings.catch_warnings(), suppress(GemelError):
        warnings.simplefilter("ignore")
        job.run(data)


@pytest.mark.parametrize("name", [name for name in TARGETS if name not in SLOW])
def test_a_target_runs_briefly_without_findings(name, jobs):
    job, rng, end = jobs(name), random.Random(0), time.monotonic() + SECONDS
    feed(job, job.seeds[0])
    for _ in range(INPUTS):
        feed(job, mutate(rng.choice(job.seeds), TARGETS[name].kind, rng))
        if time.monotonic() > end:
            break


@pytest.mark.parametrize(("name", "path"), cases(), ids=lambda value: getattr(value, "name", value))
def test_earlier_findings_stay_fixed(name, path, jobs):
    feed(jobs(name), path.read_bytes())


@pytest.mark.parametrize("name", list(TARGETS))
def test_the_modules_that_a_target_covers_exist(name):
    assert Lines(TARGETS[name].covers).executable()


def test_mutation_is_repeatable_and_changes_something():
    for kind in ("json", "lines", "text", "bytes", "http"):
        data = b'POST /x\nhost: a\n\n{"a": [1, 2, {"b": "c"}]}'
        first = [mutate(data, kind, random.Random(seed)) for seed in range(30)]
        assert first == [mutate(data, kind, random.Random(seed)) for seed in range(30)]
        assert len(set(first)) > 15


def test_damage_changes_the_copy_and_never_the_folder(tmp_path):
    source = tmp_path / "source"
    (source / "inner").mkdir(parents=True)
    (source / "a").write_bytes(b"0123456789")
    (source / "inner" / "b").write_bytes(b"abc")
    files, good = files_of(source), {"a": b"0123456789", "inner/b": b"abc"}
    different = set()
    for program in seeds(files):
        damaged_copy(source, files, tmp_path / "copy", program)
        assert {name: (source / name).read_bytes() for name in files} == good
        there = files_of(tmp_path / "copy")
        different.add(tuple((name, (tmp_path / "copy" / name).read_bytes()) for name in there))
    assert files == ["a", "inner/b"] and len(different) > 10


def test_the_runner_finds_what_was_planted(tmp_path, monkeypatch):
    """An error, a crash of the process, a hang and too much memory; each with the input that did it."""
    expected = {"error": "KeyError", "crash": "SIGABRT", "hang": "hang", "memory": "memory"}
    monkeypatch.setenv("GEMEL_FUZZ_TARGETS", "fuzz_planted")
    monkeypatch.setattr(fuzz_run, "TRIES", 1)
    words = ["--only", "planted-", "--minutes", "0.12", "--engine", "own", "--work", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["fuzz", *words, "--json", str(tmp_path / "results.json")])
    try:
        assert fuzz_run.main() == 1
    finally:
        for name in expected:
            TARGETS.pop(f"planted-{name}", None)
        sys.modules.pop("fuzz_planted", None)
    result = json.loads((tmp_path / "results.json").read_text())["targets"]
    for name, word in expected.items():
        assert any(word in each for each in result[f"planted-{name}"]["findings"]), result
        inputs = [path.read_bytes() for path in (tmp_path / f"planted-{name}" / "findings").glob("*.input")]
        assert inputs and not {b"good", b"GOOD"} & set(inputs)


@pytest.mark.slow
@pytest.mark.skipif(kernels.compiler() is None, reason="no C++ compiler on this machine")
@pytest.mark.parametrize("name", kernels.PROGRAMS)
def test_the_kernels_are_clean_under_the_sanitizers(name, tmp_path):
    ran = kernels.run(name, tmp_path, 10.0, 0)
    assert not ran.failure and ran.inputs > 100


def test_the_page_says_what_the_results_say():
    kept = json.loads((ROOT / "fuzz" / "results.json").read_text())
    assert {*kept["targets"]} <= {*TARGETS, *kernels.PROGRAMS}
    command = [sys.executable, "tools/docs/fuzz_page.py", "--check"]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stderr


def test_the_good_requests_of_the_http_target_are_answered(tmp_path):
    """Otherwise mutation would start from errors."""
    pytest.importorskip("starlette")
    from fuzz.targets import http

    app, _ = http._app(tmp_path)

    async def statuses():
        posts = {
            path: await http._answer(app, http._request("POST", path, body))
            for path, body in http.POST.items()
        }
        gets = {path: await http._answer(app, http._request("GET", path)) for path in http.GET}
        return {path: status for path, (status, _) in [*posts.items(), *gets.items()]}

    assert {path: status for path, status in asyncio.run(statuses()).items() if status != 200} == {}
