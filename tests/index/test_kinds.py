"""An index of dense, sparse and late vectors, in memory and in a folder; its structures for search on disk."""

from dataclasses import replace

import numpy as np
import pytest

import gemel
from gemel.errors import InputError
from gemel.index.kinds import pack
from gemel.index.lance import kinds as lance_kinds
from gemel.index.memory import MemoryStore
from gemel.index.port import Header
from gemel.vectors.maxsim import join_texts
from index_contract import (
    DIM,
    KINDS,
    actual,
    best_by_kind,
    rows_of,
    some_terms,
    some_tokens,
    unit,
    with_kinds,
)
from kind_contract import IDS, TEXTS, KindContract, forget_models, models


@pytest.fixture(scope="module", autouse=True)
def _models():
    yield
    forget_models()


class TestMemory(KindContract):
    @pytest.fixture
    def location(self):
        return MemoryStore()


class TestFolder(KindContract):
    @pytest.fixture
    def location(self, tmp_path):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        return tmp_path / "notes"


def test_kinds_cannot_be_stored_where_texts_are_read_window_by_window():
    dense, sparse, _ = models()
    with pytest.raises(InputError, match="on_long='chunk' stores one vector per text"):
        gemel.open_index(":memory:", dense, sparse=sparse, options=gemel.EncodeOptions(on_long="chunk"))


def test_vectors_of_the_caller_and_sparse_ones_go_together():
    _, sparse, _ = models()
    index = gemel.open_index(":memory:", dim=4, sparse=sparse)
    index.add(TEXTS, ids=IDS, vectors=np.eye(8, 4) + 0.1)
    index.add(ids=["bare"], vectors=np.ones((1, 4)))
    assert [hit.id for hit in index.search(np.ones(4), 1)] == ["bare"]
    assert "bare" not in [hit.id for hit in index.search("the dog", 20, mode="sparse")]
    with pytest.raises(InputError, match="has no model"):
        index.search("the dog", weights={"dense": 1})
    answer = index.search("the dog")
    assert [hit.id for hit in answer] == [hit.id for hit in index.search("the dog", mode="sparse")]
    assert answer[0].cosine is None and index.explain("the dog", "f").cosine is None


