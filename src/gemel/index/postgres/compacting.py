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
    """Rows that came after the graph, up to which it is left as it is; or a twentieth of the graph, if that is more."""
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
        if not all(whole for _, whole in graphs(connection, table)):
            _drop_unfinished(connection, table)
        connection.execute(SQL("VACUUM (ANALYZE) {}").format(qualified(table)))
        forget_old_tokens(connection)
        _bring_up_to_date(connection, table, dim, limits)


def _bring_up_to_date(connection: Connection, table: str, dim: int, limits: Limits) -> None:
    layout = read_layout(connection, table)
    tail = tail_size(connection, table, layout)
    limit = layout.limit
    if limit is None:
        if tail <= limits.exact or dim > MOST_GRAPH_DIM:
            return
        limit = build_graph(connection, table, dim, limits.memory_mb)
    elif tail > max(limits.tail, layout.rows // 20):
        limit = build_graph(connection, table, dim, limits.memory_mb)
        drop_graphs(connection, table, keep=limit)
    elif layout.recall is not None:
        drop_graphs(connection, table, keep=limit)
        return
    tuned = tune(connection, table, dim, limit)
    note_tuning(connection, table, limit, tuned.breadth, tuned.recall)


def _drop_unfinished(connection: Connection, table: str) -> None:
    from psycopg.sql import SQL

    from gemel.index.postgres.layout import graph_name

    for limit, whole in graphs(connection, table):
        if not whole:
            name = qualified(graph_name(table, limit))
            connection.execute(SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(name))
