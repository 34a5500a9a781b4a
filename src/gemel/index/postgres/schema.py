"""The SQL schema of an index: its catalog (one row per table), the columns of a table, and conditions on them.

The user's fields are columns with the prefix f_, so that a field may be called "text". Every value of a condition is a
parameter.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from gemel.errors import InputError, WorkError
from gemel.index.fields import KINDS
from gemel.index.port import FORMAT, LISTS, FieldType, Header, kinds_of
from gemel.index.postgres.server import Connection
from gemel.index.where import (
    Both,
    Compare,
    Condition,
    Contains,
    Either,
    IsNull,
    Like,
    Not,
    OneOf,
    escape_like,
    links,
    pushed,
)
from gemel.vectors.bm25 import WordRules

State = Literal["current", "next"]

_WORDS: Mapping[type[Both | Either], str] = {Both: " AND ", Either: " OR "}

OLDEST_PGVECTOR = (0, 8, 0)  # iterative scans

_SCHEMA = (
    "CREATE SCHEMA IF NOT EXISTS gemel",
    "CREATE SEQUENCE IF NOT EXISTS gemel.generations",
    # json, not jsonb: the order of the fields is kept
    "CREATE TABLE IF NOT EXISTS gemel.indexes (name text, state text, relation text NOT NULL,"
    " format integer NOT NULL, header json NOT NULL, PRIMARY KEY (name, state))",
    "CREATE TABLE IF NOT EXISTS gemel.writes (token uuid PRIMARY KEY,"
    " result bigint NOT NULL DEFAULT 0, at timestamptz NOT NULL DEFAULT now())",
)


@dataclass(frozen=True)
class Entry:
    """A table of an index."""

    relation: str
    """Its name in the schema; never used twice."""
    header: Header


def lock_key(*names: str | int) -> int:
    """The number of an advisory lock: 64 bits of a hash, so two locks are one by no more than an accident."""
    digest = hashlib.sha256("\0".join(["gemel", *map(str, names)]).encode()).digest()
    return int.from_bytes(digest[:8], "big", signed=True)


def find(connection: Connection, name: str, state: State, shown: str) -> Entry | None:
    """The table of an index, if there is one and this version of gemel can read it."""
    if connection.execute("SELECT to_regclass('gemel.indexes')").fetchone()[0] is None:
        return None
    row = connection.execute(
        "SELECT relation, format, header FROM gemel.indexes WHERE name = %s AND state = %s", [name, state]
    ).fetchone()
    if row is None:
        return None
    if row[1] > FORMAT:
        raise InputError(
            f"{shown} was written by a newer gemel: its format is {row[1]}, this version reads up to {FORMAT}. "
            "Upgrade gemel"
        )
    return Entry(row[0], _header(row[2], row[1]))


def names(connection: Connection) -> list[str]:
    """Of all indexes in the database."""
    if connection.execute("SELECT to_regclass('gemel.indexes')").fetchone()[0] is None:
        return []
    rows = connection.execute(
        "SELECT name FROM gemel.indexes WHERE state = 'current' ORDER BY name"
    ).fetchall()
    return [name for (name,) in rows]


def add(connection: Connection, name: str, state: State, header: Header) -> Entry:
    """A new, empty table; in the transaction of the caller."""
    number = connection.execute("SELECT nextval('gemel.generations')").fetchone()[0]
    relation = f"{name}-{number}"
    header = replace(header, format=0)  # a table of an older format is migrated to the newest
    for statement in create_table(relation, header):
        connection.execute(statement)
    connection.execute(
        "INSERT INTO gemel.indexes (name, state, relation, format, header) VALUES (%s, %s, %s, %s, %s)",
        [name, state, relation, header.format, _json(header)],
    )
    return Entry(relation, header)


def drop(connection: Connection, relation: str) -> None:
    connection.execute("DELETE FROM gemel.indexes WHERE relation = %s", [relation])
    connection.execute(sql("DROP TABLE IF EXISTS {}", qualified(relation)))


def read_header(connection: Connection, relation: str) -> Header | None:
    row = connection.execute(
        "SELECT header, format FROM gemel.indexes WHERE relation = %s", [relation]
    ).fetchone()
    return None if row is None else _header(*row)


def set_fields(
    connection: Connection, relation: str, header: Header, fields: Mapping[str, FieldType]
) -> None:
    connection.execute(
        "UPDATE gemel.indexes SET header = %s WHERE relation = %s",
        [_json(replace(header, fields=fields)), relation],
    )


def prepare(connection: Connection, shown: str) -> None:
    """pgvector and our schema are there when this returns; in the transaction of the caller."""
    connection.execute("SELECT pg_advisory_xact_lock(%s)", [lock_key("schema")])
    encoding = connection.execute("SHOW server_encoding").fetchone()[0]
    if encoding != "UTF8":
        raise InputError(f"the database of {shown} has the encoding {encoding}; an index needs UTF8")
    _check_pgvector(connection, shown)
    if connection.execute("SELECT to_regclass('gemel.writes')").fetchone()[0] is None:
        for statement in _SCHEMA:
            connection.execute(statement)


def _check_pgvector(connection: Connection, shown: str) -> None:
    from psycopg import Error

    statement = "SELECT default_version, installed_version FROM pg_available_extensions WHERE name = 'vector'"
    row = connection.execute(statement).fetchone()
    if row is None:
        raise WorkError(
            f"the server of {shown} has no pgvector. Install it there (on Debian and Ubuntu: "
            "apt install postgresql-18-pgvector, with the server's version), then run: CREATE EXTENSION vector"
        )
    available, installed = row
    if installed is None:
        try:
            connection.execute("CREATE EXTENSION vector")
        except Error as error:
            raise WorkError(
                f"the database of {shown} has no extension vector, and this user may not make it. "
                "Let the owner or a superuser run once in that database: CREATE EXTENSION vector"
            ) from error
        installed = available
    if _version(installed) < OLDEST_PGVECTOR:
        raise WorkError(
            f"the database of {shown} has pgvector {installed}, an index needs 0.8 or later. "
            "Install it on the server, then run: ALTER EXTENSION vector UPDATE"
        )


def _version(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(".") if part.isdigit())


def _header(stored: Mapping[str, Any], number: int) -> Header:
    return Header(
        dim=stored["dim"],
        fields=dict(stored["fields"]),
        bound=stored["bound"],
        format=number,
        words=WordRules.from_json(stored.get("words")),
        kinds=kinds_of(stored),
        mode=stored.get("mode"),
    )


def _json(header: Header) -> str:
    about = {"dim": header.dim, "fields": dict(header.fields), "bound": dict(header.bound), **header.extras()}
    return json.dumps(about if header.format == 1 else about | {"words": header.words.to_json()})


SCHEMA = "gemel"

_OURS = ("id", "part", "text", "digest", "words", "length")


def own_columns(header: Header) -> list[str]:
    """As they are copied in; `number` counts the rows as they come and is the server's."""
    return [*_OURS, *(("vector",) if header.dim else ()), *map(kind_column, header.kinds)]


