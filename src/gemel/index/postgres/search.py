"""The nearest passages: candidates from the graph and all newer rows, or all rows compared; then exact scores.

`tune` measures how widely the graph must be searched, after each build.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.approximate import (
    FINEST_RECALL,
    NEIGHBORS,
    USUAL_RECALL,
    RecallQueries,
    centroids_of,
    depths,
    joined,
    near_recall,
    recall_of,
    recall_queries,
)
from gemel.index.port import FieldType, PassageRows, Passages
from gemel.index.postgres.graph import GraphLayout
from gemel.index.postgres.read import columns_sql, fetch, passages_from, rows_from, vector_text, vectors_of
from gemel.index.postgres.schema import Filter, qualified
from gemel.index.postgres.server import Connection
from gemel.types import Vectors
from gemel.vectors.scan.exact import PRODUCT, exact_scores

FEW = 10_000
"""A condition that no more rows meet, as estimated, is answered exactly: a graph finds too few of them."""

_ROUNDING = 1e-6  # of a dot product of unit vectors in float32

_MOST_BREADTH = 1000  # pgvector's limit of ef_search


@dataclass(frozen=True, eq=False)
class NeighborQuery:
    """A table, and what to find in it."""

    table: str
    dim: int
    fields: Mapping[str, FieldType]
    where: Filter | None
    k: int

    @property
    def fetched(self) -> int:
        """More than k: the server's scores differ from ours in their last bits, those of the graph in more."""
        return self.k + max(16, self.k // 2)


def nearest(
    connection: Connection, queries: Vectors, question: NeighborQuery, layout: GraphLayout, few: int = FEW
) -> list[Passages]:
    """In one transaction. `layout` without a graph: every row is compared."""
    breadth = breadth_for(connection, question, layout, few)
    if breadth is None:
        return [_exact(connection, query, question) for query in queries]
    sizes = depths(question.k)
    found = [_at_depth(connection, queries, replace(question, k=size), layout, few) for size in sizes]
    return [_one_ranking(each, sizes, question.k) for each in zip(*found, strict=True)]


def _at_depth(
    connection: Connection, queries: Vectors, question: NeighborQuery, layout: GraphLayout, few: int
) -> list[Passages]:
    breadth = breadth_for(connection, question, layout, few)
    assert breadth is not None, "whether there is a graph for it does not depend on k"
    with connection.transaction():
        allow_graph(connection, breadth)
        found = [_by_graph(connection, query, question, layout) for query in queries]
    return [
        _exact(connection, query, question) if answer is None else answer
        for query, answer in zip(queries, found, strict=True)
    ]


def _one_ranking(found: tuple[Passages, ...], sizes: list[int], k: int) -> Passages:
    """See `approximate.joined`."""
    keys = [list(zip(each.id, each.part.tolist(), strict=True)) for each in found]
    order = joined(keys, sizes)[:k]
    return Passages(
        id=[found[n].id[at] for n, at in order],
        part=np.array([found[n].part[at] for n, at in order], dtype=np.int32),
        text=[found[n].text[at] for n, at in order],
        fields={name: [found[n].fields[name][at] for n, at in order] for name in found[0].fields},
        score=np.array([found[n].score[at] for n, at in order], dtype=np.float32),
        vector=np.stack([found[n].vector[at] for n, at in order]) if order else found[0].vector[:0],
        exact=all(each.exact for each in found),
    )


def breadth_for(connection: Connection, question: NeighborQuery, layout: GraphLayout, few: int) -> int | None:
    """How widely the graph is searched: the fewer rows a condition leaves, the wider. None: not at all."""
    if layout.limit is None:
        return None
    breadth = layout.breadth
    if question.where is not None:
        left = estimate(connection, question.table, question.where)
        if left <= few:
            return None
        breadth = int(breadth * max(1.0, layout.rows / left))
    return min(max(breadth, question.fetched), _MOST_BREADTH)


def estimate(connection: Connection, table: str, where: Filter) -> int:
    """Rows that meet the condition, as the planner estimates without reading them."""
    from psycopg import ClientCursor
    from psycopg.sql import SQL

    statement = SQL("EXPLAIN (FORMAT JSON) SELECT 1 FROM {} WHERE {}").format(qualified(table), where.sql)
    plan = ClientCursor(connection).execute(statement, where.parameters).fetchone()[0]
    return int(plan[0]["Plan"]["Plan Rows"])


def allow_graph(connection: Connection, breadth: int) -> None:
    """For this transaction: how widely to search, and to go on until enough rows meet the condition.

    Scans and sorts are off, as far as there is another way, so that the planner takes the graph.
    """
    connection.execute(
        "SELECT set_config('hnsw.ef_search', %s, true), set_config('hnsw.iterative_scan', 'strict_order', true),"
        " set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)",
        [str(breadth)],
    )


def graph_sql(columns: Any, table: str, dim: int, limit: int, where: Any, fetched: int) -> Any:  # noqa: ANN401
    """The rows of the graph that are nearest to %s. The limit is a literal: so the planner sees that the graph fits."""
    from psycopg.sql import SQL, Literal

    return SQL(
        "SELECT {columns} FROM {table} WHERE number <= {limit} AND {where}"
        " ORDER BY vector::halfvec({dim}) <#> %s::halfvec({dim}) LIMIT {fetched}"
    ).format(
        columns=columns,
        table=qualified(table),
        limit=Literal(limit),
        where=where,
        dim=Literal(dim),
        fetched=Literal(fetched),
    )


def exact_sql(columns: Any, table: str, where: Any, fetched: int) -> Any:  # noqa: ANN401
    """The rows that are nearest to %s, each compared: `+ 0` hides the order from every graph."""
    from psycopg.sql import SQL, Literal

    return SQL(
        "SELECT {columns} FROM {table} WHERE {where} ORDER BY (vector <#> %s::vector) + 0, id, part LIMIT {fetched}"
    ).format(columns=columns, table=qualified(table), where=where, fetched=Literal(fetched))


def best_first(query: Vectors, rows: PassageRows, k: int) -> tuple[list[int], Vectors]:
    """Positions of the k best rows and their scores, equal to the bit to those of every other search in gemel."""
    nothing: NDArray[np.int64] = np.zeros(len(rows), dtype=np.int64)
    scores = exact_scores(PRODUCT, query[None, :], rows.vector, nothing, np.arange(len(rows)))
    order = sorted(range(len(rows)), key=lambda n: (-scores[n], rows.id[n], rows.part[n]))[:k]
    return order, scores[order]


def _exact(connection: Connection, query: Vectors, question: NeighborQuery) -> Passages:
    from psycopg.sql import SQL

    where = question.where or Filter(SQL("true"), [])
    columns = columns_sql(question.fields)
    statement = exact_sql(columns, question.table, where.sql, question.fetched)
    cells = fetch(connection, statement, [*where.parameters, vector_text(query)])
    return _answer(query, cells, question)


def _by_graph(
    connection: Connection, query: Vectors, question: NeighborQuery, layout: GraphLayout
) -> Passages | None:
    """None if the graph gave too few rows, as fewer meet the condition than estimated, or only equal scores."""
    from psycopg.sql import SQL, Literal

    where = question.where or Filter(SQL("true"), [])
    columns = columns_sql(question.fields)
    assert layout.limit is not None
    near = graph_sql(
        SQL("{}, true AS near").format(columns),
        question.table,
        question.dim,
        layout.limit,
        where.sql,
        question.fetched,
    )
    newer = SQL("number > {} AND {}").format(Literal(layout.limit), where.sql)
    tail = exact_sql(SQL("{}, false").format(columns), question.table, newer, question.fetched)
    vector = vector_text(query)
    parameters = [*where.parameters, vector, *where.parameters, vector]
    cells = fetch(connection, SQL("({}) UNION ALL ({})").format(near, tail), parameters)
    if sum(row[-1] for row in cells) < question.fetched:
        return None
    answer = replace(_answer(query, cells, question), exact=False)
    # Of equal scores the graph gives any: those with the lowest ids are found by comparing all rows.
    worst = float(np.min(vectors_of([row[4] for row in cells if row[-1]], question.dim) @ query))
    tied = len(answer) == question.k and float(answer.score[-1]) <= worst + _ROUNDING
    return None if tied else answer


def _answer(query: Vectors, cells: Sequence[Sequence[Any]], question: NeighborQuery) -> Passages:
    rows = rows_from(cells, question.fields, question.dim)
    order, scores = best_first(query, rows, question.k)
    return passages_from(rows, order, scores)


_BREADTHS = (40, 64, 100, 160, 250, 400, 640, 1000)

_QUERIES = 64  # of each kind that recall is measured with

_SAMPLE = 2048  # stored vectors that they are made from

_CENTROIDS = 32

_FETCHED = 26  # as a search for ten fetches


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
    from psycopg.sql import SQL

    rng = np.random.default_rng(0)
    sample = _sample(connection, table, dim, limit, rng)
    queries = recall_queries(sample, centroids_of(sample, _CENTROIDS, rng), _QUERIES, rng)
    exact = exact_sql(SQL("number"), table, SQL("number <= {}").format(limit), NEIGHBORS)
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
    from psycopg.sql import SQL

    near = graph_sql(SQL("number, vector"), table, dim, limit, SQL("true"), _FETCHED)
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
    from psycopg.sql import SQL

    draws = rng.integers(1, limit + 1, size=4 * _SAMPLE).tolist()
    statement = SQL("SELECT vector FROM {} WHERE number = ANY(%s) ORDER BY number LIMIT %s")
    cells = fetch(connection, statement.format(qualified(table)), [draws, _SAMPLE])
    if len(cells) < _QUERIES:  # most numbers are of rows that were deleted
        statement = SQL("SELECT vector FROM {} WHERE number <= %s ORDER BY number LIMIT %s")
        cells = fetch(connection, statement.format(qualified(table)), [limit, _SAMPLE])
    return vectors_of([row[0] for row in cells], dim)
