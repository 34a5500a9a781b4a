"""The snapshot that lets a process answer without Lance: used only if the table is unchanged, and never trusted."""

import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")
pytest.importorskip("faiss", reason="the extra 'index' is not installed")

from gemel.errors import WorkError
from gemel.index.lance import snapshot, versions
from gemel.index.lance.recovery import RecoveredWarning
from gemel.index.lance.store import LanceStore
from gemel.index.port import Header
from gemel.index.where import Compare
from index_contract import clusters, everything, rows_of

DIM, ROWS = 16, 700
SIZES = {"large": 500, "many": 500}
VECTORS = clusters(2 * ROWS, DIM)


def names(start, end):
    return [f"doc-{i:04}" for i in range(start, end)]


def some(start, end):
    groups = {"group": [i % 50 for i in range(start, end)]}
    return rows_of(names(start, end), vectors=VECTORS[start:end], fields=groups)


def opened(folder, **options):
    return LanceStore(folder, **SIZES, **options).open()


@pytest.fixture(params=["lists", "lists and a tail", "no lists"])
def folder(request, tmp_path, monkeypatch):
    """An index that was searched, with lists of all passages, of most, and of none."""
    if request.param == "no lists":
        monkeypatch.setitem(SIZES, "large", 2 * ROWS)
    store = LanceStore(tmp_path / "notes", **SIZES)
    table = store.create(Header(DIM, {"group": "int"}, {}))
    table.write(some(0, ROWS - 50), replace=False)
    if request.param == "lists and a tail":
        table.nearest(VECTORS[:1], 1)
    table.write(some(ROWS - 50, ROWS), replace=False)
    table.delete(names(0, 3))
    table.close()
    first = opened(tmp_path / "notes")
    first.nearest(VECTORS[:1], 1)
    first.close()
    assert saved(tmp_path / "notes").exists()
    return tmp_path / "notes"


def saved(folder):
    return snapshot.saved_file(folder / "cache", "rows-1")


def answers(table):
    queries = VECTORS[::7]
    plain = table.nearest(queries, 5)
    filtered = table.nearest(queries, 40, where=Compare("group", "<", 25), exact=True)
    return [
        (list(each.id), each.score.tolist(), list(each.text), each.fields["group"])
        for each in (*plain, *filtered)
    ]


@pytest.fixture
def no_lance(monkeypatch):
    """Reading by Lance fails."""

    def refuse(*_):
        raise AssertionError("opened by Lance")

    monkeypatch.setattr(snapshot, "open_dataset", refuse)
    monkeypatch.setattr(versions, "open_last_good", refuse)


def test_answers_are_those_of_the_table(folder, request):
    path = saved(folder)
    kept = path.read_bytes()
    path.unlink()
    expected = answers(opened(folder))
    path.write_bytes(kept)
    request.getfixturevalue("no_lance")
    assert answers(opened(folder)) == expected
    assert answers(opened(folder, read_only=True)) == expected


def test_data_outside_of_the_snapshot_is_read_from_the_table(folder):
    table = opened(folder)
    assert [each[0] for each in everything(table)] == names(3, ROWS)
    assert list(table.get(["doc-0007"]).text) == list(table.nearest(VECTORS[7:8], 1)[0].text)
    assert table.count().documents == ROWS - 3


def test_a_reader_that_started_from_a_snapshot_sees_later_writes(folder):
    table, other = opened(folder), opened(folder)
    assert list(table.nearest(VECTORS[9:10], 1)[0].id) == ["doc-0009"]
    other.delete(["doc-0009"])
    assert list(table.nearest(VECTORS[9:10], 1)[0].id) != ["doc-0009"]
    other.write(some(ROWS, ROWS + 5), replace=False)
    assert list(table.nearest(VECTORS[ROWS : ROWS + 1], 1)[0].id) == [f"doc-{ROWS:04}"]
    table.write(some(9, 10), replace=False)
    for each in (table, other, opened(folder)):
        assert list(each.nearest(VECTORS[9:10], 1)[0].id) == ["doc-0009"]


