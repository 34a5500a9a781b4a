"""Stored documents read and changed without a search: by id, by a condition, page by page, to a file."""

import json

import numpy as np
import pytest

import gemel
from gemel.errors import InputError
from gemel.index.open import open_index
from gemel.options import EncodeOptions
from tiny import tiny_bert

TEXTS = ["a man plays a guitar", "two dogs run", "the market fell", "a woman sings", "a man sings"]
FIELDS = {"year": [2001, 2002, 2003, None, 2005], "tags": [["x"], [], ["x", "y"], None, ["y", "y"]]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_bert(tmp_path_factory.mktemp("models") / "model")


@pytest.fixture(scope="module")
def model(folder):
    return gemel.load(folder)


@pytest.fixture(params=["memory", "lance"])
def index(request, model, tmp_path):
    if request.param == "lance":
        pytest.importorskip("lance", reason="the extra 'index' is not installed")
    location = ":memory:" if request.param == "memory" else tmp_path / "notes"
    with open_index(location, model, options=EncodeOptions(threads=1), durable=False) as made:
        made.add(TEXTS, ids=list("edcba"), fields=FIELDS)
        yield made


def ids(documents):
    return [each.id for each in documents]


def test_documents_come_by_ascending_id(index):
    assert ids(index.documents()) == list("abcde")
    assert ids(index.documents("year >= 2003")) == ["a", "c"]
    assert ids(index.get(where={"tags": {"contains": "x"}})) == ["c", "e"]
    assert index.get(["e"])[0] == next(index.documents(after="d"))


def test_pages_by_cursor_are_the_whole(index):
    pages, after = [], None
    while page := list(index.documents(after=after, limit=2)):
        pages.append(ids(page))
        after = page[-1].id
    assert pages == [["a", "b"], ["c", "d"], ["e"]]
    assert list(index.documents(limit=0)) == []


def test_a_document_comes_with_its_vectors_on_request(index, model):
    long = ". ".join(TEXTS * 12)
    index.add([long], ids=["long"], fields={"year": [1]})
    (document,) = index.get(["long"], vectors=True)
    assert document.vectors.shape == (document.passages, index.dim)
    assert document.passages > 1
    (short,) = index.get(where="id = 'e'", vectors=True)
    assert np.allclose(short.vectors, model.encode([TEXTS[0]], threads=1), atol=1e-6)
    assert index.get(["e"])[0].vectors is None


def test_what_documents_cannot_be_asked_for(index):
    with pytest.raises(InputError, match="one of the two"):
        index.get()
    with pytest.raises(InputError, match="one of the two"):
        index.get(["a"], where="year = 2001")
    with pytest.raises(InputError, match="limit must be"):
        index.documents(limit=-1)
    with pytest.raises(InputError, match="unknown field 'yaer'"):
        index.documents("yaer = 1")


@pytest.mark.parametrize("ending", ["jsonl", "jsonl.gz", "parquet"])
def test_an_export_is_an_index_again(index, folder, tmp_path, ending, monkeypatch, capsys):
    pytest.importorskip("lance", reason="the extra 'index' is not installed")
    from gemel.cli.main import main

    file = tmp_path / f"docs.{ending}"
    assert index.export(file) == 5
    monkeypatch.setenv("GEMEL_THREADS", "1")
    assert main(["index", "build", str(tmp_path / "again"), str(file), "-m", str(folder)]) == 0
    capsys.readouterr()
    with open_index(tmp_path / "again", create=False, read_only=True) as again:
        assert list(again.documents()) == list(index.documents())


def test_an_export_has_the_vectors_of_all_passages_and_leaves_nothing_if_it_fails(
    index, tmp_path, monkeypatch
):
    index.export(tmp_path / "some.jsonl", where="year < 2003", vectors=True)
    rows = [json.loads(line) for line in (tmp_path / "some.jsonl").read_text().splitlines()]
    assert [row["id"] for row in rows] == ["d", "e"]
    assert np.array_equal(np.float32(rows[0]["vectors"]), index.get(["d"], vectors=True)[0].vectors)
    before = sorted(tmp_path.iterdir())

    def stopped(*_, **__):
        yield index.get(["a"])[0]
        raise KeyboardInterrupt

    monkeypatch.setattr(type(index), "documents", stopped)
    with pytest.raises(KeyboardInterrupt):
        index.export(tmp_path / "docs.jsonl")
    assert sorted(tmp_path.iterdir()) == before
    with pytest.raises(InputError, match="Known endings"):
        index.export(tmp_path / "docs.doc")
