"""The cache: where it is, valid model names, and that its folders are complete."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from gemel.checkpoint import cache
from gemel.errors import ModelError, WorkError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def fill(folder: Path, scratch: Path) -> None:
    (scratch / "wheel").write_text("big")
    (folder / "sub").mkdir()
    (folder / "sub" / "file").write_text("content")


def test_the_location_follows_the_environment(tmp_path, monkeypatch):
    assert cache.models_folder() == tmp_path / "cache" / "models"
    monkeypatch.delenv("GEMEL_CACHE")
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache.cache_root() == tmp_path / "xdg" / "gemel"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache.cache_root() == Path.home() / ".cache" / "gemel"
    monkeypatch.setattr("sys.platform", "darwin")
    assert cache.cache_root() == Path.home() / "Library" / "Caches" / "gemel"
    monkeypatch.setattr("sys.platform", "win32")
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "local"))
    assert cache.cache_root() == tmp_path / "local" / "gemel"


def test_names_become_folders():
    assert cache.location("all-MiniLM-L6-v2").name == "all-MiniLM-L6-v2"
    assert cache.location("org/name_1.5").name == "org--name_1.5"


@pytest.mark.parametrize(
    "name",
    [
        "",
        ".",
        "..",
        "../x",
        "a/../b",
        "/a",
        "a/",
        "a/b/c",
        ".a",
        "a\\b",
        "a--b",
        "a\0",
        "C:x",
        "a..b",
        "a.",
        "é",
    ],
)
def test_names_with_path_traversal_are_refused(name):
    with pytest.raises(ModelError, match="is not the name of a model"):
        cache.location(name)


def test_install_makes_the_folder_once_and_leaves_nothing_else(home):
    made = cache.install("org/name", fill)
    assert made == home / "models" / "org--name"
    assert (made / "sub" / "file").read_text() == "content"
    assert names(home / "models") == ["org--name"]
    assert names(made) == ["sub"]
    assert cache.install("org/name", lambda *_: pytest.fail("filled twice")) == made
    assert cache.cached_folders() == {"org/name": made}


def test_a_failed_install_leaves_nothing(home):
    def fail(folder: Path, scratch: Path) -> None:
        fill(folder, scratch)
        raise ModelError("wrong hash")

    with pytest.raises(ModelError, match="wrong hash"):
        cache.install("name", fail)
    assert names(home / "models") == []


def test_a_full_disk_is_reported_as_failed_work(home):
    def full(*_: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(WorkError, match=r"cannot put 'name' into the cache .*No space left"):
        cache.install("name", full)
    assert names(home / "models") == []


def test_when_another_process_was_first_its_folder_is_used(home):
    def slow(folder: Path, scratch: Path) -> None:
        fill(folder, scratch)
        (home / "models" / "name").mkdir()
        (home / "models" / "name" / "theirs").touch()

    made = cache.install("name", slow)
    assert names(made) == ["theirs"]
    assert names(home / "models") == ["name"]


def test_old_leftovers_are_removed_and_recent_ones_kept(home):
    old, young = (home / "models" / f".name.{word}.part" for word in ("old", "young"))
    for path in (old, young):
        (path / "model").mkdir(parents=True)
    os.utime(old, (0, 0))
    cache.install("name", fill)
    assert names(home / "models") == [young.name, "name"]
    assert list(cache.cached_folders()) == ["name"]


def test_remove_deletes_a_model(home):
    cache.install("name", fill)
    cache.remove("name")
    assert names(home / "models") == []
    with pytest.raises(ModelError, match="'name' is not in the cache"):
        cache.remove("name")


posix = pytest.mark.skipif(not hasattr(os, "geteuid"), reason="owners are of POSIX")


@posix
def test_cache_folders_are_private_to_the_user(home):
    before = os.umask(0)
    try:
        cache.install("mine", fill)
    finally:
        os.umask(before)
    for folder in (home, home / "models"):
        assert folder.stat().st_mode & 0o777 == 0o700


@pytest.fixture
def other_user(monkeypatch):
    """Every file belongs to another user."""
    monkeypatch.setattr(os, "geteuid", lambda: Path(__file__).stat().st_uid + 4321)
    real = Path.lstat

    def lstat(path):
        kept = list(real(path))
        kept[4] = 1234  # the owner
        return os.stat_result(kept)

    monkeypatch.setattr(Path, "lstat", lstat)


@posix
def test_a_cache_of_another_user_in_a_world_writable_folder_is_refused(home, request):
    made = cache.install("mine", fill)
    home.parent.chmod(0o1777)
    assert cache.find("mine") == made  # the user's own
    request.getfixturevalue("other_user")
    for act in (
        cache.find,
        lambda name: cache.install(name, fill),
        lambda _: cache.make_folder(home / "models"),
    ):
        with pytest.raises(
            WorkError, match=r"belongs to another user .*Set GEMEL_CACHE to a folder of your own"
        ):
            act("mine")


@posix
def test_a_model_of_another_user_in_a_world_writable_cache_is_refused(home, monkeypatch):
    cache.install("mine", fill)
    (home / "models").chmod(0o777)
    real = Path.lstat

    def lstat(path):
        kept = list(real(path))
        kept[4] = 1234 if path.name == "mine" else kept[4]
        return os.stat_result(kept)

    monkeypatch.setattr(Path, "lstat", lstat)
    with pytest.raises(WorkError, match="mine belongs to another user"):
        cache.find("mine")


@posix
def test_a_cache_of_another_user_in_a_protected_folder_may_be_shared(home, monkeypatch, request):
    made = cache.install("mine", fill)
    real = Path.stat

    def stat(path, **settings):
        kept = list(real(path, **settings))
        kept[0] &= ~0o002  # nobody else can write anywhere above it
        return os.stat_result(kept)

    monkeypatch.setattr(Path, "stat", stat)
    request.getfixturevalue("other_user")
    assert cache.find("mine") == made


@posix
@pytest.mark.skipif(hasattr(os, "geteuid") and os.geteuid() != 0, reason="only root can give a folder away")
def test_a_symlink_of_another_user_is_refused(tmp_path, home, monkeypatch):
    theirs = tmp_path / "theirs"
    (theirs / "models" / "mine").mkdir(parents=True)
    open_to_all = tmp_path / "tmp"
    open_to_all.mkdir()
    open_to_all.chmod(0o1777)
    link = open_to_all / "cache"
    link.symlink_to(theirs)
    os.chown(link, 1234, 1234, follow_symlinks=False)
    monkeypatch.setenv("GEMEL_CACHE", str(link))
    with pytest.raises(WorkError, match="belongs to another user"):
        cache.find("mine")
