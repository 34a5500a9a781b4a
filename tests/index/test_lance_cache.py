"""What is built for search next to a table: saved, loaded, updated, and never trusted."""

import os
import shutil
import threading

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")
pytest.importorskip("faiss", reason="the extra 'index' is not installed")

from gemel.errors import InputError
from gemel.index.lance import ann as lists
from gemel.index.lance import cache
from gemel.index.lance.store import LanceStore
from gemel.index.port import Count, Header
from gemel.index.where import Compare
from index_contract import clusters, everything, rows_of, unit

DIM, ROWS, LARGE = 16, 1200, 500


def names(start, end):
    return [f"doc-{i:04}" for i in range(start, end)]


VECTORS = clusters(2 * ROWS, DIM)
QUERIES = unit(VECTORS[:400] + 0.5 * VECTORS[700:1100])  # of 20 the recall would be known to 0.015 only


def some(start, end):
    groups = {"group": [i % 50 for i in range(start, end)]}
    return rows_of(names(start, end), vectors=VECTORS[start:end], fields=groups)


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    folder = tmp_path_factory.mktemp("built") / "notes"
    table = opened(folder, create=True)
    table.write(some(0, ROWS), replace=False)
    table.compact()
    assert table.stats().layout.startswith("IVF")
    return folder


@pytest.fixture
def folder(built, tmp_path):
    """An index with its lists built."""
    return shutil.copytree(built, tmp_path / "notes")


def opened(folder, *, create=False, read_only=False):
    handle = LanceStore(folder, large=LARGE, many=LARGE, read_only=read_only)
    return handle.create(Header(DIM, {"group": "int"}, {})) if create else handle.open()


@pytest.fixture
def no_build(monkeypatch):
    def refuse(vectors):
        raise AssertionError("built again")

    monkeypatch.setattr(cache, "build", refuse)


def recall(table, rows, where=None):
    """Of the ten exact neighbors of some queries, the part that is found."""
    exact = table.nearest(QUERIES, 10, where=where, exact=True)
    quick = table.nearest(QUERIES, 10, where=where)
    for one, other in zip(exact, quick, strict=True):
        shared = dict(zip(one.id, one.score, strict=True))
        assert all(
            shared.get(name, score) == score for name, score in zip(other.id, other.score, strict=True)
        )
        assert set(one.id) <= set(rows)
    return np.mean([len(set(a.id) & set(b.id)) / len(a.id) for a, b in zip(exact, quick, strict=True)])


def test_lists_are_loaded_and_not_built_again(folder, no_build):
    table = opened(folder)
    stats = table.stats()
    assert stats.recall >= 0.98
    assert stats.unindexed == 0
    assert recall(table, names(0, ROWS)) >= 0.98
    assert recall(table, names(0, ROWS), Compare("group", "<", 25)) >= 0.98
    assert recall(table, names(0, ROWS), Compare("group", "=", 7)) >= 0.98


def test_a_read_only_search_saves_what_it_built(folder, monkeypatch):
    """Every `gemel index search` is such a process: each would build the lists again."""
    shutil.rmtree(folder / "cache")
    assert recall(opened(folder, read_only=True), names(0, ROWS)) >= 0.98
    monkeypatch.setattr(cache, "build", lambda _: pytest.fail("built again"))
    assert recall(opened(folder, read_only=True), names(0, ROWS)) >= 0.98


def test_a_read_only_search_works_without_a_writable_cache(folder, monkeypatch):
    def refused(*_):
        raise PermissionError(13, "Permission denied")

    shutil.rmtree(folder / "cache")
    monkeypatch.setattr(cache, "_new_folder", refused)
    assert recall(opened(folder, read_only=True), names(0, ROWS)) >= 0.98
    assert not (folder / "cache").exists()


