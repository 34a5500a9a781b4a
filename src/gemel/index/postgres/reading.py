"""Documents as they are stored: by id, in order, counted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC
from functools import partial
from typing import Any

import numpy as np

from gemel.index.port import Count, FieldType, FieldValue, Passages, Rows
from gemel.index.postgres.binary import vectors_of
from gemel.index.postgres.columns import column_of, qualified
from gemel.index.postgres.filters import Filter
from gemel.index.postgres.server import Connection, Server
from gemel.types import Vectors

Cells = Sequence[Sequence[Any]]
_OURS = ("id", "part", "text", "digest", "vector")


def columns_sql(fields: Mapping[str, FieldType]) -> Any:  # noqa: ANN401 - psycopg.sql is loaded late
    """id, part, text, digest, vector, then the fields in order."""
    from psycopg.sql import SQL, Identifier

    return SQL(", ").join(Identifier(name) for name in [*_OURS, *map(column_of, fields)])


def fetch(connection: Connection, statement: Any, parameters: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """Rows in binary: vectors as bytes."""
    with connection.cursor(binary=True) as cursor:
        found: list[Any] = cursor.execute(statement, parameters).fetchall()
    return found


def rows_from(cells: Cells, fields: Mapping[str, FieldType], dim: int) -> Rows:
    return Rows(
        id=[row[0] for row in cells],
        part=np.array([row[1] for row in cells], dtype=np.int32),
        text=[row[2] for row in cells],
        digest=[row[3] for row in cells],
        vector=vectors_of([row[4] for row in cells], dim),
        fields={
            name: _values([row[place] for row in cells], fields[name])
            for place, name in enumerate(fields, len(_OURS))
        },
    )


def _values(cells: list[Any], kind: FieldType) -> list[FieldValue]:
    """Times come in the zone of the session."""
    if kind == "datetime":
        return [None if each is None else each.astimezone(UTC) for each in cells]
    if kind == "datetimes":
        return [None if each is None else [inner.astimezone(UTC) for inner in each] for each in cells]
    return cells


def passages_from(rows: Rows, order: Sequence[int], score: Vectors) -> Passages:
    """The rows at the places of `order`; `score` is in that order already."""
    return Passages(
        id=[rows.id[place] for place in order],
        part=rows.part[list(order)],
        text=[rows.text[place] for place in order],
        fields={name: [values[place] for place in order] for name, values in rows.fields.items()},
        score=score,
        vector=rows.vector[list(order)],
    )


def known(connection: Connection, table: str, ids: Sequence[str]) -> dict[str, str]:
    from psycopg.sql import SQL

    statement = SQL("SELECT id, digest FROM {} WHERE id = ANY(%s) AND part = 0").format(qualified(table))
    return dict(connection.execute(statement, [list(ids)]).fetchall())


def get(
    connection: Connection, table: str, fields: Mapping[str, FieldType], dim: int, ids: Sequence[str]
) -> Rows:
    from psycopg.sql import SQL

    asked = {each: place for place, each in enumerate(dict.fromkeys(ids))}
    statement = SQL("SELECT {} FROM {} WHERE id = ANY(%s)").format(columns_sql(fields), qualified(table))
    cells = fetch(connection, statement, [list(asked)])
    cells.sort(key=lambda row: (asked[row[0]], row[1]))
    return rows_from(cells, fields, dim)


def count(connection: Connection, table: str, where: Filter) -> Count:
    from psycopg.sql import SQL

    statement = SQL("SELECT count(*) FILTER (WHERE part = 0), count(*) FROM {} WHERE {}")
    row = connection.execute(statement.format(qualified(table), where.sql), where.parameters).fetchone()
    return Count(documents=row[0], passages=row[1])


def scan(
    server: Server, table: str, fields: Mapping[str, FieldType], dim: int, after: str | None, block: int
) -> Iterator[Rows]:
    """Pages of whole documents; each page is a read of its own, begun behind the last id of the one before."""
    last = "" if after is None else after  # no id is empty
    while True:
        ask = partial(_page, table=table, fields=fields, dim=dim, after=last, block=block)
        rows = server.read(ask)
        if not len(rows):
            return
        yield rows
        last = rows.id[-1]


def _page(
    connection: Connection, *, table: str, fields: Mapping[str, FieldType], dim: int, after: str, block: int
) -> Rows:
    """At most `block` passages of whole documents; a document of more is a page of its own."""
    from psycopg.sql import SQL

    statement = SQL("SELECT {} FROM {} WHERE id > %s ORDER BY id, part LIMIT %s").format(
        columns_sql(fields), qualified(table)
    )
    cells = fetch(connection, statement, [after, block + 1])
    if len(cells) > block:  # the last document may go on behind the page
        whole = [row for row in cells if row[0] != cells[-1][0]]
        if not whole:
            return get(connection, table, fields, dim, [cells[0][0]])
        cells = whole
    return rows_from(cells, fields, dim)
