"""The index, in memory and in a folder: what is added, found, changed and refused."""

import re
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta, timezone

import numpy as np
import pytest

import gemel
from gemel.errors import InputError, MissingExtra
from gemel.index import verify
from gemel.index.binding import unit
from gemel.index.ingest import WriteResult
from gemel.index.lance.store import LanceStore
from gemel.index.open import open_index
from gemel.index.port import Header
from gemel.options import EncodeOptions
from gemel.vectors.bm25 import RRF_K, WordRules
from tiny import TEXT, tiny_bert

ONE = EncodeOptions(threads=1)


def texts_of(count, seed=0):
    random = np.random.default_rng(seed)
    return [" ".join(random.choice(TEXT.split(), size=random.integers(3, 8))) for _ in range(count)]


TEXTS = texts_of(60)
LONG = ". ".join(texts_of(40, seed=9))
IDS = [f"d{n:02}" for n in range(len(TEXTS))]
YEARS = [2000 + n for n in range(len(TEXTS))]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return gemel.load(tiny_bert(tmp_path_factory.mktemp("models") / "model"))


@pytest.fixture(params=["memory", "lance"])
def kind(request):
    if request.param == "lance":
        pytest.importorskip("lance")
    return request.param


@pytest.fixture
def index(model, kind, tmp_path):
    location = ":memory:" if kind == "memory" else tmp_path / "notes"
    with open_index(location, model, options=ONE, durable=False) as empty:
        yield empty


@pytest.fixture
def filled(index):
    index.add(TEXTS, ids=IDS, fields={"year": YEARS, "even": [n % 2 == 0 for n in range(60)]})
    return index


def nothing_changed(index, before):
    assert index.stats().version == before


# Adding.


def test_added_documents_are_found_immediately(index):
    assert index.add(["a cat", "a dog"], ids=["c", "d"]) == WriteResult(2, 0, 0, 2)
    actual = index.search("a cat", k=1)
    assert (actual[0].id, actual[0].text, actual[0].part) == ("c", "a cat", 0)
    assert actual[0].score == actual[0].cosine == pytest.approx(1, abs=1e-6)
    assert (actual.scored_by, len(actual)) == ("cosine", 1)


def test_unchanged_documents_are_neither_encoded_nor_written(filled):
    version = filled.stats().version
    again = filled.upsert(TEXTS, ids=IDS, fields={"year": YEARS, "even": [n % 2 == 0 for n in range(60)]})
    assert again == WriteResult(0, 0, 60, 0)
    nothing_changed(filled, version)


def test_a_changed_field_is_written_without_encoding(filled):
    vector = filled.search(TEXTS[3], 1)[0].cosine
    assert filled.upsert([TEXTS[3]], ids=["d03"], fields={"year": [1900]}) == WriteResult(0, 1, 0, 0)
    assert filled.get(["d03"])[0].fields == {"year": 1900, "even": None}
    assert filled.search(TEXTS[3], 1)[0].cosine == vector


def test_a_changed_text_is_encoded_and_replaced(filled):
    assert filled.upsert(["hello world"], ids=["d03"]) == WriteResult(0, 1, 0, 1)
    assert filled.search("hello world", 1)[0].id == "d03"
    assert len(filled) == 60


def test_only_changed_passages_of_a_long_document_are_encoded(index, model):
    passages = model.passages([LONG])[0]
    assert len(passages) > 3
    assert index.add([LONG], ids=["long"]).encoded == len(passages)
    assert index.get(["long"])[0].text == LONG
    assert index.upsert([LONG + " guitar"], ids=["long"]).encoded == 1
    assert index.upsert(["cat"], ids=["long"]).encoded == 1
    assert index.count().passages == 1


def test_a_document_is_tokenized_once(index, model, monkeypatch):
    tokenizer, seen = type(model.tokenizer), []
    content = tokenizer.content

    def counted(self, texts, **options):
        seen.extend(texts)
        return content(self, texts, **options)

    monkeypatch.setattr(tokenizer, "content", counted)
    index.add([*TEXTS, ""])
    assert sorted(seen) == sorted(["", *TEXTS])
    long, seen[:] = " ".join(TEXTS), []
    assert index.add([long]).encoded > 1
    passages = [text for text in seen if text != long]
    assert "".join(passages) == long and seen.count(long) == 1  # measured as a whole, then passage by passage


