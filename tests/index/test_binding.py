"""An index is bound to its model: another one is refused with both named, and `verify` checks it."""

import json
from dataclasses import replace

import numpy as np
import pytest
from tests.index.test_index import LONG, TEXTS

import gemel
from gemel.checkpoint import fingerprint
from gemel.encoder.canary import CANARIES
from gemel.errors import InputError, ModelError
from gemel.index.binding import Binding
from gemel.index.memory import MemoryStore
from gemel.index.open import open_index
from gemel.index.port import PassageRows
from gemel.options import EncodeOptions
from tiny import tiny_bert

PROMPTS = {"query": "how ", "document": "the "}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(tiny_bert(folder / "first", prompts=PROMPTS))


@pytest.fixture
def location(model):
    there = MemoryStore()
    open_index(there, model).add([*TEXTS, LONG])
    return there


def test_the_same_model_opens_it_however_it_is_given(location, model, folder):
    for given in (model, gemel.load(folder / "first"), folder / "first", str(folder / "first"), None):
        with open_index(location, given) as index:
            assert index.search(TEXTS[0], 1)[0].cosine < 1  # the query has its own prompt
            assert index.model.name == "first"


def test_a_copy_in_another_folder_is_the_same_model(location, folder):
    copy = gemel.load(tiny_bert(folder / "copy", prompts=PROMPTS))
    assert open_index(location, copy).verify().ok


OTHERS = {
    "weights": ({"seed": 1}, "weights: '"),
    "pooling": ({"pooling": "cls"}, r"pooling: \['mean'\] in the index, \['cls'\] now"),
    "prompt": ({"prompts": {**PROMPTS, "document": "a "}}, "prompt: 'the ' in the index, 'a ' now"),
    "query prompt": ({"prompts": {**PROMPTS, "query": "a "}}, "query prompt: 'how ' in the index, 'a ' now"),
    "normalization": ({"normalize": False}, "normalize: True in the index, False now"),
    "length": ({"max_length": 32}, "max_length: 64 in the index, 32 now"),
    "dimensions": ({"width": 16}, "dim: 32 in the index, 16 now"),
}


@pytest.mark.parametrize("change,message", OTHERS.values(), ids=list(OTHERS))
def test_another_model_is_refused_with_both_named(location, tmp_path, change, message):
    other = gemel.load(tiny_bert(tmp_path / "second", **{"prompts": PROMPTS, **change}))
    with pytest.raises(ModelError, match=message) as refused:
        open_index(location, other)
    assert "made by 'first'" in str(refused.value)
    assert "opened with 'second'" in str(refused.value)
    assert "index.migrate(model)" in str(refused.value)
    with pytest.raises(ModelError, match=message):
        open_index(location, tmp_path / "second")


@pytest.mark.parametrize(
    "options,message",
    [
        (EncodeOptions(dim=16), "dim: 32 in the index, 16 now"),
        (EncodeOptions(prompt="x "), "prompt: 'the ' in the index, 'x ' now"),
        (EncodeOptions(precision="int8"), "precision: 'float32' in the index, 'int8' now"),
        (EncodeOptions(on_long="chunk"), "on_long: 'cut' in the index, 'chunk' now"),
    ],
)
def test_other_options_are_refused(location, model, options, message):
    with pytest.raises(ModelError, match=message):
        open_index(location, model, options=options)


def test_options_of_an_index_are_its_own(model):
    location = MemoryStore()
    made = EncodeOptions(dim=16, prompt="a ", on_long="chunk", max_length=20)
    open_index(location, model, options=made, passage_tokens=12).add(TEXTS)
    for given in (model, None):
        index = open_index(location, given)
        assert (index.dim, index.stats().passage_tokens) == (16, 12)
        assert index.search(TEXTS[0], 1)[0].cosine == pytest.approx(1, abs=1e-6)
        assert index.verify().ok
    with pytest.raises(ModelError, match="passage_tokens: 12 in the index, 9 now"):
        open_index(location, model, passage_tokens=9)


def test_passage_tokens_bound_the_passages(model):
    index = open_index(":memory:", model, passage_tokens=12)
    index.add([LONG], ids=["long"])
    assert index.get(["long"])[0].passages > 2 * len(model.passages([LONG])[0])
    assert index.verify().ok


def test_the_model_that_is_named_must_be_found(tmp_path, monkeypatch):
    monkeypatch.setenv("GEMEL_OFFLINE", "1")
    monkeypatch.setenv("GEMEL_CACHE", str(tmp_path / "cache"))
    gone = gemel.load(tiny_bert(tmp_path / "gone"))
    there = MemoryStore()
    open_index(there, gone).add(TEXTS[:3])
    (tmp_path / "gone").rename(tmp_path / "moved")
    index = open_index(there)  # opening needs no model
    assert len(index) == 3
    with pytest.raises(ModelError, match=r"made by 'gone', which cannot be loaded here.*Give the model"):
        index.search("cat")
    assert not index.verify().ok
    assert open_index(there, tmp_path / "moved").verify().ok


def test_a_model_that_changed_in_its_folder_is_noticed_when_it_is_loaded(tmp_path):
    there = MemoryStore()
    open_index(there, tiny_bert(tmp_path / "m")).add(TEXTS[:3])
    tiny_bert(tmp_path / "m", seed=5)
    with pytest.raises(ModelError, match="'m' with other weights or settings: weights"):
        open_index(there).search("cat")


def test_an_index_of_vectors_takes_no_model(model):
    there = MemoryStore()
    open_index(there, dim=32)
    with pytest.raises(ModelError, match="vectors only and no model"):
        open_index(there, model)
    with pytest.raises(InputError, match="dim is 5, but the index :memory: has 32 dimensions"):
        open_index(there, dim=5)
    assert open_index(there, dim=32).model is None


