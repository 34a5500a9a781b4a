"""Stored documents read, searched by example and changed: in memory and in a folder."""

import subprocess
import sys

import pytest

import gemel
from document_contract import DocumentContract


class TestInMemory(DocumentContract):
    @pytest.fixture
    def location(self):
        return ":memory:"


class TestInFolder(DocumentContract):
    @pytest.fixture
    def location(self, tmp_path):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        return tmp_path / "notes"


class TestInBucket(DocumentContract):
    """A folder by its address, which is used as a bucket is: without file locks."""

    @pytest.fixture
    def location(self, tmp_path, monkeypatch):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
        return f"file://{tmp_path}/bucket/notes"


def test_what_cannot_be_read_is_listed_with_its_problem(tmp_path):
    pytest.importorskip("lance", reason="the extra 'index' is not installed")
    gemel.open_index(tmp_path / "a" / "good", dim=3).close()
    with gemel.open_index(tmp_path / "bad", dim=3) as bad:
        bad.add(vectors=[[1, 0, 0]], ids=["x"])
    (tmp_path / "bad" / "index.json").unlink()
    (tmp_path / "web").mkdir()
    (tmp_path / "web" / "index.json").write_text("{}")
    gemel.open_index(tmp_path / ".hidden", dim=3).close()
    good, damaged = gemel.list_indexes(tmp_path)
    assert (good.location, good.model, good.documents) == (str(tmp_path / "a" / "good"), None, 0)
    assert good.modified.startswith("20")
    assert damaged.location == str(tmp_path / "bad")
    assert "index.json is missing" in damaged.problem
    assert gemel.list_indexes(str(tmp_path / "web")) == []


def test_a_killed_snapshot_is_none(tmp_path):
    pytest.importorskip("lance", reason="the extra 'index' is not installed")
    with gemel.open_index(tmp_path / "notes", dim=3) as index:
        index.add(vectors=[[1, 0, 0]], ids=["x"])
    program = """
import os, signal, sys
import gemel
from gemel.index import backup
backup.sync_tree = lambda folder: os.kill(os.getpid(), signal.SIGKILL)
gemel.open_index(sys.argv[1], create=False).snapshot(sys.argv[2])
"""
    folder = tmp_path / "backups" / "one"
    killed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path / "notes"), str(folder)], check=False, timeout=60
    )
    assert killed.returncode < 0
    assert not folder.exists()
    assert [each.location for each in gemel.list_indexes(tmp_path)] == [str(tmp_path / "notes")]
    with gemel.open_index(tmp_path / "notes", create=False) as index:
        index.snapshot(folder)
    assert len(gemel.list_indexes(tmp_path)) == 2
