"""How a table is laid out, for people."""

from __future__ import annotations

from gemel.index.port import TableStats
from gemel.index.postgres.filters import filter_of
from gemel.index.postgres.layout import MOST_GRAPH_DIM, read_layout, tail_size
from gemel.index.postgres.reading import count
from gemel.index.postgres.server import Connection


def stats(connection: Connection, table: str, dim: int) -> TableStats:
    """`recall` is what was measured after the last build of the graph."""
    from psycopg.sql import SQL

    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        there = count(connection, table, filter_of(None, {}))
        layout = read_layout(connection, table)
        told = SQL(
            "SELECT pg_total_relation_size({name}::regclass), current_setting('server_version'),"
            " (SELECT extversion FROM pg_extension WHERE extname = 'vector'),"
            " pg_snapshot_xmax(pg_current_snapshot())::text"
        ).format(name=f'gemel."{table}"')
        size, server, pgvector, moment = connection.execute(told).fetchone()
        unindexed = there.passages if layout.limit is None else tail_size(connection, table, layout)
    graph = f"HNSW m=16, 16-bit (ef_search {layout.breadth})"
    exact = "exact" if dim <= MOST_GRAPH_DIM else f"exact (no graph over {MOST_GRAPH_DIM:,} dimensions)"
    return TableStats(
        documents=there.documents,
        passages=there.passages,
        bytes=size,
        layout=exact if layout.limit is None else graph,
        unindexed=0 if layout.limit is None else unindexed,
        recall=layout.recall,
        version=moment,
        details={
            "postgresql": server,
            "pgvector": pgvector,
            "table": f"gemel.{table}",
            "one by one": unindexed,
            **({} if layout.limit is None else {"recall": layout.measured}),
        },
    )
