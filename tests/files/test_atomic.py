"""One job per folder: the second is refused, a killed one blocks nobody, and no file stays behind."""

import os
from pathlib import Path

import pytest

from gemel.errors import InputError, WorkError
from gemel.files import atomic as folder_lock
from gemel.files.atomic import LOCK, locked


def test_a_folder_is_for_one_at_a_time_and_keeps_no_file(tmp_path):
    with locked(tmp_path, "busy"):
        with pytest.raises(InputError, match="busy"), locked(tmp_path, "busy"):
            pass
        assert (tmp_path / LOCK).exists()
    with locked(tmp_path, "busy"):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_a_killed_job_locks_nothing(tmp_path):
    (tmp_path / LOCK).touch()
    with locked(tmp_path, "busy"):
        pass
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("made_again", [True, False])
def test_a_file_that_its_holder_removed_meanwhile_is_no_lock(tmp_path, monkeypatch, made_again):
    real, calls = folder_lock._lock, []

    def slow(handle: int, folder: Path, busy: str) -> None:
        if not calls:
            (tmp_path / LOCK).rename(tmp_path.parent / "removed")  # its number is not given to the next file
            if made_again:
                (tmp_path / LOCK).touch()
        calls.append(os.fstat(handle).st_ino)
        real(handle, folder, busy)

    monkeypatch.setattr(folder_lock, "_lock", slow)
    with locked(tmp_path, "busy"):
        assert (tmp_path / LOCK).stat().st_ino == calls[-1]
    assert len(set(calls)) == 2


def test_a_folder_that_cannot_be_locked_says_why(tmp_path, monkeypatch):
    with (
        pytest.raises(WorkError, match=r"cannot write to .*nowhere: No such file"),
        locked(tmp_path / "nowhere", "busy"),
    ):
        pass

    def unable(handle: int, how: int) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr("fcntl.flock", unable)
    with (
        pytest.raises(WorkError, match=r"Operation not supported.*Choose a folder on a local disk"),
        locked(tmp_path, "busy"),
    ):
        pass


def test_where_there_are_no_such_locks_the_job_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(folder_lock.sys, "platform", "win32")
    with locked(tmp_path, "busy"), locked(tmp_path, "busy"):
        assert list(tmp_path.iterdir()) == []
