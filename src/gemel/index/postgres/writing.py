"""Documents into a table and out of it. Each function works inside the transaction of `Server.write`.

Writers of different documents do not wait for one another, those of the same document do: each takes the locks of its
ids, in one order, so that no two wait in a circle. All share one lock more, which a migration takes for itself alone.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

from gemel.errors import InputError, WorkError
from gemel.index.field_types import new_fields
from gemel.index.port import FieldType
from gemel.index.postgres.binary import copy_into
from gemel.index.postgres.catalog import lock_key, read_header, set_fields
from gemel.index.postgres.columns import OURS, add_columns, column_of, qualified
from gemel.index.postgres.filters import Filter
from gemel.index.postgres.server import Connection

_LOCKS = 16  # a lock is for every sixteenth id: enough for writers at once, few enough to take all


def lock_writes(connection: Connection, table: str, ids: Sequence[str] | None) -> None:
    """Until the transaction ends; `ids` None: all ids."""
    chosen = range(_LOCKS) if ids is None else sorted({zlib.crc32(each.encode()) % _LOCKS for each in ids})
    connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", [lock_key("write", table)])
    connection.execute(
        "SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS keys (key)",
        [[lock_key("ids", table, each) for each in chosen]],
    )


def put(
    connection: Connection,
    table: str,
    ids: Sequence[str],
    blocks: Sequence[bytes],
    fields: Sequence[str],
    *,
    replace: bool,
) -> None:
    """The copied rows in place of what these ids had; without `replace` an id that has something is refused."""
    from psycopg.sql import SQL, Identifier

    lock_writes(connection, table, ids)
    if replace:
        gone = SQL("DELETE FROM {} WHERE id = ANY(%s)").format(qualified(table))
        connection.execute(gone, [list(ids)])
    else:
        there = SQL("SELECT id FROM {} WHERE id = ANY(%s) ORDER BY id LIMIT 1").format(qualified(table))
        row = connection.execute(there, [list(ids)]).fetchone()
        if row is not None:
            raise InputError(f"{row[0]!r} is there already. Use existing='replace' or 'skip'")
    names = [*OURS, *map(column_of, fields)]
    statement = SQL("COPY {} ({}) FROM STDIN (FORMAT binary)").format(
        qualified(table), SQL(", ").join(map(Identifier, names))
    )
    copy_into(connection.cursor(), statement, blocks)


def delete(connection: Connection, table: str, ids: Sequence[str]) -> int:
    """How many of the documents were there."""
    from psycopg.sql import SQL

    lock_writes(connection, table, ids)
    return _deleted(
        connection, SQL("DELETE FROM {} WHERE id = ANY(%s)").format(qualified(table)), [list(ids)]
    )


def delete_where(connection: Connection, table: str, where: Filter) -> int:
    from psycopg.sql import SQL

    lock_writes(connection, table, None)
    statement = SQL("DELETE FROM {} WHERE {}").format(qualified(table), where.sql)
    return _deleted(connection, statement, where.parameters)


def add_fields(connection: Connection, table: str, fields: Mapping[str, FieldType]) -> int:
    """How many are new. Waits for the writers, then for the readers, as any change of columns does."""
    lock_writes(connection, table, None)
    header = read_header(connection, table)
    if header is None:
        raise WorkError("the index was migrated meanwhile, nothing was changed. Open it again")
    new = new_fields(header.fields, fields)
    if new:
        for statement in add_columns(table, new):
            connection.execute(statement)
        set_fields(connection, table, header, {**header.fields, **new})
    return len(new)


def forget_old_tokens(connection: Connection) -> None:
    """Tokens of finished writes are of use for seconds; those of yesterday go. Rows that another one holds are left."""
    connection.execute(
        "DELETE FROM gemel.writes WHERE token IN (SELECT token FROM gemel.writes"
        " WHERE at < now() - interval '1 day' FOR UPDATE SKIP LOCKED)"
    )


def _deleted(connection: Connection, statement: object, parameters: Sequence[object]) -> int:
    from psycopg.sql import SQL

    counted = SQL("WITH gone AS ({} RETURNING part) SELECT count(*) FILTER (WHERE part = 0) FROM gone")
    return int(connection.execute(counted.format(statement), parameters).fetchone()[0])
