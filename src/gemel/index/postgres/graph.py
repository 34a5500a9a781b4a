"""The graph (HNSW) over the vectors of a table: its build, its measured recall, and the table's stats.

It covers the rows up to a number; later rows are compared one by one until it is built again. Everything about it is
in the database's own catalog: its limit is in its name, its recall in its comment. So at whatever moment a process
dies, an unfinished graph is marked invalid there and built again. `tune` measures how widely it must be searched, after
each build. Below it: the copy of the vectors of tokens that this machine searches, as the server cannot compare them.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory, mkdtemp
from typing import Any, TypeAlias
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from gemel.errors import WorkError
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
from gemel.index.kinds import Searched, built_structure, compared, loaded_structure, tokens_of
from gemel.index.lance import cache
from gemel.index.lance.kinds import save_structure, saved_structures
from gemel.index.port import Header, KindHeader, Passages, TableStats
from gemel.index.postgres.rows import (
    columns_sql,
    count,
    fetch,
    forget_old_tokens,
    rows_from,
    vector_text,
    vectors_of,
)
from gemel.index.postgres.schema import Filter, filter_of, identifier, kind_column, lock_key, qualified, sql
from gemel.index.postgres.search import (
    FEW,
    UNTUNED,
    GraphLayout,
    NeighborQuery,
    allow_graph,
    by_score,
    exact_sql,
    graph_sql,
)
from gemel.index.postgres.server import Connection, Server, explained
from gemel.types import Vectors
from gemel.vectors.token_index import TokenIndex

MOST_GRAPH_DIM = 4000  # of a halfvec index; above, every search is exact

_LINKS, _BREADTH = 16, 100  # m and ef_construction

_BYTES_PER_ROW = 400  # beside the numbers: links and the memory's own overhead

_NO_ROOM = ("53100", "53200", "58030")  # disk, memory: a small /dev/shm refuses parallel builds so

_BREADTHS = (40, 64, 100, 160, 250, 400, 640, 1000)

_QUERIES = 64  # of each kind that recall is measured with

_SAMPLE = 2048  # stored vectors that they are made from

_CENTROIDS = 32

_FETCHED = 26  # as a search for ten fetches

_TOKEN_ROWS = 256  # passages whose vectors of tokens are fetched at once

_TIES = 16  # passages beside the k best, which may have the score of the last

_LATER_PART = 0.3  # of the rows of a copy may have come later, before it is built again

_MOST_LATER = 20_000  # and so many rows, as they are in memory

_PARTS = 8  # in which later rows are, before they are joined

_COMPARED = 16  # rows of a saved copy that are compared with those on the server

Numbers: TypeAlias = NDArray[np.int64]


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
    """Passages up to which a search by the vectors of tokens fetches and compares all; of more, this machine has a
    copy."""


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


# Vectors of tokens.


def by_tokens(
    connection: Connection,
    queries: Sequence[Vectors],
    question: NeighborQuery,
    copy: TokenCopy,
    few: int,
    *,
    exact: bool,
    recall: float | None,
) -> list[Passages]:
    """The k best of each query by MaxSim, compared here: up to `few` rows that meet the condition are fetched, more
    are searched in the copy of this machine."""
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        numbers = _rows_meeting(connection, question.table, question.where)
        fetches = len(numbers) <= few and copy.built is None
        parts = [copy.fetched(connection, numbers)] if fetches else copy.parts(connection, numbers)
        exact = exact or len(numbers) <= few
        return [_best_tokens(connection, parts, numbers, query, question, exact, recall) for query in queries]


def _best_tokens(
    connection: Connection,
    parts: Sequence[TokenPart],
    numbers: Numbers,
    query: Vectors,
    question: NeighborQuery,
    exact: bool,
    recall: float | None,
) -> Passages:
    header = question.header
    scored: list[tuple[float, int]] = []
    whole = True
    for part in parts:
        inside = np.isin(part.numbers, numbers, assume_unique=True)
        measured = part.searched.recall
        compares_all = exact or measured is None or measured < (recall or USUAL_RECALL)
        if inside.any():
            found, scores = part.searched.search(query, question.k, inside=inside, exact=compares_all)
            scored += zip(scores.tolist(), part.numbers[found].tolist(), strict=True)
            whole &= compares_all
    score_of = {number: score for score, number in sorted(scored, reverse=True)[: question.k + _TIES]}
    statement = sql(
        "SELECT {}, number FROM {} WHERE number = ANY(%s)", columns_sql(header), qualified(question.table)
    )
    cells = fetch(connection, statement, [list(score_of)]) if score_of else []
    scores = np.array([score_of[row[-1]] for row in cells], dtype=np.float32)
    answer = by_score(rows_from(cells, header), range(len(cells)), scores, question.k)
    return replace(answer, exact=whole)


def _rows_meeting(connection: Connection, table: str, where: Filter | None) -> Numbers:
    """The numbers of all rows that meet a condition, ascending."""
    chosen = where or Filter(sql("true"))
    statement = sql("SELECT string_agg(int8send(number), '') FROM {} WHERE {}", qualified(table), chosen.sql)
    ((packed,),) = fetch(connection, statement, chosen.parameters)
    return np.sort(np.frombuffer(packed or b"", ">i8").astype(np.int64))


@dataclass(frozen=True, eq=False)
class TokenPart:
    """Vectors of tokens of some rows."""

    numbers: Numbers
    """Of the rows, ascending."""
    searched: Searched


class TokenCopy:
    """The vectors of tokens of a table on this machine, as the server cannot compare them.

    Rows are known by their numbers, which no other row gets. Those of the last build are in files, with an index of
    tokens; later ones are fetched once and compared one by one, until they are so many that all is built again. Safe
    with several threads and processes.
    """

    def __init__(self, folder: Path, table: str, header: KindHeader) -> None:
        """`folder`: may be deleted whenever no process uses it."""
        self._folder, self._table, self._header = folder, table, header
        self._now: tuple[TokenPart, ...] = ()

    @property
    def built(self) -> TokenPart | None:
        """What this handle has built or loaded; None: nothing yet."""
        return self._now[0] if self._now else None

    def parts(self, connection: Connection, numbers: Numbers) -> Sequence[TokenPart]:
        """Parts that have all of these rows together."""
        now = self._now
        if not now or self._aged(now, numbers):
            now = (self._base(connection),)
        missing = _without(numbers, now)
        if len(missing):
            if len(now) > _PARTS:
                missing = np.sort(np.concatenate([missing, *(each.numbers for each in now[1:])]))
                now = now[:1]
            now = (*now, self.fetched(connection, missing))
        self._now = now
        return now

    def fetched(self, connection: Connection, numbers: Numbers) -> TokenPart:
        """These rows, in memory."""
        values: list[bytes] = []
        present: list[int] = []
        for start in range(0, len(numbers), _TOKEN_ROWS):
            chosen = sql("number = ANY({})", numbers[start : start + _TOKEN_ROWS].tolist())
            for number, value in self._read(connection, chosen, _TOKEN_ROWS):
                present.append(number)
                values.append(bytes(value))
        return TokenPart(np.array(present, np.int64), compared("late", self._header, values))

    def _aged(self, parts: Sequence[TokenPart], numbers: Numbers) -> bool:
        later = sum(len(each.numbers) for each in parts[1:]) + len(_without(numbers, parts))
        return later > min(_LATER_PART * len(parts[0].numbers), _MOST_LATER)

    def _base(self, connection: Connection) -> TokenPart:
        """From the disk if it is fresh enough, else built from all rows now."""
        every = _rows_meeting(connection, self._table, None)
        try:
            with cache.building(self._folder):
                for _, numbers, searched in saved_structures(self._folder, "late", self._header):
                    found = TokenPart(numbers, searched)
                    if not self._aged([found], every) and self._fits(connection, found):
                        return found
                self._folder.mkdir(parents=True, exist_ok=True)
                base = self._build(connection, self._folder)
                for other in self._folder.parent.glob("*.late"):  # of tables that a migration has replaced
                    if other != self._folder:
                        shutil.rmtree(other, ignore_errors=True)
                return base
        except (OSError, WorkError):  # a folder without write access
            temporary = Path(mkdtemp(prefix="gemel-tokens-"))
            finalize(self, shutil.rmtree, temporary, ignore_errors=True)
            return self._build(connection, temporary)

    def _build(self, connection: Connection, folder: Path) -> TokenPart:
        numbers: list[int] = []

        def blocks() -> Iterator[list[bytes]]:
            last = -1
            while cells := self._read(connection, sql("number > {}", last), _TOKEN_ROWS):
                last = cells[-1][0]
                numbers.extend(row[0] for row in cells)
                yield [bytes(row[1]) for row in cells]

        with TemporaryDirectory(prefix=".", dir=folder) as working:
            searched = built_structure("late", self._header, blocks(), Path(working))
            here = save_structure(folder, self._header, np.array(numbers, np.int64), searched)
        return TokenPart(np.array(numbers, np.int64), loaded_structure("late", here / "structure"))

    def _fits(self, connection: Connection, part: TokenPart) -> bool:
        """Some of the rows have the same vectors on the server: it is not another table of this name."""
        rows = np.unique(np.linspace(0, len(part.numbers) - 1, _COMPARED).astype(np.int64))
        cells = self._read(connection, sql("number = ANY({})", part.numbers[rows].tolist()), _COMPARED)
        assert isinstance(part.searched, TokenIndex)
        stored = tokens_of([bytes(row[1]) for row in cells], self._header)
        at = np.searchsorted(part.numbers, [row[0] for row in cells])
        return bool(cells) and all(
            np.array_equal(stored.of(n), part.searched.documents.of(int(row))) for n, row in enumerate(at)
        )

    def _read(self, connection: Connection, chosen: Any, most: int) -> list[Any]:  # noqa: ANN401 - SQL
        text = "SELECT number, {} FROM {} WHERE {} ORDER BY number LIMIT {}"
        column = identifier(kind_column("late"))
        return fetch(connection, sql(text, column, qualified(self._table), chosen, most), [])


def _without(numbers: Numbers, parts: Sequence[TokenPart]) -> Numbers:
    """Those that no part has."""
    for part in parts:
        numbers = np.setdiff1d(numbers, part.numbers, assume_unique=True)
    return numbers