def test_long_documents_lose_nothing(index):
    assert index.add([LONG]).truncated == 0
    assert index.verify().ok


def test_skip_leaves_what_is_there(filled):
    done = filled.add(["other", "new"], ids=["d00", "new"], existing="skip")
    assert done == WriteResult(1, 0, 1, 1)
    assert filled.get(["d00"])[0].text == TEXTS[0]


def test_ids_are_made_of_texts_and_repeats_are_numbered(index):
    index.add(["cat", "dog", "cat", "cat"])
    ids = sorted(index.search("cat", 3)[n].id for n in range(3))
    assert [len(ids[0]), ids[1], ids[2]] == [16, f"{ids[0]}-2", f"{ids[0]}-3"]


def test_whole_numbers_become_ids(index):
    index.add(["cat", "dog"], ids=[1, np.int64(2)])
    assert [document.id for document in index.get(["2", 1])] == ["2", "1"]


def test_streams_are_written_block_by_block(index):
    index.add_fields({"year": "int"})
    before = int(index.stats().version)
    done = index.add(iter(TEXTS), ids=iter(IDS), fields=({"year": year} for year in YEARS), block=7)
    assert done.added == len(index) == 60
    assert int(index.stats().version) == before + 9


def test_an_interrupted_add_is_resumed(index):
    def broken():
        yield from TEXTS[:20]
        raise OSError("the disk went away")

    with pytest.raises(OSError, match="disk"):
        index.add(broken(), ids=iter(IDS), block=8)
    assert len(index) == 16
    assert index.add(TEXTS, ids=IDS, existing="replace").encoded == len(set(TEXTS[16:]))


def test_a_small_call_is_one_commit(index):
    index.add_fields({"year": "int"})
    before = int(index.stats().version)
    index.add(TEXTS, ids=IDS, fields={"year": YEARS})
    assert int(index.stats().version) == before + 1


def test_fields_are_typed_by_the_first_add(index):
    rows = [{"a": 1, "b": "x", "c": True}, {"a": 2.5, "b": None, "d": 0.5}]
    index.add(["cat", "dog"], ids=["1", "2"], fields=rows)
    assert index.fields == {"a": "float", "b": "text", "c": "bool", "d": "float"}
    assert index.get(["1", "2"])[0].fields == {"a": 1.0, "b": "x", "c": True, "d": None}


def test_new_fields_are_declared_not_guessed_later(filled):
    version = filled.stats().version
    with pytest.raises(InputError, match=r"unknown field 'yaer'. Did you mean 'year'\? Known: year, even"):
        filled.add(["x"], fields={"yaer": [1]})
    nothing_changed(filled, version)
    filled.add_fields({"lang": "text"})
    filled.add(["x"], ids=["x"], fields={"lang": ["en"]})
    assert filled.get(["x"])[0].fields == {"year": None, "even": None, "lang": "en"}
    filled.upsert([TEXTS[0]], ids=["d00"], fields=[{"year": 2000, "even": True}])
    assert filled.stats().documents == 61


def test_a_new_column_makes_nothing_look_changed(filled):
    filled.add_fields({"lang": "text"})
    fields = {"year": YEARS, "even": [n % 2 == 0 for n in range(60)], "lang": [None] * 60}
    assert filled.upsert(TEXTS, ids=IDS, fields=fields).unchanged == 60


def test_a_text_of_zero_tokens_is_a_document_too(index):
    index.add(["", "  "], ids=["a", "b"])
    assert [document.text for document in index.get(["a", "b"])] == ["", "  "]
    assert index.verify().ok


# Vectors.


