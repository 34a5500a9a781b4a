"""A model in a wheel: its content, reproducible bytes, and loading by name once pip has installed it."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

import gemel
from gemel.checkpoint import sources
from gemel.checkpoint import sources as installed
from gemel.checkpoint.model_wheel import build_model_wheel
from gemel.checkpoint.sources import find_installed, installed_models
from gemel.cli.verbs import models
from gemel.errors import InputError, ModelError, WorkError
from tiny import tiny_bert
from tiny_cross import tiny_cross

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("GEMEL_OFFLINE", "1")


@pytest.fixture
def source(tmp_path):
    folder = tiny_bert(tmp_path / "my-model", dense=8)
    (folder / "LICENSE").write_text("You may.\n")
    (folder / "NOTICE.txt").write_text("Made of random numbers.\n")
    return folder


def install(wheel, target):
    """By pip, as a user does, but into a separate folder."""
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps"]
    command += ["--disable-pip-version-check", "--target", str(target), str(wheel)]
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PIP_")}
    subprocess.run(command, check=True, env=environment)


def run(*words):
    result = CliRunner().invoke(models.command, words, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_pip_installs_it_and_load_finds_it_by_name(tmp_path, source, monkeypatch):
    built = build_model_wheel(source, tmp_path / "dist")
    assert built.path.name == "gemel_model_my_model-1.0-py3-none-any.whl"
    install(built.path, tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    model = gemel.load("my-model")
    assert (model.name, model.weights_hash) == ("my-model", built.weights_hash)
    folder = tmp_path / "site" / "gemel_model_my_model" / "model"
    assert model.checkpoint.folder == folder
    wanted = gemel.load(source).encode(["hello world"])
    assert model.encode(["hello world"]).tobytes() == wanted.tobytes()
    assert sources.pull("my-model") == folder
    assert {"my-model", "all-MiniLM-L6-v2"} <= {json.loads(row)["name"] for row in run("list").splitlines()}
    assert json.loads(run("show", "my-model"))["dim"] == 8
    with pytest.raises(ModelError, match="pip uninstall gemel-model-my-model"):
        sources.remove("my-model")
    with pytest.raises(ModelError, match="Did you mean 'my-model'"):
        monkeypatch.setattr(sources, "hub_installed", lambda: False)
        gemel.load("my-modle")


def test_a_separate_process_finds_it_too(tmp_path, source):
    install(build_model_wheel(source, tmp_path, model="org/mine").path, tmp_path / "site")
    code = "import gemel; print(gemel.load('org/mine', offline=True).encode(['hello']).shape)"
    paths = os.pathsep.join([str(tmp_path / "site"), str(ROOT / "src")])
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": paths},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.strip() == "(1, 8)", done.stderr


def test_a_wheel_with_a_published_name_works_offline(tmp_path, source, monkeypatch):
    built = build_model_wheel(source, tmp_path, model="all-MiniLM-L6-v2")
    install(built.path, tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    for name in ("all-MiniLM-L6-v2", "sentence-transformers/all-MiniLM-L6-v2"):
        assert sources.find_model(name, offline=True).parent.name == "gemel_model_all_minilm_l6_v2"


def test_the_record_names_every_file_with_its_hash(tmp_path, source):
    built = build_model_wheel(source, tmp_path, name="My.Wheel", version="2.1", license="Apache-2.0")
    assert built.path.name == "my_wheel-2.1-py3-none-any.whl"
    info = "my_wheel-2.1.dist-info"
    with zipfile.ZipFile(built.path) as archive:
        rows = list(csv.reader(io.StringIO(archive.read(f"{info}/RECORD").decode())))
        assert [row[0] for row in rows] == archive.namelist()
        for name, digest, size in rows[:-1]:
            content = archive.read(name)
            actual = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
            assert (digest, size) == (f"sha256={actual}", str(len(content)))
        assert rows[-1] == [f"{info}/RECORD", "", ""]
        metadata = archive.read(f"{info}/METADATA").decode()
        assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE.txt"} <= set(archive.namelist())
    for line in ("Name: My.Wheel", "License-Expression: Apache-2.0", "License-File: NOTICE.txt"):
        assert f"\n{line}\n" in metadata
    assert built.weights_hash in metadata


def test_the_same_model_gives_the_same_bytes(tmp_path, source):
    one = build_model_wheel(source, tmp_path / "one").path
    for path in source.rglob("*"):
        os.utime(path, (10**9, 10**9))
    two = build_model_wheel(source, tmp_path / "two").path
    assert one.read_bytes() == two.read_bytes()


def test_only_the_model_is_in_it(tmp_path, source):
    for name in ("pytorch_model.bin", "training_args.pkl", ".git/config", ".gemel/int8.safetensors"):
        (source / name).parent.mkdir(exist_ok=True)
        (source / name).write_bytes(b"x")
    (source / "onnx").mkdir()
    (source / "onnx" / "config.json").write_text("{}")
    with zipfile.ZipFile(build_model_wheel(source, tmp_path).path) as archive:
        names = {name for name in archive.namelist() if "/model/" in name}
    kept = {path for path in names if path.endswith((".bin", ".pkl")) or "/." in path or "/onnx/" in path}
    assert not kept
    assert "gemel_model_my_model/model/2_Dense/model.safetensors" in names


def test_a_cross_encoder_can_be_packed_too(tmp_path, monkeypatch):
    pytest.importorskip("transformers", reason="the tiny cross-encoder is made by transformers")
    source = tiny_cross(tmp_path / "judge")
    built = build_model_wheel(source, tmp_path, license="MIT")
    install(built.path, tmp_path / "site")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert gemel.load_cross("judge").name == "judge"


def test_without_a_license_nothing_is_built(tmp_path):
    source = tiny_bert(tmp_path / "bare")
    (source / "NOTICE").write_text("a notice is no license")
    with pytest.raises(InputError, match=r"no license text.*--license Apache-2\.0"):
        build_model_wheel(source, tmp_path / "dist")
    (source / "README.md").write_text("---\nlicense: apache-2.0\n---\n# A model\n")
    with pytest.raises(InputError, match=r"model card says 'apache-2\.0'"):
        build_model_wheel(source, tmp_path / "dist")
    assert not (tmp_path / "dist").exists()
    (tmp_path / "terms.txt").write_text("You may.")
    built = build_model_wheel(source, tmp_path / "dist", license_files=[tmp_path / "terms.txt"])
    assert built.licenses == ("NOTICE", "terms.txt")
    with pytest.raises(InputError, match="expected the text of a license"):
        build_model_wheel(source, tmp_path / "dist", license_files=[tmp_path / "gone.txt"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ({"model": "../up"}, "cannot be the name of a model"),
        ({"model": "a = b"}, "cannot be the name of a model"),
        ({"name": "3d"}, "cannot be the name of a wheel"),
        ({"name": "a/b"}, "cannot be the name of a wheel"),
        ({"version": "one"}, "is not a version"),
        ({"version": "1.0\nX: y"}, "is not a version"),
        ({"license": "Free\nX: y"}, "is not the name of a license"),
    ],
)
def test_metadata_that_a_wheel_cannot_contain_is_refused(tmp_path, source, words, message):
    with pytest.raises(InputError, match=message):
        build_model_wheel(source, tmp_path / "dist", **words)
    assert not (tmp_path / "dist").exists()


def test_a_wheel_is_overwritten_only_on_request(tmp_path, source):
    build_model_wheel(source, tmp_path)
    with pytest.raises(InputError, match="Give another version"):
        build_model_wheel(source, tmp_path)
    build_model_wheel(source, tmp_path, overwrite=True)
    (tmp_path / "file").write_text("x")
    with pytest.raises(WorkError, match="cannot write"):
        build_model_wheel(source, tmp_path / "file" / "dist")


def test_a_failure_leaves_no_partial_wheel(tmp_path, source, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("gemel.checkpoint.model_wheel.WheelWriter.add", full)
    with pytest.raises(WorkError, match="No space left"):
        build_model_wheel(source, tmp_path / "dist")
    assert list((tmp_path / "dist").iterdir()) == []


def test_two_packages_with_the_same_model_name_are_refused(monkeypatch, tmp_path):
    rows = [installed.InstalledModel("twin", tmp_path, name, "1.0") for name in ("one", "two")]
    monkeypatch.setattr(installed, "installed_models", lambda: rows)
    with pytest.raises(ModelError, match="carried by 2 packages: one, two"):
        find_installed("twin")


def test_an_entry_point_that_points_elsewhere_is_not_followed(tmp_path, monkeypatch):
    info = tmp_path / "site" / "odd-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: odd\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[gemel.models]\nup = ../../etc\ngone = not_there\n")
    monkeypatch.syspath_prepend(tmp_path / "site")
    assert not {"up", "gone"} & {model.name for model in installed_models()}


def test_the_command(tmp_path, source):
    shown = run(
        "wheel", str(source), "-o", str(tmp_path / "dist"), "--as", "mine", "--version", "1.2"
    ).strip()
    assert shown.endswith("gemel_model_mine-1.2-py3-none-any.whl")
    facts = json.loads(run("wheel", str(source), "-o", str(tmp_path), "--name", "w", "--json"))
    assert (facts["name"], facts["model"], facts["licenses"]) == ("w", "my-model", ["LICENSE", "NOTICE.txt"])
