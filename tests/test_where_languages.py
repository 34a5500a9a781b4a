"""Conditions in the languages of the tables, against `matches`: Arrow masks, Lance's filters, PostgreSQL's SQL."""

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemel.index.where import Both, Compare, Either, IsNull, Not, OneOf, chain, matches
from gemel.index.where_parse import parse_where
from where_strategies import CONDITIONS, ROWS, TEXTS

FIELDS = {"lang": "text", "year": "int", "price": "float", "open": "bool", 'a "b"': "int"}
TYPES = {"lang": "string", "year": "int64", "price": "float64", "open": "bool_", "id": "string"}


class TestArrow:
    """Masks of Arrow columns and the filters of Lance, against `matches`."""

    @pytest.fixture
    def lance(self):
        return pytest.importorskip("lance", reason="needs the extra index")

    def columns(self, rows):
        import pyarrow as pa

        return {
            name: pa.array([row[name] for row in rows], getattr(pa, kind)()) for name, kind in TYPES.items()
        }

    @settings(max_examples=100, deadline=None)
    @given(CONDITIONS, st.lists(ROWS, min_size=1, max_size=8), st.booleans())
    def test_a_mask_is_what_matches_says(self, condition, rows, chunked):
        pa = pytest.importorskip("pyarrow")
        from gemel.index.lance.where import mask

        columns = self.columns(rows)
        if chunked:
            columns = {name: pa.chunked_array([c.slice(0, 2), c.slice(2)]) for name, c in columns.items()}
        assert mask(condition, columns).tolist() == [matches(condition, row) for row in rows]

    def dataset(self, lance, folder, rows):
        import pyarrow as pa

        from gemel.index.lance.columns import column_of

        names = {name: name if name == "id" else column_of(name) for name in TYPES}
        table = pa.table({names[name]: column for name, column in self.columns(rows).items()})
        return lance.write_dataset(table, str(folder), mode="overwrite")

    def test_lance_filters_as_matches_says(self, lance, tmp_path):
        from gemel.index.lance.where import to_lance

        @settings(max_examples=50, deadline=None)
        @given(st.lists(ROWS, min_size=1, max_size=8), st.lists(CONDITIONS, min_size=1, max_size=4))
        def law(rows, conditions):
            rows = [{**row, "id": f"{place}{row['id']}"} for place, row in enumerate(rows)]
            dataset = self.dataset(lance, tmp_path / "law", rows)
            for condition in conditions:
                got = dataset.to_table(columns=["id"], filter=to_lance(condition))["id"].to_pylist()
                assert got == [row["id"] for row in rows if matches(condition, row)], to_lance(condition)

        law()

    def test_no_text_gets_out_of_its_quotes_in_lance(self, lance, tmp_path):
        from gemel.index.lance.where import to_lance

        @settings(max_examples=50, deadline=None)
        @given(st.lists(st.text(max_size=12) | TEXTS, min_size=2, max_size=6, unique=True))
        def law(texts):
            rows = [
                {"id": str(i), "lang": text, "year": i, "price": 0.5, "open": True}
                for i, text in enumerate(texts)
            ]
            dataset = self.dataset(lance, tmp_path / "quotes", rows)
            for row in rows:
                wanted = to_lance(Compare("lang", "=", row["lang"]))
                assert dataset.to_table(filter=wanted)["id"].to_pylist() == [row["id"]]
                others = to_lance(Not(OneOf("lang", (row["lang"], "no"))))
                left = [each["id"] for each in rows if each is not row and each["lang"] != "no"]
                assert dataset.to_table(filter=others)["id"].to_pylist() == left

        law()

    def test_lance_reads_the_largest_conditions_quickly(self, lance, tmp_path):
        from gemel.index.lance.where import to_lance

        rows = [{"id": str(i), "lang": "en", "year": i, "price": 0.5, "open": True} for i in range(60)]
        dataset = self.dataset(lance, tmp_path / "large", rows)
        deep = Compare("lang", "=", "en")
        for level in range(25):
            deep = Not(
                Either(deep, Compare("year", "=", level))
                if level % 2
                else Both(deep, Compare("year", ">=", 20))
            )
        turns = Compare("year", "=", 59)
        for level in range(50):
            turns = (Either, Both)[level % 2](turns, Compare("year", ">=", level))
        wide = chain([Both(Compare("year", ">", i), Compare("year", "<", i + 2)) for i in range(500)], Either)
        long = OneOf("year", tuple(range(30, 10_030)))
        started = time.monotonic()
        for condition in (
            parse_where(deep, FIELDS),
            parse_where(wide, FIELDS),
            parse_where(long, FIELDS),
            parse_where("not " * 50 + "year = 3", FIELDS),
            parse_where(turns, FIELDS),
        ):
            got = dataset.to_table(columns=["id"], filter=to_lance(condition))["id"].to_pylist()
            assert got == [row["id"] for row in rows if matches(condition, row)]
        assert time.monotonic() - started < 10

    def test_a_strange_name_stays_a_name_in_lance(self, lance, tmp_path):
        import pyarrow as pa

        from gemel.index.lance.columns import column_of
        from gemel.index.lance.where import to_lance

        names = ["text", "select", "Größe", "a b", "a-b", "UPPER", "a'b", 'a"b', "a`b", "a.b", "a;b", "%"]
        table = pa.table({"id": ["x", "y"]} | {column_of(name): [1, None] for name in names})
        dataset = lance.write_dataset(table, str(tmp_path / "names"))
        for name in names:
            assert dataset.to_table(filter=to_lance(Compare(name, "=", 1)))["id"].to_pylist() == ["x"]
            assert dataset.to_table(filter=to_lance(IsNull(name)))["id"].to_pylist() == ["y"]


class TestPostgres:
    """The text of the SQL; tests of the table run it on a server."""

    @pytest.mark.parametrize(
        ("where", "sql", "parameters"),
        [
            ("lang = 'it''s'", '"f_lang" = %s', ("it's",)),
            ("lang > 'a'", '"f_lang" COLLATE "C" > %s', ("a",)),
            ("year != 3", '"f_year" <> %s', (3,)),
            ("year in (1, 2)", '"f_year" = ANY(%s)', ([1, 2],)),
            ("year not in (1, 2)", '"f_year" <> ALL(%s)', ([1, 2],)),
            ("year in ()", "false", ()),
            ("year not in ()", "true", ()),
            ("open is null", '"f_open" IS NULL', ()),
            ("id = 'a' and open is not null", '("id" = %s AND "f_open" IS NOT NULL)', ("a",)),
            (
                "not (lang = 'x' or (year < 1 and open = true))",
                '("f_lang" <> %s AND ("f_year" >= %s OR "f_open" <> %s))',
                ("x", 1, True),
            ),
            ('"a ""b""" = 1', '"f_a ""b""" = %s', (1,)),
        ],
    )
    def test_every_value_is_a_parameter(self, where, sql, parameters):
        pytest.importorskip("psycopg", reason="needs the extra postgres")
        from gemel.index.postgres.where import to_postgres

        compiled = to_postgres(parse_where(where, FIELDS))
        assert compiled.sql.as_string(None) == sql
        assert compiled.parameters == parameters