def test_an_index_of_vectors_only_searches_vectors():
    vectors = np.random.default_rng(0).normal(size=(50, 8))
    with open_index(":memory:", dim=8) as index:
        index.add(vectors=vectors * 7, ids=range(50))
        actual = index.search_many(vectors[:5], 3)
        assert [answer[0].id for answer in actual] == ["0", "1", "2", "3", "4"]
        exact = gemel.search(vectors[:5], vectors, 3)
        np.testing.assert_allclose([[hit.cosine for hit in each] for each in actual], exact.score, atol=1e-6)
        assert index.verify().ok
        assert (index.model, index.stats().model) == (None, None)
        with pytest.raises(InputError, match="has no model, so it cannot encode a text: search by a vector"):
            index.search("cat")
        with pytest.raises(InputError, match="add texts with their vectors"):
            index.add(["cat"])


def test_given_vectors_replace_encoding(index, model):
    index.add(["cat"], ids=["x"], vectors=model.encode(["dog"]) * 3)
    assert index.search("dog", 1)[0].text == "cat"
    assert index.upsert(["cat"], ids=["x"], vectors=model.encode(["dog"]) * 3).unchanged == 1
    assert index.upsert(["cat"], ids=["x"], vectors=model.encode(["rain"])).replaced == 1
    assert index.upsert(["cat"], ids=["x"]) == WriteResult(0, 1, 0, 1)  # now the model's own
    assert index.search("cat", 1)[0].cosine == pytest.approx(1, abs=1e-6)


def test_vectors_of_length_one_keep_their_bits(model):
    vectors = model.encode(TEXTS)
    assert unit(vectors) is vectors or np.array_equal(unit(vectors), vectors)
    np.testing.assert_allclose(np.linalg.norm(unit(vectors * 5), axis=1), 1, atol=1e-6)
    assert not unit(np.zeros((1, 4), np.float32)).any()


# Searching.


def test_answers_are_those_of_exact_search(filled, model):
    exact = gemel.search(model.encode(["a man"]), model.encode(TEXTS), 10)
    actual = filled.search("a man", exact=True)
    assert sorted(hit.cosine for hit in actual) == pytest.approx(sorted(exact.score[0].tolist()), abs=1e-6)
    assert actual.exact


def test_pages_follow_one_another(filled):
    whole = [hit.id for hit in filled.search("a man", 30)]
    pages = [hit.id for offset in (0, 10, 20) for hit in filled.search("a man", 10, offset=offset)]
    assert pages == whole
    assert len(filled.search("a man", 10, offset=55)) == 5
    assert len(filled.search("a man", 10, offset=500)) == 0


def test_a_document_is_found_once_by_its_best_passage(index, model):
    index.add([LONG, *TEXTS], ids=["long", *IDS])
    passages = model.passages([LONG])[0]
    actual = index.search(passages[2], 61)
    assert len(actual) == len({hit.id for hit in actual}) == 61
    assert (actual[0].id, actual[0].part, actual[0].text) == ("long", 2, passages[2])


def test_conditions_choose_documents(filled):
    actual = filled.search("a man", 60, where="year >= 2050 and even = true")
    assert sorted(hit.id for hit in actual) == ["d50", "d52", "d54", "d56", "d58"]
    assert filled.count({"year": {"<": 2010}}).documents == 10
    assert len(filled.search("a man", where="year < 1900")) == 0
    with pytest.raises(InputError, match="unknown field 'yaer'"):
        filled.search("a man", where="yaer = 1")


def test_hybrid_fuses_ranks_of_vectors_and_words(filled):
    near = [hit.id for hit in filled.search("guitar rain", 60)]
    actual = filled.search("guitar rain", 60, hybrid=True)
    having = [id_ for id_, text in zip(IDS, TEXTS, strict=True) if {"guitar", "rain"} & set(text.split())]
    assert actual.scored_by == "fusion"
    assert {hit.id for hit in actual} == set(near)
    assert actual[0].id in having
    ranks = {id_: rank for rank, id_ in enumerate(near, 1)}
    for hit in actual:
        by_vectors = 1 / (RRF_K + ranks[hit.id])
        assert hit.score > by_vectors if hit.id in having else hit.score == pytest.approx(by_vectors)
    cosines = {hit.id: hit.cosine for hit in filled.search("guitar rain", 60)}
    assert all(hit.cosine == pytest.approx(cosines[hit.id], abs=1e-6) for hit in actual)


