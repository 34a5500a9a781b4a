"""The table in memory, which the others are held to, under the contract."""

import pytest

from gemel.errors import InputError
from gemel.index.memory_place import MemoryPlace
from index_contract import Store, TableContract


class MemoryStore(Store):
    def __init__(self):
        self._place = MemoryPlace()

    def place(self):
        return self._place


class TestMemory(TableContract):
    @pytest.fixture
    def store(self):
        return MemoryStore()


def test_there_is_nothing_to_switch_to_before_begin():
    with pytest.raises(InputError, match="no next table"):
        MemoryPlace().switch()
