"""From one model to another: resumable, while the old one serves, with one switch at the end."""

import signal
import subprocess
import sys
import threading

import pytest
from tests.index.test_index import IDS, LONG, TEXTS, YEARS

import gemel
from gemel.errors import InputError, WorkError
from gemel.index import migrate as migrating
from gemel.index.memory import MemoryStore
from gemel.index.open import open_index
from tiny import tiny_bert


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    first = gemel.load(tiny_bert(folder / "first"))
    return first, gemel.load(tiny_bert(folder / "second", seed=7, width=48, max_length=40))


@pytest.fixture(params=["memory", "lance"])
def location(models, request, tmp_path):
    """In a folder every handle has its own store, as in another process."""
    if request.param == "lance":
        pytest.importorskip("lance")
    there = MemoryStore() if request.param == "memory" else tmp_path / "notes"
    with open_index(there, models[0]) as index:
        index.add([*TEXTS, LONG], ids=[*IDS, "long"], fields={"year": [*YEARS, None]})
    return there


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(migrating, "_BLOCK", 10)


class Counting:
    """The model, with a hook at its n-th call."""

    def __init__(self, model, monkeypatch):
        self.calls, self.texts, self.at = 0, 0, {}
        encode, run = model.encode_report, model.run

        def counted(count):
            self.calls += 1
            self.texts += count
            self.at.pop(self.calls, lambda: None)()

        def encode_counted(texts, *rest, **options):  # canaries
            counted(len(texts))
            return encode(texts, *rest, **options)

        def run_counted(prepared):  # passages
            counted(len(prepared.windows))
            return run(prepared)

        monkeypatch.setattr(model, "encode_report", encode_counted)
        monkeypatch.setattr(model, "run", run_counted)


def same_as_a_new_index(index, model):
    """Every document, passage and vector is that of an index which the new model made."""
    rebuilt = open_index(":memory:", model)
    documents = index.get(sorted(hit.id for hit in index.search("a", 1000)))
    rebuilt.add_fields(index.fields)
    rebuilt.add(
        [document.text for document in documents],
        ids=[document.id for document in documents],
        fields=[document.fields for document in documents],
    )
    for query in ("a man", TEXTS[4], "rain"):
        assert index.search(query, 100).hits == rebuilt.search(query, 100).hits
    assert index.count() == rebuilt.count()
    assert index.verify(sample=1000).ok


def test_every_document_is_encoded_again(location, models):
    index = open_index(location, models[0])
    done = index.migrate(models[1])
    passages = sum(len(parts) for parts in models[1].passages([*TEXTS, LONG]))
    assert (done.documents, done.passages, done.kept, done.caught_up) == (61, passages, 0, 0)
    assert done.summary().startswith("first → second, 61 documents, ")
    assert (index.dim, index.stats().model, index.model) == (48, "second", models[1])
    assert index.get(["d03"])[0].fields == {"year": 2003}
    same_as_a_new_index(index, models[1])


def test_afterwards_only_the_new_model_opens_it(location, models):
    open_index(location, models[0]).migrate(models[1])
    assert open_index(location, models[1]).verify().ok
    assert open_index(location).model.name == "second"
    with pytest.raises(gemel.ModelError, match=r"made by 'second', but was opened with 'first'"):
        open_index(location, models[0])


def test_a_model_can_be_given_by_name(location, models):
    done = open_index(location).migrate(models[1].checkpoint.folder)
    assert (done.before, done.after) == ("first", "second")


def test_finished_blocks_of_a_killed_run_are_kept(location, models, monkeypatch, small_blocks):
    def killed():
        raise KeyboardInterrupt

    counting = Counting(models[1], monkeypatch)
    counting.at = {4: killed}  # the canaries, two blocks, then it dies
    index = open_index(location, models[0])
    with pytest.raises(KeyboardInterrupt):
        index.migrate(models[1])
    assert index.search(TEXTS[0], 1)[0].cosine == pytest.approx(1, abs=1e-6)  # the old one is still in use
    assert index.verify().ok
    index.close()
    counting.texts = 0
    done = open_index(location, models[0]).migrate(models[1])
    assert done.kept == 20
    assert counting.texts == done.encoded + 8
    same_as_a_new_index(open_index(location, models[1]), models[1])


