"""The table on Lance: the contract of all tables, and tests of its own."""

import json

import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")

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
