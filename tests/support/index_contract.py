"""What every table of an index must do. A test module derives from `TableContract` and gives it a fixture `store`.

    class TestLance(TableContract):
        @pytest.fixture
        def store(self, tmp_path):
            return LanceCase(tmp_path / "notes")      # a StoreCase: see below

The tests use only `StoreCase`, so a store has little to define.
"""

import dataclasses
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, date, datetime

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemel.errors import InputError, WorkError
from gemel.index.kinds import pack, terms_of, tokens_of
from gemel.index.memory import MemoryTable
from gemel.index.port import (
    FORMAT,
    PLAIN_FORMAT,
    Count,
    DocumentsChanged,
    Header,
    KindHeader,
    PassageRows,
    Store,
)
from gemel.index.where import Both, Compare, Contains, Either, IsNull, Like, Not, OneOf, matches
from gemel.vectors.bm25 import WordRules
from gemel.vectors.maxsim import join_texts
from gemel.vectors.sparse import SparseVectors
from where_strategies import show

FIELDS = {
    "lang": "text",
    "year": "int",
    "price": "float",
    "open": "bool",
    "day": "date",
    "at": "datetime",
    "tags": "texts",
    "sizes": "ints",
}
LISTED = {"tags": ["a", "b", "it's", "日本", "", '"', "{}", "NULL", "\\"], "sizes": [0, -1, 2**63 - 1]}
"""What the lists of `library` are made of."""
PATTERNS = [
    "",
    "%",
    "e_",
    "_",
    "__",
    "%n",
    "a\\%\\_b",
    "a%b",
    "%\\\\%",
    "back%sl_sh",
    "%本",
    "%t'_",
    '%"%',
    "e%%_",
    "%%",
]
DIM = 8


class StoreCase:
    """One store, as a test of the contract receives it."""

    can_drop = True
    """Whether the store can delete its index."""

    def handle(self) -> Store:
        """A new handle to the store, as another process would have; the existing one if nothing is shared."""
        raise NotImplementedError

    def write_newer_format(self) -> None:
        """Give the table in the store (a test has created it) a format above `FORMAT`."""
        pytest.skip("this store keeps no format")


# What is written in the tests.