CHILD = """
import os, signal, sys
from gemel.index import migrate as migrating
from gemel.index.open import open_index
from gemel.index.lance.store import LanceStore
from gemel.model import Model

def dying(owner, name, calls):
    inner, left = getattr(owner, name), [calls]
    def call(*given, **options):
        left[0] -= 1
        if left[0] == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return inner(*given, **options)
    setattr(owner, name, call)

migrating._BLOCK = 10
location, model, moment = sys.argv[1:]
index = open_index(location)
dying(Model, "run", 3) if moment == "copy" else dying(LanceStore, "switch", 1)
index.migrate(model)
"""


@pytest.mark.parametrize("moment,kept", [("copy", 20), ("switch", 61)])
def test_a_killed_process_loses_nothing(tmp_path, models, moment, kept):
    pytest.importorskip("lance")
    location, target = tmp_path / "notes", models[1].checkpoint.folder
    with open_index(location, models[0]) as index:
        index.add([*TEXTS, LONG], ids=[*IDS, "long"])
    died = subprocess.run([sys.executable, "-c", CHILD, str(location), str(target), moment], check=False)
    assert died.returncode == -signal.SIGKILL
    with open_index(location) as index:
        assert index.stats().model == "first"
        assert index.verify(sample=1000).ok
        assert index.migrate(models[1]).kept == kept
        same_as_a_new_index(index, models[1])


def test_another_target_model_starts_again(location, models, tmp_path, monkeypatch, small_blocks):
    third = gemel.load(tiny_bert(tmp_path / "third", seed=9))

    def killed():
        raise KeyboardInterrupt

    Counting(models[1], monkeypatch).at = {4: killed}
    index = open_index(location, models[0])
    with pytest.raises(KeyboardInterrupt):
        index.migrate(models[1])
    assert index.migrate(third).kept == 0
    same_as_a_new_index(index, third)


def test_changes_during_a_migration_are_applied(location, models, monkeypatch, small_blocks):
    index, other = open_index(location, models[0]), open_index(location, models[0])

    def busy():
        other.upsert(["hello world"], ids=["d01"])  # copied already
        other.delete(["d02", "d59"])  # one copied, one not yet
        other.add_fields({"lang": "text"})
        other.add(["a new one"], ids=["a0"], fields={"lang": ["en"]})  # before all that were copied

    Counting(models[1], monkeypatch).at = {4: busy}
    done = index.migrate(models[1])
    assert done.documents == 60
    assert done.caught_up >= 3  # d59 too, where a scan sees the table as it was
    assert index.get(["d01", "d02", "d59"])[0].text == "hello world"
    assert index.get(["a0"])[0].fields == {"year": None, "lang": "en"}
    same_as_a_new_index(index, models[1])


def test_a_field_that_is_removed_during_a_migration_is_removed(location, models, monkeypatch, small_blocks):
    index, other = open_index(location, models[0]), open_index(location, models[0])

    def busy():
        other.remove_field("year")
        other.add_fields({"year": "text"})
        other.upsert(["hello world"], ids=["d01"], fields={"year": ["x"]})

    Counting(models[1], monkeypatch).at = {4: busy}
    index.migrate(models[1])
    assert index.fields["year"] == "text"
    assert index.facets("year") == {None: len(index) - 1, "x": 1}
    same_as_a_new_index(index, models[1])


def test_many_changes_are_caught_up_before_writers_wait(location, models, monkeypatch, small_blocks):
    monkeypatch.setattr(migrating, "_FEW", 5)
    index, other = open_index(location, models[0]), open_index(location, models[0])
    counting = Counting(models[1], monkeypatch)
    counting.at = {4: lambda: other.add([f"{text} cat" for text in TEXTS], ids=[f"a{n}" for n in IDS])}
    assert index.migrate(models[1]).documents == 121
    same_as_a_new_index(index, models[1])


def test_a_handle_of_the_old_table_fails_clearly(location, models):
    index, other = open_index(location, models[0]), open_index(location, models[0])
    index.migrate(models[1])
    with pytest.raises(WorkError, match=r"[Oo]pen (it|the index) again"):
        other.add(["x"])
    assert index.get(["x"]) == []


