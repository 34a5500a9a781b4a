"""The best passages on the server: by vectors, from the graph or all rows, with exact scores; and by words, with BM25.

Search by words finds candidates in the index of words and scores them here from the texts. It is approximate in large
tables only: a word of more than 10,000 passages brings no candidates if the query has a rarer one, and its count is an
estimate; of more than 600 candidates those with the rarest words are scored; the mean length may be some seconds old.
Small tables are ranked as `BM25Index` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.index.approximate import FINEST_RECALL, LIKE_STORED, UNLIKE_STORED, USUAL_RECALL, depths, joined
from gemel.index.kinds import compared
from gemel.index.port import Header, PassageRows, Passages
from gemel.index.postgres.rows import (
    columns_sql,
    fetch,
    kind_value,
    passages_from,
    rows_from,
    searched_words,
    vector_text,
    vectors_of,
)
from gemel.index.postgres.schema import Filter, identifier, kind_column, qualified, sql
from gemel.index.postgres.server import Connection
from gemel.types import Vectors
from gemel.vectors.bm25 import WordRules
from gemel.vectors.scan.exact import PRODUCT, exact_scores
from gemel.vectors.sparse import SparseRow

FEW = 10_000
"""A condition that no more rows meet, as estimated, is answered exactly: a graph finds too few of them."""

UNTUNED = 200  # ef_search of a graph whose recall was not measured

_ROUNDING = 1e-6  # of a dot product of unit vectors in float32

_MOST_BREADTH = 1000  # pgvector's limit of ef_search

_COMMON = 10_000  # passages; a word of more is a frequent one

_SCORED = 600

_MOST_WORDS = 64  # of a query; the rarest are kept

_K1, _B = 1.2, 0.75  # as gemel.vectors.bm25


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


@dataclass(frozen=True, eq=False)
class NeighborQuery:
    """A table, and what to find in it."""

    table: str
    header: Header
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
    return [one_ranking(each, sizes, question.k) for each in zip(*found, strict=True)]


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


def one_ranking(found: tuple[Passages, ...], sizes: list[int], k: int) -> Passages:
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

    statement = sql("EXPLAIN (FORMAT JSON) SELECT 1 FROM {} WHERE {}", qualified(table), where.sql)
    plan = ClientCursor(connection).execute(statement, where.parameters).fetchone()[0]
    return int(plan[0]["Plan"]["Plan Rows"])


def allow_graph(connection: Connection, breadth: int) -> None:
    """For this transaction: how widely to search, and to continue until enough rows meet the condition.

    Scans and sorts are off, as far as there is another way, so that the planner takes the graph.
    """
    connection.execute(
        "SELECT set_config('hnsw.ef_search', %s, true), set_config('hnsw.iterative_scan', 'strict_order', true),"
        " set_config('enable_seqscan', 'off', true), set_config('enable_sort', 'off', true)",
        [str(breadth)],
    )


def graph_sql(columns: Any, table: str, dim: int, limit: int, where: Any, fetched: int) -> Any:  # noqa: ANN401
    """The rows of the graph that are nearest to %s. The limit is a literal: so the planner sees that the graph fits."""
    return sql(
        "SELECT {columns} FROM {table} WHERE number <= {limit} AND {where}"
        " ORDER BY vector::halfvec({dim}) <#> %s::halfvec({dim}) LIMIT {fetched}",
        columns=columns,
        table=qualified(table),
        limit=limit,
        where=where,
        dim=dim,
        fetched=fetched,
    )


def exact_sql(columns: Any, table: str, where: Any, fetched: int) -> Any:  # noqa: ANN401
    """The rows that are nearest to %s, each compared: `+ 0` hides the order from every graph."""
    text = "SELECT {} FROM {} WHERE {} ORDER BY (vector <#> %s::vector) + 0, id, part LIMIT {}"
    return sql(text, columns, qualified(table), where, fetched)


def best_first(query: Vectors, rows: PassageRows, k: int) -> tuple[list[int], Vectors]:
    """Positions of the k best rows and their scores, equal to the bit to those of every other search in gemel."""
    nothing: NDArray[np.int64] = np.zeros(len(rows), dtype=np.int64)
    scores = exact_scores(PRODUCT, query[None, :], rows.vector, nothing, np.arange(len(rows)))
    order = sorted(range(len(rows)), key=lambda n: (-scores[n], rows.id[n], rows.part[n]))[:k]
    return order, scores[order]


def _exact(connection: Connection, query: Vectors, question: NeighborQuery) -> Passages:
    where = question.where or Filter(sql("true"))
    columns = columns_sql(question.header)
    statement = exact_sql(columns, question.table, where.sql, question.fetched)
    cells = fetch(connection, statement, [*where.parameters, vector_text(query)])
    return _answer(query, cells, question)


def _by_graph(
    connection: Connection, query: Vectors, question: NeighborQuery, layout: GraphLayout
) -> Passages | None:
    """None if the graph gave too few rows, as fewer meet the condition than estimated, or only equal scores."""
    assert layout.limit is not None
    where = question.where or Filter(sql("true"))
    columns, dim = columns_sql(question.header), question.header.dim
    in_graph = sql("{}, true AS near", columns)
    near = graph_sql(in_graph, question.table, dim, layout.limit, where.sql, question.fetched)
    newer = sql("number > {} AND {}", layout.limit, where.sql)
    tail = exact_sql(sql("{}, false", columns), question.table, newer, question.fetched)
    vector = vector_text(query)
    parameters = [*where.parameters, vector, *where.parameters, vector]
    cells = fetch(connection, sql("({}) UNION ALL ({})", near, tail), parameters)
    if sum(row[-1] for row in cells) < question.fetched:
        return None
    answer = replace(_answer(query, cells, question), exact=False)
    # Of equal scores the graph gives any: those with the lowest ids are found by comparing all rows.
    worst = float(np.min(vectors_of([row[4] for row in cells if row[-1]], dim) @ query))
    tied = len(answer) == question.k and float(answer.score[-1]) <= worst + _ROUNDING
    return None if tied else answer


def _answer(query: Vectors, cells: Sequence[Sequence[Any]], question: NeighborQuery) -> Passages:
    rows = rows_from(cells, question.header)
    order, scores = best_first(query, rows, question.k)
    return passages_from(rows, order, scores)


def by_terms(connection: Connection, query: SparseRow, question: NeighborQuery) -> Passages:
    """The k best by the dot product of weights of words; the server compares every row that meets the condition."""
    where = question.where or Filter(sql("true"))
    header, name = question.header, identifier(kind_column("sparse"))
    dim = header.kinds["sparse"].dim
    weights = zip(query[0].tolist(), query[1].tolist(), strict=True)
    cell = "{" + ",".join(f"{column + 1}:{weight!r}" for column, weight in weights) + f"}}/{dim}"
    # A row that shares no word with the query scores 0.
    statement = sql(
        "SELECT {}, {} FROM {} WHERE {} AND ({} <#> %s::sparsevec) <> 0"
        " ORDER BY {} <#> %s::sparsevec, id, part LIMIT {}",
        columns_sql(header),
        name,
        qualified(question.table),
        where.sql,
        name,
        name,
        question.fetched,
    )
    cells = fetch(connection, statement, [*where.parameters, cell, cell]) if len(query[0]) else []
    values = [kind_value("sparse", row[-1]) for row in cells]
    found, scores = compared("sparse", header.kinds["sparse"], values).search(query, max(1, len(cells)))
    return by_score(rows_from(cells, header), found.tolist(), scores, question.k)


def by_score(rows: PassageRows, found: Sequence[int], scores: Vectors, k: int) -> Passages:
    """By score, then id and part."""
    every = range(len(found))
    order = sorted(every, key=lambda n: (-scores[n], rows.id[found[n]], rows.part[found[n]]))[:k]
    return passages_from(rows, [found[n] for n in order], scores[order])


@dataclass(frozen=True)
class Lengths:
    """Of the texts of a table, in words."""

    passages: int
    mean: float


@dataclass(frozen=True)
class _Word:
    text: str
    times: int
    """Times in the query."""
    expected: int
    """Passages that hold it, as the planner thinks; 0 in a small table, where they are counted."""


@dataclass(frozen=True)
class _Candidate:
    id: str
    part: int
    number: int
    score: float


def read_lengths(connection: Connection, table: str) -> Lengths:
    """As they are now; every row is counted."""
    statement = sql("SELECT count(*), coalesce(avg(length), 0)::float8 FROM {}", qualified(table))
    count, mean = connection.execute(statement).fetchone()
    return Lengths(count, mean or 1.0)


def by_words(
    connection: Connection,
    table: str,
    header: Header,
    query: str,
    k: int,
    where: Filter,
    lengths: Lengths,
) -> Passages:
    """The k best that meet the condition; ties go to the lower id, then the lower part."""
    counts = Counter(searched_words(header.words.query(query)))
    if not counts:
        return _fetched(connection, table, header, [])
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        words = _words(connection, table, counts, lengths)
        found = _scored(connection, table, words, where, lengths, max(_SCORED, k), header.words)
        found.sort(key=lambda each: (-each.score, each.id, each.part))
        return _fetched(connection, table, header, found[:k])


def _words(connection: Connection, table: str, counts: Counter[str], lengths: Lengths) -> list[_Word]:
    """Those of the query, the rarest first where that matters."""
    if lengths.passages <= _COMMON and len(counts) <= _MOST_WORDS:
        return [_Word(text, times, 0) for text, times in counts.items()]
    words = []
    for text, times in counts.items():
        expected = estimate(connection, table, Filter(sql("words @@ %s::tsquery"), (_quoted(text),)))
        words.append(_Word(text, times, min(expected, lengths.passages)))
    return sorted(words, key=lambda word: word.expected)[:_MOST_WORDS]


def _leading(words: list[_Word], lengths: Lengths) -> int:
    """How many of the words bring candidates; the rarest does in any case."""
    if lengths.passages <= _COMMON:
        return len(words)
    total, count = 0, 0
    for word in words:
        total += word.expected
        if count and total > _COMMON:
            break
        count += 1
    return count


def _scored(
    connection: Connection,
    table: str,
    words: list[_Word],
    where: Filter,
    lengths: Lengths,
    most: int,
    rules: WordRules,
) -> list[_Candidate]:
    """The candidates that hold the rarest words.

    One pass over the passages with a leading word shows which of the words each has, and so how many passages have
    each word: rows are wide, and a pass for each word would read the same pages again and again.
    """
    leading, total = _leading(words, lengths), float(lengths.passages)
    numbers = range(len(words))
    holds = ", ".join(f"(words @@ %s::tsquery)::int AS h{n}" for n in numbers)
    # Of a word that brings no candidates the estimate is all there is.
    having = ", ".join(
        f"coalesce(sum(h{n}), 0)::float8 AS c{n}" if n < leading else f"{words[n].expected}::float8 AS c{n}"
        for n in numbers
    )
    # Weights once, not for each row, and in float8: a logarithm of numeric takes a thousand times as long.
    weights = ", ".join(
        f"{float(words[n].times)} * ln(1 + ({total} - least(c{n}, {total}) + 0.5::float8)"
        f" / (least(c{n}, {total}) + 0.5::float8)) AS w{n}"
        for n in numbers
    )
    weight = " + ".join(f"h{n} * w{n}" for n in numbers)
    counts = ", ".join(f"c{n}" for n in numbers)
    statement = sql(
        f"WITH hit AS MATERIALIZED (SELECT number, id, part, ({{where}}) AS inside, {holds} FROM {{table}}"
        f" WHERE words @@ %s::tsquery), counted AS (SELECT {having} FROM hit),"
        f" weighed AS MATERIALIZED (SELECT *, {weights} FROM counted),"
        f" best AS (SELECT number, {counts} FROM hit, weighed WHERE inside ORDER BY {weight} DESC, id, part"
        f" LIMIT {most})"
        f" SELECT rows.number, id, part, text, length, {counts} FROM best JOIN {{table}} AS rows USING (number)",
        where=where.sql,
        table=qualified(table),
    )
    texts = [_quoted(word.text) for word in words]
    parameters = [*where.parameters, *texts, " | ".join(texts[:leading])]
    cells = connection.execute(statement, parameters).fetchall()
    if not cells:
        return []
    idf = {word.text: word.times * _idf(int(cells[0][5 + n]), lengths) for n, word in enumerate(words)}
    return [
        _Candidate(row[1], row[2], row[0], _score(rules.document(row[3]), row[4], idf, lengths))
        for row in cells
    ]


def _idf(having: int, lengths: Lengths) -> float:
    having = min(having, lengths.passages)
    return log(1 + (lengths.passages - having + 0.5) / (having + 0.5))


def _score(found: list[str], length: int, idf: Mapping[str, float], lengths: Lengths) -> float:
    counts = Counter(word for word in found if word in idf)
    allowance = _K1 * (1 - _B + _B * length / lengths.mean)
    return sum(idf[word] * count / (count + allowance) for word, count in counts.items())


def _fetched(connection: Connection, table: str, header: Header, scored: list[_Candidate]) -> Passages:
    statement = sql("SELECT {} FROM {} WHERE number = ANY(%s)", columns_sql(header), qualified(table))
    cells: list[Any] = fetch(connection, statement, [[each.number for each in scored]]) if scored else []
    rows = rows_from(cells, header)
    rows_by_key = {
        (name, int(part)): n for n, (name, part) in enumerate(zip(rows.id, rows.part, strict=True))
    }
    order = [rows_by_key[each.id, each.part] for each in scored]
    return passages_from(rows, order, np.array([each.score for each in scored], dtype=np.float32))


def _quoted(word: str) -> str:
    """As a tsquery of one word; words are letters, accents and digits, so nothing in them can mean anything else."""
    return f"'{word}'"