class Shortest:
    """A cross-encoder that scores short texts higher."""

    def scores(self, left, right, options):
        return np.array([-len(text) for text in right], dtype=np.float32)


def test_a_cross_encoder_orders_the_candidates(filled):
    near = filled.search("a man", 20)
    actual = filled.search("a man", 5, rerank=Shortest(), candidates=20)
    wanted = sorted(near, key=lambda hit: len(hit.text))[:5]
    assert [hit.id for hit in actual] == [hit.id for hit in wanted]
    assert actual.scored_by == "cross"
    assert actual[0].cosine == wanted[0].cosine
    many = filled.search_many(["a man", "the rain"], 5, rerank=Shortest(), candidates=20)
    assert many[0].hits == actual.hits


def test_many_queries_are_answered_as_one_by_one(filled):
    queries = ["a man", "rain", LONG[:40]]
    for one, many in zip(queries, filled.search_many(queries, 5), strict=True):
        assert filled.search(one, 5).hits == many.hits
    assert filled.search_many([]) == []


def test_an_empty_index_answers_nothing(index):
    assert len(index.search("cat")) == len(index.search("cat", hybrid=True)) == len(index) == 0
    assert index.get(["x"]) == []
    assert index.verify().ok


# The rest.


def test_delete_by_id_and_by_condition(filled):
    assert filled.delete(["d00", "d01", "nobody"]) == 2
    assert filled.delete(where="year < 2010") == 8
    assert len(filled) == 50
    assert "d05" not in {hit.id for hit in filled.search(TEXTS[5], 50)}


def test_stats_say_whose_vectors_they_are(filled, model):
    stats = filled.stats()
    assert (stats.documents, stats.passages, stats.dim, stats.model) == (60, 60, 32, "model")
    assert stats.fields == {"year": "int", "even": "bool"}
    assert stats.fingerprint == model.fingerprint.digest
    assert stats.to_json()["location"] == filled.location


def test_get_keeps_the_requested_order(filled):
    assert [document.id for document in filled.get(["d07", "nobody", "d03"])] == ["d07", "d03"]


def test_a_closed_index_raises_an_error(model):
    index = open_index(":memory:", model)
    index.close()
    index.close()
    with pytest.raises(InputError, match="is closed"):
        index.search("cat")


def test_threads_write_and_read_concurrently(index):
    started = threading.Barrier(4)

    def write(seed):
        started.wait()
        for start in range(0, 40, 10):
            index.add(texts_of(10, seed), ids=[f"{seed}-{start + n}" for n in range(10)])

    def read(_):
        started.wait()
        return [len(index.search("a man", 5)) for _ in range(20)]

    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, seed) for seed in (1, 2)]
        readers = [pool.submit(read, seed) for seed in (3, 4)]
        for each in (*writers, *readers):
            each.result()
    assert len(index) == 80
    assert index.verify().ok


# Bad input: an error, nothing changed.

