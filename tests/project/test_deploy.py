"""The files of deploy/ name flags, routes, metrics and versions that exist. Linters and schemas check the rest."""

from __future__ import annotations

import asyncio
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from gemel.cli.verbs.serve import command
from gemel.serve.access import PUBLIC
from serve_case import app_of, client, make_services
from serve_fake import FakeModel

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


def test_the_dashboard_shows_metrics_of_the_server():
    shown = set(re.findall(r"gemel_\w+", (DEPLOY / "grafana.json").read_text(encoding="utf-8")))

    async def page():
        services = make_services(FakeModel())
        async with client(app_of(services)) as http:
            await http.post("/v1/embeddings", json={"input": "a", "model": "fake"})
            await http.get("/absent")
            text = (await http.get("/metrics")).text
        await services.close()
        return text

    available = set(re.findall(r"^(?:# TYPE )?(gemel_\w+)", asyncio.run(page()), flags=re.MULTILINE))
    assert len(shown) >= 10
    assert shown <= available, sorted(shown - available)


def test_the_image_has_the_version_of_the_package():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    assert f"image: gemel:{version}" in (DEPLOY / "kubernetes" / "gemel.yaml").read_text(encoding="utf-8")


def test_every_file_that_the_image_copies_exists():
    copied = re.search(
        r"^COPY (pyproject.*) \./$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert copied is not None
    assert [name for name in copied[1].split() if not (ROOT / name).is_file()] == []


def test_an_update_or_a_drain_leaves_a_pod_that_answers():
    yaml = pytest.importorskip("yaml", reason="comes with the train extra")
    text = (DEPLOY / "kubernetes" / "gemel.yaml").read_text(encoding="utf-8")
    parts = {part["kind"]: part for part in yaml.safe_load_all(text)}
    assert set(parts) == {"Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget"}
    deployment, scaler = parts["Deployment"]["spec"], parts["HorizontalPodAutoscaler"]["spec"]
    assert parts["PodDisruptionBudget"]["spec"]["minAvailable"] < min(
        deployment["replicas"], scaler["minReplicas"]
    )
    assert deployment["strategy"]["rollingUpdate"]["maxUnavailable"] == 0
    (container,) = deployment["template"]["spec"]["containers"]
    assert {"startupProbe", "readinessProbe", "livenessProbe"} <= set(container)
    assert container["securityContext"]["readOnlyRootFilesystem"]


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd")
def test_systemd_reads_the_unit(tmp_path):
    unit = (DEPLOY / "gemel.service").read_text(encoding="utf-8")
    (tmp_path / "gemel.service").write_text(
        unit.replace("/opt/gemel/bin/gemel", "/bin/true"), encoding="utf-8"
    )
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", str(tmp_path / "gemel.service")],
        capture_output=True,
        text=True,
        check=False,
    )
    # Units of the machine itself may have faults that are not ours.
    assert [line for line in done.stderr.splitlines() if "gemel" in line] == []
