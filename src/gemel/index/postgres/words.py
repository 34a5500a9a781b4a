"""BM25 on the server: candidates by the index of words, scores here, from the texts.

What is approximate, and only in large tables: a word that more than 20,000 passages hold brings no candidates if a
rarer one is asked for as well, and its number is an estimate; of more than 1,000 candidates those are scored that
hold the rarest words; the mean length may be some seconds old. Small tables are ranked as `BM25Index` does it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from math import log
from typing import Any

import numpy as np

from gemel.index.port import FieldType, Header, Passages
from gemel.index.postgres.binary import searched_words
from gemel.index.postgres.columns import qualified
from gemel.index.postgres.filters import Filter
from gemel.index.postgres.neighbours import estimate
from gemel.index.postgres.reading import columns_sql, fetch, passages_from, rows_from
from gemel.index.postgres.server import Connection
from gemel.word_search.words import WordRules

_COMMON = 20_000  # passages; who holds more counts as frequent
_SCORED = 1_000
_MOST_WORDS = 64  # of a query; the rarest are kept
_K1, _B = 1.2, 0.75  # as gemel.word_search


@dataclass(frozen=True)
class Lengths:
    """Of the texts of a table, in words."""

    passages: int
    mean: float


@dataclass(frozen=True)
class _Word:
    text: str
    asked: int
    """Times in the query."""
    having: int
    """Passages that hold it."""
    idf: float


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
    with connection.transaction():
        connection.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        asked = searched_words(header.words.query(query))
        words = _words(connection, table, asked, lengths)
        most = max(_SCORED, k)
        scored = _scored(connection, table, words, where, lengths, most, header.words) if words else []
        scored.sort(key=lambda each: (-each[0], each[1], each[2]))
        return _fetched(connection, table, header.dim, header.fields, scored[:k])


def _words(connection: Connection, table: str, query: list[str], lengths: Lengths) -> list[_Word]:
    """Those of the query that are in the table, the rarest first."""
    words = []
    for word, asked in Counter(query).items():
        having = _having(connection, table, word, lengths)
        if having:
            idf = log(1 + (lengths.passages - having + 0.5) / (having + 0.5))
            words.append(_Word(word, asked, having, idf))
    return sorted(words, key=lambda word: word.having)[:_MOST_WORDS]


def _having(connection: Connection, table: str, word: str, lengths: Lengths) -> int:
    """Passages that hold a word: counted, or estimated where they are many and counting takes longer than searching."""
    from psycopg.sql import SQL

    if lengths.passages > _COMMON:
        expected = estimate(connection, table, Filter(SQL("words @@ %s::tsquery"), [_quoted(word)]))
        if expected > _COMMON:
            return min(expected, lengths.passages)
    statement = SQL("SELECT count(*) FROM {} WHERE words @@ %s::tsquery").format(qualified(table))
    counted = connection.execute(statement, [_quoted(word)]).fetchone()[0]
    return min(int(counted), lengths.passages)


def _scored(
    connection: Connection,
    table: str,
    words: list[_Word],
    where: Filter,
    lengths: Lengths,
    most: int,
    rules: WordRules,
) -> list[tuple[float, str, int, int]]:
    """(score, id, part, number) of the candidates."""
    from psycopg.sql import SQL, Literal

    leading: list[_Word] = []
    total = 0
    for word in words:
        if leading and total + word.having > _COMMON:
            break
        leading.append(word)
        total += word.having
    holds = SQL("(CASE WHEN words @@ %s::tsquery THEN {} ELSE 0 END)")
    weight = SQL(" + ").join(holds.format(Literal(word.asked * word.idf)) for word in words)
    statement = SQL(
        "SELECT number, id, part, text, length FROM {} WHERE words @@ %s::tsquery AND {}"
        " ORDER BY {} DESC, id, part LIMIT {}"
    ).format(qualified(table), where.sql, weight, Literal(most))
    asked = [" | ".join(_quoted(word.text) for word in leading)]
    parameters = [*asked, *where.parameters, *(_quoted(word.text) for word in words)]
    cells = connection.execute(statement, parameters).fetchall()
    return [(_score(rules.document(row[3]), row[4], words, lengths), row[1], row[2], row[0]) for row in cells]


def _score(found: list[str], length: int, words: list[_Word], lengths: Lengths) -> float:
    counts = Counter(found)
    allowance = _K1 * (1 - _B + _B * length / lengths.mean)
    return sum(word.asked * word.idf * counts[word.text] / (counts[word.text] + allowance) for word in words)


def _fetched(
    connection: Connection,
    table: str,
    dim: int,
    fields: Mapping[str, FieldType],
    scored: list[tuple[float, str, int, int]],
) -> Passages:
    from psycopg.sql import SQL

    statement = SQL("SELECT {} FROM {} WHERE number = ANY(%s)").format(columns_sql(fields), qualified(table))
    cells: list[Any] = fetch(connection, statement, [[each[3] for each in scored]]) if scored else []
    rows = rows_from(cells, fields, dim)
    places = {
        (name, int(part)): place for place, (name, part) in enumerate(zip(rows.id, rows.part, strict=True))
    }
    order = [places[each[1], each[2]] for each in scored]
    return passages_from(rows, order, np.array([each[0] for each in scored], dtype=np.float32))


def _quoted(word: str) -> str:
    """As a tsquery of one word; words are letters, marks and digits, so nothing in them can mean anything else."""
    return f"'{word}'"
