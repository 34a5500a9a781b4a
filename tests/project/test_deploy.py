"""The files of deploy/ name flags, routes, metrics and versions that exist. Linters and schemas check the rest."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest

from gemel.cli.verbs.serve import command
from gemel.serve.access import PUBLIC

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file())


@pytest.mark.parametrize("name", ["Dockerfile", "gemel.service"])
def test_the_flags_of_the_server_exist(name):
    lines = (DEPLOY / name).read_text(encoding="utf-8").splitlines()
    start = next(line for line in lines if line.startswith(("CMD", "ExecStart=")))
    used = set(re.findall(r"--[a-z-]+", start))
    assert used
    assert used <= {option for parameter in command.params for option in parameter.opts}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_probes_ask_routes_that_need_no_key(path):
    routes = set(re.findall(r"/health[/a-z]*", path.read_text(encoding="utf-8")))
    assert routes <= PUBLIC


def test_the_autoscaler_reads_a_metric_of_the_server():
    (metric,) = re.findall(
        r"name: (gemel_\w+)", (DEPLOY / "kubernetes" / "gemel.yaml").read_text(encoding="utf-8")
    )
    sources = (ROOT / "src" / "gemel" / "serve").rglob("*.py")
    assert any(metric.removeprefix("gemel_") in path.read_text(encoding="utf-8") for path in sources)


def test_the_image_has_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"image: gemel:{version}" in (DEPLOY / "kubernetes" / "gemel.yaml").read_text(encoding="utf-8")


def test_every_file_that_the_image_copies_exists():
    copied = re.search(
        r"^COPY (pyproject.*) \./$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert copied is not None
    assert [name for name in copied[1].split() if not (ROOT / name).is_file()] == []
