"""No usage reports: no package that gemel loads writes a user id or opens a connection."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from gemel.files.machine import disable_usage_reports, is_offline, without_module
from tiny import tiny_bert

# Python's own sockets; strace sees what compiled code does.
WATCH = """
import sys
def watch(event, arguments):
    if event in ("socket.connect", "socket.sendto", "socket.getaddrinfo", "socket.gethostbyname"):
        sys.stderr.write(f"NETWORK {event} {arguments[1:]}\\n")
sys.addaudithook(watch)
"""
COMMAND = "from gemel.cli.main import main\nsys.exit(main(sys.argv[1:]))\n"
FROM_LIBRARY = {
    "onnxruntime": """
import gemel
model = gemel.load(sys.argv[1], engine="onnxruntime")
assert model.encode(["one", "two"]).shape == (2, 32)
""",
    "haystack": """
from gemel.integrations.haystack import GemelTextEmbedder
assert len(GemelTextEmbedder(sys.argv[1]).run("one")["embedding"]) == 32
""",
    "lance": """
import gemel, os
with gemel.open_index(os.path.join(os.environ["HOME"], "..", "index"), model=sys.argv[1]) as index:
    index.add(["one", "two"])
    assert len(index.search("one", k=2)) == 2
""",
    "torch": """
from pathlib import Path
from gemel.encoder.engines.torch import TorchEngine
TorchEngine(Path(sys.argv[1]))
""",
    "hub": """
import gemel
from gemel.checkpoint.sources import fetch_from_hub
try:
    fetch_from_hub("org/name", offline=True)
except gemel.ModelError:
    pass
""",
    "server": """