def kind_column(kind: str) -> str:
    """The column of a kind of vectors; no field is called so."""
    return f"k_{kind}"


MOST_DIM = 16_000  # numbers in a `vector`

PREFIX = 100
"""Characters of a text field that its index holds: PostgreSQL takes no more than 2,700 bytes there."""

_LONGEST_NAME = 61  # bytes; PostgreSQL cuts names at 63, and two are the prefix

_TYPES: Mapping[FieldType, str] = {
    "text": "text",
    "int": "bigint",
    "float": "double precision",
    "bool": "boolean",
    "date": "date",
    "datetime": "timestamptz",
}


def _column_type(kind: FieldType) -> str:
    name = f"{_TYPES[LISTS[kind]]}[]" if kind in LISTS else _TYPES[kind]
    return f'{name} COLLATE "C"' if name.startswith("text") else name


def column_of(field: str) -> str:
    """The column that holds a field; `id` is ours."""
    return "id" if field == "id" else f"f_{field}"


def check_fields(fields: Mapping[str, FieldType]) -> None:
    """InputError for a name that a column cannot have."""
    for name in fields:
        if len(name.encode()) > _LONGEST_NAME:
            raise InputError(
                f"the field {name!r} has a name of {len(name.encode())} bytes; PostgreSQL holds {_LONGEST_NAME}"
            )