BAD_ADDS = {
    "nothing": ({}, "takes texts, vectors, or both"),
    "one string": ({"texts": "cat"}, r"texts takes a list, got one string"),
    "not a text": ({"texts": ["cat", 5]}, r"texts\[1\] is of type int, not a string"),
    "none": ({"texts": ["cat", None]}, r"texts\[1\] is None"),
    "NUL in a text": ({"texts": ["cat", "a\0b"]}, r"texts\[1\] has a NUL character at position 1"),
    "half a character": ({"texts": ["\ud800"]}, r"texts\[0\] has half a character"),
    "duplicate ids": ({"texts": ["a", "b", "c"], "ids": ["1", "2", "1"]}, "the id '1' comes twice"),
    "known id": ({"texts": ["a", "b"], "ids": ["x", "d01"]}, "the id 'd01' is in the index already"),
    "empty id": ({"texts": ["a"], "ids": [""]}, r"ids\[0\] is empty"),
    "NUL in an id": ({"texts": ["a"], "ids": ["a\0"]}, r"ids\[0\] has a NUL"),
    "id of no kind": ({"texts": ["a"], "ids": [True]}, r"ids\[0\] is of type bool"),
    "long id": ({"texts": ["a"], "ids": ["x" * 2000]}, r"ids\[0\] has 2,000 bytes"),
    "lengths": ({"texts": ["a", "b"], "ids": ["1"]}, "texts has 2 entries but ids has 1"),
    "field lengths": ({"texts": ["a"], "fields": {"year": [1, 2]}}, "texts has 1 entries but fields"),
    "field of one string": ({"texts": ["a"], "fields": {"year": "1"}}, "takes a list of values"),
    "text for int": ({"texts": ["a"], "fields": {"year": ["1"]}}, "'1' \\(str\\), but the field is int"),
    "bool for int": ({"texts": ["a"], "fields": {"year": [True]}}, "True \\(bool\\), but the field is int"),
    "float for int": ({"texts": ["a"], "fields": {"year": [1.0]}}, "1.0 \\(float\\), but the field is int"),
    "int for bool": ({"texts": ["a"], "fields": {"even": [1]}}, "1 \\(int\\), but the field is bool"),
    "big int": ({"texts": ["a"], "fields": {"year": [2**63]}}, "takes 64 bits"),
    "list": ({"texts": ["a"], "fields": {"year": [[1]]}}, r"\(list\), but the field is int"),
    "row": ({"texts": ["a"], "fields": [3]}, r"fields\[0\] is of type int, not a mapping"),
    "dim": ({"vectors": np.ones((1, 5)), "ids": ["v"]}, "vectors have 5 dimensions but the index has 32"),
    "shape": ({"vectors": np.ones(32), "ids": ["v"] * 32}, "comes twice|vectors have shape"),
    "NaN": ({"vectors": [[np.nan] * 32], "ids": ["v"]}, r"vectors\[0\] has NaN or infinite numbers"),
    "zero": ({"vectors": [[1] * 32, [0] * 32], "ids": ["v", "w"]}, r"vectors\[1\] is zero"),
    "no ids": ({"vectors": np.ones((1, 32))}, "vectors without texts need ids"),
    "words": ({"vectors": [["a"] * 32], "ids": ["v"]}, "vectors must be numbers"),
    "existing": ({"texts": ["a"], "existing": "keep"}, "existing must be one of error, replace, skip"),
    "block": ({"texts": ["a"], "block": 0}, "block must be at least 1"),
}


@pytest.mark.parametrize("kind", ["memory"])  # refused before any table is used
@pytest.mark.parametrize("given,message", BAD_ADDS.values(), ids=list(BAD_ADDS))
def test_bad_documents_are_refused_and_nothing_changes(filled, given, message):
    version = filled.stats().version
    with pytest.raises(InputError, match=message):
        filled.add(**given)
    nothing_changed(filled, version)


def test_a_bad_document_at_the_end_of_a_list_changes_nothing(index):
    with pytest.raises(InputError, match="the id 'd00' comes twice"):
        index.add([*TEXTS, "x"], ids=[*IDS, "d00"], fields={"new": range(61)}, block=10)
    assert (len(index), index.fields) == (0, {})


def test_a_bad_document_in_a_stream_says_what_was_written(index):
    with pytest.raises(
        InputError, match=r"texts\[60\] is None.*the 60 documents before this block were written"
    ):
        index.add(iter([*TEXTS, None]), ids=iter([*IDS, "x"]), block=10)
    assert len(index) == 60


@pytest.mark.parametrize("kind", ["memory"])
@pytest.mark.parametrize(
    "column,message",
    [
        ({"x": [float("nan"), 1.0]}, "takes finite numbers"),
        ({"x": ["a\0", "b"]}, "has a NUL"),
        ({"x": ["a", 1]}, "several types: int, text"),
        ({"x": [b"a", b"b"]}, "of type bytes"),
        ({"x": [None, None]}, "has no value, so its type is unknown"),
        ({"id": [1, 2]}, "has a meaning in conditions"),
        ({"a.b": [1, 2]}, "cannot be a field"),
        ({"": [1, 2]}, "cannot be a field"),
        ({"Year": [1, 2], "year": [1, 2]}, "differ in case only"),
    ],
)
def test_bad_new_fields_are_refused(index, column, message):
    with pytest.raises(InputError, match=message):
        index.add(["a", "b"], fields=column)
    assert (len(index), index.fields) == (0, {})


