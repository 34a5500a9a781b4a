"""An index on disk through kills, torn files, full disks and many processes: nothing acknowledged is lost."""

import json
import os
import random
import resource
import select
import signal
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("lance", reason="the extra 'index' is not installed")

import gemel
from gemel.errors import InputError, WorkError
from gemel.index.lance.recovery import RecoveredWarning
from gemel.index.lance.store import LanceStore
from gemel.index.port import Header
from index_child import DIM, KINDS, SIZES, check_whole, kinds_of, rows_of, terms, tokens
from index_contract import actual

CHILD = Path(__file__).parents[1] / "support" / "index_child.py"
KILLS = int(os.environ.get("GEMEL_TEST_KILLS", "8"))  # 50 by hand and before a release
CHANGES = "write,write,write,delete,compact,find,switch"


@contextmanager
def child(folder, seed, *what):
    """A separate process with its output as lines; killed at the end."""
    started = subprocess.Popen(
        [sys.executable, CHILD, folder, str(seed), *what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
    )
    try:
        yield started
    finally:
        started.kill()
        started.wait()
        started.stdin.close()
        started.stdout.close()


def create(folder, documents=None, kinds=None):
    table = LanceStore(folder, **SIZES).create(Header(DIM, {}, {"model": "first"}, kinds=kinds or {}))
    if documents:
        table.write(rows_of(documents), replace=False)
    return table


def contents(table):
    """{id: digest}, after a check of every passage."""
    out = {}
    for rows in table.scan():
        check_whole(rows)
        out |= dict(zip(rows.id, rows.digest, strict=True))
    assert table.count().documents == len(out)
    return out


class Model:
    """What the table must hold after the lines of a writer."""

    def __init__(self, kinds=()):
        self.documents, self.model, self.tried = {}, "first", None
        self.kinds, self.snapshots = list(kinds), {}

    def hear(self, line):
        word, _, rest = line.partition(" ")
        change = json.loads(rest)
        if word == "try":
            self.tried = change
        else:
            self.documents, self.model, self.kinds = self.after(change)
            self.tried = None
        if "snapshot" in change:
            self.snapshots[change["snapshot"]] = word == "ack", dict(self.documents), self.kinds

    def after(self, change):
        documents = {k: v for k, v in self.documents.items() if k not in set(change.get("ids", ()))}
        after = documents | change.get("documents", {})
        return after, change.get("model", self.model), change.get("kinds", self.kinds)

    def settle(self, table):
        """Everything acknowledged; the last change either completely or not at all."""
        allowed = [(self.documents, self.model, self.kinds)]
        if self.tried is not None:
            allowed.append(self.after(self.tried))
        there = contents(table), table.header.bound["model"], list(table.header.kinds)
        assert there in allowed
        (self.documents, self.model, self.kinds), self.tried = there, None

    def settle_snapshots(self, folder):
        """A snapshot that was acknowledged is there; one that was tried is complete or absent."""
        for name, (done, documents, kinds) in self.snapshots.items():
            assert (folder / name).exists() or not done
            if (folder / name).exists():
                copy = LanceStore(folder / name, **SIZES).open()
                assert (contents(copy), list(copy.header.kinds)) == (documents, kinds)
                check_kinds(copy)
                copy.close()
        self.snapshots.clear()


def test_a_kill_at_any_moment_loses_nothing(tmp_path):
    chance, model, folder = random.Random(os.environ.get("GEMEL_TEST_SEED", "1")), Model(), tmp_path / "notes"
    create(folder).close()
    for kill in range(KILLS):
        with child(folder, kill, CHANGES) as writer:
            for _ in range(chance.randint(1, 12)):
                model.hear(writer.stdout.readline().decode())
            select.select([], [], [], chance.random() * 0.03)  # somewhere inside the change
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout.read().decode().splitlines():
                model.hear(line)
        table = LanceStore(folder, **SIZES).open()
        model.settle(table)
        result = table.nearest(np.eye(DIM, dtype=np.float32)[:3], 5)
        assert all(set(each.id) <= model.documents.keys() for each in result)
    assert len(model.documents) > 5


def test_after_a_kill_every_kind_of_vectors_finds_what_is_stored(tmp_path):
    chance, model = random.Random(os.environ.get("GEMEL_TEST_SEED", "2")), Model(KINDS)
    folder = tmp_path / "notes"
    create(folder, kinds=KINDS).close()
    for kill in range(KILLS // 2):
        with child(folder, kill, f"{CHANGES},recode,snapshot") as writer:
            for _ in range(chance.randint(4, 16)):
                model.hear(writer.stdout.readline().decode())
            select.select([], [], [], chance.random() * 0.03)
            writer.send_signal(signal.SIGKILL)
            for line in writer.stdout.read().decode().splitlines():
                model.hear(line)
        model.settle_snapshots(tmp_path / "copies")
        table = LanceStore(folder, **SIZES).open()
        model.settle(table)
        check_kinds(table)
        assert table.faults() == []
    assert len(model.documents) > 5


def check_kinds(table):
    """Every passage has the vectors of its text, and searches by each kind find the best of them."""
    rows = table.get(list(contents(table)), kinds=True)
    assert len(rows) == table.count().passages
    assert rows.kinds == kinds_of(rows.text, table.header.kinds)
    for text in ("passage 1 of w0-2-1 as w0.2x2", "passage 0 of w3"):
        for kind in table.header.kinds:
            query = terms(text) if kind == "sparse" else tokens(text)
            assert actual(table.by_kind(kind, [query], 7)[0]) == best_of(kind, query, rows, 7)


def best_of(kind, query, rows, k):
    """(ids, parts) of the best of these rows, each compared."""
    scored = []
    for n, text in enumerate(rows.text):
        if kind == "sparse":
            own, asked = (dict(zip(*map(list, row), strict=True)) for row in (terms(text), query))
            score = sum(own[column] * asked[column] for column in own.keys() & asked.keys())
        else:
            stored = tokens(text).astype(np.float16).astype(np.float32)
            score = gemel.maxsim(query, [stored])[0]
        if score or kind == "late":
            scored.append((-float(score), rows.id[n], int(rows.part[n])))
    return [each[1:] for each in sorted(scored)[:k]]


@pytest.mark.slow
def test_two_writers_and_four_readers_run_concurrently(tmp_path):
    folder, models = tmp_path / "notes", [Model(), Model()]
    create(folder, {f"d{i}": "0x2" for i in range(60)}).close()
    with (
        child(folder, 1, "write,write,delete,compact", "beside") as one,
        child(folder, 2, "write,write,delete,find", "beside") as two,
    ):
        # Each writer changes only its own rows; nobody changes the initial ones.
        readers = [subprocess.Popen([sys.executable, CHILD, folder, str(n), "read"], stdin=subprocess.PIPE,
                                    stdout=subprocess.PIPE) for n in range(4)]  # fmt: skip
        try:
            for model, writer in ((models[0], one), (models[1], two)):
                for _ in range(16):
                    model.hear(writer.stdout.readline().decode())
            for reader in readers:
                assert reader.stdout.readline().startswith(b"ack")
            for model, writer in ((models[0], one), (models[1], two)):
                writer.send_signal(signal.SIGKILL)
                for line in writer.stdout.read().decode().splitlines():
                    model.hear(line)
            for reader in readers:
                reader.stdin.close()
                assert reader.wait(60) == 0
        finally:
            for reader in readers:
                reader.kill()
                reader.wait()
                reader.stdout.close()
    there = contents(LanceStore(folder, **SIZES).open())
    for model, name in zip(models, ("w1", "w2"), strict=True):
        mine = {each: digest for each, digest in there.items() if each.startswith(name)}
        allowed = [own(model.documents, name)]
        if model.tried is not None:
            allowed.append(own(model.after(model.tried)[0], name))
        assert mine in allowed


def own(documents, name):
    return {each: digest for each, digest in documents.items() if each.startswith(name)}


# Torn files, as a power cut leaves them.


def newest_manifest(table):
    return min((table / "_versions").glob("*.manifest"), key=lambda path: int(path.stem))


def newest_data(table):
    return max((table / "data").iterdir(), key=lambda path: path.stat().st_mtime_ns)


@pytest.mark.parametrize("left", [0, 0.5, 0.99])
@pytest.mark.parametrize("file", [newest_manifest, newest_data])
def test_a_torn_file_opens_the_last_good_version(tmp_path, file, left):
    folder = tmp_path / "notes"
    table = create(folder, {"a": "1x2", "b": "1x1"})
    table.write(rows_of({"c": "1x1"}), replace=False)
    torn = file(folder / "rows-1.lance")
    os.truncate(torn, int(torn.stat().st_size * left))
    with pytest.warns(RecoveredWarning, match=r"version 3 .* cannot be read .* Opened version 2"):
        again = LanceStore(folder).open()
    assert contents(again) == {"a": "1x2", "b": "1x1"}
    with pytest.warns(RecoveredWarning):
        reader = LanceStore(folder, read_only=True).open()
    assert contents(reader) == {"a": "1x2", "b": "1x1"}
    again.write(rows_of({"d": "1x3"}), replace=False)
    assert contents(again) == {"a": "1x2", "b": "1x1", "d": "1x3"}
    assert contents(LanceStore(folder).open()) == {"a": "1x2", "b": "1x1", "d": "1x3"}  # and no warning
    again.compact()
    assert contents(LanceStore(folder).open()) == {"a": "1x2", "b": "1x1", "d": "1x3"}


def test_a_data_file_of_zeros_is_noticed(tmp_path):
    folder = tmp_path / "notes"
    create(folder, {"a": "1x2"}).write(rows_of({"c": "1x1"}), replace=False)
    torn = newest_data(folder / "rows-1.lance")
    torn.write_bytes(bytes(torn.stat().st_size))
    with pytest.warns(RecoveredWarning, match="does not end as it should"):
        assert contents(LanceStore(folder).open()) == {"a": "1x2"}


def test_a_table_without_a_readable_version_is_an_error(tmp_path):
    folder = tmp_path / "notes"
    create(folder)
    for manifest in (folder / "rows-1.lance" / "_versions").glob("*.manifest"):
        manifest.write_bytes(b"")
    with pytest.raises(WorkError, match=r"no version .* can be read.* copy"):
        LanceStore(folder).open()


# Invalid locations.


def test_a_folder_that_is_not_an_index_is_refused(tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with pytest.raises(InputError, match="is a file"):
        LanceStore(file).exists()
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "one.jpg").write_text("x")
    for act in (LanceStore.exists, LanceStore.open, lambda handle: handle.create(Header(DIM, {}, {}))):
        with pytest.raises(InputError, match=r"no index.*'one.jpg'"):
            act(LanceStore(folder))
    (tmp_path / "empty").mkdir()
    assert not LanceStore(tmp_path / "empty").exists()
    (folder / "index.json").write_text("{}")
    with pytest.raises(InputError, match="no index"):
        LanceStore(folder).open()


def test_a_folder_without_its_table_is_an_error(tmp_path):
    import shutil

    create(tmp_path / "notes")
    shutil.rmtree(tmp_path / "notes" / "rows-1.lance")
    with pytest.raises(InputError, match="incomplete"):
        LanceStore(tmp_path / "notes").open()


def test_a_killed_create_is_started_again(tmp_path):
    folder = tmp_path / "notes"
    create(folder)
    (folder / "index.json").unlink()
    assert not LanceStore(folder).exists()
    assert contents(create(folder, {"a": "1x1"})) == {"a": "1x1"}


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read and write everything")
def test_a_folder_without_permissions_is_reported(tmp_path):
    folder = tmp_path / "notes"
    table = create(folder, {"a": "1x1"})
    for path in (folder, *folder.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    assert contents(LanceStore(folder).open()) == {"a": "1x1"}
    with pytest.raises(WorkError, match="rights"):
        table.write(rows_of({"b": "1x1"}), replace=False)


def test_a_table_opened_to_read_is_not_written(tmp_path):
    folder = tmp_path / "notes"
    create(folder, {f"d{i}": "1x1" for i in range(50)})
    before = beside_the_cache(folder)
    handle = LanceStore(folder, read_only=True, **SIZES)
    table = handle.open()
    assert table.nearest(np.eye(DIM, dtype=np.float32)[:1], 3)[0].id
    assert table.by_words("passage", 3).id
    for act in (lambda: table.write(rows_of({"x": "1x1"}), replace=True), lambda: table.delete(["d1"]),
                table.compact, lambda: handle.begin(Header(DIM, {}, {}))):  # fmt: skip
        with pytest.raises(InputError, match="read only"):
            act()
    assert beside_the_cache(folder) == before


def beside_the_cache(folder):
    """The index itself: all but what may be deleted at any time."""
    paths = sorted(folder.rglob("*"))
    return [path for path in paths if not path.relative_to(folder).parts[0].startswith("cache")]


# Full disks.


@pytest.fixture
def small_disk(tmp_path):
    """A file system of 3 MB."""
    point = tmp_path / "disk"
    point.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", point], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    yield point
    subprocess.run(["umount", "--lazy", point], check=True)


def test_a_full_disk_fails_the_write_and_keeps_the_rest(small_disk):
    fill_until_refused(small_disk / "notes")


def test_a_file_that_may_not_grow_fails_the_write_and_keeps_the_rest(tmp_path):
    """Where nothing can be mounted: a limit on the file size, which interrupts a write."""
    create(tmp_path / "notes").close()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    table = LanceStore(tmp_path / "notes").open()
    table.write(rows_of({"a": "1x1"}), replace=False)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    try:
        with pytest.raises(WorkError, match="could not write"):
            table.write(rows_of({f"d{i}": "1x4" for i in range(1000)}), replace=False)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert contents(table) == {"a": "1x1"}
    table.write(rows_of({"b": "1x1"}), replace=False)
    assert contents(LanceStore(tmp_path / "notes").open()) == {"a": "1x1", "b": "1x1"}


def fill_until_refused(folder):
    table, acknowledged = create(folder), {}
    with pytest.raises(WorkError, match=r"could not write.*space"):
        for number in range(10_000):
            documents = {f"d{number}-{i}": "1x4" for i in range(100)}
            table.write(rows_of(documents), replace=False)
            acknowledged |= documents
    assert acknowledged
    assert contents(table) == acknowledged
    assert contents(LanceStore(folder).open()) == acknowledged
    assert table.nearest(np.eye(DIM, dtype=np.float32)[:1], 3)[0].id