def sql(text: str, *parts: Any, **named: Any) -> Any:  # noqa: ANN401 - psycopg.sql is loaded late
    """SQL with `parts` in its braces: other SQL, identifiers, or values as literals."""
    from psycopg.sql import SQL

    return SQL(text).format(*parts, **named)


def joined_sql(between: str, parts: Iterable[Any]) -> Any:  # noqa: ANN401
    """The parts with `between` between them."""
    from psycopg.sql import SQL

    return SQL(between).join(parts)


def identifier(*names: str) -> Any:  # noqa: ANN401
    """A column, or a qualified name, quoted."""
    from psycopg.sql import Identifier

    return Identifier(*names)


def qualified(name: Any) -> Any:  # noqa: ANN401
    """A table or index of our schema, quoted; SQL that stands for a table is returned as it is."""
    return identifier(SCHEMA, name) if isinstance(name, str) else name


def create_table(table: str, header: Header) -> list[Any]:
    """Statements that make an empty table with all its indexes but the one of the vectors.

    `id` is collated by code points, as Python sorts. The vector stays in its row as long as the row fits a page
    (storage main): comparing all rows then reads pages in order. Weights of words are a `sparsevec`, which the server
    compares; the vectors of tokens are bytes, of numbers that do not get smaller by compression.
    """
    if header.dim > MOST_DIM:
        raise InputError(f"PostgreSQL holds vectors of 1 to {MOST_DIM:,} numbers, not of {header.dim:,}")
    made = sql(
        "CREATE TABLE {table} (number bigint GENERATED ALWAYS AS IDENTITY,"
        ' id text COLLATE "C" NOT NULL, part integer NOT NULL, text text NOT NULL,'
        ' digest text COLLATE "C" NOT NULL, words tsvector NOT NULL, length integer NOT NULL, PRIMARY KEY (id, part))',
        table=qualified(table),
    )
    vectors = [("vector", sql("vector({}) STORAGE MAIN", header.dim))] if header.dim else []
    for kind, each in header.kinds.items():
        kept = sql("bytea STORAGE EXTERNAL") if kind == "late" else sql("sparsevec({})", each.dim)
        vectors.append((kind_column(kind), kept))
    added = [
        sql("ALTER TABLE {} ADD COLUMN {} {} NOT NULL", qualified(table), identifier(name), kept)
        for name, kept in vectors
    ]
    on_number = sql("CREATE UNIQUE INDEX ON {} (number) INCLUDE (length)", qualified(table))
    on_words = sql("CREATE INDEX ON {} USING gin (words)", qualified(table))
    return [made, *added, on_number, on_words, *add_columns(table, header.fields)]


def add_columns(table: str, fields: Mapping[str, FieldType]) -> list[Any]:
    """Statements that add null columns and an index on each, so that a rare value is found without a scan."""
    check_fields(fields)
    statements = []
    for name, kind in fields.items():
        column = identifier(column_of(name))
        statements.append(sql("ALTER TABLE {} ADD COLUMN {} " + _column_type(kind), qualified(table), column))
        key = sql("left({}, {})", column, PREFIX) if kind == "text" else column
        method = "USING gin " if kind in LISTS else ""
        statements.append(sql("CREATE INDEX ON {} " + method + "({})", qualified(table), key))
    return statements


