"""An index whose files are lost or damaged: nothing is deleted unrequested, errors say what to do, repair works."""

import json
import os
import shutil
import warnings
from contextlib import suppress

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")
pytest.importorskip("faiss", reason="the extra 'index' is not installed")

import gemel
from gemel.errors import GemelError, InputError, WorkError
from gemel.index.lance.recovery import RecoveredWarning
from gemel.index.lance.store import LanceStore
from gemel.index.port import Header, digest_of
from index_contract import clusters, rows_of

DIM, LARGE = 16, 400
VECTORS = clusters(800, DIM)


def names(start, end):
    return [f"d{number:04}" for number in range(start, end)]


def some(start, end):
    texts = [f"text about topic{number % 7} number{number}" for number in range(start, end)]
    vectors = VECTORS[start:end]
    digests = [digest_of(text, {}, None, vector) for text, vector in zip(texts, vectors, strict=True)]
    return rows_of(names(start, end), texts=texts, vectors=vectors, digests=digests)


def opened(folder, **options):
    return LanceStore(folder, large=LARGE, many=LARGE, **options).open()


def made(folder, *, rows=500, step=100):
    """A table written in several commits, some rows deleted, words and lists built."""
    table = LanceStore(folder, large=LARGE, many=LARGE).create(Header(DIM, {}, {"model": None, "gemel": "1"}))
    for start in range(0, rows, step):
        table.write(some(start, start + step), replace=False)
    table.delete(names(0, 3))
    table.nearest(VECTORS[:1], 1)
    table.by_words("topic1", 1)
    table.close()
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return made(tmp_path_factory.mktemp("built") / "notes")


@pytest.fixture
def folder(built, tmp_path):
    return shutil.copytree(built, tmp_path / "notes")


def ids(table):
    return [each for rows in table.scan() for each in rows.id]


# index.json


DAMAGES = {
    "missing": None,
    "empty": b"",
    "not UTF-8": b'{"what": "a gemel \xf2ndex", "format": 1, "current": 1}',
    "not JSON": b'{"what": "a gemel index", "fo',
    "of other keys": b'{"forma": 1, "current": 1}',
    "zeros": bytes(60),
    "no number": b'{"format": 1, "current": 0}',
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_lost_pointer_is_refused_and_repaired(folder, damage):
    (folder / "index.json").unlink()
    if DAMAGES[damage] is not None:
        (folder / "index.json").write_bytes(DAMAGES[damage])
    for act in (
        lambda: gemel.open_index(folder),
        lambda: gemel.open_index(folder, dim=DIM),
        lambda: gemel.open_index(folder, dim=DIM, create=True),
        lambda: LanceStore(folder).create(Header(DIM, {}, {})),
    ):
        with pytest.raises(InputError, match=r"index\.json is .*rows-1\.lance is there.*gemel index repair"):
            act()
    assert "rows-1.lance" in gemel.repair_index(folder).actions[0]
    with gemel.open_index(folder) as index:
        assert len(index) == 497
    assert gemel.repair_index(folder).actions == ()


def test_the_user_chooses_one_of_several_tables_and_none_is_deleted(folder):
    shutil.copytree(folder / "rows-1.lance", folder / "rows-2.lance")
    (folder / "index.json").unlink()
    with pytest.raises(InputError, match=r"rows-1.lance: 497 passages of no model.*rows-2.lance.*--table"):
        gemel.repair_index(folder)
    with pytest.raises(InputError, match="--table"):
        gemel.repair_index(folder, table="rows-3.lance")
    gemel.repair_index(folder, table="rows-2.lance")
    assert json.loads((folder / "index.json").read_text())["current"] == 2
    assert len(ids(opened(folder))) == 497
    assert [path.name[:12] for path in (folder / "damaged").iterdir()] == ["rows-1.lance"]


def test_a_table_that_another_process_filled_since_the_first_look_is_opened(folder, monkeypatch):
    from gemel.index.lance.location import Folder

    first = [None]
    content = Folder._content

    def late(self):
        return first.pop() if first else content(self)

    monkeypatch.setattr(Folder, "_content", late)
    assert LanceStore(folder).exists()


def test_repair_without_an_index_is_an_error(tmp_path):
    with pytest.raises(InputError, match="no index at"):
        gemel.repair_index(tmp_path / "nothing")


def test_a_table_without_its_header_requires_the_model(tmp_path, saved_model):
    folder = tmp_path / "notes"
    with gemel.open_index(folder, saved_model) as index:
        index.add(["one", "two"], ids=["1", "2"])
    import lance

    lance.dataset(str(folder / "rows-1.lance")).update_schema_metadata({}, replace=True)
    shutil.rmtree(folder / "rows-1.lance" / "_transactions")
    for path in sorted((folder / "rows-1.lance" / "_versions").glob("*.manifest"), key=lambda p: int(p.stem))[
        1:
    ]:
        path.unlink()  # all but the newest, which has the lowest number
    with pytest.raises(InputError, match="did not make"):
        gemel.open_index(folder)
    assert gemel.repair_index(folder, model=saved_model).actions
    with gemel.open_index(folder, saved_model) as index:
        assert index.search("one", k=1)[0].id == "1"


@pytest.fixture(scope="session")
def saved_model(tmp_path_factory):
    from tiny import tiny_bert

    return tiny_bert(tmp_path_factory.mktemp("tiny") / "model")


# Data.


def files_of_rows(folder):
    return sorted((folder / "rows-1.lance" / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)


def test_a_damaged_old_file_takes_nothing_back_before_repair(folder):
    os.truncate(files_of_rows(folder)[1], 100)
    newest = len(list((folder / "rows-1.lance" / "_versions").iterdir()))
    with pytest.warns(
        RecoveredWarning, match=r"writes of versions 3 to .* are missing .*100 passages of 497"
    ):
        table = opened(folder)
    assert ids(table) == names(0, 100)
    for write in (
        lambda: table.write(some(600, 601), replace=False),
        lambda: table.delete(["d0050"]),
        table.compact,
    ):
        with pytest.raises(
            WorkError, match=r"opened to read only: the writes of versions .* gemel index repair"
        ):
            write()
    assert len(list((folder / "rows-1.lance" / "_versions").iterdir())) == newest
    done = gemel.repair_index(folder)
    assert "gave up 100 of 497 passages" in done.actions[0]
    again = opened(folder)
    assert ids(again) == [*names(3, 100), *names(200, 500)]
    again.write(some(600, 601), replace=False)
    assert len(ids(opened(folder))) == 398
    assert list(again.by_words("number250", 5).id) == ["d0250"]


def test_bytes_that_cannot_be_decoded_are_an_error_that_says_what_to_do(folder):
    """In the columns that are read when a table is opened, and in those that are read later."""
    path = files_of_rows(folder)[0]
    content = bytearray(path.read_bytes())
    chance = np.random.default_rng(0)
    noticed = 0
    for _ in range(12):
        damaged = bytearray(content)
        for n in chance.integers(len(content), size=40):
            damaged[n] ^= 0xFF
        path.write_bytes(damaged)
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always", RecoveredWarning)
            try:
                table = opened(folder)
                list(table.scan())
                table.nearest(VECTORS[:3], 3)
            except GemelError as error:
                noticed += "gemel index repair" in str(error)
            noticed += any("gemel index repair" in str(each.message) for each in warned)
    assert noticed > 6
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecoveredWarning)
        gemel.repair_index(folder)
    assert set(names(100, 500)) <= set(ids(opened(folder)))


def test_damaged_deletion_files_raise_an_error_of_gemel(folder):
    for path in (folder / "rows-1.lance" / "_deletions").iterdir():
        content = bytearray(path.read_bytes())
        for n in range(0, len(content) - 8, 5):
            content[n] ^= 0x10
        path.write_bytes(content)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RecoveredWarning)
        with suppress(GemelError):
            list(opened(folder).scan())
        gemel.repair_index(folder)
    assert set(names(100, 500)) <= set(ids(opened(folder)))


