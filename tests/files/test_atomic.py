"""Atomic files and folders, and locks: one job per folder, and a killed job leaves no lock."""

import os
from pathlib import Path

import pytest

from gemel.errors import InputError, WorkError
from gemel.files import atomic
from gemel.files.atomic import LOCK, atomic_file, atomic_folder, lock, lock_folder, write_atomic


def test_a_folder_has_one_holder_at_a_time_and_keeps_no_lock_file(tmp_path):
    with lock_folder(tmp_path, "busy"):
        with pytest.raises(InputError, match="busy"), lock_folder(tmp_path, "busy"):
            pass
        assert (tmp_path / LOCK).exists()
    with lock_folder(tmp_path, "busy"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_job_locks_nothing(tmp_path):
    (tmp_path / LOCK).touch()
    with lock_folder(tmp_path, "busy"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made_again", [True, False])
def test_a_file_that_its_holder_removed_meanwhile_is_no_lock(tmp_path, monkeypatch, made_again):
    real, calls = atomic._lock_now, []

    def slow(handle: int, folder: Path, busy: str) -> None:
        if not calls:
            (tmp_path / LOCK).rename(tmp_path.parent / "removed")  # so that its inode is not reused
            if made_again:
                (tmp_path / LOCK).touch()
        calls.append(os.fstat(handle).st_ino)
        real(handle, folder, busy)

    monkeypatch.setattr(atomic, "_lock_now", slow)
    with lock_folder(tmp_path, "busy"):
        assert (tmp_path / LOCK).stat().st_ino == calls[-1]
    assert len(set(calls)) == 2


def test_a_folder_that_cannot_be_locked_says_why(tmp_path, monkeypatch):
    with (
        pytest.raises(WorkError, match=r"cannot write to .*nowhere: No such file"),
        lock_folder(tmp_path / "nowhere", "busy"),
    ):
        pass

    def unable(handle: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unable)
    with (
        pytest.raises(WorkError, match=r"Operation not supported.*Choose a folder on a local disk"),
        lock_folder(tmp_path, "busy"),
    ):
        pass


def test_without_locks_the_job_continues(tmp_path, monkeypatch):
    monkeypatch.setattr(atomic.sys, "platform", "win32")
    with lock_folder(tmp_path, "busy"), lock_folder(tmp_path, "busy"):
        assert list(tmp_path.iterdir()) == []


def test_a_file_has_its_old_content_until_the_new_one_is_complete(tmp_path):
    path = tmp_path / "a.json"
    write_atomic(path, {"a": "ä"})
    assert path.read_text() == '{\n  "a": "\\u00e4"\n}\n'
    with pytest.raises(ZeroDivisionError), atomic_file(path) as temporary:
        temporary.write_text("half")
        assert path.read_text().startswith("{")
        raise ZeroDivisionError
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]
    write_atomic(path, "ä\n")
    assert path.read_bytes() == b"\xc3\xa4\n"
    write_atomic(path, b"\xff", exclusive=True)
    assert path.read_bytes() == b"\xff"
    assert [each.name for each in tmp_path.iterdir()] == ["a.json"]


def test_the_temporary_file_of_an_exclusive_writer_has_always_the_same_name(tmp_path):
    with atomic_file(tmp_path / "a", exclusive=True) as temporary:
        assert temporary == tmp_path / "a.tmp"
        temporary.touch()


def test_a_folder_is_replaced_as_a_whole_or_stays(tmp_path):
    target = tmp_path / "model"
    with atomic_folder(target) as working:
        (working / "one").write_text("1")
        assert not target.exists()
    with pytest.raises(ZeroDivisionError), atomic_folder(target) as working:
        raise ZeroDivisionError
    assert [each.name for each in target.iterdir()] == ["one"]
    with atomic_folder(target) as working:
        (working / "two").write_text("2")
    assert [each.name for each in target.iterdir()] == ["two"]
    assert [each.name for each in tmp_path.iterdir()] == ["model"]


def test_a_lock_has_one_holder(tmp_path):
    with lock(tmp_path / "lock") as first, lock(tmp_path / "lock", wait=False) as second:
        assert (first, second) == (True, False)
    with lock(tmp_path / "lock", wait=False) as again:
        assert again
