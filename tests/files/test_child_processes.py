"""Child interpreters run nothing from the working folder."""

import os

import pytest

from gemel.files.machine import run_python

SHADOWS = ("typing", "json", "pip")


@pytest.fixture
def hostile_folder(tmp_path, monkeypatch):
    """Modules of well-known names that report that they were executed."""
    for name in SHADOWS:
        (tmp_path / f"{name}.py").write_text("print('executed')\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("path", [None, "", ".", f"{os.pathsep}here"])
def test_modules_of_the_working_folder_are_not_imported(hostile_folder, monkeypatch, path):
    if path is None:
        monkeypatch.delenv("PYTHONPATH", raising=False)
    else:
        monkeypatch.setenv("PYTHONPATH", path)
    done = run_python(["-c", f"import {', '.join(SHADOWS)}; print('done')"])
    assert done.stdout.split() == ["done"], done.stderr


def test_absolute_folders_of_pythonpath_stay(tmp_path, monkeypatch):
    (tmp_path / "here_it_is.py").write_text("WORD = 'found'\n", encoding="utf-8")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert run_python(["-c", "import here_it_is; print(here_it_is.WORD)"]).stdout.strip() == "found"


def test_a_child_works_in_an_empty_folder_of_its_own(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "data.txt").write_text("hello\n", encoding="utf-8")
    assert run_python(["-c", "import os; print(os.listdir())"]).stdout.strip() == "[]"