def test_a_newest_manifest_of_other_bytes_is_damage_and_not_a_foreign_table(folder):
    manifests = (folder / "rows-1.lance" / "_versions").glob("*.manifest")
    newest = min(manifests, key=lambda path: int(path.stem))
    newest.write_bytes(bytes(newest.stat().st_size))
    with pytest.warns(RecoveredWarning, match="cannot be read"):
        assert len(ids(opened(folder))) == 497
    gemel.repair_index(folder)
    opened(folder).write(some(600, 601), replace=False)
    assert len(ids(opened(folder))) == 498


def test_an_old_manifest_that_cannot_be_read_is_set_aside(folder):
    manifests = sorted((folder / "rows-1.lance" / "_versions").glob("*.manifest"), key=lambda p: -int(p.stem))
    manifests[2].write_bytes(b"nothing")
    assert "set aside 1 of" in gemel.repair_index(folder).actions[0]
    opened(folder).compact()


# The index of words.


def word_files(folder):
    return sorted((folder / "rows-1.lance" / "_indices").rglob("*.lance"))


def lose(path):
    path.unlink()


def halve(path):
    os.truncate(path, path.stat().st_size // 2)


def zero(path):
    path.write_bytes(bytes(path.stat().st_size))


@pytest.mark.parametrize("damage", [lose, halve, zero])
def test_a_damaged_index_of_words_is_detected_and_rebuilt(folder, damage):
    for path in word_files(folder):
        damage(path)
    with gemel.open_index(folder, read_only=True) as index:
        result = index.verify()
        assert not result.ok
        assert [check.name for check in result.checks if not check.ok] == ["structures"]
    reader = opened(folder, read_only=True)
    with pytest.warns(RecoveredWarning, match=r"counted in memory.*gemel index compact"):
        assert list(reader.by_words("number250", 5).id) == ["d0250"]
    assert list(reader.by_words("number251", 5).id) == ["d0251"]  # and no second warning
    writer = opened(folder)
    assert list(writer.by_words("number250", 5).id) == ["d0250"]  # built again
    assert writer.faults() == []
    with gemel.open_index(folder, read_only=True) as index:
        assert index.verify().ok


@pytest.mark.parametrize("care", [lambda folder: opened(folder).compact(), gemel.repair_index])
def test_compact_and_repair_build_the_index_of_words_again(folder, care):
    for path in word_files(folder):
        zero(path)
    care(folder)
    assert opened(folder, read_only=True).faults() == []
    assert list(opened(folder, read_only=True).by_words("number250", 5).id) == ["d0250"]


# The cache.


@pytest.mark.parametrize("file", ["stamps.npy", "vectors.f32", "texts.arrow", "lists.faiss"])
def test_a_flipped_bit_in_the_cache_is_detected_and_the_cache_rebuilt(folder, file):
    path = next((folder / "cache").glob(f"rows-1-*/{file}"))
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    assert file in opened(folder).faults()[0]
    table = opened(folder)
    assert [list(each.id) for each in table.nearest(VECTORS[100:110], 1)] == [
        [each] for each in names(100, 110)
    ]
    assert table.faults() == []
    assert not path.exists()


def test_a_cache_is_fully_verified_only_once(folder, monkeypatch):
    from gemel.index.lance import cache

    opened(folder).nearest(VECTORS[:1], 1)  # the folder was copied: its files are different ones
    monkeypatch.setattr(cache, "sha256", lambda path: pytest.fail(f"{path} read again"))
    opened(folder).nearest(VECTORS[:1], 1)