@pytest.mark.parametrize("left", [0, 0.99])
@pytest.mark.parametrize("file", ["stamps.npy", "vectors.f32", "texts.arrow", "lists.faiss", "about.json"])
def test_a_damaged_cache_is_rebuilt(folder, file, left):
    path = next((folder / "cache").glob(f"rows-1-*/{file}"))
    os.truncate(path, int(path.stat().st_size * left))
    table = opened(folder)
    assert recall(table, names(0, ROWS)) >= 0.98
    result = table.nearest(QUERIES, 3)[0]
    assert list(result.text) == list(table.get(result.id).text)
    assert len(list((folder / "cache").glob("rows-1-*"))) == 1  # the damaged one is gone


def test_a_cache_with_changed_bytes_is_rebuilt(folder):
    path = next((folder / "cache").glob("rows-1-*/vectors.f32"))
    path.write_bytes(bytes(path.stat().st_size))
    assert recall(opened(folder), names(0, ROWS)) >= 0.98


def test_the_cache_may_be_deleted_at_any_time(folder):
    table = opened(folder)
    before = [each.id for each in table.nearest(QUERIES, 10)]
    shutil.rmtree(folder / "cache")
    assert [each.id for each in table.nearest(QUERIES, 10)] == before
    assert recall(opened(folder), names(0, ROWS)) >= 0.98


def test_a_cache_of_another_table_is_not_used(folder, tmp_path):
    other = opened(tmp_path / "other", create=True)
    other.write(some(ROWS, 2 * ROWS), replace=False)
    shutil.copytree(folder / "cache", tmp_path / "other" / "cache")
    assert recall(opened(tmp_path / "other"), names(ROWS, 2 * ROWS)) >= 0.98


def test_writes_compaction_and_other_processes_carry_the_lists_along(folder, no_build):
    table, other = opened(folder), opened(folder)
    table.nearest(QUERIES, 1)
    other.write(some(ROWS, ROWS + 30), replace=False)
    other.delete(names(0, 20))
    moved = some(40, 60)
    other.write(rows_of(moved.id, vectors=-moved.vector, fields=dict(moved.fields)), replace=True)
    rows = names(20, ROWS + 30)
    assert recall(table, rows) >= 0.98
    assert table.stats().unindexed == 50
    for number in range(3):  # the fragments are merged: the same passages at other positions
        other.write(some(ROWS + 30 + number, ROWS + 31 + number), replace=False)
    dataset = table._versions.newest().dataset
    dataset.optimize.compact_files()
    rows = names(20, ROWS + 33)
    assert recall(table, rows) >= 0.98
    assert recall(opened(folder), rows) >= 0.98
    assert table.nearest(-VECTORS[50:51], 1)[0].id == ["doc-0050"]


def test_the_lists_of_a_grown_table_are_rebuilt(folder):
    table = opened(folder)
    assert table.stats().unindexed == 0
    table.write(some(ROWS, 2 * ROWS), replace=False)
    assert recall(table, names(0, 2 * ROWS)) >= 0.98
    assert table.stats().unindexed == 0
    assert len(list((folder / "cache").glob("rows-1-*"))) == 1


def test_many_new_passages_are_put_into_the_lists(folder, no_build, monkeypatch):
    from gemel.index.lance import snapshot

    monkeypatch.setattr(snapshot, "_TAIL", 50)
    table = opened(folder)
    open_rows = table.nearest(QUERIES[:1], 5)[0]
    table.write(some(ROWS, ROWS + 200), replace=False)
    assert recall(table, names(0, ROWS + 200)) >= 0.98
    assert table.stats().unindexed == 0
    assert len(open_rows.id) == 5