import os, signal
from gemel.cli.main import main
# Some seconds with an engine at rest, in which reports would be sent; then the signal that ends a server.
signal.signal(signal.SIGALRM, lambda *_: os.kill(os.getpid(), signal.SIGTERM))
signal.alarm(10)
sys.exit(main(["serve", "--model", sys.argv[1], "--engine", "onnxruntime", "--port", "0"]))
""",
}
NEEDS = {
    "haystack": "haystack",
    "lance": "lance",
    "torch": "transformers",
    "hub": "huggingface_hub",
    "server": "starlette",
}


@cache
def tracer() -> tuple[str, ...]:
    """strace, where processes may be traced."""
    result = shutil.which("strace")
    command = (
        result or "",
        "-f",
        "--seccomp-bpf",
        "-qq",
        "-e",
        "trace=connect,sendto,sendmsg,sendmmsg",
        "-o",
    )
    if (
        not result
        or subprocess.run([*command, os.devnull, "true"], capture_output=True, check=False).returncode
    ):
        return ()
    return command


@cache
def no_network() -> tuple[str, ...]:
    """A namespace without a network, where one can be made."""
    for command in (("unshare", "-n"), ("unshare", "-rn")):
        if (
            shutil.which("unshare")
            and not subprocess.run([*command, "true"], capture_output=True, check=False).returncode
        ):
            return command
    return ()


def run(tmp_path: Path, program: str, *arguments: str, **variables: str) -> Path:
    """Run it in an empty home without a network; it must work and open no connection. Returns the home."""
    home, trace = tmp_path / "home", tmp_path / "trace"
    home.mkdir()
    reports = (
        "ORT_DISABLE_TELEMETRY",
        "HF_HUB_DISABLE_TELEMETRY",
        "HAYSTACK_TELEMETRY_ENABLED",
        "DO_NOT_TRACK",
    )
    dropped = (
        *reports,
        "CI",
        "HF_HOME",
        "XDG_CACHE_HOME",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "GEMEL_OFFLINE",
    )
    environment = {name: value for name, value in os.environ.items() if name not in dropped}
    environment |= {"HOME": str(home), "GEMEL_CACHE": str(tmp_path / "cache"), **variables}
    command = [
        *no_network(),
        *((*tracer(), str(trace)) if tracer() else ()),
        sys.executable,
        "-c",
        WATCH + program,
    ]
    done = subprocess.run(
        [*command, *arguments], env=environment, capture_output=True, text=True, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "NETWORK" not in done.stderr
    if tracer():
        calls = trace.read_text(encoding="utf-8", errors="replace")
        assert not re.findall(r".*AF_INET.*", calls)
    return home


def written(home: Path) -> list[str]:
    return sorted(path.relative_to(home).as_posix() for path in home.rglob("*") if path.is_file())


def test_info_writes_nothing_and_uses_no_network(tmp_path):
    assert written(run(tmp_path, COMMAND, "info")) == []


def test_an_export_writes_nothing_elsewhere_and_uses_no_network(tmp_path):
    model = str(tiny_bert(tmp_path / "model"))
    assert written(run(tmp_path, COMMAND, "export", model, "-o", str(tmp_path / "out"))) == []


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.slow] if name in {"haystack", "torch", "server"} else [])
        for name in FROM_LIBRARY
    ],
)
def test_no_package_that_gemel_loads_reports_its_use(tmp_path, name):
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"needs {NEEDS[name]}")
    model = str(tiny_bert(tmp_path / "model"))
    assert written(run(tmp_path, FROM_LIBRARY[name], model)) == []


def test_offline_overrides_usage_reports(tmp_path):
    model = str(tiny_bert(tmp_path / "model"))
    program = FROM_LIBRARY["onnxruntime"]
    assert written(run(tmp_path, program, model, GEMEL_OFFLINE="1", ORT_DISABLE_TELEMETRY="0")) == []


@pytest.mark.parametrize(
    ("package", "variable", "off", "on"),
    [
        ("onnxruntime", "ORT_DISABLE_TELEMETRY", "1", "0"),
        ("huggingface_hub", "HF_HUB_DISABLE_TELEMETRY", "1", "0"),
        ("haystack", "HAYSTACK_TELEMETRY_ENABLED", "false", "True"),
        ("ray", "RAY_USAGE_STATS_ENABLED", "0", "1"),
    ],
)
def test_user_settings_are_kept_except_offline(monkeypatch, package, variable, off, on):
    monkeypatch.delenv("GEMEL_OFFLINE", raising=False)
    monkeypatch.setenv(variable, "x")
    monkeypatch.delenv(variable)
    assert disable_usage_reports(package)
    assert os.environ[variable] == off
    monkeypatch.setenv(variable, on)
    assert not disable_usage_reports(package)
    assert os.environ[variable] == on
    monkeypatch.setenv("GEMEL_OFFLINE", "1")
    assert is_offline()
    assert disable_usage_reports(package)
    assert os.environ[variable] == off


def test_a_program_that_imported_onnxruntime_first_reports_nothing_of_gemel_s_sessions(monkeypatch):
    import types

    from gemel.encoder.engines.onnx import load_onnxruntime

    calls = []
    fake = types.SimpleNamespace(disable_telemetry_events=lambda: calls.append("off"))
    monkeypatch.setitem(sys.modules, "onnxruntime", fake)
    monkeypatch.setenv("ORT_DISABLE_TELEMETRY", "1")
    assert load_onnxruntime() is fake
    assert calls == ["off"]


def test_openvino_is_imported_without_the_module_that_reports(tmp_path, monkeypatch):
    from gemel.export.write import _openvino

    (tmp_path / "openvino_telemetry.py").write_text("SENT = True\n")
    (tmp_path / "openvino.py").write_text(
        "try:\n    import openvino_telemetry as tm\nexcept ImportError:\n    tm = None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "openvino", raising=False)
    try:
        assert _openvino().tm is None
    finally:
        sys.modules.pop("openvino", None)
    assert "openvino_telemetry" not in sys.modules


def test_a_module_that_is_loaded_stays_importable():
    with without_module("json"):
        import json
    assert json.loads("1") == 1
