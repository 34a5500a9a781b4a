"""The graph (HNSW) over the vectors of a table: its build, its measured recall, and the table's stats.

It covers the rows up to a number; later rows are compared one by one until it is built again. Everything about it is
in the database's own catalog: its limit is in its name, its recall in its comment. So at whatever moment a process
dies, an unfinished graph is marked invalid there and built again. `tune` measures how widely it must be searched, after
each build.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.approximate import (
    FINEST_RECALL,
    NEIGHBORS,
    USUAL_RECALL,
    RecallQueries,
    centroids_of,
    near_recall,
    recall_of,
    recall_queries,
)
from gemel.index.port import Header, TableStats
from gemel.index.postgres.rows import count, fetch, forget_old_tokens, vector_text, vectors_of
from gemel.index.postgres.schema import filter_of, identifier, kind_column, lock_key, qualified, sql
from gemel.index.postgres.search import FEW, UNTUNED, GraphLayout, allow_graph, exact_sql, graph_sql
from gemel.index.postgres.server import Connection, Server, explained
from gemel.types import Vectors

MOST_GRAPH_DIM = 4000  # of a halfvec index; above, every search is exact

_LINKS, _BREADTH = 16, 100  # m and ef_construction

_BYTES_PER_ROW = 400  # beside the numbers: links and the memory's own overhead

_NO_ROOM = ("53100", "53200", "58030")  # disk, memory: a small /dev/shm refuses parallel builds so

_BREADTHS = (40, 64, 100, 160, 250, 400, 640, 1000)

_QUERIES = 64  # of each kind that recall is measured with

_SAMPLE = 2048  # stored vectors that they are made from

_CENTROIDS = 32

_FETCHED = 26  # as a search for ten fetches


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
    tokens: int = 5_000
    """Passages up to which a search by the vectors of tokens compares all; of more, it compares candidates."""


def compact(server: Server, table: str, dim: int, limits: CompactLimits) -> None:
    """Vacuum and analyze the table, build its graph if it needs one; returns at once if another process is doing so."""
    with explained(server.address), server.session() as connection:
        if not lock_builds(connection, table):
            return
        unfinished = [limit for limit, valid in graphs(connection, table) if not valid]
        drop_graphs(connection, table, unfinished)
        forget_old_tokens(connection)
        connection.execute(sql("ANALYZE {}", qualified(table)))
        limit = _up_to_date(connection, table, dim, limits)
        old = [other for other, _ in graphs(connection, table) if other != limit]
        # Before the sweep, which takes dead rows out of a graph one by one.
        drop_graphs(connection, table, old)
        connection.execute(sql("VACUUM {}", qualified(table)))
        if limit is not None and read_layout(connection, table).recall is None:
            note_tuning(connection, table, limit, tune(connection, table, dim, limit))


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
    connection.execute(sql("REINDEX TABLE {}", qualified(table)))


def _up_to_date(connection: Connection, table: str, dim: int, limits: CompactLimits) -> int | None:
    """The limit of a graph that is worth having, built now if need be; None: the table needs none."""
    layout = read_layout(connection, table)
    tail = rows_now(connection, table, ">", layout.limit or 0)
    if layout.limit is None:
        needed = tail > limits.exact and 0 < dim <= MOST_GRAPH_DIM
    else:
        gone = max(0, layout.built - rows_now(connection, table, "<=", layout.limit))
        needed = tail + gone > max(limits.tail, layout.built // 20)
    return build_graph(connection, table, dim, limits.memory_mb) if needed else layout.limit


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


def rows_now(connection: Connection, table: str, sign: str, limit: int) -> int:
    """Rows whose numbers are `<=` the limit of a graph, so that they are in it, or `>` it."""
    statement = sql("SELECT count(*) FROM {} WHERE number " + sign + " {}", qualified(table), limit)
    return int(connection.execute(statement).fetchone()[0])


def lock_builds(connection: Connection, table: str) -> bool:
    """Whether this session is the one that builds; a lock until it ends."""
    return bool(
        connection.execute("SELECT pg_try_advisory_lock(%s)", [lock_key("build", table)]).fetchone()[0]
    )


def drop_graphs(connection: Connection, table: str, limits: Iterable[int]) -> None:
    """Drop graphs; waits for searches that use them."""
    for limit in limits:
        name = qualified(graph_name(table, limit))
        connection.execute(sql("DROP INDEX CONCURRENTLY IF EXISTS {}", name))


def build_graph(connection: Connection, table: str, dim: int, memory_mb: int) -> int:
    """Build a graph over all rows, without blocking reads and writes; returns its limit.

    Its numbers have 16 bits, which halves it; answers are scored with the exact vectors anyway.
    """
    from psycopg import Error

    rows = rows_now(connection, table, "<=", 2**62)
    # A number that no row has or will have: it is above all rows there are, and the graph's name is a new one.
    drawn = connection.execute("SELECT nextval(pg_get_serial_sequence(%s, 'number'))", [_regclass(table)])
    limit = int(drawn.fetchone()[0])
    _allow_memory(connection, rows * (2 * dim + _BYTES_PER_ROW) // 2**20 + 64, memory_mb)
    statement = sql(
        "CREATE INDEX CONCURRENTLY {name} ON {table} USING hnsw ((vector::halfvec({dim})) halfvec_ip_ops)"
        " WITH (m = {links}, ef_construction = {breadth}) WHERE number <= {limit}",
        name=identifier(graph_name(table, limit)),
        table=qualified(table),
        dim=dim,
        links=_LINKS,
        breadth=_BREADTH,
        limit=limit,
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


def note_tuning(connection: Connection, table: str, limit: int, tuned: Tuned) -> None:
    """Into the comment of the graph, which `read_layout` reads."""
    rows = rows_now(connection, table, "<=", limit)
    about = {"ef_search": tuned.breadth, "recall": round(tuned.recall, 4), "rows": rows, "curve": tuned.curve}
    name = qualified(graph_name(table, limit))
    connection.execute(sql("COMMENT ON INDEX {} IS {}", name, json.dumps(about)))


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


def stats(connection: Connection, table: str, header: Header) -> TableStats:
    """`recall` is what was measured after the last build of the graph."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        there = count(connection, table, filter_of(None, {}))
        layout = read_layout(connection, table)
        size, server, pgvector, moment = connection.execute(
            "SELECT pg_total_relation_size(%s::regclass), current_setting('server_version'),"
            " (SELECT extversion FROM pg_extension WHERE extname = 'vector'),"
            " pg_snapshot_xmax(pg_current_snapshot())::text",
            [_regclass(table)],
        ).fetchone()
        unindexed = there.passages
        if layout.limit is not None:
            unindexed = rows_now(connection, table, ">", layout.limit)
        kinds = {kind: _kind_stats(connection, table, kind) for kind in header.kinds}
    graph = f"HNSW m=16, 16-bit (ef_search {layout.breadth})"
    exact = (
        "exact" if header.dim <= MOST_GRAPH_DIM else f"exact (no graph over {MOST_GRAPH_DIM:,} dimensions)"
    )
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
            **({"kinds": kinds} if kinds else {}),
        },
    )


