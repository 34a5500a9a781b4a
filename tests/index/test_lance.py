"""The table on Lance: the contract of all tables, and tests of its own."""

import json

import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")

from gemel.errors import InputError, WorkError
from gemel.index.lance import recovery
from gemel.index.lance.store import LanceStore
from gemel.index.port import FORMAT, Header
from index_contract import DIM, StoreCase, TableContract, rows_of


class LanceCase(StoreCase):
    def __init__(self, folder, **options):
        self.folder, self.options = folder, options

    def handle(self):
        return LanceStore(self.folder, **self.options)

    def write_newer_format(self):
        path = self.folder / "index.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": FORMAT + 1}))


class TestLance(TableContract):
    @pytest.fixture
    def store(self, tmp_path):
        return LanceCase(tmp_path / "notes")


class TestLanceWithLists(TableContract):
    """Lists and the index of words from the first rows on."""

    @pytest.fixture
    def store(self, tmp_path):
        return LanceCase(tmp_path / "notes", large=20, many=20)


def test_a_commit_while_an_index_is_opened_is_not_taken_back(tmp_path, monkeypatch):
    """Regression: the opened handle treated the newer version as unreadable and restored its own."""
    first = LanceStore(tmp_path / "notes").create(Header(DIM, {}, {}))
    read_view = recovery.read_view

    def read_late(*arguments):
        monkeypatch.setattr(recovery, "read_view", read_view)
        first.write(rows_of(["a"]), replace=False)
        return read_view(*arguments)

    monkeypatch.setattr(recovery, "read_view", read_late)
    second = LanceStore(tmp_path / "notes").open()
    second.write(rows_of(["b"]), replace=False)
    assert sorted(second.digests(["a", "b"])) == ["a", "b"]


def test_an_index_that_is_open_is_not_dropped(tmp_path):
    folder = tmp_path / "notes"
    store = LanceStore(folder)
    table = store.create(Header(DIM, {}, {}))
    table.write(rows_of(["a"]), replace=False)
    with pytest.raises(WorkError, match="is open"):
        LanceStore(folder).drop()
    assert table.digests(["a"])
    table.close()
    (folder / "mine.txt").write_text("kept")
    with pytest.raises(InputError, match="read only"):
        LanceStore(folder, read_only=True).drop()
    LanceStore(folder).drop()
    assert sorted(path.name for path in folder.iterdir()) == ["lock", "mine.txt"]


def test_a_drop_that_was_killed_can_be_repeated(tmp_path, monkeypatch):
    folder = tmp_path / "notes"
    table = LanceStore(folder).create(Header(DIM, {}, {}))
    table.write(rows_of(["a"]), replace=False)
    table.close()
    with monkeypatch.context() as patched, pytest.raises(KeyboardInterrupt):
        patched.setattr("gemel.index.lance.location.shutil.rmtree", _stopped)
        LanceStore(folder).drop()
    LanceStore(folder).drop()
    assert not LanceStore(folder).exists()


def _stopped(path, **_):
    for file in (path / "data").glob("*"):
        file.unlink()
    raise KeyboardInterrupt
