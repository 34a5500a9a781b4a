"""The graph (HNSW) over the vectors of a table: its layout, its build, its measured recall, and the table's stats.

It covers the rows up to a number; later rows are compared one by one until it is built again. Everything about it is
in the database's own catalog: its limit is in its name, its recall in its comment. So at whatever moment a process
dies, an unfinished graph is marked invalid there and built again.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gemel.index.approximate import FINEST_RECALL, LIKE_STORED, UNLIKE_STORED, USUAL_RECALL
from gemel.index.port import TableStats
from gemel.index.postgres.read import count
from gemel.index.postgres.schema import filter_of, lock_key, qualified
from gemel.index.postgres.server import Connection

MOST_GRAPH_DIM = 4000  # of a halfvec index; above, every search is exact

UNTUNED = 200

_LINKS, _BREADTH = 16, 100  # m and ef_construction

_BYTES_A_ROW = 400  # beside the numbers: links and the memory's own overhead

_NO_ROOM = ("53100", "53200", "58030")  # disk, memory: a small /dev/shm refuses parallel builds so


@dataclass(frozen=True)
class GraphLayout:
    """How `nearest` finds."""

    limit: int | None = None
    """The graph holds the rows of numbers up to this one; None: there is no graph."""
    breadth: int = UNTUNED
    """ef_search"""
    recall: float | None = None
    """As it was measured after the build."""
    built: int = 0
    """Rows in the graph when it was built."""
    rows: int = 0
    """In the table, as the server estimates."""
    curve: tuple[tuple[int, float, float], ...] = ()
    """(ef_search, recall of queries like the stored texts, and of others) as it was measured, ascending."""

    def tuned_for(self, recall: float | None, *, far: bool = False) -> GraphLayout:
        """Searched as widely as it takes; without a graph where no width does. See `Table.nearest`."""
        if self.limit is None or (recall is None and not far) or not self.curve:
            return self if recall is None or (self.recall or 0) >= recall else GraphLayout(rows=self.rows)
        if recall is not None and recall > FINEST_RECALL:
            return GraphLayout(rows=self.rows)
        aim = USUAL_RECALL if recall is None else max(recall, USUAL_RECALL)
        good = [point[0] for point in self.curve if point[2 if far else 1] >= aim]
        if not good and recall is not None:
            return GraphLayout(rows=self.rows)
        return replace(self, breadth=max(self.breadth, good[0] if good else self.curve[-1][0]))

    @property
    def measured(self) -> dict[str, float]:
        """Recall by the kind of query, of a search that requests no other."""
        here = {breadth: (near, far) for breadth, near, far in self.curve}
        kinds: dict[str, float] = {}
        if self.breadth in here:
            kinds[LIKE_STORED], kinds["unlike them (as vectors)"] = here[self.breadth]
            kinds[UNLIKE_STORED] = here[self.tuned_for(None, far=True).breadth][1]
        return kinds


def graph_name(table: str, limit: int) -> str:
    return f"{table}~{limit}"


def read_layout(connection: Connection, table: str) -> GraphLayout:
    """The layout of the newest of several graphs; the others are being dropped."""
    rows = connection.execute("SELECT reltuples FROM pg_class WHERE oid = %s::regclass", [_regclass(table)])
    total = max(0, int(rows.fetchone()[0]))
    limits = [limit for limit, valid in graphs(connection, table) if valid]
    if not limits:
        return GraphLayout(rows=total)
    statement = "SELECT obj_description(%s::regclass, 'pg_class')"
    comment = connection.execute(statement, [_regclass(graph_name(table, max(limits)))]).fetchone()[0]
    about: dict[str, Any] = json.loads(comment) if comment else {}
    curve = tuple((each[0], each[1], each[2]) for each in about.get("curve", ()))
    breadth, recall, built = about.get("ef_search", UNTUNED), about.get("recall"), about.get("rows", 0)
    return GraphLayout(max(limits), breadth, recall, built, total, curve)


def graphs(connection: Connection, table: str) -> list[tuple[int, bool]]:
    """(limit, valid) of every graph of the table."""
    found = connection.execute(
        "SELECT c.relname, i.indisvalid FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " JOIN pg_am a ON a.oid = c.relam WHERE i.indrelid = %s::regclass AND a.amname = 'hnsw'",
        [_regclass(table)],
    )
    return [(int(name.rpartition("~")[2]), valid) for name, valid in found.fetchall()]


def tail_size(connection: Connection, table: str, layout: GraphLayout) -> int:
    """Rows that are not in the graph."""
    from psycopg.sql import SQL

    statement = SQL("SELECT count(*) FROM {} WHERE number > %s").format(qualified(table))
    return int(connection.execute(statement, [layout.limit or 0]).fetchone()[0])


def rows_now(connection: Connection, table: str, limit: int) -> int:
    """Rows of the graph that were not deleted or replaced."""
    from psycopg.sql import SQL

    statement = SQL("SELECT count(*) FROM {} WHERE number <= %s").format(qualified(table))
    return int(connection.execute(statement, [limit]).fetchone()[0])


def lock_builds(connection: Connection, table: str) -> bool:
    """Whether this session is the one that builds; a lock until it ends."""
    return bool(
        connection.execute("SELECT pg_try_advisory_lock(%s)", [lock_key("build", table)]).fetchone()[0]
    )


def drop_graphs(connection: Connection, table: str, limits: Iterable[int]) -> None:
    """Drop graphs; waits for searches that use them."""
    from psycopg.sql import SQL

    for limit in limits:
        name = qualified(graph_name(table, limit))
        connection.execute(SQL("DROP INDEX CONCURRENTLY IF EXISTS {}").format(name))


def build_graph(connection: Connection, table: str, dim: int, memory_mb: int) -> int:
    """Build a graph over all rows, without blocking reads and writes; returns its limit.

    Its numbers have 16 bits, which halves it; answers are scored with the exact vectors anyway.
    """
    from psycopg import Error
    from psycopg.sql import SQL, Identifier, Literal

    rows = rows_now(connection, table, 2**62)
    # A number that no row has or will have: it is above all rows there are, and the graph's name is a new one.
    drawn = connection.execute("SELECT nextval(pg_get_serial_sequence(%s, 'number'))", [_regclass(table)])
    limit = int(drawn.fetchone()[0])
    _allow_memory(connection, rows * (2 * dim + _BYTES_A_ROW) // 2**20 + 64, memory_mb)
    statement = SQL(
        "CREATE INDEX CONCURRENTLY {name} ON {table} USING hnsw ((vector::halfvec({dim})) halfvec_ip_ops)"
        " WITH (m = {links}, ef_construction = {breadth}) WHERE number <= {limit}"
    ).format(
        name=Identifier(graph_name(table, limit)),
        table=qualified(table),
        dim=Literal(dim),
        links=Literal(_LINKS),
        breadth=Literal(_BREADTH),
        limit=Literal(limit),
    )
    try:
        connection.execute(statement)
    except Error as error:
        if error.sqlstate not in _NO_ROOM or connection.closed:
            raise
        drop_graphs(connection, table, [limit])
        connection.execute("SET max_parallel_maintenance_workers = 0")
        connection.execute(statement)
    return limit


def note_tuning(
    connection: Connection,
    table: str,
    limit: int,
    breadth: int,
    recall: float,
    curve: Sequence[tuple[int, float, float]] = (),
) -> None:
    from psycopg.sql import SQL, Literal

    rows = rows_now(connection, table, limit)
    about = json.dumps({"ef_search": breadth, "recall": round(recall, 4), "rows": rows, "curve": list(curve)})
    name = qualified(graph_name(table, limit))
    connection.execute(SQL("COMMENT ON INDEX {} IS {}").format(name, Literal(about)))


def _allow_memory(connection: Connection, needed_mb: int, most_mb: int) -> None:
    """A graph that fits the memory is built several times as fast; what the server allows already is not lowered."""
    setting = "SELECT setting::bigint / 1024 FROM pg_settings WHERE name = 'maintenance_work_mem'"
    allowed = connection.execute(setting).fetchone()[0]
    wanted = min(needed_mb, most_mb)
    if wanted > allowed:
        connection.execute("SELECT set_config('maintenance_work_mem', %s, false)", [f"{wanted}MB"])


def _regclass(name: str) -> str:
    """For a cast to regclass: quoted, as our names hold signs."""
    return f'gemel."{name}"'


def stats(connection: Connection, table: str, dim: int) -> TableStats:
    """`recall` is what was measured after the last build of the graph."""
    from psycopg.sql import SQL

    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        there = count(connection, table, filter_of(None, {}))
        layout = read_layout(connection, table)
        statement = SQL(
            "SELECT pg_total_relation_size({name}::regclass), current_setting('server_version'),"
            " (SELECT extversion FROM pg_extension WHERE extname = 'vector'),"
            " pg_snapshot_xmax(pg_current_snapshot())::text"
        ).format(name=f'gemel."{table}"')
        size, server, pgvector, moment = connection.execute(statement).fetchone()
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
