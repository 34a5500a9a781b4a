"""How widely the graph must be searched, measured on stored vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.index.postgres.binary import vector_text, vectors_of
from gemel.index.postgres.columns import qualified
from gemel.index.postgres.layout import ENOUGH, FINEST
from gemel.index.postgres.neighbours import allow_graph, exact_sql, graph_sql
from gemel.index.postgres.reading import fetch
from gemel.index.postgres.server import Connection
from gemel.types import Vectors

_OTHERS: tuple[tuple[float, ...], ...] = ((0.5,), ())
"""What is added to a stored vector for a question like what is stored; nothing but noise for one unlike it."""
_NOISE = 1.5
_BREADTHS = (40, 64, 100, 160, 250, 400, 640, 1000)
_QUERIES = 64
_K = 10
_FETCHED = 26  # as a search for ten fetches


@dataclass(frozen=True)
class Tuned:
    breadth: int
    recall: float
    curve: tuple[tuple[int, float, float], ...] = ()
    """See `Layout.curve`."""


def tune(connection: Connection, table: str, dim: int, limit: int) -> Tuned:
    """The smallest breadth that finds enough of the ten nearest; the widest, if none does.

    Wider ones are measured too, until questions of both kinds are found nearly always: a search may ask for more.
    """
    from psycopg.sql import SQL

    kinds = [_queries(connection, table, dim, limit, others) for others in _OTHERS]
    inside = SQL("number <= {}").format(limit)
    exact = exact_sql(SQL("number"), table, inside, _K)
    truths = [
        [{row[0] for row in fetch(connection, exact, [vector_text(each)])} for each in queries]
        for queries in kinds
    ]
    chosen: tuple[int, float] | None = None
    curve: list[tuple[int, float, float]] = []
    for breadth in _BREADTHS:
        near, far = (
            round(_recall(connection, table, dim, limit, queries, truth, breadth), 4)
            for queries, truth in zip(kinds, truths, strict=True)
        )
        chosen = (breadth, near) if chosen is None and near >= ENOUGH else chosen
        if chosen is not None:
            curve.append((breadth, near, far))
        if min(near, far) >= FINEST:
            break
    breadth, recall = chosen or (breadth, near)
    return Tuned(breadth, recall, tuple(curve))


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


def _queries(connection: Connection, table: str, dim: int, limit: int, others: Sequence[float]) -> Vectors:
    """Stored vectors, each moved towards others: no row is at the very place that is asked for."""
    from psycopg.sql import SQL

    draws = np.random.default_rng(0).integers(1, limit + 1, size=8 * _QUERIES).tolist()
    statement = SQL("SELECT vector FROM {} WHERE number = ANY(%s) LIMIT %s").format(qualified(table))
    wanted = (1 + len(others)) * _QUERIES
    cells = fetch(connection, statement, [draws, wanted])
    if len(cells) < wanted:  # most numbers are of rows that are gone
        statement = SQL("SELECT vector FROM {} WHERE number <= %s LIMIT %s").format(qualified(table))
        cells = fetch(connection, statement, [limit, wanted])
    vectors = vectors_of([row[0] for row in cells], dim)
    count = len(vectors) // (1 + len(others))
    mixed = vectors[:count].copy()
    for place, weight in enumerate(others, 1):
        mixed += weight * vectors[place * count : (place + 1) * count]
    if not others:
        noise = np.random.default_rng(1).normal(size=mixed.shape).astype(np.float32)
        mixed += _NOISE * noise / np.linalg.norm(noise, axis=1, keepdims=True)
    lengths = np.linalg.norm(mixed, axis=1, keepdims=True)
    queries: Vectors = (mixed / np.maximum(lengths, 1e-12)).astype(np.float32)
    return queries