def test_it_is_not_used_for_another_version(folder):
    writer = opened(folder)
    writer.delete(["doc-0009"])
    assert snapshot.load_view(folder / "cache", str(folder / "rows-1.lance"), "notes") is None
    table = opened(folder)
    assert list(table.nearest(VECTORS[9:10], 1)[0].id) != ["doc-0009"]  # which saves one of this version
    assert snapshot.load_view(folder / "cache", str(folder / "rows-1.lance"), "notes").view.version == int(
        table.stats().version
    )


def test_it_is_not_used_for_another_table_of_the_same_name_and_version(folder, tmp_path):
    store = LanceStore(tmp_path / "other", **SIZES)
    other = store.create(Header(DIM, {"group": "int"}, {}))
    uri = str(tmp_path / "other" / "rows-1.lance")
    version = snapshot.load_view(folder / "cache", str(folder / "rows-1.lance"), "notes").view.version
    for number in range(version - 1):
        other.write(some(number, number + 1), replace=False)
    assert other.stats().version == str(version)
    (tmp_path / "other" / "cache").mkdir(exist_ok=True)
    shutil.copy(saved(folder), saved(tmp_path / "other"))
    assert snapshot.load_view(tmp_path / "other" / "cache", uri, "other") is None


@pytest.mark.parametrize("damage", ["empty", "short", "one bit", "other format"])
def test_a_damaged_snapshot_is_ignored(folder, damage):
    path = saved(folder)
    content = bytearray(path.read_bytes())
    if damage == "one bit":
        content[len(content) // 2] ^= 1
    elif damage == "other format":
        content[32:] = content[32:].replace(json.dumps({"format": 1})[1:-1].encode(), b'"format": 9')
    path.write_bytes(content[: {"empty": 0, "short": len(content) - 9}.get(damage, len(content))])
    assert snapshot.load_view(folder / "cache", str(folder / "rows-1.lance"), "notes") is None
    assert list(opened(folder).nearest(VECTORS[9:10], 1)[0].id) == ["doc-0009"]


def test_a_torn_file_of_the_newest_version_is_noticed(folder):
    newest = max((folder / "rows-1.lance" / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)
    os.truncate(newest, newest.stat().st_size // 2)
    with pytest.warns(RecoveredWarning, match="last good"):
        table = opened(folder)
    assert len(table.nearest(VECTORS[:1], ROWS, exact=True)[0].id) < ROWS - 3


def test_a_table_that_is_gone_is_an_error(folder):
    table = opened(folder)
    shutil.rmtree(folder / "rows-1.lance")
    with pytest.raises(WorkError, match="could not read"):
        table.nearest(VECTORS[:1], 1)


def test_a_folder_that_cannot_be_written_is_no_error(folder, monkeypatch):
    saved(folder).unlink()
    monkeypatch.setattr(snapshot, "_body", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left")))
    assert list(opened(folder).nearest(VECTORS[9:10], 1)[0].id) == ["doc-0009"]
    assert not saved(folder).exists()


def test_leftovers_of_a_killed_process_are_deleted(folder):
    left = saved(folder).with_name("rows-1.snapshot.abcd1234")
    left.write_bytes(b"half")
    saved(folder).unlink()
    opened(folder).nearest(VECTORS[:1], 1)
    assert not left.exists()
    assert saved(folder).exists()


def test_the_first_answer_of_a_process_needs_neither_lance_nor_pandas(tmp_path):
    import gemel

    vectors = np.eye(8, DIM, dtype=np.float32)
    fields = {"year": list(range(8)), "tags": [["a"]] * 8}
    with gemel.open_index(tmp_path / "notes", dim=DIM) as index:
        index.add(["text"] * 8, ids=range(8), vectors=vectors, fields=fields)
        index.search(vectors[0], 1)
    program = (
        "import sys, gemel\n"
        f"index = gemel.open_index({str(tmp_path / 'notes')!r})\n"
        f"print(index.search([0.0] * 5 + [1.0] + [0.0] * {DIM - 6}, 1)[0].id)\n"
        f"print(len(index.search_many([[1.0] * {DIM}] * 9, 8)))\n"  # more cells than are read one by one
        "print(sorted({'lance', 'pandas', 'torch'} & set(sys.modules)))\n"
        "import pandas, pyarrow\n"  # which works as if there had been no snapshot
        "print(pyarrow.array(pandas.Series([1.0, None])).null_count)\n"
    )
    pytest.importorskip("pandas")
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.splitlines() == ["5", "9", "[]", "1"], done.stderr
