"""BM25 on the server: candidates from the index of words, scores computed here from the texts.

Approximate in large tables only: a word of more than 10,000 passages brings no candidates if the query has a rarer one,
and its count is an estimate; of more than 600 candidates those with the rarest words are scored; the mean length may be
some seconds old. Small tables are ranked as `BM25Index` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from gemel.index.port import FieldType, Header, Passages
from gemel.index.postgres.read import columns_sql, fetch, passages_from, rows_from, searched_words
from gemel.index.postgres.schema import Filter, qualified
from gemel.index.postgres.search import estimate
from gemel.index.postgres.server import Connection
from gemel.vectors.bm25 import WordRules

_COMMON = 10_000  # passages; who holds more counts as frequent
_SCORED = 600
_MOST_WORDS = 64  # of a query; the rarest are kept
_K1, _B = 1.2, 0.75  # as gemel.vectors.bm25


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
    from psycopg.sql import SQL

    statement = SQL("SELECT count(*), coalesce(avg(length), 0)::float8 FROM {}").format(qualified(table))
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
        return _fetched(connection, table, header.dim, header.fields, [])
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        words = _words(connection, table, counts, lengths)
        found = _scored(connection, table, words, where, lengths, max(_SCORED, k), header.words)
        found.sort(key=lambda each: (-each.score, each.id, each.part))
        return _fetched(connection, table, header.dim, header.fields, found[:k])


def _words(connection: Connection, table: str, counts: Counter[str], lengths: Lengths) -> list[_Word]:
    """Those of the query, the rarest first where that matters."""
    from psycopg.sql import SQL

    if lengths.passages <= _COMMON and len(counts) <= _MOST_WORDS:
        return [_Word(text, times, 0) for text, times in counts.items()]
    words = []
    for text, times in counts.items():
        expected = estimate(connection, table, Filter(SQL("words @@ %s::tsquery"), [_quoted(text)]))
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
    from psycopg.sql import SQL, Identifier, Literal

    leading = _leading(words, lengths)
    numbers = range(len(words))
    holds = SQL(", ").join(
        SQL("(words @@ %s::tsquery)::int AS {}").format(Identifier(f"h{n}")) for n in numbers
    )
    # Of a word that brings no candidates the estimate is all there is.
    having = SQL(", ").join(
        SQL("{} AS {}").format(
            SQL("coalesce(sum({}), 0)::float8").format(Identifier(f"h{n}"))
            if n < leading
            else SQL("{}::float8").format(Literal(words[n].expected)),
            Identifier(f"c{n}"),
        )
        for n in numbers
    )
    # Weights once, not for each row, and in float8: a logarithm of numeric takes a thousand times as long.
    weights = SQL(", ").join(
        SQL(
            "{times} * ln(1 + ({all} - least({c}, {all}) + 0.5::float8) / (least({c}, {all}) + 0.5::float8)) AS {w}"
        ).format(
            c=Identifier(f"c{n}"),
            w=Identifier(f"w{n}"),
            times=Literal(float(words[n].times)),
            all=Literal(float(lengths.passages)),
        )
        for n in numbers
    )
    weight = SQL(" + ").join(SQL("{} * {}").format(Identifier(f"h{n}"), Identifier(f"w{n}")) for n in numbers)
    counts = SQL(", ").join(Identifier(f"c{n}") for n in numbers)
    statement = SQL(
        "WITH hit AS MATERIALIZED (SELECT number, id, part, ({where}) AS inside, {holds} FROM {table}"
        " WHERE words @@ %s::tsquery), counted AS (SELECT {having} FROM hit),"
        " weighed AS MATERIALIZED (SELECT *, {weights} FROM counted),"
        " best AS (SELECT number, {counts} FROM hit, weighed WHERE inside ORDER BY {weight} DESC, id, part"
        " LIMIT {most})"
        " SELECT rows.number, id, part, text, length, {counts} FROM best JOIN {table} AS rows USING (number)"
    ).format(
        where=where.sql,
        holds=holds,
        table=qualified(table),
        having=having,
        counts=counts,
        weights=weights,
        weight=weight,
        most=Literal(most),
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


def _fetched(
    connection: Connection,
    table: str,
    dim: int,
    fields: Mapping[str, FieldType],
    scored: list[_Candidate],
) -> Passages:
    from psycopg.sql import SQL

    statement = SQL("SELECT {} FROM {} WHERE number = ANY(%s)").format(columns_sql(fields), qualified(table))
    cells: list[Any] = fetch(connection, statement, [[each.number for each in scored]]) if scored else []
    rows = rows_from(cells, fields, dim)
    rows_by_key = {
        (name, int(part)): n for n, (name, part) in enumerate(zip(rows.id, rows.part, strict=True))
    }
    order = [rows_by_key[each.id, each.part] for each in scored]
    return passages_from(rows, order, np.array([each.score for each in scored], dtype=np.float32))


def _quoted(word: str) -> str:
    """As a tsquery of one word; words are letters, accents and digits, so nothing in them can mean anything else."""
    return f"'{word}'"
