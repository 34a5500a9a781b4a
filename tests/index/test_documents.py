"""Stored documents read, searched by example and changed: in memory and in a folder."""

import pytest

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