def _kind_stats(connection: Connection, table: str, kind: str) -> dict[str, Any]:
    column = identifier(kind_column(kind))
    statement = sql("SELECT coalesce(sum(pg_column_size({})), 0)::bigint FROM {}", column, qualified(table))
    return {"bytes": connection.execute(statement).fetchone()[0], "layout": "exact"}


@dataclass(frozen=True)
class Tuned:
    breadth: int
    recall: float
    curve: tuple[tuple[int, float, float], ...] = ()
    """See `GraphLayout.curve`."""


def tune(connection: Connection, table: str, dim: int, limit: int) -> Tuned:
    """The smallest breadth of the usual recall; the widest, if none has it.

    Wider ones are measured too, until queries of both kinds are found nearly always: a search may request more.
    """
    rng = np.random.default_rng(0)
    sample = _sample(connection, table, dim, limit, rng)
    queries = recall_queries(sample, centroids_of(sample, _CENTROIDS, rng), _QUERIES, rng)
    exact = exact_sql(sql("number"), table, sql("number <= {}", limit), NEIGHBORS)
    truth = _numbers([fetch(connection, exact, [vector_text(query)]) for query in queries.both])
    chosen: tuple[int, float] | None = None
    curve: list[tuple[int, float, float]] = []
    for breadth in _BREADTHS:
        near, far = _recall(connection, table, dim, limit, queries, truth, breadth)
        chosen = (breadth, near) if chosen is None and near >= USUAL_RECALL else chosen
        if chosen is not None:
            curve.append((breadth, near, far))
        if min(near, far) >= FINEST_RECALL:
            break
    breadth, recall = chosen or (breadth, near)
    return Tuned(breadth, recall, tuple(curve))


def _recall(
    connection: Connection,
    table: str,
    dim: int,
    limit: int,
    queries: RecallQueries,
    truth: NDArray[np.int64],
    breadth: int,
) -> tuple[float, float]:
    """Of queries like the stored vectors and unlike them, searched as a search for ten does."""
    near = graph_sql(sql("number, vector"), table, dim, limit, sql("true"), _FETCHED)
    found = []
    with connection.transaction():
        allow_graph(connection, breadth)
        for query in queries.both:
            cells = fetch(connection, near, [vector_text(query)])
            scores = vectors_of([row[1] for row in cells], dim) @ query
            found.append([cells[n] for n in np.argsort(-scores, kind="stable")[:NEIGHBORS]])
    numbers, count = _numbers(found), len(queries.near)
    return (
        round(near_recall(numbers[:count], truth[:count]), 4),
        round(recall_of(numbers[count:], truth[count:]), 4),
    )


def _numbers(answers: Sequence[Sequence[Sequence[Any]]]) -> NDArray[np.int64]:
    """(answers, 10) the first cell of each row; -1 where there are no more."""
    numbers = np.full((len(answers), NEIGHBORS), -1, dtype=np.int64)
    for n, rows in enumerate(answers):
        numbers[n, : len(rows)] = [row[0] for row in rows]
    return numbers


def _sample(connection: Connection, table: str, dim: int, limit: int, rng: np.random.Generator) -> Vectors:
    """Some stored vectors of the graph."""
    draws = rng.integers(1, limit + 1, size=4 * _SAMPLE).tolist()
    statement = sql("SELECT vector FROM {} WHERE number = ANY(%s) ORDER BY number LIMIT %s", qualified(table))
    cells = fetch(connection, statement, [draws, _SAMPLE])
    if len(cells) < _QUERIES:  # most numbers are of rows that were deleted
        statement = sql("SELECT vector FROM {} WHERE number <= %s ORDER BY number LIMIT %s", qualified(table))
        cells = fetch(connection, statement, [limit, _SAMPLE])
    return vectors_of([row[0] for row in cells], dim)