class TestStructures:
    """The inverted file and the index of tokens in the cache of a folder; built from 20 passages on."""

    @pytest.fixture
    def folder(self, tmp_path):
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
        return tmp_path / "notes"

    @pytest.fixture
    def table(self, folder):
        table = self.store(folder).create(Header(DIM, {}, {}, kinds=KINDS))
        table.write(with_kinds(rows_of([f"d{i:03}" for i in range(60)])), replace=False)
        yield table
        table.close()

    def store(self, folder, many=20):
        from gemel.index.lance.store import LanceStore

        return LanceStore(folder, many=many)

    def check(self, table, seed=3):
        rows = table.get([each for block in table.scan() for each in dict.fromkeys(block.id)], kinds=True)
        for kind, queries in (("sparse", some_terms(4, seed)), ("late", some_tokens(4, seed))):
            for query in queries:
                if len(query[0] if kind == "sparse" else query):
                    found = table.by_kind(kind, [query], 9)[0]
                    assert actual(found) == best_by_kind(kind, query, rows, 9)

    def saved(self, folder):
        return sorted(path for path in (folder / "cache").glob("rows-1.*/*") if path.is_dir())

    def test_they_are_built_once_and_loaded_by_others(self, table, folder, monkeypatch):
        self.check(table)
        first = self.saved(folder)
        assert [path.parent.name for path in first] == ["rows-1.late", "rows-1.sparse"]
        monkeypatch.setattr(lance_kinds, "built_structure", lambda *_: pytest.fail("built again"))
        other = self.store(folder).open()
        self.check(other)
        assert other.stats().details["kinds"]["sparse"]["layout"] == "InvertedFile"
        other.write(with_kinds(rows_of(["new", "d001"], seed=8), seed=8), replace=True)
        other.delete(["d005"])
        for each in (table, other, self.store(folder).open()):
            self.check(each, seed=8)
        assert other.stats().details["kinds"]["late"]["unindexed"] == 2
        assert self.saved(folder) == first

    def test_they_are_built_again_when_many_passages_changed(self, table, folder):
        self.check(table)
        first = self.saved(folder)
        table.write(with_kinds(rows_of([f"n{i}" for i in range(10)], seed=5), seed=5), replace=False)
        self.check(table)
        assert self.saved(folder) == first
        table.compact()
        second = self.saved(folder)
        assert len(second) == 2 and not set(second) & set(first)
        table.write(with_kinds(rows_of([f"m{i}" for i in range(40)], seed=6), seed=6), replace=False)
        self.check(table)
        assert not set(self.saved(folder)) & set(second)

    def test_what_came_later_is_found_however_much_it_is(self, table, folder, monkeypatch):
        monkeypatch.setattr(lance_kinds, "_TAIL", 4)
        monkeypatch.setattr(lance_kinds, "_STALE", 9)
        self.check(table)
        first = self.saved(folder)
        for n in range(6):
            ids = [f"n{n}-{i}" for i in range(3)] + ["again"]
            table.write(with_kinds(rows_of(ids, seed=n), seed=n), replace=True)
            table.delete([f"d{n:03}", f"n{n - 2}-1"])
            self.check(table, seed=n)
        assert self.saved(folder) == first

    def test_a_damaged_one_is_built_again(self, table, folder):
        self.check(table)
        path = next((folder / "cache" / "rows-1.sparse").glob("*/structure/weights.npy"))
        damaged = bytearray(path.read_bytes())
        damaged[-1] ^= 1
        path.write_bytes(damaged)
        assert any("rows-1.sparse" in fault for fault in table.faults())
        self.check(self.store(folder).open())
        assert table.faults() == []
        path = next((folder / "cache" / "rows-1.late").glob("*/stamps.npy"))
        path.write_bytes(path.read_bytes()[:-8])
        assert any("rows-1.late" in line for line in table.repair())
        self.check(self.store(folder).open())

    def test_they_go_with_their_table(self, table, folder):
        self.check(table)
        handle = self.store(folder)
        following = handle.begin(Header(DIM, {}, {}, kinds={"late": KINDS["late"]}))
        for rows in table.scan(kinds=True):
            following.write(replace(rows, kinds={"late": rows.kinds["late"]}), replace=True)
        with handle.writing():
            switched = handle.switch()
        assert self.saved(folder) == []
        assert len(switched.by_kind("late", [np.ones((1, 6), np.float32)], 5)[0]) == 5
        for each in (table, switched, following):
            each.close()
        handle.drop()
        assert not (folder / "cache").exists()

    def test_without_write_access_they_are_in_memory(self, table, folder, monkeypatch):
        def refuse(*_, **__):
            raise PermissionError("read only")

        monkeypatch.setattr(lance_kinds.cache, "building", refuse)
        self.check(table)
        assert self.saved(folder) == []

    def test_a_large_table_is_searched_by_candidates(self, folder):
        rng, count = np.random.default_rng(0), 6000
        centers = rng.normal(size=(60, 6))
        tokens = [
            unit(centers[rng.integers(60, size=4)] + 0.2 * rng.normal(size=(4, 6))) for _ in range(count)
        ]
        table = self.store(folder, many=5000).create(Header(0, {}, {}, kinds={"late": KINDS["late"]}))
        plain = rows_of([f"{i:05}" for i in range(count)], vectors=np.empty((count, 0), np.float32))
        values = pack("late", "float16", join_texts(tokens, (), 6))
        table.write(replace(plain, kinds={"late": values}), replace=False)
        queries = [tokens[n] + 0.05 for n in range(0, count, 300)]
        found, exact = (table.by_kind("late", queries, 10, exact=each) for each in (False, True))
        assert all(each.exact for each in exact)
        shared = [len(set(one.id) & set(two.id)) for one, two in zip(found, exact, strict=True)]
        assert np.mean(shared) >= 9.5
        about = table.stats().details["kinds"]["late"]
        assert about["layout"] == "TokenIndex"
        assert all(each.exact for each in found) == ("recall" not in about)
        table.close()
