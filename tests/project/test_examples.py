"""Every example runs on the tiny model and prints something."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tiny import tiny_bert

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.py"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "tiny")


def run(path, *arguments, **variables):
    return subprocess.run(
        [sys.executable, str(path), *arguments],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), **variables},
    )


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_with_a_model_as_its_argument(path, model):
    done = run(path, str(model))
    assert done.returncode == 0, done.stderr
    assert done.stdout


def test_an_example_takes_its_model_from_the_environment(model):
    assert run(EXAMPLES[0], GEMEL_MODEL=str(model)).returncode == 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 30