BAD_QUESTIONS = {
    "k": ({"query": "a", "k": 0}, "k must be a whole number of at least 1"),
    "offset": ({"query": "a", "offset": -1}, "offset must be a whole number of at least 0"),
    "candidates": ({"query": "a", "k": 10, "candidates": 5}, "candidates must be at least k"),
    "number": ({"query": 5}, "got an array of shape"),
    "none": ({"query": None}, "search takes one query|a query is a text or a vector"),
    "NUL": ({"query": "a\0"}, "has a NUL"),
    "dim": ({"query": np.ones(5)}, "vectors have 5 dimensions but the index has 32"),
    "NaN": ({"query": np.full(32, np.nan)}, "has NaN"),
    "zero": ({"query": np.zeros(32)}, "is zero"),
    "hybrid": ({"query": np.ones(32), "hybrid": True}, "hybrid search needs the words"),
    "two": ({"query": np.ones((2, 32))}, "Use search_many"),
}


@pytest.mark.parametrize("kind", ["memory"])
@pytest.mark.parametrize("given,message", BAD_QUESTIONS.values(), ids=list(BAD_QUESTIONS))
def test_bad_questions_are_refused(filled, given, message):
    with pytest.raises(InputError, match=message):
        filled.search(**given)


def test_lists_and_strings_are_not_mixed_up(filled):
    with pytest.raises(InputError, match="got one string"):
        filled.search_many("a man")
    with pytest.raises(InputError, match=r"queries\[1\] is of type int"):
        filled.search_many(["a", 1])
    with pytest.raises(InputError, match="ids takes a list"):
        filled.get("d01")
    with pytest.raises(InputError, match="ids or where, one of the two"):
        filled.delete()
    with pytest.raises(InputError, match="where is empty"):
        filled.delete(where={})


def test_a_missing_index_is_not_created_by_accident(model):
    with pytest.raises(InputError, match="give a model, or dim for vectors only"):
        open_index(":memory:")
    with pytest.raises(InputError, match="no index at :memory:"):
        open_index(":memory:", model, create=False)
    with pytest.raises(InputError, match="no index at :memory:"):
        open_index(":memory:", model, read_only=True)
    with pytest.raises(InputError, match="location of an index is empty"):
        open_index("")
    with pytest.raises(InputError, match="Known types: text, int, float, bool"):
        open_index(":memory:", model, fields={"year": "decimal"})


def test_a_server_without_its_package_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(MissingExtra, match=r"needs the package 'psycopg'.*gemel\[postgres\]"):
        open_index("postgresql://user:secret@localhost/db#notes")


# Words.

JAPANESE = ["東京タワーに行く", "京都の寺", "two connections"]


def test_a_query_in_quotation_marks_is_text(model, tmp_path):
    """From 5,000 passages on Lance keeps an index of words, and read such a query as a phrase."""
    pytest.importorskip("lance")
    location = LanceStore(tmp_path / "notes", durable=False, many=20)
    with open_index(location, model, options=ONE) as index:
        index.add([*TEXTS, "an oil price"], ids=[*IDS, "oil"])
        index.compact()
        for query in ('"oil price"', "'oil' price", '"oil', "oil -price", "(oil"):
            assert index.search(query, k=1, hybrid=True, candidates=1).hits[0].id, query
            assert "oil" in [hit.id for hit in index.search(query, k=5, hybrid=True)], query


