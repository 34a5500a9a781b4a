"""How widely the graph must be searched, measured on stored vectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gemel.index.postgres.binary import vector_text, vectors_of
from gemel.index.postgres.columns import qualified
from gemel.index.postgres.neighbours import allow_graph, exact_sql, graph_sql
from gemel.index.postgres.reading import fetch
from gemel.index.postgres.server import Connection
from gemel.types import Vectors

ENOUGH = 0.985
_BREADTHS = (40, 64, 100, 160, 250, 400, 640, 1000)
_QUERIES = 64
_K = 10
_FETCHED = 26  # as a search for ten fetches


@dataclass(frozen=True)
class Tuned:
    breadth: int
    recall: float


def tune(connection: Connection, table: str, dim: int, limit: int) -> Tuned:
    """The smallest breadth that finds enough of the ten nearest; the widest, if none does."""
    from psycopg.sql import SQL

    queries = _queries(connection, table, dim, limit)
    inside = SQL("number <= {}").format(limit)
    exact = exact_sql(SQL("number"), table, inside, _K)
    truth = [{row[0] for row in fetch(connection, exact, [vector_text(each)])} for each in queries]
    recall = 0.0
    for breadth in _BREADTHS:
        recall = _recall(connection, table, dim, limit, queries, truth, breadth)
        if recall >= ENOUGH:
            break
    return Tuned(breadth, recall)


def _recall(
    connection: Connection,
    table: str,
    dim: int,
    limit: int,
    queries: Vectors,
    truth: list[set[int]],
    breadth: int,
) -> float:
    from psycopg.sql import SQL

    near = graph_sql(SQL("number, vector"), table, dim, limit, SQL("true"), _FETCHED)
    shares = []
    with connection.transaction():
        allow_graph(connection, breadth)
        for query, right in zip(queries, truth, strict=True):
            cells = fetch(connection, near, [vector_text(query)])
            scores = vectors_of([row[1] for row in cells], dim) @ query
            best = {cells[place][0] for place in np.argsort(-scores, kind="stable")[:_K]}
            shares.append(len(best & right) / max(1, len(right)))
    return float(np.mean(shares))


def _queries(connection: Connection, table: str, dim: int, limit: int) -> Vectors:
    """Stored vectors, each moved towards another one: no row is at the very place that is asked for."""
    from psycopg.sql import SQL

    draws = np.random.default_rng(0).integers(1, limit + 1, size=8 * _QUERIES).tolist()
    statement = SQL("SELECT vector FROM {} WHERE number = ANY(%s) LIMIT %s").format(qualified(table))
    cells = fetch(connection, statement, [draws, 2 * _QUERIES])
    if len(cells) < 2 * _QUERIES:  # most numbers are of rows that are gone
        statement = SQL("SELECT vector FROM {} WHERE number <= %s LIMIT %s").format(qualified(table))
        cells = fetch(connection, statement, [limit, 2 * _QUERIES])
    vectors = vectors_of([row[0] for row in cells], dim)
    mixed = vectors[0 : len(vectors) // 2 * 2 : 2] + 0.5 * vectors[1::2]
    lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
    queries: Vectors = (mixed / np.maximum(lengths, 1e-12)).astype(np.float32)
    return queries
