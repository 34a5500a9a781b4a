"""`gemel info`: what is installed, and what is set where."""

import json
import os

import pytest

from gemel.cli.main import main
from gemel.cli.verbs import info as info_extras
from gemel.cli.verbs.info import without_passwords
from gemel.encoder.engines import native
from gemel.files import machine
from gemel.vectors.scan import native_scanner


@pytest.fixture(autouse=True)
def work(tmp_path, monkeypatch):
    for name in [name for name in os.environ if name.startswith("GEMEL_")]:
        monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    return tmp_path


@pytest.fixture
def info(capsys):
    def run(*arguments):
        assert main(["info", *arguments]) == 0
        shown = capsys.readouterr().out
        return json.loads(shown) if "--json" in arguments else shown

    return run


def test_the_facts_of_the_machine_are_there(info):
    facts = info("--json")
    assert set(facts) == {
        *("versions", "python", "system", "processor", "memory", "extras", "engines", "cache"),
        "settings",
    }
    assert facts["processor"]["cores"]["used"] >= 1
    assert facts["versions"]["click"]


def test_cores_and_memory_are_shown_with_their_limits(info, monkeypatch):
    monkeypatch.setattr(machine, "core_limits", lambda: machine.CoreLimits(64, 8, 1.5, None))
    monkeypatch.setattr(machine, "memory_limits", lambda: machine.MemoryLimits(256 * 10**9, 2 * 10**9))
    facts = info("--json")
    cores = {"total": 64, "affinity": 8, "quota": 1.5, "requested": None, "used": 2}
    assert facts["processor"]["cores"] == cores
    assert facts["memory"] == {"physical": 256 * 10**9, "limit": 2 * 10**9}
    shown = info()
    assert "cores          2 used of 64: affinity 8, quota 1.5\n" in shown
    assert "memory         256.0 GB, limit 2 GB\n" in shown
    monkeypatch.setattr(machine, "core_limits", lambda: machine.CoreLimits(4, 4, None, 3))
    monkeypatch.setattr(machine, "memory_limits", lambda: machine.MemoryLimits(None, None))
    shown = info()
    assert "3 used of 4: affinity 4, no quota, GEMEL_THREADS=3\n" in shown
    assert "memory         unknown size, no limit\n" in shown


def test_what_was_not_compiled_is_named_with_what_runs_instead(info, monkeypatch):
    monkeypatch.setattr(native, "levels", list)
    monkeypatch.setattr(native_scanner, "levels", lambda: ["numpy"])
    facts = info("--json")
    assert facts["engines"]["native"] == {"kernels": {}, "bfloat16": False}
    assert facts["engines"]["scan"] == {"kernels": []}
    shown = info()
    assert (
        "native engine  not compiled: ONNX Runtime runs the models, more slowly. Install a wheel of gemel"
        in shown
    )
    assert "vector scan    not compiled: numpy compares vectors" in shown


def test_the_cache_has_a_folder_and_a_size(info, work):
    assert info("--json")["cache"] == {"folder": str(work / "cache"), "size_mb": 0, "models": []}
    folder = work / "cache" / "models" / "m"
    folder.mkdir(parents=True)
    (folder / "weights").write_bytes(bytes(3_000_000))
    cache = info("--json")["cache"]
    assert (cache["size_mb"], cache["models"]) == (3, [{"name": "m", "size_mb": 3}])
    assert f"{work / 'cache'} (3 MB)" in info()


def test_extras_are_listed_with_missing_packages(monkeypatch):
    class Facts:
        lines = (
            "numpy>=1.26",
            'here>=1; extra == "small"',
            'gone[binary]>=2; extra == "large"',
            'gemel[small]; extra == "large"',
            "elsewhere; sys_platform != 'linux' and extra == 'large'",
            'pytest; extra == "test"',
        )

        def get_all(self, name):
            return list(self.lines) if name == "Requires-Dist" else ["small", "large", "test"]

    monkeypatch.setattr(info_extras.sys, "platform", "linux")
    monkeypatch.setattr(info_extras, "metadata", lambda _: Facts())
    monkeypatch.setattr(info_extras, "version_of", lambda name: "1" if name == "here" else None)
    assert info_extras.extras() == [
        {"name": "small", "missing": [], "installed": True},
        {"name": "large", "missing": ["gone"], "installed": False},
    ]


