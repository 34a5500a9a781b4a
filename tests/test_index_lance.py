"""The table on Lance: the contract of all tables, and what is its own."""

import json

import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")

from gemel.index.lance.place import LancePlace
from gemel.index.port import FORMAT
from index_contract import Store, TableContract


class LanceStore(Store):
    def __init__(self, folder, **options):
        self.folder, self.options = folder, options

    def place(self):
        return LancePlace(self.folder, **self.options)

    def write_newer_format(self):
        path = self.folder / "index.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"format": FORMAT + 1}))


class TestLance(TableContract):
    @pytest.fixture
    def store(self, tmp_path):
        return LanceStore(tmp_path / "notes")


class TestLanceWithLists(TableContract):
    """Lists and the index of words from the first rows on."""

    @pytest.fixture
    def store(self, tmp_path):
        return LanceStore(tmp_path / "notes", large=20, many=20)