def test_words_of_an_index_are_rebuilt(index):
    index.add(JAPANESE, ids=["a", "b", "c"], fields={"year": [1, 2, None]})
    before = index.get(["a", "b", "c"])
    pytest.importorskip("Stemmer", reason="needs the extra stemming")
    assert index.rebuild_words(stemming="english") == 3
    assert index.get(["a", "b", "c"]) == before
    assert index.stats().words == "version 2, stemming english"
    assert sorted(index._open().table.by_words("connecting 寺", 5).id) == ["b", "c"]
    assert index.rebuild_words(stemming="english") == 0
    assert index.verify().ok


def test_an_index_made_before_works_and_says_how_to_rebuild_its_words(model, tmp_path):
    pytest.importorskip("lance")
    location = tmp_path / "notes"
    with open_index(location, model, options=ONE, durable=False) as index:
        bound = index._open().table.header.bound
    old = Header(model.dim, {}, bound, format=1, words=WordRules(version=1))
    for many in (20, 5000):
        folder = tmp_path / f"old-{many}"
        LanceStore(folder, durable=False, many=many).create(old).close()
        with open_index(LanceStore(folder, durable=False, many=many), model, options=ONE) as index:
            index.add([*JAPANESE, *TEXTS])
            index.compact()
            assert index.stats().format == 1
            assert "gemel index words" in index.stats().words
            assert not len(index._open().table.by_words("東京", 5))
            assert len(index._open().table.by_words('"connections" (two', 5)) == 1
            assert index.rebuild_words() == 63
            assert len(index._open().table.by_words("東京", 5)) == 1
            assert index.stats().words == "version 2, no stemming"
            assert index.verify().ok


def test_stemming_is_chosen_when_an_index_is_created(model, tmp_path):
    pytest.importorskip("lance")
    pytest.importorskip("Stemmer", reason="needs the extra stemming")
    with open_index(tmp_path / "notes", model, options=ONE, stemming="english", durable=False):
        pass
    open_index(tmp_path / "notes", model, options=ONE).close()
    with pytest.raises(InputError, match=r"with stemming 'english', not with 'german'.*rebuild_words"):
        open_index(tmp_path / "notes", model, options=ONE, stemming="german")
    with pytest.raises(InputError, match="no stemming for 'klingon'"):
        open_index(tmp_path / "other", model, options=ONE, stemming="klingon")


# Lists and times.


def test_lists_and_times_are_inferred_stored_and_queried(index):
    zone = timezone(timedelta(hours=2))
    index.add(
        TEXTS[:4],
        ids=["a", "b", "c", "d"],
        fields={
            "tags": [["x", "y"], [], ("x",), None],
            "sizes": [np.array([1, 2]), [0.5], [], None],
            "day": [date(2024, 2, 29), None, np.datetime64("2024-03-01"), date(1999, 1, 1)],
            "at": [
                datetime(2024, 2, 29, 12, tzinfo=zone),
                datetime(2024, 3, 1),
                None,
                np.datetime64("2024-01-01T01:00"),
            ],
        },
    )
    assert index.fields == {"tags": "texts", "sizes": "floats", "day": "date", "at": "datetime"}
    rows = {each.id: each.fields for each in index.get(["a", "b", "c", "d"])}
    assert rows["a"] == {
        "tags": ["x", "y"],
        "sizes": [1.0, 2.0],
        "day": date(2024, 2, 29),
        "at": datetime(2024, 2, 29, 10, tzinfo=UTC),
    }
    assert (rows["b"]["tags"], rows["b"]["at"]) == ([], datetime(2024, 3, 1, tzinfo=UTC))
    assert (rows["c"]["day"], rows["d"]["tags"]) == (date(2024, 3, 1), None)
    for where, ids in {
        "tags contains 'x'": "ac",
        "tags not contains 'x'": "b",
        "sizes contains 0.5": "b",
        "day between '2024-01-01' and '2024-12-31'": "ac",
        "at >= '2024-02-29T10:00:00Z'": "ab",
        "tags is null": "d",
    }.items():
        assert "".join(sorted(hit.id for hit in index.search(TEXTS[0], k=9, where=where))) == ids, where
    again = index.upsert(TEXTS[:1], ids=["a"], fields=[{**rows["a"], "tags": ["x", "y"]}])
    assert again.unchanged == 1
    assert index.verify().ok


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([["x", 1]], "several types: ints, texts"),
        ([["x"], "x"], "several types: text, texts"),
        ([[]], "only empty lists, so its type is unknown. Declare it: fields={'x': 'texts'}"),
        ([[["x"]]], "has a value of type list"),
        ([{"a": 1}], "has a value of type dict"),
        ([["x", None]], "value 1, is None: a list holds no None"),
        ([["x" * 1001]], "value 0, has 1,001 bytes"),
        ([["x"] * 10_001], "has 10,001 values; a list holds 10,000 at most"),
        ([["a\0b"]], "NUL character"),
        ([[float("nan")]], "finite"),
        ([date(2024, 1, 1), 3], "several types: date, int"),
    ],
)
def test_a_field_refuses_what_no_list_holds(index, values, message):
    with pytest.raises(InputError, match=re.escape(message)):
        index.add(TEXTS[: len(values)], fields={"x": values})
    assert len(index) == 0


