"""Writes to a table, each inside the transaction of `Server.write`; and `compact`, which may be killed at any moment.

Writers of different documents do not wait for one another, those of the same document do: each takes the locks of its
ids in one order, so that there is no deadlock. All share one more lock, which a migration takes exclusively.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from gemel.errors import InputError, WorkError
from gemel.index.fields import new_fields
from gemel.index.port import FieldType
from gemel.index.postgres.graph import (
    MOST_GRAPH_DIM,
    build_graph,
    drop_graphs,
    graphs,
    lock_builds,
    note_tuning,
    read_layout,
    rows_now,
    tail_size,
)
from gemel.index.postgres.read import copy_into
from gemel.index.postgres.schema import (
    OURS,
    Filter,
    add_columns,
    column_of,
    lock_key,
    qualified,
    read_header,
    set_fields,
)
from gemel.index.postgres.search import FEW, tune
from gemel.index.postgres.server import Connection, Server, explained

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
    """Store the copied rows instead of the old ones of these ids; without `replace`, an existing id is an error."""
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


@dataclass(frozen=True)
class CompactLimits:
    """Where one way of searching gives way to another."""

    exact: int = 20_000
    """Passages up to which there is no graph."""
    tail: int = 5_000
    """Rows added or deleted since the graph was built, up to which it is not rebuilt; or a twentieth of it, if more."""
    few: int = FEW
    """Rows that meet a condition, up to which they are all compared."""
    memory_mb: int = 2048
    """The most that the server may take to build a graph."""


def compact(server: Server, table: str, dim: int, limits: CompactLimits) -> None:
    """If another process is at it, that one does the work and this returns."""
    from psycopg.sql import SQL

    with explained(server.address), server.session() as connection:
        if not lock_builds(connection, table):
            return
        unfinished = [limit for limit, valid in graphs(connection, table) if not valid]
        drop_graphs(connection, table, unfinished)
        forget_old_tokens(connection)
        connection.execute(SQL("ANALYZE {}").format(qualified(table)))
        limit = _up_to_date(connection, table, dim, limits)
        old = [other for other, _ in graphs(connection, table) if other != limit]
        drop_graphs(
            connection, table, old
        )  # before the sweep, which takes dead rows out of a graph one by one
        connection.execute(SQL("VACUUM {}").format(qualified(table)))
        if limit is not None and read_layout(connection, table).recall is None:
            tuned = tune(connection, table, dim, limit)
            note_tuning(connection, table, limit, tuned.breadth, tuned.recall, tuned.curve)


def broken_indexes(connection: Connection, table: str) -> list[str]:
    """Invalid indexes of the table, which the server does not use."""
    rows = connection.execute(
        "SELECT index.relname FROM pg_index JOIN pg_class index ON index.oid = indexrelid"
        " JOIN pg_class owner ON owner.oid = indrelid JOIN pg_namespace space ON space.oid = owner.relnamespace"
        " WHERE space.nspname = 'gemel' AND owner.relname = %s AND NOT (indisvalid AND indisready)",
        [table],
    ).fetchall()
    return [f"the index {name} of the table is not valid" for (name,) in rows]


def rebuild_indexes(connection: Connection, table: str) -> None:
    """All of them, from the rows."""
    from psycopg.sql import SQL

    connection.execute(SQL("REINDEX TABLE {}").format(qualified(table)))


def _up_to_date(connection: Connection, table: str, dim: int, limits: CompactLimits) -> int | None:
    """The limit of a graph that is worth having, built now if need be; None: the table needs none."""
    layout = read_layout(connection, table)
    tail = tail_size(connection, table, layout)
    if layout.limit is None:
        needed = tail > limits.exact and dim <= MOST_GRAPH_DIM
    else:
        gone = max(0, layout.built - rows_now(connection, table, layout.limit))
        needed = tail + gone > max(limits.tail, layout.built // 20)
    return build_graph(connection, table, dim, limits.memory_mb) if needed else layout.limit
