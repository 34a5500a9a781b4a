"""Conditions in the languages of the tables, against `matches`: Arrow masks and PostgreSQL's SQL."""

from datetime import date

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gemel.index.where import matches
from gemel.index.where_parse import parse_where
from where_strategies import CONDITIONS, ROWS

FIELDS = {"lang": "text", "year": "int", "price": "float", "open": "bool", 'a "b"': "int", "tags": "texts"}
FIELDS |= {"sizes": "ints", "day": "date"}
TYPES = {
    "lang": "text",
    "year": "int",
    "price": "float",
    "open": "bool",
    "id": "text",
    "day": "date",
    "at": "datetime",
    "tags": "texts",
    "sizes": "ints",
    "days": "dates",
    "moments": "datetimes",
}


class TestArrow:
    """Masks of Arrow columns, against `matches`."""

    def columns(self, rows):
        import pyarrow as pa

        from gemel.index.lance.columns import arrow_type

        return {name: pa.array([row[name] for row in rows], arrow_type(kind)) for name, kind in TYPES.items()}

    @settings(max_examples=100, deadline=None)
    @given(CONDITIONS, st.lists(ROWS, min_size=1, max_size=8), st.booleans())
    def test_a_mask_is_what_matches_says(self, condition, rows, chunked):
        pa = pytest.importorskip("pyarrow")
        from gemel.index.lance.columns import mask

        columns = self.columns(rows)
        if chunked:
            columns = {name: pa.chunked_array([c.slice(0, 2), c.slice(2)]) for name, c in columns.items()}
        assert mask(condition, columns).tolist() == [matches(condition, row) for row in rows]


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
            ("tags contains 'x'", '"f_tags" @> ARRAY[%s]::text[]', ("x",)),
            ("sizes not contains 3", 'NOT "f_sizes" @> ARRAY[%s]::bigint[]', (3,)),
            ("lang like 'a%'", '"f_lang" COLLATE "C" LIKE %s', ("a%",)),
            ("id not like '_b'", '"id" COLLATE "C" NOT LIKE %s', ("_b",)),
            ("lang contains '10%'", '"f_lang" COLLATE "C" LIKE %s', ("%10\\%%",)),
            ("day >= '2024-02-29'", '"f_day" >= %s', (date(2024, 2, 29),)),
            ('"a ""b""" = 1', '"f_a ""b""" = %s', (1,)),
        ],
    )
    def test_every_value_is_a_parameter(self, where, sql, parameters):
        pytest.importorskip("psycopg", reason="needs the extra postgres")
        from gemel.index.postgres.schema import to_postgres

        compiled = to_postgres(parse_where(where, FIELDS))
        assert compiled.sql.as_string(None) == sql
        assert compiled.parameters == parameters