def test_missing_times_of_pandas_are_null(index):
    pandas = pytest.importorskip("pandas")
    index.add(TEXTS[:2], ids=["a", "b"], fields={"at": [pandas.Timestamp("2024-01-01"), pandas.NaT]})
    assert [each.fields["at"] for each in index.get(["a", "b"])] == [datetime(2024, 1, 1, tzinfo=UTC), None]


# Pages.


@pytest.mark.parametrize("steps", [{}, {"hybrid": True}])
def test_pages_of_any_size_give_every_document_once(model, tmp_path, steps):
    pytest.importorskip("lance")
    texts = texts_of(700, seed=3)
    location = LanceStore(tmp_path / "notes", durable=False, large=100, many=100)
    with open_index(location, model, options=ONE) as index:
        index.add(texts, ids=[f"{n:03}" for n in range(700)])
        index.compact()
        for query in texts_of(6, seed=4):
            every = [hit.id for hit in index.search(query, k=120, **steps)]
            for size in (7, 10, 40):
                pages = [index.search(query, k=size, offset=start, **steps) for start in range(0, 120, size)]
                paged = [hit.id for page in pages for hit in page][:120]
                assert len(set(paged)) == 120
                if size != 7:  # the last page of seven ends after the 120th
                    assert set(paged) == set(every)
                for page in pages:
                    assert [hit.score for hit in page] == sorted((hit.score for hit in page), reverse=True)


@pytest.mark.parametrize("recall", [0, 1.5, "high", True])
def test_an_invalid_recall_is_refused(filled, recall):
    with pytest.raises(InputError, match="recall is a number above 0 and at most 1"):
        filled.search("man", recall=recall)


def test_short_queries_are_searched_more_widely(filled, monkeypatch):
    table, calls = filled._open().table, []
    nearest = type(table).nearest

    def watched(self, queries, k, **options):
        calls.append((len(queries), options["far"], options["recall"]))
        return nearest(self, queries, k, **options)

    monkeypatch.setattr(type(table), "nearest", watched)
    actual = filled.search_many(["man", "a man is playing a guitar", "blue sky"], recall=0.99)
    assert calls == [(1, False, 0.99), (2, True, 0.99)]
    assert [hit.id for hit in actual[1]] == [hit.id for hit in filled.search("a man is playing a guitar")]


def test_a_sample_does_not_keep_the_blocks_of_a_scan_in_memory(model):
    """As views, 2,000 vectors of as many blocks would keep the whole table in memory."""
    index = open_index(":memory:", model)
    index.add(list(dict.fromkeys(texts_of(400, seed=4))))
    alive = []

    class Watched:
        header = index._state.table.header

        def scan(self, **options):
            blocks = []
            for rows in index._state.table.scan(block=20, **options):
                own = np.array(rows.vector)
                blocks.append(weakref.ref(own))
                given = replace(rows, vector=own)
                del own
                yield given
                del given
                alive.append(sum(block() is not None for block in blocks))

    walked = verify._walk(replace(index._state, table=Watched()), 50)
    assert len(walked.sample) == 50
    assert len(alive) > 10
    assert max(alive) <= 1  # the block that the scan is at