def test_writes_during_the_switch_go_to_the_new_table(location, models, monkeypatch):
    index, written = open_index(location, models[0]), []
    writer = threading.Thread(target=lambda: written.append(index.add(["a cat"], ids=["cat"])))
    table, store = index._state.table, index._store
    digests = table.digests

    def late(ids):
        """The table is queried, and before the answer is used the switch begins."""
        answer = digests(ids)
        if ids == ["cat"]:
            queried.set()
            switched.wait()
        return answer

    queried, switched, switch = threading.Event(), threading.Event(), store.switch

    def announced():
        writer.start()
        queried.wait()
        table = switch()
        switched.set()
        return table

    monkeypatch.setattr(table, "digests", late)
    monkeypatch.setattr(store, "switch", announced)
    index.migrate(models[1])
    writer.join()
    assert written[0].added == 1
    assert index.search("a cat", 1)[0].cosine == pytest.approx(1, abs=1e-6)
    assert index.verify().ok


def test_a_second_run_has_nothing_to_do(location, models):
    index = open_index(location, models[0])
    index.migrate(models[1])
    again = index.migrate(models[1])
    assert (again.encoded, again.documents) == (0, 61)
    assert again.summary() == "second made it already, nothing to do"


def test_other_passages_are_a_migration_too(location, models):
    index = open_index(location, models[0])
    before = index.count().passages
    assert index.migrate(models[0], passage_tokens=16).passages > before
    assert index.stats().passage_tokens == 16
    assert index.verify().ok


@pytest.fixture
def cut(models):
    """An index with its own settings."""
    options = gemel.EncodeOptions(dim=16, precision="int8", max_length=20)
    index = open_index(":memory:", models[0], options=options, passage_tokens=12)
    index.add([*TEXTS[:5], LONG])
    return index


def settings(index):
    made = index._state.binding.fingerprint
    return index.dim, made.precision, made.max_length, index.stats().passage_tokens


def test_settings_stay_as_the_index_has_them(cut, models):
    for to in (models[0], models[0].checkpoint.folder):
        assert cut.migrate(to).summary() == "first made it already, nothing to do"
    cut.migrate(models[1].checkpoint.folder)
    assert (cut.stats().model, settings(cut)) == ("second", (16, "int8", 20, 12))
    same = open_index(":memory:", models[1], options=cut._state.binding.options, passage_tokens=12)
    same.add([*TEXTS[:5], LONG])
    assert cut.search("a man", 9).hits == same.search("a man", 9).hits


def test_settings_that_are_given_change(cut, models):
    cut.migrate(models[1], dim=40, passage_tokens=16)
    assert settings(cut) == (40, "int8", 20, 16)
    cut.migrate(models[1], precision="float32")
    assert settings(cut) == (40, "float32", 20, 16)
    cut.migrate(models[1], options=gemel.EncodeOptions())
    assert settings(cut) == (48, "float32", 40, 16)
    with pytest.raises(InputError, match=r"is to keep 48 dimensions .* 'first' makes 32\. Give a dim"):
        cut.migrate(models[0], dim=48)
    with pytest.raises(InputError, match="passages of 50 tokens would be cut: the model reads 40"):
        cut.migrate(models[1], passage_tokens=50)
    assert settings(cut) == (48, "float32", 40, 16)


def test_the_pooling_that_the_model_was_loaded_with_stays(models):
    folder = models[0].checkpoint.folder
    index = open_index(":memory:", gemel.load(folder, pooling="cls", precision="int8"))
    index.add(TEXTS[:3])
    assert "nothing to do" in index.migrate(folder).summary()
    index.migrate(models[1].checkpoint.folder)
    made = index._state.binding.fingerprint
    assert (made.pooling, made.precision) == (models[1].checkpoint.pooling.modes, "int8")


def test_documents_without_text_cannot_be_migrated(location, models):
    index = open_index(location, models[0])
    index.add(vectors=[[1.0] * 32], ids=["bare"])
    with pytest.raises(InputError, match=r"'bare' of .* was given as a vector without a text"):
        index.migrate(models[1])
    assert (index.stats().model, len(index)) == ("first", 62)
    index.delete(["bare"])
    index.migrate(models[1])
    with pytest.raises(InputError, match="vectors only"):
        open_index(":memory:", dim=4).migrate(models[1])


def test_given_vectors_with_texts_are_encoded_by_the_new_model(location, models):
    index = open_index(location, models[0])
    index.add(["a cat"], ids=["cat"], vectors=models[0].encode(["the rain"]))
    index.migrate(models[1])
    assert index.search("a cat", 1)[0].id == "cat"
