"""The contract for the table in memory, which is the reference for the others."""

import pytest

from gemel.errors import InputError
from gemel.index.memory import MemoryStore
from index_contract import StoreCase, TableContract


class MemoryCase(StoreCase):
    def __init__(self):
        self._handle = MemoryStore()

    def handle(self):
        return self._handle


class TestMemory(TableContract):
    @pytest.fixture
    def store(self):
        return MemoryCase()


def test_there_is_nothing_to_switch_to_before_begin():
    with pytest.raises(InputError, match="no next table"):
        MemoryStore().switch()