def unit(vectors):
    vectors = np.asarray(vectors, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def some_vectors(n, dim=DIM, seed=0):
    return unit(np.random.default_rng(seed).normal(size=(n, dim)))


def clusters(n, dim, seed=0):
    """Rows around n / 30 centers: neighbors are near, as with sentences."""
    rng = np.random.default_rng(seed)
    centers = rng.normal(size=(max(1, n // 30), dim))
    return unit(centers[rng.integers(len(centers), size=n)] + 0.5 * rng.normal(size=(n, dim)))


def rows_of(ids, *, texts=None, vectors=None, digests=None, fields=None, header_fields=(), seed=0):
    """Documents of one passage each; `fields` holds the columns that are not null."""
    n = len(ids)
    given = {name: [None] * n for name in header_fields} | (fields or {})
    return PassageRows(
        id=list(ids),
        part=np.zeros(n, np.int32),
        text=list(texts) if texts is not None else [f"text of {each}" for each in ids],
        digest=list(digests) if digests is not None else [f"d-{each}" for each in ids],
        vector=some_vectors(n, seed=seed) if vectors is None else vectors,
        fields=given,
    )


KINDS = {
    "sparse": KindHeader(40, "float32", {"model": "words"}),
    "late": KindHeader(6, "float16", {"model": "tokens", "lengths": [None, 180]}),
}


def some_terms(n, seed=0, dim=40):
    """Rows of weights, some empty."""
    rng, rows = np.random.default_rng(seed), []
    for _ in range(n):
        columns = np.sort(rng.choice(dim, rng.integers(0, 7), replace=False)).astype(np.int32)
        rows.append((columns, rng.integers(1, 9, len(columns)).astype(np.float32) / 4))
    return rows


def some_tokens(n, seed=0, dim=6):
    """Vectors of tokens, as 16 bits hold them; some texts have none."""
    rng = np.random.default_rng(seed)
    return [
        unit(rng.normal(size=(rng.integers(0, 5), dim))).astype(np.float16).astype(np.float32)
        for _ in range(n)
    ]


def with_kinds(rows, seed=0, kinds=("sparse", "late")):
    """The rows with these kinds of vectors, packed."""
    values = {
        "sparse": pack("sparse", "float32", SparseVectors.of(some_terms(len(rows), seed), ())),
        "late": pack("late", "float16", join_texts(some_tokens(len(rows), seed), (), 6)),
    }
    return replace(rows, kinds={kind: values[kind] for kind in kinds})


def best_by_kind(kind, query, rows, k, kept=None):
    """(ids, parts) of the best by plain Python, ties on id and part."""
    found = []
    for i, value in enumerate(rows.kinds[kind]):
        if kept is not None and rows.id[i] not in kept:
            continue
        if kind == "sparse":
            own, asked = dict(zip(*map(list, terms_of(value)), strict=True)), dict(zip(*query, strict=True))
            shared = own.keys() & asked.keys()
            score = sum(float(own[n]) * float(asked[n]) for n in shared) if shared else None
        else:
            tokens = tokens_of([value], KINDS["late"]).of(0).astype(np.float64)
            score = (query.astype(np.float64) @ tokens.T).max(axis=1).sum() if len(tokens) else None
        if score is not None:
            found.append((-np.float32(score), rows.id[i], int(rows.part[i])))
    return [each[1:] for each in sorted(found)[:k]]


def document(name, passages, *, digest="d", seed=0, fields=None):
    """One document of several passages."""
    n = len(passages)
    return PassageRows(
        id=[name] * n,
        part=np.arange(n, dtype=np.int32),
        text=list(passages),
        digest=[digest] * n,
        vector=some_vectors(n, seed=seed),
        fields={key: [value] * n for key, value in (fields or {}).items()},
    )


def library(n=60, seed=3):
    """Rows with every type of field, a third of the values null; and the same rows as dictionaries."""
    rng = random.Random(seed)
    pools = {
        "lang": ["en", "de", "", "it's", "日本", "En", "ü", "a%_b", "back\\slash", 'quo"te'],
        "year": [-(2**63), 2**63 - 1, 0, 1999, 2020, 2021, -1],
        "price": [0.0, -0.0, 1.5, -2.25, 1e300, 5e-324, 0.1],
        "open": [True, False],
        "day": [date(1, 1, 1), date(1999, 12, 31), date(2000, 1, 1), date(2024, 2, 29), date(9999, 12, 31)],
        "at": [
            datetime(1, 1, 1, tzinfo=UTC),
            datetime(1999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
            datetime(2024, 2, 29, 12, tzinfo=UTC),
            datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
        ],
        "tags": [[], ["a"], ["b", "a"], ["a", "a", "it's"], LISTED["tags"]],
        "sizes": [[], [0], LISTED["sizes"]],
    }
    columns = {
        name: [None if rng.random() < 0.33 else rng.choice(pool) for _ in range(n)]
        for name, pool in pools.items()
    }
    ids = [f"doc-{i:03}" for i in range(n)]
    texts = [f"common word{i % 7} other{i % 3}" for i in range(n)]
    rows = rows_of(ids, texts=texts, fields=columns, seed=seed)
    plain = [{"id": each} | {k: v[i] for k, v in columns.items()} for i, each in enumerate(ids)]
    return rows, plain, pools


def random_condition(rng, pools, depth=3):
    if depth and rng.random() < 0.6:
        kind = rng.choice([Both, Either, Not])
        inner = [random_condition(rng, pools, depth - 1) for _ in range(1 if kind is Not else 2)]
        return kind(*inner)
    name = rng.choice(list(pools))
    draw = rng.random()
    if draw < 0.2:
        return IsNull(name)
    if name in LISTED:
        return Contains(name, rng.choice(LISTED[name]))
    if name == "lang" and draw < 0.4:
        return Like(name, rng.choice(PATTERNS))
    if draw < 0.5:
        return OneOf(name, tuple(rng.sample(pools[name], rng.randint(0, 2))))
    operators = ["=", "!="] if name == "open" else ["=", "!=", "<", "<=", ">", ">="]
    return Compare(name, rng.choice(operators), rng.choice(pools[name]))


def conditions(pools):
    """Every operator on every type, and sixty trees."""
    for name, pool in pools.items():
        if name in LISTED:
            yield from (Contains(name, value) for value in LISTED[name])
            yield from (Not(Contains(name, value)) for value in LISTED[name][:3])
            yield from (IsNull(name), Not(IsNull(name)))
            continue
        for value in pool:
            for operator in ["=", "!="] if name == "open" else ["=", "!=", "<", "<=", ">", ">="]:
                yield Compare(name, operator, value)
        yield from (IsNull(name), Not(IsNull(name)), OneOf(name, ()), Not(OneOf(name, tuple(pool[:2]))))
    yield from (Like(name, each) for name in ("lang", "id") for each in (*PATTERNS, "doc-_0%", "%7"))
    yield from (Not(Like("lang", each)) for each in PATTERNS[:4])
    yield from (Compare("id", "=", "doc-007"), Compare("id", ">", "doc-050"), OneOf("id", ("doc-001", "no")))
    rng = random.Random(5)
    yield from (random_condition(rng, pools) for _ in range(60))


def contents(rows):
    """Rows in a comparable form, vectors by their bits."""
    return [
        (
            rows.id[i],
            int(rows.part[i]),
            rows.text[i],
            rows.digest[i],
            np.asarray(rows.vector[i], np.float32).tobytes(),
            {name: values[i] for name, values in rows.fields.items()},
        )
        for i in range(len(rows))
    ]


def everything(table):
    return [each for block in table.scan() for each in contents(block)]


def brute_force(query, rows, k):
    """(ids, parts) of the nearest, ties on id and part."""
    scores = rows.vector.astype(np.float64) @ query.astype(np.float64)
    order = sorted(range(len(rows)), key=lambda i: (-scores[i], rows.id[i], int(rows.part[i])))[:k]
    return [(rows.id[i], int(rows.part[i])) for i in order]


def actual(passages):
    return list(zip(passages.id, [int(part) for part in passages.part], strict=True))


STRANGE = [
    "'; drop table rows; --",
    'double "quotes" and `ticks`',
    "back\\slash \\' \\x00 %s %(a)s {b} $1 :c ?",
    "new\nline\r\ttab",
    "日本語 שלום 😀 e\u0301 é",
    " leading and trailing ",
    "\u2028\u200b\ufeff",
    "x" * 20_000,
    "%",
    "_",
    "NULL",
    "null",
    "-1",
    "\x01\x7f",
    "\U0010ffff",
]


QUERIES = [
    '"oil price"',
    "'oil price'",
    '"',
    '""',
    '"oil',
    "oil AND price",
    "NOT oil",
    "-oil +price",
    "oil*",
    "oil~2",
    "text:oil",
    "(oil",
    "oil)",
    "c++",
    "oil^3",
    "[a TO f]",
    "{a}",
    "oil && price || a",
    "\\oil",
    "/oil/",
    "oil:*",
    "a & b | !c",
    "<->",
    "“oil price”",
    "«oil»",
    "「東京」",
    "oil\n\tprice",
    "%",
    "_",
    "'; drop table rows; --",
]
MIXED_QUERIES = st.lists(
    st.sampled_from(
        ["oil", "price", "東京", "NOT", '"', "'", "(", ")", "*", "+", "-", "\\", ":", "~", "&", "|", "!", "^"]
    ),
    max_size=8,
).flatmap(lambda parts: st.sampled_from(["", " "]).map(lambda space: space.join(parts)))


class TableContract:
    """Derive, and give a fixture `store`."""

    @pytest.fixture
    def handle(self, store):
        handle = store.handle()
        yield handle
        handle.close()

    @pytest.fixture
    def create(self, handle):
        """create(fields=..., dim=...) -> the empty table of the store."""
        opened = []

        def make(fields=None, dim=DIM, bound=None, kinds=None):
            header = Header(dim=dim, fields=dict(fields or {}), bound=bound or {}, kinds=kinds or {})
            opened.append(handle.create(header))
            return opened[-1]

        yield make
        for table in opened:
            table.close()

    @pytest.fixture
    def reopen(self, store):
        """reopen() -> the table through a fresh handle."""
        opened = []

        def again():
            handle = store.handle()
            opened.extend([handle.open(), handle])
            return opened[-2]

        yield again
        for each in opened:
            each.close()

    # Writing and reading back.

    def test_written_rows_are_read_back(self, create, reopen):
        table = create(FIELDS)
        rows, _, _ = library(20)
        table.write(rows, replace=False)
        for each in (table, reopen()):
            assert contents(each.get(rows.id)) == contents(rows)
            assert each.digests([*rows.id, "not there"]) == dict(zip(rows.id, rows.digest, strict=True))
            assert each.count() == Count(20, 20)

    def test_an_empty_table_answers_everything(self, create):
        table = create(FIELDS)
        assert table.count() == Count(0, 0)
        assert table.count(IsNull("lang")) == Count(0, 0)
        assert table.digests(["a"]) == {}
        assert len(table.get(["a"])) == 0
        assert list(table.scan()) == []
        assert [len(each) for each in table.nearest(some_vectors(2), 5)] == [0, 0]
        assert [len(each) for each in table.nearest(some_vectors(2), 5, exact=True)] == [0, 0]
        assert len(table.by_words("anything", 5)) == 0
        assert table.delete(["a"]) == 0
        assert table.delete_where(Compare("year", ">", 3)) == 0
        table.compact()
        assert table.stats().documents == 0

    def test_empty_requests_change_nothing(self, create):
        table = create()
        table.write(rows_of(["a"]), replace=False)
        before = everything(table)
        table.write(rows_of([]), replace=True)
        assert table.digests([]) == {}
        assert len(table.get([])) == 0
        assert table.delete([]) == 0
        assert table.nearest(some_vectors(0), 3) == []
        assert everything(table) == before

    def test_get_answers_in_the_requested_order(self, create):
        table = create()
        table.write(rows_of(["a", "b", "c"]), replace=False)
        table.write(document("long", ["p0", "p1", "p2"]), replace=False)
        got = table.get(["c", "missing", "long", "a"])
        assert actual(got) == [("c", 0), ("long", 0), ("long", 1), ("long", 2), ("a", 0)]
        assert got.text[1:4] == ["p0", "p1", "p2"]

    def test_replacing_drops_the_old_parts(self, create, reopen):
        table = create({"year": "int"})
        table.write(document("a", ["one", "two", "three"], fields={"year": 1}), replace=False)
        table.write(rows_of(["b"], header_fields=["year"]), replace=False)
        new = document("a", ["only"], digest="new", seed=9, fields={"year": 2})
        table.write(new, replace=True)
        for each in (table, reopen()):
            assert contents(each.get(["a"])) == contents(new)
            assert each.count() == Count(2, 2)
            assert each.digests(["a"]) == {"a": "new"}
            assert {name for name, _ in actual(each.nearest(some_vectors(1), 10)[0])} == {"a", "b"}
            assert actual(each.by_words("three two", 5)) == []

    def test_replacing_writes_what_was_not_there_too(self, create):
        table = create()
        table.write(rows_of(["a", "b"]), replace=False)
        table.write(document("b", ["x", "y"], digest="2"), replace=True)
        table.write(rows_of(["c", "a"], digests=["1", "2"], seed=4), replace=True)
        assert table.digests(["a", "b", "c"]) == {"a": "2", "b": "2", "c": "1"}
        assert table.count() == Count(3, 4)

    def test_an_id_that_is_there_is_refused_and_nothing_is_written(self, create, reopen):
        table = create()
        table.write(rows_of(["a", "b"]), replace=False)
        before = everything(table)
        with pytest.raises(InputError, match="'b'"):
            table.write(rows_of(["new", "b"], seed=1), replace=False)
        assert everything(table) == before
        assert everything(reopen()) == before

    def test_deleted_documents_are_gone(self, create, reopen):
        table = create()
        table.write(rows_of(["a", "b", "c"]), replace=False)
        table.write(document("long", ["one", "two"]), replace=False)
        assert table.delete(["long", "a", "never", "a"]) == 2
        for each in (table, reopen()):
            assert each.count() == Count(2, 2)
            assert sorted(each.digests(["a", "b", "c", "long"])) == ["b", "c"]
            assert {name for name, _ in actual(each.nearest(some_vectors(1), 10)[0])} == {"b", "c"}
            assert actual(each.by_words("one", 5)) == []
        table.write(rows_of(["a"], digests=["back"], seed=2), replace=False)
        assert table.digests(["a"]) == {"a": "back"}

    def test_a_condition_deletes_matching_documents(self, create, reopen):
        table = create(FIELDS)
        rows, plain, _ = library()
        table.write(rows, replace=False)
        condition = Either(Compare("year", ">=", 2020), Compare("lang", "=", "it's"))
        gone = {row["id"] for row in plain if matches(condition, row)}
        assert table.delete_where(condition) == len(gone) > 0
        left = [row["id"] for row in plain if row["id"] not in gone]
        assert [each[0] for each in everything(table)] == left
        assert [each[0] for each in everything(reopen())] == left
        assert table.delete_where(condition) == 0

    def test_strange_ids_and_texts_survive(self, create, reopen):
        table = create({"lang": "text"})
        ids = [each[:500] for each in STRANGE]
        rows = rows_of(ids, texts=STRANGE, digests=["d"] * len(ids), fields={"lang": STRANGE})
        table.write(rows, replace=False)
        for each in (table, reopen()):
            assert contents(each.get(ids)) == contents(rows)
            assert set(each.digests(ids)) == set(ids)
            assert [name for name, *_ in everything(each)] == sorted(ids)
            for name, value in zip(ids, STRANGE, strict=True):
                assert each.nearest(some_vectors(1), 99, where=Compare("lang", "=", value))[0].id == [name]
                assert each.count(Compare("id", "=", name)) == Count(1, 1)
        table.write(rows_of(ids, texts=STRANGE, fields={"lang": STRANGE}, seed=8), replace=True)
        assert table.count() == Count(len(ids), len(ids))
        assert table.delete(ids[:3]) == 3
        assert table.delete_where(OneOf("id", tuple(ids[3:5]))) == 2

    def test_the_callers_arrays_may_change_after_a_write(self, create):
        table = create()
        rows = rows_of(["a", "b"])
        expected = contents(rows)
        table.write(rows, replace=False)
        rows.vector[:] = 0
        assert everything(table) == expected

    # Fields.

    def test_every_type_of_field_survives(self, create, reopen):
        table = create(FIELDS)
        values = {
            "lang": ["", "ü", None],
            "year": [2**63 - 1, -(2**63), None],
            "price": [1e308, 5e-324, None],
            "open": [True, False, None],
            "day": [date(1, 1, 1), date(9999, 12, 31), None],
            "at": [datetime.min.replace(tzinfo=UTC), datetime.max.replace(tzinfo=UTC), None],
            "tags": [["b", "ü", "b", ""], [], None],
            "sizes": [[2**63 - 1, -(2**63)], [], None],
        }
        table.write(rows_of(["a", "b", "c"], fields=values), replace=False)
        for each in (table, reopen()):
            got = each.get(["a", "b", "c"]).fields
            assert {name: list(column) for name, column in got.items()} == values
            assert list(got) == list(FIELDS)
            kinds = [type(column[0]) for column in got.values()]
            assert kinds == [str, int, float, bool, date, datetime, list, list]
            assert got["at"][0].tzinfo is UTC
            hits = each.nearest(some_vectors(1), 3)[0]
            assert {name: sorted(column, key=str) for name, column in hits.fields.items()} == {
                name: sorted(column, key=str) for name, column in values.items()
            }
            assert [type(hits.fields[name][hits.id.index("a")]) for name in FIELDS] == kinds

    def test_lists_of_every_type_survive_and_can_be_queried(self, create, reopen):
        moment = datetime(2024, 2, 29, 12, 30, tzinfo=UTC)
        lists = {
            "texts": ["a", "é"],
            "ints": [1, -1],
            "floats": [0.5, -0.0],
            "bools": [True],
            "dates": [date(2024, 2, 29)],
            "datetimes": [moment],
        }
        table = create({kind: kind for kind in lists})
        values = {kind: [value, [], None] for kind, value in lists.items()}
        table.write(rows_of(["a", "b", "c"], fields=values), replace=False)
        table.add_fields({"more": "dates"})
        for each in (table, reopen()):
            assert dict(each.header.fields) == {kind: kind for kind in lists} | {"more": "dates"}
            assert each.get(["a", "b", "c"]).fields == values | {"more": [None] * 3}
            for kind, value in lists.items():
                assert each.nearest(some_vectors(1), 5, where=Contains(kind, value[0]))[0].id == ["a"]
                assert each.count(Not(Contains(kind, value[0]))) == Count(1, 1)
                assert each.count(IsNull(kind)) == Count(1, 1)
            assert each.count(Contains("floats", 0.0)) == Count(1, 1)
        assert table.delete_where(Contains("datetimes", moment)) == 1

    def test_a_field_may_be_called_like_a_column(self, create, reopen):
        names = ["text", "part", "vector", "digest", "words", "select", "order", "Größe", "Lang", "_rowid"]
        table = create(dict.fromkeys(names, "text"))
        table.write(rows_of(["a", "b"], fields={n: [n, None] for n in names}), replace=False)
        for each in (table, reopen()):
            assert each.get(["a"]).fields == {name: [name] for name in names}
            for name in names:
                assert each.count(Compare(name, "=", name)) == Count(1, 1)
                assert each.nearest(some_vectors(1), 5, where=IsNull(name))[0].id == ["b"]
        assert table.delete_where(Compare("text", "=", "text")) == 1

    def test_fields_can_be_added(self, create, reopen):
        table = create({"lang": "text"})
        table.write(rows_of(["a"], fields={"lang": ["en"]}), replace=False)
        other = reopen()
        table.add_fields({"lang": "text", "year": "int"})
        table.add_fields({"year": "int"})
        table.write(rows_of(["b"], fields={"lang": [None], "year": [7]}, seed=1), replace=False)
        for each in (table, other, reopen()):
            assert dict(each.header.fields) == {"lang": "text", "year": "int"}
            assert each.get(["a", "b"]).fields == {"lang": ["en", None], "year": [None, 7]}
            assert each.count(IsNull("year")) == Count(1, 1)
            assert each.nearest(some_vectors(1), 5, where=Compare("year", "=", 7))[0].id == ["b"]
        with pytest.raises(InputError, match="year"):
            table.add_fields({"new": "text", "year": "float"})
        assert "new" not in table.header.fields
        assert "new" not in reopen().header.fields

    def test_a_field_can_be_removed(self, create, reopen):
        table = create({"lang": "text", "tags": "texts", "year": "int"})
        fields = {"lang": ["en", None, "de", "fr"], "tags": [["x"], [], None, ["y"]], "year": [1, 2, 3, None]}
        table.write(rows_of(["a", "b", "c", "d"], fields=fields), replace=False)
        long = {"lang": "en", "tags": None, "year": 9}
        table.write(document("long", ["one", "two", "three"], digest="d-long", fields=long), replace=False)
        table.delete(["d"])
        other = reopen()
        assert other.get(["a"]).fields == {"lang": ["en"], "tags": [["x"]], "year": [1]}

        def changed(document):
            assert document.fields["tags"] is not None
            return dataclasses.replace(
                document, digest=f"{document.digest}*", fields={**document.fields, "tags": None}
            )

        assert table.remove_field("tags", changed) == 2
        for each in (table, other, reopen()):
            assert each.get(["a", "b", "c"]).fields == {"lang": ["en", None, "de"], "year": [1, 2, 3]}
            assert each.digests(["a", "b", "c", "long"]) == {
                "a": "d-a*",
                "b": "d-b*",
                "c": "d-c",
                "long": "d-long",
            }
            assert dict(each.header.fields) == {"lang": "text", "year": "int"}
            assert each.nearest(some_vectors(1), 9)[0].fields.keys() == {"lang", "year"}
            assert actual(each.by_words("three", 5)) == [("long", 2)]
            assert each.get(["a"]).vector.tobytes() == some_vectors(4)[:1].tobytes()
        with pytest.raises(InputError, match="unknown field 'tags'"):
            table.remove_field("tags", changed)
        # The last column, for all passages of a document; then one of that name and another type.
        year = table.remove_field("year", lambda each: dataclasses.replace(each, digest="new"))
        assert year == 4
        table.add_fields({"year": "text"})
        table.write(rows_of(["e"], fields={"lang": [None], "year": ["x"]}, seed=2), replace=False)
        table.compact()
        for each in (table, other, reopen()):
            got = each.get(["a", "long", "e"])
            assert got.fields == {"lang": ["en"] * 4 + [None], "year": [None] * 4 + ["x"]}
            assert got.digest == ["new"] * 4 + ["d-e"]
            assert each.count(Compare("year", "=", "x")) == Count(1, 1)

    # Conditions.

    def test_conditions_mean_what_they_mean_in_memory(self, create):
        table = create(FIELDS)
        rows, plain, pools = library()
        table.write(rows, replace=False)
        query = some_vectors(1, seed=1)
        for condition in conditions(pools):
            expected = [row["id"] for row in plain if matches(condition, row)]
            assert table.count(condition) == Count(len(expected), len(expected)), show(condition)
            assert sorted(table.nearest(query, 99, where=condition)[0].id) == expected, show(condition)

    def test_conditions_hold_for_all_passages_of_a_document(self, create):
        table = create({"year": "int"})
        table.write(document("long", ["one", "two", "three"], fields={"year": 1}), replace=False)
        table.write(document("short", ["four"], fields={"year": None}, seed=1), replace=False)
        first = Compare("year", "=", 1)
        assert table.count(first) == Count(1, 3)
        assert table.count(Not(first)) == Count(0, 0)
        assert sorted(actual(table.nearest(some_vectors(1), 9, where=first)[0])) == [
            ("long", i) for i in range(3)
        ]
        assert table.delete_where(Compare("id", "<", "m")) == 1
        assert table.count() == Count(1, 1)

    def test_conditions_hold_for_searches_by_words(self, create):
        table = create(FIELDS)
        rows, plain, pools = library()
        table.write(rows, replace=False)
        for condition in list(conditions(pools))[::7]:
            expected = [row["id"] for row in plain if matches(condition, row)]
            assert sorted(table.by_words("common", 99, where=condition).id) == expected, show(condition)

    def test_conditions_delete_what_they_find(self, create):
        table = create(FIELDS)
        rows, plain, pools = library()
        table.write(rows, replace=False)
        for condition in list(conditions(pools))[::9]:
            gone = [row["id"] for row in plain if matches(condition, row)]
            assert table.delete_where(condition) == len(gone), show(condition)
            plain = [row for row in plain if row["id"] not in set(gone)]
            assert [each[0] for each in everything(table)] == [row["id"] for row in plain]

    def test_a_condition_of_many_values_and_many_parts_works(self, create):
        table = create({"year": "int"})
        table.write(rows_of([f"{i:03}" for i in range(50)], fields={"year": list(range(50))}), replace=False)
        many = OneOf("year", tuple(range(40, 10_040)))
        assert table.count(many).documents == 10
        deep = Compare("year", "=", 0)
        for year in range(1, 26):  # the parser allows fifty levels
            deep = Not(Either(deep, Compare("year", "=", year)))
        expected = sum(matches(deep, {"year": year}) for year in range(50))
        assert table.count(deep).documents == expected
        assert len(table.nearest(some_vectors(1), 99, where=deep)[0]) == expected

    # Search.

    def test_the_nearest_are_those_of_brute_force(self, create, reopen):
        table = create()
        rows = rows_of([f"doc-{i:03}" for i in range(200)], vectors=some_vectors(200, seed=2))
        table.write(rows, replace=False)
        queries = some_vectors(5, seed=7)
        for each in (table, reopen()):
            for exact in (True, False):
                answers = each.nearest(queries, 10, exact=exact)
                for query, answer in zip(queries, answers, strict=True):
                    assert actual(answer) == brute_force(query, rows, 10)
                    stored = each.get(answer.id)
                    assert np.array_equal(answer.vector, stored.vector)
                    assert list(answer.text) == list(stored.text)
                    np.testing.assert_allclose(answer.score, answer.vector @ query, atol=1e-6)
                    assert answer.score.dtype == np.float32
                    assert answer.part.dtype == np.int32

    def test_ties_go_to_the_lower_id_then_the_lower_part(self, create):
        table = create()
        same = np.repeat(some_vectors(1), 3, axis=0)
        table.write(rows_of(["c", "b", "ü"], vectors=same), replace=False)
        long = document("a", ["x", "y", "z"])
        long.vector[:] = same
        table.write(long, replace=False)
        for exact in (True, False):
            hits = table.nearest(some_vectors(1), 5, exact=exact)[0]
            assert actual(hits) == [("a", 0), ("a", 1), ("a", 2), ("b", 0), ("c", 0)]

    def test_asking_for_more_than_there_is_gives_all(self, create):
        table = create()
        table.write(rows_of(["a", "b", "c"]), replace=False)
        for exact in (True, False):
            assert len(table.nearest(some_vectors(1), 1000, exact=exact)[0]) == 3
        assert len(table.by_words("text", 1000)) == 3

    def test_a_large_table_finds_nearly_all(self, create, reopen):
        """Before and after `compact`, filtered or not; a row that was just written is found at once."""
        n, dim = 3000, 32
        table = create({"group": "int"}, dim=dim)
        rows = rows_of(
            [f"doc-{i:04}" for i in range(n)],
            vectors=clusters(n, dim),
            fields={"group": [i % 100 for i in range(n)]},
        )
        table.write(rows, replace=False)
        queries = unit(rows.vector[:40] + 0.6 * rows.vector[1500:1540])  # no ties
        self._recall_is_high(table, rows, queries)
        table.compact()
        self._recall_is_high(table, rows, queries)
        self._recall_is_high(reopen(), rows, queries[:10])
        stats = table.stats()
        assert (stats.documents, stats.passages) == (n, n)
        assert stats.recall is None or stats.recall >= 0.98
        self._new_rows_are_found(table, queries)

    def _recall_is_high(self, table, rows, queries):
        groups = np.array(rows.fields["group"])
        for below, where in ((100, None), (1, Compare("group", "=", 0)), (50, Compare("group", "<", 50))):
            inside = np.flatnonzero(groups < below)
            scores = queries.astype(np.float64) @ rows.vector[inside].astype(np.float64).T
            truth = [[rows.id[inside[n]] for n in np.argsort(-row, kind="stable")[:10]] for row in scores]
            exact = [list(each.id) for each in table.nearest(queries, 10, where=where, exact=True)]
            assert exact == truth
            quick = [set(each.id) for each in table.nearest(queries, 10, where=where)]
            recall = np.mean([len(a & set(b)) / 10 for a, b in zip(quick, truth, strict=True)])
            assert recall >= 0.98, f"{recall} where {where}"

    def _new_rows_are_found(self, table, queries):
        news = rows_of([f"new-{i}" for i in range(5)], vectors=queries[:5], fields={"group": [-1] * 5})
        table.write(news, replace=False)
        for where in (None, Compare("group", "=", -1)):
            answers = table.nearest(queries[:5], 1, where=where)
            assert [each.id[0] for each in answers] == list(news.id)
        assert table.delete(["new-0"]) == 1
        assert table.nearest(queries[:1], 1)[0].id[0] != "new-0"
        moved = rows_of(["new-1"], vectors=-queries[1:2], fields={"group": [-2]})
        table.write(moved, replace=True)
        assert table.nearest(queries[1:2], 1)[0].id[0] != "new-1"
        assert table.nearest(-queries[1:2], 1)[0].id[0] == "new-1"

    def test_words_find_the_texts_that_contain_them(self, create, reopen):
        table = create()
        texts = ["The cat sat on the mat", "a dog and a CAT", "dogs only", "", "cat cat cat", "Größe, Straße"]
        table.write(rows_of(list("abcdef"), texts=texts), replace=False)
        for each in (table, reopen()):
            hits = each.by_words("cat", 10)
            assert set(hits.id) == {"a", "b", "e"}
            assert hits.id[0] == "e"
            assert list(hits.score) == sorted(hits.score, reverse=True)
            assert all(score > 0 for score in hits.score)
            assert np.array_equal(hits.vector, each.get(hits.id).vector)
            assert list(hits.text) == list(each.get(hits.id).text)
            assert set(each.by_words("zebra dog", 10).id) == {"b"}
            assert list(each.by_words("GRÖSSE größe", 10).id) == ["f"]
            assert len(each.by_words("cat", 2)) == 2
            for nothing in ("zebra", "", "?!", "' or 1=1 --x", 'AND OR NOT ( " * : &'):
                assert set(each.by_words(nothing, 10).id) <= {"b"}, nothing  # "and" is a word of b
        table.write(rows_of(["g"], texts=["a new zebra"], seed=3), replace=False)
        assert list(table.by_words("zebra", 10).id) == ["g"]

    def test_words_find_the_rare_one_first(self, create):
        table = create()
        texts = [f"common filler number{i}" for i in range(30)] + ["common needle filler"]
        table.write(rows_of([f"{i:02}" for i in range(31)], texts=texts), replace=False)
        table.compact()
        hits = table.by_words("common needle", 5)
        assert hits.id[0] == "30"
        assert len(hits) == 5

    def test_every_query_is_text_and_no_language(self, create):
        """Quotes, punctuation and operators of any search language are separators."""
        table = create()
        texts = ["the oil price", "price of oil", "NOT a phrase", "c++ or c#", "東京 oil", "a b c d e f g"]
        ids = list("abcdef")
        names = [f"{name}{n}" for n in range(5) for name in ids]
        table.write(rows_of(names, texts=texts * 5), replace=False)
        table.compact()
        rules = table.header.words

        def found_for(query):
            query_words = set(rules.query(query))
            return {
                f"{name}{n}"
                for n in range(5)
                for name, text in zip(ids, texts, strict=True)
                if query_words & set(rules.document(text))
            }

        for query in QUERIES:
            assert set(table.by_words(query, 99).id) == found_for(query), query

        @settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
        @given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12) | MIXED_QUERIES)
        def check(query):
            assert set(table.by_words(query, 99).id) == found_for(query), query

        check()

    def test_scripts_without_spaces_are_found_by_their_parts(self, create, reopen):
        table = create()
        texts = [
            "東京タワーに行く",
            "京都の寺",
            "北京大学",
            "서울에서 만나요",
            "ภาษาไทยง่ายมาก",
            "हिन्दी भाषा",
            "ｶﾌｪ Ｏ２",
        ]
        table.write(rows_of(list("abcdefg"), texts=texts), replace=False)
        table.write(rows_of([f"x{n:02}" for n in range(30)], texts=["filler"] * 30, seed=1), replace=False)
        table.compact()
        for each in (table, reopen()):
            query_words = {
                "東京": "a",
                "タワー": "a",
                "寺": "b",
                "大学": "c",
                "서울": "d",
                "ไทย": "e",
                "भाषा": "f",
                "カフェ": "g",
            }
            for query, name in query_words.items():
                assert list(each.by_words(query, 10).id) == [name], query
            assert set(each.by_words("京", 10).id) == {"a", "b", "c"}
            assert list(each.by_words("o2", 10).id) == ["g"]
            assert not len(each.by_words("都京", 10))

    def test_stemming_is_the_index_own(self, create, handle, reopen):
        pytest.importorskip("Stemmer", reason="needs the extra stemming")
        plain = create()
        plain.write(rows_of(["a"], texts=["two connections"]), replace=False)
        assert not len(plain.by_words("connected", 5))
        stemmed = handle.begin(Header(DIM, {}, {}, words=WordRules(stemming="english")))
        filler = [f"f{n:02}" for n in range(30)]
        stemmed.write(rows_of(["a", *filler], texts=["two connections", *["filler"] * 30]), replace=False)
        with handle.writing():
            handle.switch()
        assert reopen().header.words == WordRules(stemming="english")
        assert list(reopen().by_words("CONNECTED", 5).id) == ["a"]

    def test_equal_scores_of_words_come_by_id(self, create):
        table = create()
        ids = [f"{n:03}" for n in range(200)]
        shuffled = random.Random(1).sample(ids, len(ids))
        table.write(rows_of(shuffled, texts=["same words"] * len(ids)), replace=False)
        table.compact()
        assert list(table.by_words("same", 7).id) == ids[:7]

    # Scans, concurrency, reopening.

    def test_a_scan_gives_whole_documents_by_ascending_id(self, create):
        table = create({"year": "int"})
        ids = ["b", "a", "ü", "Z", "10", "9", "aa", "\U0001f600", "\uffee"]
        for number, name in enumerate(ids):
            passages = [f"p{i}" for i in range(number % 4 + 1)]
            table.write(document(name, passages, seed=number, fields={"year": number}), replace=False)
        whole = everything(table)
        assert [name for name, part, *_ in whole if part == 0] == sorted(ids)
        assert whole == contents(table.get(sorted(ids)))
        for block in (1, 3, 1000):
            blocks = list(table.scan(block=block))
            assert [each for rows in blocks for each in contents(rows)] == whole
            for rows in blocks:
                assert rows.part[0] == 0
                assert len(rows) <= max(block, 4)
        for after in ("aa", "b", "", "0", "zzz", "\U0010ffff"):
            got = [name for rows in table.scan(after=after) for name in rows.id]
            assert got == [name for name, *_ in whole if name > after]

    def test_a_scan_by_a_condition_gives_the_documents_that_meet_it(self, create):
        table = create(FIELDS)
        rows, plain, pools = library()
        table.write(rows, replace=False)
        long = {"lang": "en", "year": 2020} | dict.fromkeys(set(FIELDS) - {"lang", "year"})
        table.write(document("doc-010b", ["one ", "two ", "three"], fields=long), replace=False)
        plain = sorted([*plain, {"id": "doc-010b", **long}], key=lambda row: row["id"])
        for condition in list(conditions(pools))[::7]:
            meeting = [row["id"] for row in plain if matches(condition, row)]
            for block in (1, 5, 1000):
                blocks = list(table.scan(block=block, where=condition))
                assert [each for rows in blocks for each in contents(rows)] == contents(table.get(meeting))
            rest = [name for rows in table.scan(after="doc-010", where=condition) for name in rows.id]
            assert list(dict.fromkeys(rest)) == [name for name in meeting if name > "doc-010"]

    def test_the_values_of_a_field_are_counted_by_document(self, create):
        table = create(FIELDS)
        assert table.values("tags") == {}
        rows, plain, pools = library()
        table.write(rows, replace=False)
        long = {"lang": "en", "tags": ["a", "a", "b"]} | dict.fromkeys(set(FIELDS) - {"lang", "tags"})
        table.write(document("long", ["one ", "two"], fields=long), replace=False)
        table.write(
            rows_of(["gone"], fields={**{name: [None] for name in FIELDS}, "year": [77]}), replace=False
        )
        table.delete(["gone"])
        plain.append({"id": "long", **long})
        for condition in [None, *list(conditions(pools))[::11]]:
            meeting = [row for row in plain if condition is None or matches(condition, row)]
            for name in FIELDS:
                expected = {}
                for row in meeting:
                    for value in set(row[name]) if isinstance(row[name], list) else [row[name]]:
                        expected[value] = expected.get(value, 0) + 1
                assert table.values(name, condition) == expected, (name, condition)

    def test_a_write_that_expects_other_documents_changes_nothing(self, create, reopen):
        table = create({"year": "int"})
        table.write(rows_of(["a", "b"], digests=["1", "2"], fields={"year": [1, 2]}), replace=False)
        before = everything(table)
        newer = rows_of(["a"], digests=["3"], fields={"year": [3]})
        for expected in ({"a": "0"}, {"a": "1", "b": "9"}, {"a": "1", "gone": "1"}):
            with pytest.raises(DocumentsChanged, match="changed meanwhile"):
                table.write(newer, replace=True, expected=expected)
        assert everything(table) == before
        table.write(newer, replace=True, expected={"a": "1", "b": "2"})
        assert reopen().digests(["a", "b"]) == {"a": "3", "b": "2"}

    def test_a_dropped_index_is_gone_and_can_be_created_again(self, store):
        handle, other = store.handle(), store.handle()
        with pytest.raises(InputError):
            handle.drop()
        if not store.can_drop:
            pytest.skip("this store refuses to delete an index")
        header = Header(DIM, {"year": "int"}, {"model": "m"})
        table = handle.create(header)
        table.write(rows_of(["a", "b"], fields={"year": [1, 2]}), replace=False)
        begun = handle.begin(Header(DIM, {}, {"model": "next"}))
        begun.write(rows_of(["a"]), replace=False)
        for each in (begun, table):
            each.close()
        handle.drop()
        assert not handle.exists()
        assert not other.exists()
        with pytest.raises(InputError):
            other.open()
        with pytest.raises(WorkError):
            table.write(rows_of(["c"], fields={"year": [3]}), replace=False)
        again = other.create(header)
        assert again.count() == Count(0, 0)
        again.write(rows_of(["a"], fields={"year": [1]}), replace=False)
        assert len(again.get(["a"])) == 1
        for each in (again, handle, other):
            each.close()

    def test_threads_lose_nothing(self, create, reopen):
        table = create({"writer": "int"})
        writes, each = 8, 5

        def name(writer, number):
            return [f"w{writer}-{number}-{i}" for i in range(each)]

        def write(writer):
            for number in range(writes):
                ids = name(writer, number)
                vectors = some_vectors(each, seed=100 * writer + number)
                rows = rows_of(ids, vectors=vectors, fields={"writer": [writer] * each})
                table.write(rows, replace=number % 2 == 0)
                assert set(table.digests(ids)) == set(ids)
                assert actual(table.nearest(vectors[:1], 1)[0]) == [(ids[0], 0)]
                if number % 4 == 3:
                    assert table.delete(name(writer, number - 1)) == each

        def read(reader):
            seen = 0
            for _ in range(10):
                where = Compare("writer", "=", reader % 2)
                count = table.count(where).documents
                assert count % each == 0  # every write and every delete is atomic
                answer = table.nearest(some_vectors(1), 500, where=where)[0]
                assert len(answer) % each == 0
                assert set(answer.fields["writer"]) <= {reader % 2}
                seen = max(seen, len(answer))
            return seen

        with ThreadPoolExecutor(6) as pool:
            jobs = [pool.submit(write, writer) for writer in range(2)]
            jobs += [pool.submit(read, reader) for reader in range(4)]
            for job in jobs:
                job.result(timeout=120)
        deleted = {n for w in range(2) for k in range(2, writes, 4) for n in name(w, k)}
        expected = {n for w in range(2) for k in range(writes) for n in name(w, k)} - deleted
        assert {each[0] for each in everything(table)} == expected
        assert {each[0] for each in everything(reopen())} == expected

    def test_writers_of_one_document_do_not_mix(self, create, reopen):
        table, other = create(), reopen()

        def write(handle, writer):
            for number in range(6):
                size = 1 + (writer + number) % 3
                digest = f"{writer}-{number}"
                handle.write(document("a", [digest] * size, digest=digest), replace=True)

        with ThreadPoolExecutor(3) as pool:
            jobs = [pool.submit(write, *each) for each in ((table, 0), (table, 1), (other, 2))]
            for job in jobs:
                job.result(timeout=120)
        for each in (table, other, reopen()):
            rows = each.get(["a"])
            assert len({*rows.text, *rows.digest}) == 1
            assert rows.part.tolist() == list(range(len(rows)))
            assert each.count() == Count(1, len(rows))

    def test_two_handles_see_each_others_writes(self, create, reopen):
        one, other = create(), reopen()
        one.write(rows_of(["a"]), replace=False)
        assert other.digests(["a"]) == {"a": "d-a"}
        assert other.nearest(some_vectors(1), 5)[0].id == ["a"]
        other.write(rows_of(["b"], seed=1), replace=False)
        assert sorted(one.nearest(some_vectors(1), 5)[0].id) == ["a", "b"]
        with pytest.raises(InputError, match="'b'"):
            one.write(rows_of(["b"]), replace=False)
        assert other.delete(["a"]) == 1
        assert one.count() == Count(1, 1)
        assert list(one.by_words("text", 5).id) == ["b"]

    def test_the_header_survives(self, create, reopen):
        bound = {"model": "tiny", "canaries": [0.1, "ü\\'\""], "deep": {"a": None, "b": [True, 1]}}
        table = create(FIELDS, dim=12, bound=bound)
        for each in (table, reopen()):
            header = each.header
            assert (header.dim, dict(header.fields), dict(header.bound)) == (12, FIELDS, bound)
            assert list(header.fields) == list(FIELDS)
            assert header.format == PLAIN_FORMAT  # older versions read it
            assert each.location

    def test_compacting_changes_no_answer(self, create, reopen):
        table = create(FIELDS)
        rows, _, _ = library(30)
        for start in range(0, 30, 3):
            part = slice(start, start + 3)
            table.write(
                PassageRows(
                    id=rows.id[part],
                    part=rows.part[part],
                    text=rows.text[part],
                    digest=rows.digest[part],
                    vector=rows.vector[part],
                    fields={name: values[part] for name, values in rows.fields.items()},
                ),
                replace=False,
            )
        table.delete(rows.id[::4])
        before = everything(table)
        query = some_vectors(1, seed=4)
        nearest = actual(table.nearest(query, 30)[0])
        words = set(actual(table.by_words("common word1", 30)))
        table.compact()
        table.compact()
        for each in (table, reopen()):
            assert everything(each) == before
            assert actual(each.nearest(query, 30)[0]) == nearest
            assert set(actual(each.by_words("common word1", 30))) == words

    def test_the_stats_count_and_the_version_moves(self, create):
        table = create()
        first = table.stats()
        table.write(document("a", ["one", "two"]), replace=False)
        stats = table.stats()
        assert (stats.documents, stats.passages) == (1, 2)
        assert stats.layout
        assert stats.bytes >= 0
        assert stats.version != first.version

    def test_closing_twice_is_no_error(self, create):
        table = create()
        table.close()
        table.close()

    def test_a_table_of_a_newer_format_is_refused(self, store, create):
        create().close()
        store.write_newer_format()
        with pytest.raises(InputError, match=r"(?i)upgrade"):
            store.handle().open()

    # The store.

    def test_a_store_is_empty_until_a_table_is_created(self, handle):
        assert handle.exists() is False
        with pytest.raises(InputError):
            handle.open()
        handle.create(Header(DIM, {}, {})).close()
        assert handle.exists() is True
        with pytest.raises(InputError):
            handle.create(Header(DIM, {}, {}))
        assert handle.name

    def test_the_next_table_is_invisible_until_the_switch(self, store, handle, create):
        old = create(bound={"model": "old"})
        old.write(rows_of(["a"]), replace=False)
        new = handle.begin(Header(DIM, {"year": "int"}, {"model": "new"}))
        new.write(rows_of(["b"], fields={"year": [1]}), replace=False)
        assert dict(store.handle().open().header.bound) == {"model": "old"}
        old.write(rows_of(["c"], seed=1), replace=False)
        assert old.count().documents == 2
        with handle.writing():
            current = handle.switch()
        for table in (current, handle.open(), store.handle().open()):
            assert dict(table.header.bound) == {"model": "new"}
            assert table.digests(["a", "b", "c"]) == {"b": "d-b"}
        with pytest.raises(WorkError, match=r"(?i)open"):
            old.write(rows_of(["d"]), replace=False)
        current.write(rows_of(["e"], fields={"year": [2]}, seed=2), replace=False)
        assert current.count().documents == 2

    def test_a_next_table_is_resumed_if_it_is_the_same(self, store, create):
        create(bound={"model": "old"})
        header = Header(DIM, {}, {"model": "new"})
        first = store.handle()
        first.begin(header).write(rows_of(["a"]), replace=False)
        first.close()
        again = store.handle()
        assert again.begin(header).digests(["a"]) == {"a": "d-a"}
        again.close()
        other = store.handle()
        assert other.begin(Header(DIM, {}, {"model": "third"})).count().documents == 0
        other.abandon()
        other.close()
        last = store.handle()
        assert last.begin(header).count().documents == 0
        last.abandon()
        last.close()
        assert dict(store.handle().open().header.bound) == {"model": "old"}

    # Pages, ties and recall of searches that do not compare everything.

    def test_pages_of_a_query_fit_together(self, create):
        """A deeper page searches more widely; additional results must not repeat a document."""
        n, dim = 2000, 24
        table = create({"group": "int"}, dim=dim)
        vectors = some_vectors(n, dim, seed=11)  # without clusters, so that a narrow search misses some
        ids = [f"doc-{i:04}" for i in range(n)]
        table.write(rows_of(ids, vectors=vectors, fields={"group": [i % 2 for i in range(n)]}), replace=False)
        table.compact()
        queries = some_vectors(40, dim, seed=12)
        for where in (None, Compare("group", "=", 0)):
            whole = [actual(each) for each in table.nearest(queries, 300, where=where)]
            assert all(len(set(each)) == 300 for each in whole)
            for k in (1, 10, 11, 50, 60, 250):
                part = [actual(each) for each in table.nearest(queries, k, where=where)]
                assert part == [each[:k] for each in whole], k

    def test_equal_vectors_come_by_id_however_many(self, create):
        n, dim = 1200, 16
        table = create(dim=dim)
        vectors = clusters(n, dim, seed=13)
        vectors[::2] = vectors[0]
        ids = random.Random(2).sample([f"{i:04}" for i in range(n)], n)
        table.write(rows_of(ids, vectors=vectors), replace=False)
        table.compact()
        lowest = sorted(ids[::2])
        for queries in (vectors[:1], vectors[:20:2], np.repeat(vectors[:1], 100, axis=0)):
            for options in ({}, {"exact": True}):
                for each in table.nearest(queries, 10, **options):
                    assert list(each.id) == lowest[:10]
        assert list(table.nearest(vectors[:1], 60)[0].id) == lowest[:60]

    def test_a_higher_recall_is_reached_if_requested(self, create):
        n, dim = 2500, 32
        table = create(dim=dim)
        rows = rows_of([f"doc-{i:04}" for i in range(n)], vectors=clusters(n, dim))
        table.write(rows, replace=False)
        table.compact()
        first, second, third = (rows.vector[start : start + 200] for start in (0, 900, 2000))
        # A graph differs from build to build, and recall is measured on a sample: what is found is only near the aim.
        for queries, options, least in (
            (first + 0.5 * second, {"recall": 0.99}, 0.98),
            (first + second + third, {"far": True}, 0.95),
            (first + second + third, {"recall": 0.99, "far": True}, 0.98),
            (first + second + third, {"recall": 1.0}, 1.0),
        ):
            answers = table.nearest(unit(queries), 10, **options)
            truth = [{name for name, _ in brute_force(query, rows, 10)} for query in unit(queries)]
            found = [len(set(answer.id) & names) / 10 for answer, names in zip(answers, truth, strict=True)]
            assert np.mean(found) >= least, options
        kinds = table.stats().details.get("recall", {})
        if table.stats().recall is not None:
            assert {name.partition(" (")[0] for name in kinds} >= {"like the stored texts", "unlike them"}
            assert all(0 <= value <= 1 for value in kinds.values())

    def test_a_batch_of_queries_finds_what_single_queries_find(self, create):
        table = create({"year": "int"})
        rows = rows_of(
            [f"doc-{i:03}" for i in range(400)],
            vectors=some_vectors(400, seed=2),
            fields={"year": [i % 5 for i in range(400)]},
        )
        table.write(rows, replace=False)
        table.delete(rows.id[7:20])
        queries = some_vectors(100, seed=7)
        for where in (None, Compare("year", "=", 3)):
            many = table.nearest(queries, 10, where=where, exact=True)
            for query, answer in zip(queries, many, strict=True):
                one = table.nearest(query[None], 10, where=where, exact=True)[0]
                assert actual(answer) == actual(one)
                assert (answer.score.tolist(), answer.text, answer.fields) == (
                    one.score.tolist(),
                    one.text,
                    one.fields,
                )
                assert np.array_equal(answer.vector, one.vector)

    # Further kinds of vectors.

    def test_kinds_of_vectors_are_read_back(self, create, reopen):
        table = create({"year": "int"}, kinds=KINDS)
        rows = with_kinds(rows_of([f"{i:02}" for i in range(30)], fields={"year": list(range(30))}))
        table.write(rows, replace=False)
        for each in (table, reopen()):
            assert each.header.kinds == KINDS and each.header.format == FORMAT
            got = each.get(rows.id, kinds=True)
            assert contents(got) == contents(rows) and got.kinds == rows.kinds
            assert each.get(rows.id).kinds == {} or isinstance(each, MemoryTable)
            scanned = [value for block in each.scan(block=7, kinds=True) for value in block.kinds["late"]]
            assert scanned == rows.kinds["late"]

    def test_rows_must_have_the_kinds_of_the_table(self, create):
        table = create(kinds={"sparse": KINDS["sparse"]})
        for rows in (rows_of(["a"]), with_kinds(rows_of(["a"]))):
            with pytest.raises(InputError, match="kinds of vectors sparse"):
                table.write(rows, replace=True)
        assert table.count() == Count(0, 0)

    def test_the_best_by_each_kind_are_those_of_plain_python(self, create, reopen):
        table = create({"year": "int"}, kinds=KINDS)
        ids = [f"d{i:03}" for i in range(120)]
        rows = with_kinds(rows_of(ids, fields={"year": [i % 5 for i in range(120)]}), seed=1)
        table.write(rows, replace=False)
        self._check_kinds(table, rows, ids, seed=2)
        gone, again = ids[10:30], ids[40:60]
        table.delete(gone)
        newer = with_kinds(rows_of(again, fields={"year": [9] * 20}, seed=5), seed=6)
        table.write(newer, replace=True)
        two = with_kinds(document("two", ["p0", "p1"], fields={"year": 2}), seed=7)
        table.write(two, replace=False)
        there = [each for each in [*ids, "two"] if each not in gone]
        rows = table.get(there, kinds=True)
        for each in (table, reopen()):
            self._check_kinds(each, rows, there, seed=8)
        table.compact()
        self._check_kinds(table, rows, there, seed=9)
        table.delete_where(Compare("year", "<", 4))
        left = [rows.id[n] for n in range(len(rows)) if rows.fields["year"][n] >= 4]
        self._check_kinds(reopen(), table.get(left, kinds=True), left, seed=10)

    def _check_kinds(self, table, rows, ids, seed):
        inside = {rows.id[n] for n in range(len(rows)) if rows.fields["year"][n] == 2}
        queries = {
            "sparse": [row for row in some_terms(12, seed) if len(row[0])],
            "late": [tokens for tokens in some_tokens(12, seed) if len(tokens)],
        }
        for kind, asked in queries.items():
            for exact in (False, True):
                found = table.by_kind(kind, asked, 15, exact=exact)
                for query, passages in zip(asked, found, strict=True):
                    assert actual(passages) == best_by_kind(kind, query, rows, 15)
                    assert sorted(passages.score.tolist(), reverse=True) == passages.score.tolist()
            some = table.by_kind(kind, asked, 400, where=Compare("year", "=", 2))
            for query, passages in zip(asked, some, strict=True):
                assert actual(passages) == best_by_kind(kind, query, rows, 400, inside)
                assert set(passages.fields["year"]) <= {2} and passages.exact

    def test_an_empty_table_answers_by_every_kind(self, create):
        table = create(kinds=KINDS)
        assert [len(each) for each in table.by_kind("sparse", some_terms(2), 5)] == [0, 0]
        assert [len(each) for each in table.by_kind("late", [np.ones((2, 6), np.float32)], 5)] == [0]
        assert table.by_kind("late", [], 5) == []
        assert table.stats().details["kinds"].keys() == KINDS.keys()

    def test_a_table_without_dense_vectors_works(self, create, reopen):
        table = create({"year": "int"}, dim=0, kinds={"sparse": KINDS["sparse"]})
        nothing = np.empty((9, 0), np.float32)
        ids = [f"{i}" for i in range(9)]
        plain = rows_of(ids, vectors=nothing, fields={"year": list(range(9))})
        rows = with_kinds(plain, seed=3, kinds=["sparse"])
        table.write(rows, replace=False)
        for each in (table, reopen()):
            assert each.header.dim == 0
            assert each.get(ids).vector.shape == (9, 0)
            assert actual(each.by_words("text", 2)) == [("0", 0), ("1", 0)]
            with pytest.raises(InputError, match="no dense vectors"):
                each.nearest(np.ones((1, 4), np.float32), 3)
            query = some_terms(5, 11)[0]
            assert actual(each.by_kind("sparse", [query], 9)[0]) == best_by_kind("sparse", query, rows, 9)
        table.delete(["3"])
        table.compact()
        assert table.faults() == []
        assert table.stats().passages == 8

    def test_a_next_table_of_other_kinds_is_begun_again(self, store, create):
        create()
        first = store.handle()
        header = Header(DIM, {}, {}, kinds=KINDS)
        first.begin(header).write(with_kinds(rows_of(["a"])), replace=False)
        first.close()
        again = store.handle()
        assert again.begin(header).digests(["a"]) == {"a": "d-a"}
        again.close()
        last = store.handle()
        assert last.begin(Header(DIM, {}, {})).count().documents == 0
        last.abandon()
        last.close()
