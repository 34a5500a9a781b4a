"""The columns of a table: ours, and the user's with the prefix f_, so that a field may be called "text"."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gemel.errors import InputError
from gemel.index.port import LISTS, FieldType

SCHEMA = "gemel"
OURS = ("id", "part", "text", "digest", "vector", "words", "length")
"""As they are copied in; `number` counts the rows as they come and is the server's."""
MOST_DIM = 16_000  # numbers in a `vector`
PREFIX = (
    100  # characters of a text field that its index holds: PostgreSQL takes no more than 2,700 bytes there
)
_LONGEST_NAME = 61  # bytes; PostgreSQL cuts names at 63, and two are the prefix
_TYPES: Mapping[FieldType, str] = {
    "text": 'text COLLATE "C"',
    "int": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "date": "date",
    "datetime": "timestamptz",
    "texts": 'text[] COLLATE "C"',
    "ints": "bigint[]",
    "floats": "double precision[]",
    "bools": "boolean[]",
    "dates": "date[]",
    "datetimes": "timestamptz[]",
}


def column_of(field: str) -> str:
    """The column that holds a field; `id` is ours."""
    return "id" if field == "id" else f"f_{field}"


def check_fields(fields: Mapping[str, FieldType]) -> None:
    for name in fields:
        if len(name.encode()) > _LONGEST_NAME:
            raise InputError(
                f"the field {name!r} has a name of {len(name.encode())} bytes; PostgreSQL holds {_LONGEST_NAME}"
            )


def qualified(name: str) -> Any:  # noqa: ANN401 - psycopg.sql is loaded late
    """A table or index of our schema, quoted."""
    from psycopg.sql import Identifier

    return Identifier(SCHEMA, name)


def create_table(table: str, dim: int, fields: Mapping[str, FieldType]) -> list[Any]:
    """Statements that make an empty table with all its indexes but the one of the vectors.

    `id` is collated by code points, as Python sorts. The vector stays in its row as long as the row fits a page
    (storage main): comparing all rows then reads pages in order.
    """
    from psycopg.sql import SQL, Literal

    if not 1 <= dim <= MOST_DIM:
        raise InputError(f"PostgreSQL holds vectors of 1 to {MOST_DIM:,} numbers, not of {dim:,}")
    check_fields(fields)
    made = SQL(
        "CREATE TABLE {table} (number bigint GENERATED ALWAYS AS IDENTITY,"
        ' id text COLLATE "C" NOT NULL, part integer NOT NULL, text text NOT NULL,'
        ' digest text COLLATE "C" NOT NULL, vector vector({dim}) STORAGE MAIN NOT NULL,'
        " words tsvector NOT NULL, length integer NOT NULL, PRIMARY KEY (id, part))"
    ).format(table=qualified(table), dim=Literal(dim))
    on_number = SQL("CREATE UNIQUE INDEX ON {} (number) INCLUDE (length)").format(qualified(table))
    on_words = SQL("CREATE INDEX ON {} USING gin (words)").format(qualified(table))
    return [made, on_number, on_words, *add_columns(table, fields)]


def add_columns(table: str, fields: Mapping[str, FieldType]) -> list[Any]:
    """Statements that add null columns and an index on each, so that a rare value is found without a scan."""
    from psycopg.sql import SQL, Identifier, Literal

    check_fields(fields)
    statements = []
    for name, kind in fields.items():
        column = Identifier(column_of(name))
        statements.append(
            SQL("ALTER TABLE {} ADD COLUMN {} " + _TYPES[kind]).format(qualified(table), column)
        )
        key = SQL("left({}, {})").format(column, Literal(PREFIX)) if kind == "text" else column
        way = SQL("USING gin " if kind in LISTS else "")
        statements.append(SQL("CREATE INDEX ON {} {}({})").format(qualified(table), way, key))
    return statements