def test_a_reopened_index_keeps_its_fields_and_settings(model, folder, tmp_path):
    pytest.importorskip("lance")
    with open_index(tmp_path / "notes", model, passage_tokens=20, fields={"n": "int"}) as index:
        index.add([*TEXTS, LONG], ids=range(61), fields={"n": range(61)})
        result = index.search("a man", 20, where="n < 50", hybrid=True).hits
    with open_index(str(tmp_path / "notes"), read_only=True) as again:
        assert again.search("a man", 20, where="n < 50", hybrid=True).hits == result
        assert again.verify(sample=1000).ok
        assert (again.fields, again.stats().passage_tokens) == ({"n": "int"}, 20)
    other = gemel.load(tiny_bert(tmp_path / "second", seed=1, prompts=PROMPTS))
    with pytest.raises(ModelError, match=r"made by 'first', but was opened with 'second': weights"):
        open_index(tmp_path / "notes", other)
    with pytest.raises(InputError, match="there is an index at"):
        open_index(tmp_path / "notes", model, create=True)
    with pytest.raises(InputError, match="no index at"):
        open_index(tmp_path / "nowhere", create=False)


def test_create_requires_a_new_location(location, model):
    with pytest.raises(InputError, match="there is an index at :memory: already"):
        open_index(location, model, create=True)
    assert len(open_index(location, create=False)) == len(set(TEXTS)) + 1


def test_declared_fields_must_be_those_of_the_index(model):
    there = MemoryStore()
    open_index(there, model, fields={"year": "int"})
    assert open_index(there, fields={"year": "int"}).fields == {"year": "int"}
    with pytest.raises(InputError, match="'year' is int in the index :memory:, not text"):
        open_index(there, fields={"year": "text"})
    with pytest.raises(InputError, match=r"unknown field 'yeer'. Did you mean 'year'"):
        open_index(there, fields={"yeer": "int"})


def test_a_reader_cannot_write(location):
    with open_index(location, read_only=True) as index:
        assert index.search_many([np.ones(32)])
        for write in (lambda: index.add(["x"]), lambda: index.delete(["x"]), index.compact):
            with pytest.raises(InputError, match="opened to read only"):
                write()


def test_opening_hashes_no_weights_whose_files_are_as_they_were(location, folder, monkeypatch):
    def refuse(checkpoint):
        raise AssertionError("the weights were read")

    again = gemel.load(folder / "first")
    expected = fingerprint.weights_hash(again.checkpoint)
    monkeypatch.setattr("gemel.checkpoint.fingerprint.weights_hash", refuse)
    assert open_index(location, again).search("cat")
    assert again.weights_hash == expected
    copy = gemel.load(tiny_bert(folder / "another", prompts=PROMPTS))
    with pytest.raises(AssertionError, match="were read"):
        open_index(location, copy)


# Verify.


def with_bound(location, **changes):
    """The same rows with a different header."""
    table = location.open()
    there = MemoryStore()
    header = replace(table.header, bound={**table.header.bound, **changes})
    new = there.create(header)
    for rows in table.scan():
        new.write(rows, replace=False)
    return there


def with_rows(location, change):
    table = location.open()
    there = MemoryStore()
    new = there.create(table.header)
    for rows in table.scan():
        new.write(change(rows), replace=False)
    return there


def bad(verified):
    return [check.name for check in verified.checks if not check.ok]


def test_an_intact_index_is_verified(location):
    result = open_index(location).verify(sample=1000)
    assert result.ok
    assert [check.name for check in result.checks] == [
        "header",
        "counts",
        "passages",
        "digests",
        "lengths",
        "search",
        "words",
        "structures",
        "canaries",
        "splitting",
        "vectors",
    ]
    assert all(line.startswith("ok") for line in result.lines())
    assert json.loads(json.dumps(result.to_json()))["ok"] is True


def test_changed_vectors_of_the_canary_texts_are_reported(location):
    binding = Binding.from_json(location.open().header.bound)
    off = replace(binding, canaries=binding.canaries + np.float32(2e-4))
    result = open_index(with_bound(location, **off.to_json())).verify()
    assert bad(result) == ["canaries"]
    assert "BAD  canaries" in "\n".join(result.lines())


def test_vectors_of_another_model_are_reported(location):
    def turned(rows):
        return PassageRows(
            rows.id, rows.part, rows.text, rows.digest, rows.vector[:, ::-1].copy(), rows.fields
        )

    assert bad(open_index(with_rows(location, turned)).verify()) == ["vectors"]


def test_a_changed_text_is_reported(location):
    def other(rows):
        texts = [*rows.text]
        texts[0] += " x"
        return PassageRows(rows.id, rows.part, texts, rows.digest, rows.vector, rows.fields)

    result = open_index(with_rows(location, other)).verify()
    assert bad(result) == ["digests"]
    assert "1 documents are not what their digest says" in "\n".join(result.lines())


def test_a_vector_of_another_length_is_reported(location):
    def longer(rows):
        return PassageRows(rows.id, rows.part, rows.text, rows.digest, rows.vector * 2, rows.fields)

    assert {"lengths", "vectors"} <= set(bad(open_index(with_rows(location, longer)).verify()))


def test_a_header_without_a_model_is_reported(location):
    with pytest.raises(ModelError, match="its header has no fingerprint"):
        bound = {name: value for name, value in location.open().header.bound.items() if name != "fingerprint"}
        there = MemoryStore()
        there.create(replace(location.open().header, bound=bound))
        open_index(there)


def test_the_binding_round_trips_through_json(location):
    bound = location.open().header.bound
    again = Binding.from_json(json.loads(json.dumps(bound)))
    assert again.to_json() == bound
    assert again.canaries.shape == (len(CANARIES), 32) == (8, 32)