def test_threads_search_while_lists_are_built(folder):
    table = opened(folder)
    wrong = []

    def ask():
        for _ in range(20):
            result = table.nearest(VECTORS[100:101], 1)[0]
            if list(result.id) != ["doc-0100"]:
                wrong.append(result.id)

    threads = [threading.Thread(target=ask) for _ in range(3)]
    for thread in threads:
        thread.start()
    table.write(some(ROWS, 2 * ROWS), replace=False)
    table.compact()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nothing_is_lost_when_all_is_deleted(folder):
    table = opened(folder)
    table.nearest(QUERIES, 1)
    assert table.delete(names(0, ROWS)) == ROWS
    assert [len(each) for each in table.nearest(QUERIES[:2], 5)] == [0, 0]
    assert [len(each) for each in table.nearest(QUERIES[:2], 5, where=Compare("group", "=", 1))] == [0, 0]
    table.compact()
    table.write(some(3, 5), replace=False)
    assert sorted(table.nearest(QUERIES, 5)[0].id) == names(3, 5)


def test_a_disk_without_room_for_a_cache_is_no_error(folder, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    shutil.rmtree(folder / "cache")
    monkeypatch.setattr(cache, "_streamed", full)
    assert recall(opened(folder), names(0, ROWS)) >= 0.98


def test_words_are_found_in_the_index_and_in_what_came_after_it(folder):
    table = opened(folder)
    assert table.stats().details["words"] == "index"
    new = rows_of(
        ["new"], texts=["text of zebras, 100 % new_words"], vectors=VECTORS[:1], fields={"group": [3]}
    )
    table.write(new, replace=False)
    assert list(table.by_words("zebras", 5).id) == ["new"]
    assert list(table.by_words("WORDS", 5).id) == ["new"]
    assert list(table.by_words("0007", 5).id) == ["doc-0007"]
    assert list(table.by_words("text", 5, where=Compare("group", "=", 7)).id) == [
        f"doc-{i:04}" for i in range(7, 257, 50)
    ]
    table.delete(["new", "doc-0007"])
    assert len(table.by_words("zebras", 5)) == 0
    table.compact()
    assert len(table.by_words("0007", 5)) == 0
    assert list(table.by_words("0008", 5).id) == ["doc-0008"]


def test_many_small_writes_are_merged(tmp_path, monkeypatch):
    from gemel.index.lance import table as lance_table

    monkeypatch.setattr(lance_table, "_MANY_SMALL", 5)
    table = opened(tmp_path / "notes", create=True)
    for number in range(12):
        table.write(some(number, number + 1), replace=False)
    assert table.stats().details["fragments"] <= 6
    assert [each[0] for each in everything(table)] == names(0, 12)


def test_lists_are_built_of_few_rows_and_odd_widths():
    vectors = clusters(40, 7)
    built = lists.build(vectors)
    assert set(built.search(vectors[:1], 40, None).slots[0]) - {-1} == set(range(40))


# A store with a URL, as a bucket has; here it is a folder.


def test_a_location_with_a_url_works_without_locks(tmp_path):
    url = f"file://{tmp_path}/bucket/notes"
    assert not LanceStore(url).exists()
    table = LanceStore(url).create(Header(DIM, {"group": "int"}, {"model": "a"}))
    with pytest.raises(InputError, match="already"):
        LanceStore(url).create(Header(DIM, {}, {}))
    table.write(some(0, 50), replace=False)
    tables = [table, LanceStore(url).open()]

    def change(each, seed):
        for number in range(8):
            vectors = VECTORS[seed + number : seed + number + 2]
            ids = [f"doc-{number:04}", f"doc-{number + 20:04}"]
            each.write(rows_of(ids, vectors=vectors, fields={"group": [seed] * 2}), replace=True)

    threads = [threading.Thread(target=change, args=(each, 100 * n)) for n, each in enumerate(tables)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for each in tables:
        assert each.count() == Count(50, 50)
    handle = LanceStore(url)
    handle.begin(Header(DIM, {}, {"model": "b"})).write(rows_of(["x"], vectors=VECTORS[:1]), replace=False)
    with handle.writing():
        handle.switch()
    assert dict(LanceStore(url).open().header.bound) == {"model": "b"}
    assert not (tmp_path / "bucket" / "notes" / "rows-1.lance").exists()
