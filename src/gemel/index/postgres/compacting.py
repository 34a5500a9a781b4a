"""What `compact` does: sweep, count anew, build the graph where it pays. It may be killed at any moment."""

from __future__ import annotations

from dataclasses import dataclass

from gemel.index.postgres.columns import qualified
from gemel.index.postgres.explaining import explained
from gemel.index.postgres.layout import (
    MOST_GRAPH_DIM,
    build_graph,
    drop_graphs,
    graphs,
    held_now,
    lock_builds,
    note_tuning,
    read_layout,
    tail_size,
)
from gemel.index.postgres.neighbours import FEW
from gemel.index.postgres.server import Connection, Server
from gemel.index.postgres.tuning import tune
from gemel.index.postgres.writing import forget_old_tokens


@dataclass(frozen=True)
class Limits:
    """Where one way of searching gives way to another."""

    exact: int = 20_000
    """Passages up to which there is no graph."""
    tail: int = 5_000
    """Rows that came or went since the graph was built, up to which it is kept; a twentieth of it, if that is more."""
    few: int = FEW
    """Rows that meet a condition, up to which they are all compared."""
    memory_mb: int = 2048
    """The most that the server may take to build a graph."""


def compact(server: Server, table: str, dim: int, limits: Limits) -> None:
    """If another process is at it, that one does the work and this returns."""
    from psycopg.sql import SQL

    with explained(server.address), server.session() as connection:
        if not lock_builds(connection, table):
            return
        unfinished = [limit for limit, whole in graphs(connection, table) if not whole]
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
    """Indexes of the table that the server does not use, as they are not whole."""
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


def _up_to_date(connection: Connection, table: str, dim: int, limits: Limits) -> int | None:
    """The limit of a graph that is worth having, built now if need be; None: the table needs none."""
    layout = read_layout(connection, table)
    tail = tail_size(connection, table, layout)
    if layout.limit is None:
        needed = tail > limits.exact and dim <= MOST_GRAPH_DIM
    else:
        gone = max(0, layout.held - held_now(connection, table, layout.limit))
        needed = tail + gone > max(limits.tail, layout.held // 20)
    return build_graph(connection, table, dim, limits.memory_mb) if needed else layout.limit