@dataclass(frozen=True, eq=False)
class Filter:
    """An SQL condition, for WHERE."""

    sql: Any
    """A psycopg Composable."""
    parameters: tuple[Any, ...] = ()
    """For its placeholders, in order."""


def filter_of(condition: Condition | None, fields: Mapping[str, FieldType]) -> Filter:
    """The condition, with a hint for the indexes where there is one; `condition` None: every row."""
    if condition is None:
        return Filter(sql("true"))
    compiled, hint = to_postgres(condition), _hint(condition, fields)
    return compiled if hint is None else _joined(" AND ", [hint, compiled])


def to_postgres(condition: Condition) -> Filter:
    """The condition over the columns of a table; texts are ordered by code points, whatever the server's locale is."""
    return _compiled(pushed(condition))


def _compiled(condition: Condition) -> Filter:
    if isinstance(condition, Both | Either):
        join = type(condition)
        return _joined(_WORDS[join], [_compiled(part) for part in links(condition, join)])
    if isinstance(condition, Not):
        return _leaf(condition.inner, negated=True)
    return _leaf(condition, negated=False)


def _joined(word: str, parts: Sequence[Filter]) -> Filter:
    joined = joined_sql(word, [part.sql for part in parts])
    return Filter(sql("({})", joined), tuple(value for part in parts for value in part.parameters))


def _leaf(condition: Condition, *, negated: bool) -> Filter:
    assert isinstance(condition, Compare | OneOf | IsNull | Contains | Like), (
        "`pushed` leaves `not` before lists and nulls only"
    )
    column = identifier(column_of(condition.field))
    if isinstance(condition, IsNull):
        return Filter(sql("{} IS NOT NULL" if negated else "{} IS NULL", column))
    if isinstance(condition, OneOf):
        if not condition.values:
            return Filter(sql("true" if negated else "false"))
        return Filter(sql("{} <> ALL(%s)" if negated else "{} = ANY(%s)", column), (list(condition.values),))
    if isinstance(condition, Contains):
        # `@>` and not `= ANY`: the index of lists answers it.
        holds = "{} @> ARRAY[%s]::" + _TYPES[KINDS[type(condition.value)]] + "[]"
        return Filter(sql("NOT " + holds if negated else holds, column), (condition.value,))
    if isinstance(condition, Like):
        sign = "NOT LIKE" if negated else "LIKE"
        return Filter(sql(f'{{}} COLLATE "C" {sign} %s', column), (condition.pattern,))
    ordered = isinstance(condition.value, str) and condition.operator not in ("=", "!=")
    sign = "<>" if condition.operator == "!=" else condition.operator
    return Filter(
        sql(f'{{}} COLLATE "C" {sign} %s' if ordered else f"{{}} {sign} %s", column), (condition.value,)
    )


def _hint(condition: Condition, fields: Mapping[str, FieldType]) -> Filter | None:
    """Something that is true wherever the condition is, in the words of the indexes on the beginnings of texts."""
    if isinstance(condition, Both | Either):
        left, right = _hint(condition.left, fields), _hint(condition.right, fields)
        if left is None or right is None:
            return (left or right) if isinstance(condition, Both) else None
        return _joined(_WORDS[type(condition)], [left, right])
    if not isinstance(condition, Compare | OneOf | Like) or fields.get(condition.field) != "text":
        return None
    beginning = sql("left({}, {})", identifier(column_of(condition.field)), PREFIX)
    if isinstance(condition, Like):
        start = condition.start[:PREFIX]
        return Filter(sql("{} LIKE %s", beginning), (escape_like(start) + "%",)) if start else None
    if isinstance(condition, OneOf):
        values = sorted({str(value)[:PREFIX] for value in condition.values})
        return Filter(sql("{} = ANY(%s::text[])", beginning), (values,))
    if condition.operator != "=":
        return None
    return Filter(sql("{} = %s", beginning), (str(condition.value)[:PREFIX],))