def test_a_gemel_that_is_not_installed_has_no_extras(monkeypatch):
    def absent(_):
        raise info_extras.PackageNotFoundError

    monkeypatch.setattr(info_extras, "metadata", absent)
    assert info_extras.extras() == []


def test_the_source_file_of_each_value_is_shown(info, work, monkeypatch):
    (work / "gemel.toml").write_text("[defaults]\nthreads = 2\n[encode]\nkeep-texts = true\n")
    own = work / "config" / "gemel" / "config.toml"
    own.parent.mkdir(parents=True)
    own.write_text('[defaults]\nthreads = 1\n[serve]\nhost = "::1"\n')
    monkeypatch.setenv("GEMEL_ENCODE_THREADS", "3")
    settings = info("--json")["settings"]
    assert [(file["kind"], file["there"]) for file in settings["files"]] == [
        ("project", True),
        ("user", True),
    ]
    assert settings["error"] is None
    values = {(each["verb"], each["key"]): each for each in settings["values"]}
    assert values["encode", "threads"] == {
        "verb": "encode",
        "key": "threads",
        "value": 2,
        "file": "gemel.toml",
        "table": "defaults",
        "hidden_by": "GEMEL_ENCODE_THREADS",
    }
    assert values["search", "threads"]["hidden_by"] is None
    assert values["serve", "host"]["file"] == str(own)
    shown = info()
    assert "[encode] keep-texts = True, gemel.toml" in shown
    assert "[defaults] threads = 2, gemel.toml; GEMEL_ENCODE_THREADS wins in encode\n" in shown
    assert f"[serve] host = '::1', {own}" in shown


def test_variables_are_shown_with_their_meaning_and_without_secrets(info, monkeypatch):
    monkeypatch.setenv("GEMEL_API_KEYS", "very-secret")
    monkeypatch.setenv("GEMEL_SERVE_INDEX", "postgresql://me:very-secret@host/db#notes")
    monkeypatch.setenv("GEMEL_THREAD", "very-secret")
    monkeypatch.setenv("GEMEL_THREADS", "3")
    shown = info()
    assert "very-secret" not in shown + json.dumps(info("--json"))
    assert "GEMEL_API_KEYS=(hidden): keys of the server" in shown
    assert "GEMEL_SERVE_INDEX=postgresql://me:***@host/db#notes: serve --index" in shown
    assert "GEMEL_THREAD=(hidden): unknown, did you mean GEMEL_THREADS?" in shown
    assert "GEMEL_THREADS=3: --threads of " in shown


def test_a_wrong_file_is_reported_and_nothing_breaks(info, work):
    (work / "gemel.toml").write_text("[train]\nepoch = 2\n")
    assert "wrong: gemel.toml: [train] has no key 'epoch'. Did you mean 'epochs'?" in info()
    (work / "gemel.toml").write_text("[index.serch]\nk = 2\n")
    assert "Did you mean 'search'?" in info("--json")["settings"]["error"]
    (work / "gemel.toml").write_text("[[[")
    assert "gemel.toml is not TOML" in info()


def test_missing_configuration_files_are_reported(info, monkeypatch):
    assert "gemel.toml (not there)" in info()
    monkeypatch.setenv("GEMEL_CONFIG", "none")
    assert "no files (GEMEL_CONFIG=none)" in info()


def test_a_password_is_left_out_of_lists_too():
    assert without_passwords(["a=postgresql://u:p@h/d", 3]) == ["a=postgresql://u:***@h/d", 3]
    assert without_passwords("postgresql://u:p@ss@h/d") == "postgresql://u:***@h/d"
    assert (
        without_passwords("postgresql://h/d?user=u&password=p#n") == "postgresql://h/d?user=u&password=***#n"
    )
