"""The rows of a table: read by id, in order, or counted; written and deleted; and their form in PostgreSQL's binary.

Each write is inside the transaction of `Server.write`. Writers of different documents do not wait for one another,
those of the same document do: each takes the locks of its ids in one order, so that there is no deadlock. All share one
more lock, which a migration takes exclusively. In binary, a vector is its size and a zero, 16 bits each, then float32
numbers, big-endian.
"""

from __future__ import annotations

import struct
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from gemel.errors import InputError, WorkError
from gemel.index.fields import in_utc, new_fields, unknown_field
from gemel.index.port import (
    LISTS,
    Count,
    DocumentPassages,
    FieldType,
    FieldValue,
    Header,
    PassageRows,
    Passages,
    check_expected,
    check_kinds,
    documents_in,
)
from gemel.index.postgres.schema import (
    Filter,
    add_columns,
    column_of,
    identifier,
    joined_sql,
    kind_column,
    lock_key,
    own_columns,
    qualified,
    read_header,
    set_fields,
    sql,
)
from gemel.index.postgres.server import Connection, Server
from gemel.types import Vectors

Cells = Sequence[Sequence[Any]]

_READ = ("id", "part", "text", "digest")

_REWRITTEN = 4_096  # passages that are read at a time where digests change

_LOCKS = 16  # a lock is for every sixteenth id: enough for writers at once, few enough to take all


def columns_sql(header: Header, *, kinds: bool = False) -> Any:  # noqa: ANN401 - psycopg.sql is loaded late
    """id, part, text, digest, vector if there are dense ones, then the fields in order; `kinds`: then these."""
    vector = ("vector",) if header.dim else ()
    others = map(kind_column, header.kinds if kinds else ())
    return joined_sql(", ", map(identifier, [*_READ, *vector, *map(column_of, header.fields), *others]))


def fetch(connection: Connection, statement: Any, parameters: Sequence[Any]) -> list[Any]:  # noqa: ANN401
    """Rows in binary: vectors as bytes."""
    with connection.cursor(binary=True) as cursor:
        found: list[Any] = cursor.execute(statement, parameters).fetchall()
    return found


def rows_from(cells: Cells, header: Header, *, kinds: bool = False) -> PassageRows:
    """The rows of cells in the order of `columns_sql`; times come in the zone of the session."""
    first = len(_READ) + (1 if header.dim else 0)
    others = enumerate(header.kinds if kinds else (), first + len(header.fields))
    dense = [row[4] for row in cells] if header.dim else []
    return PassageRows(
        id=[row[0] for row in cells],
        part=np.array([row[1] for row in cells], dtype=np.int32),
        text=[row[2] for row in cells],
        digest=[row[3] for row in cells],
        vector=vectors_of(dense, header.dim) if header.dim else np.empty((len(cells), 0), np.float32),
        fields={
            name: in_utc([row[n] for row in cells], kind)
            for n, (name, kind) in enumerate(header.fields.items(), first)
        },
        kinds={kind: [kind_value(kind, row[n]) for row in cells] for n, kind in others},
    )


def kind_value(kind: str, cell: bytes) -> bytes:
    """As `gemel.index.kinds` packs it: of a `sparsevec`, without its head and in the other order of bytes."""
    if kind == "late":
        return bytes(cell)
    return np.frombuffer(cell, ">i4", offset=12).astype("<i4").tobytes()


def sparse_cell(value: bytes, dim: int) -> bytes:
    """A packed row of weights as a `sparsevec`: dimensions, weights, a zero; then columns, then weights."""
    numbers = (
        np.frombuffer(value, "<i4").astype(">i4").tobytes()
    )  # the bits of a weight are moved like an integer's
    return struct.pack(">iii", dim, len(value) // 8, 0) + numbers


def passages_from(rows: PassageRows, order: Sequence[int], score: Vectors) -> Passages:
    """The rows at the positions `order`; `score` is in that order already."""
    return Passages(
        id=[rows.id[n] for n in order],
        part=rows.part[list(order)],
        text=[rows.text[n] for n in order],
        fields={name: [values[n] for n in order] for name, values in rows.fields.items()},
        score=score,
        vector=rows.vector[list(order)],
    )


def digests(connection: Connection, table: str, ids: Sequence[str]) -> dict[str, str]:
    """The digests of those of the ids that are stored."""
    statement = sql("SELECT id, digest FROM {} WHERE id = ANY(%s) AND part = 0", qualified(table))
    found = dict(connection.execute(statement, [list(ids)]).fetchall())
    return {each: found[each] for each in ids if each in found}


def get(
    connection: Connection, table: str, header: Header, ids: Sequence[str], *, kinds: bool = False
) -> PassageRows:
    """The passages of these documents, in the order of `ids`."""
    order = {each: n for n, each in enumerate(dict.fromkeys(ids))}
    columns = columns_sql(header, kinds=kinds)
    statement = sql("SELECT {} FROM {} WHERE id = ANY(%s)", columns, qualified(table))
    cells = fetch(connection, statement, [list(order)])
    cells.sort(key=lambda row: (order[row[0]], row[1]))
    return rows_from(cells, header, kinds=kinds)


def count(connection: Connection, table: str, where: Filter) -> Count:
    """Documents and passages that meet the condition."""
    text = "SELECT count(*) FILTER (WHERE part = 0), count(*) FROM {} WHERE {}"
    row = connection.execute(sql(text, qualified(table), where.sql), where.parameters).fetchone()
    return Count(documents=row[0], passages=row[1])


def values(
    connection: Connection, table: str, header: Header, field: str, where: Filter
) -> dict[FieldValue, int]:
    """How many documents have each value of the field."""
    kind, column = header.fields[field], identifier(column_of(field))
    text = "SELECT {}, count(*) FROM {} WHERE part = 0 AND {} GROUP BY 1"
    statement = sql(text, column, qualified(table), where.sql)
    parameters = list(where.parameters)
    if kind in LISTS:
        text = (
            "SELECT value, count(*) FROM {} CROSS JOIN LATERAL (SELECT DISTINCT unnest({})) AS inside (value)"
        )
        statement = sql(
            f"{text} WHERE part = 0 AND {{}} GROUP BY 1"
            " UNION ALL SELECT NULL, count(*) FROM {} WHERE part = 0 AND {} IS NULL AND {} HAVING count(*) > 0",
            qualified(table),
            column,
            where.sql,
            qualified(table),
            column,
            where.sql,
        )
        parameters *= 2
    found = fetch(connection, statement, parameters)
    return dict(
        zip(in_utc([row[0] for row in found], LISTS.get(kind, kind)), [row[1] for row in found], strict=True)
    )


def scan(
    server: Server,
    table: str,
    header: Header,
    after: str | None,
    block: int,
    where: Filter,
    *,
    kinds: bool = False,
) -> Iterator[PassageRows]:
    """Pages of whole documents; each page is a read of its own, begun after the last id of the one before."""
    last = "" if after is None else after  # no id is empty
    while True:
        page = partial(_page, table=table, header=header, after=last, block=block, where=where, kinds=kinds)
        rows = server.read(page)
        if not len(rows):
            return
        yield rows
        last = rows.id[-1]


def pages(
    connection: Connection, table: str, header: Header, block: int, where: Filter, *, kinds: bool = False
) -> Iterator[PassageRows]:
    """As `scan`, on one connection: in a transaction, of one moment."""
    page = partial(_page, connection, table=table, header=header, block=block, where=where, kinds=kinds)
    last = ""
    while len(rows := page(after=last)):
        yield rows
        last = rows.id[-1]


def _page(
    connection: Connection,
    *,
    table: str,
    header: Header,
    after: str,
    block: int,
    where: Filter,
    kinds: bool,
) -> PassageRows:
    """At most `block` passages of whole documents; a document of more is a page of its own."""
    text = "SELECT {} FROM {} WHERE id > %s AND {} ORDER BY id, part LIMIT %s"
    statement = sql(text, columns_sql(header, kinds=kinds), qualified(table), where.sql)
    cells = fetch(connection, statement, [after, *where.parameters, block + 1])
    if len(cells) > block:  # the last document may continue on the next page
        complete = [row for row in cells if row[0] != cells[-1][0]]
        if not complete:
            return get(connection, table, header, [cells[0][0]], kinds=kinds)
        cells = complete
    return rows_from(cells, header, kinds=kinds)


def lock_writes(connection: Connection, table: str, ids: Sequence[str] | None) -> None:
    """Until the transaction ends; `ids` None: all ids."""
    chosen = range(_LOCKS) if ids is None else sorted({zlib.crc32(each.encode()) % _LOCKS for each in ids})
    connection.execute("SELECT pg_advisory_xact_lock_shared(%s)", [lock_key("write", table)])
    connection.execute(
        "SELECT pg_advisory_xact_lock(key) FROM unnest(%s::bigint[]) AS keys (key)",
        [[lock_key("ids", table, each) for each in chosen]],
    )


def put(
    connection: Connection,
    table: str,
    ids: Sequence[str],
    blocks: Sequence[bytes],
    header: Header,
    fields: Iterable[str],
    *,
    replace: bool,
    expected: Mapping[str, str] | None = None,
) -> int:
    """Store the copied rows instead of the old ones of these ids; without `replace`, an existing id is an error."""
    lock_writes(connection, table, list({*ids, *(expected or ())}))
    if expected:
        check_expected(expected, digests(connection, table, list(expected)))
    if replace:
        connection.execute(sql("DELETE FROM {} WHERE id = ANY(%s)", qualified(table)), [list(ids)])
    else:
        there = sql("SELECT id FROM {} WHERE id = ANY(%s) ORDER BY id LIMIT 1", qualified(table))
        row = connection.execute(there, [list(ids)]).fetchone()
        if row is not None:
            raise InputError(f"{row[0]!r} is there already. Use existing='replace' or 'skip'")
    names = joined_sql(", ", map(identifier, [*own_columns(header), *map(column_of, fields)]))
    with connection.cursor().copy(
        sql("COPY {} ({}) FROM STDIN (FORMAT binary)", qualified(table), names)
    ) as copy:
        for block in blocks:
            copy.write(block)
    return 0


def delete(connection: Connection, table: str, ids: Sequence[str]) -> int:
    """How many of the documents were there."""
    lock_writes(connection, table, ids)
    return _deleted(connection, table, Filter(sql("id = ANY(%s)"), (list(ids),)))


def delete_where(connection: Connection, table: str, where: Filter) -> int:
    """How many documents met the condition."""
    lock_writes(connection, table, None)
    return _deleted(connection, table, where)


def _deleted(connection: Connection, table: str, where: Filter) -> int:
    text = "WITH gone AS (DELETE FROM {} WHERE {} RETURNING part) SELECT count(*) FILTER (WHERE part = 0) FROM gone"
    row = connection.execute(sql(text, qualified(table), where.sql), where.parameters).fetchone()
    return int(row[0])


def add_fields(connection: Connection, table: str, fields: Mapping[str, FieldType]) -> int:
    """How many are new. Waits for the writers, then for the readers, as any change of columns does."""
    header = _locked_header(connection, table)
    new = new_fields(header.fields, fields)
    if new:
        for statement in add_columns(table, new):
            connection.execute(statement)
        set_fields(connection, table, header, {**header.fields, **new})
    return len(new)


def remove_field(
    connection: Connection, table: str, field: str, changed: Callable[[DocumentPassages], DocumentPassages]
) -> int:
    """How many documents had a value. Waits as `add_fields` does."""
    header = _locked_header(connection, table)
    if field not in header.fields:
        raise unknown_field(field, header.fields)
    column = identifier(column_of(field))
    having = Filter(sql("{} IS NOT NULL", column))
    update = sql(
        "UPDATE {} AS stored SET digest = new.digest FROM unnest(%s::text[], %s::text[]) AS new (id, digest)"
        " WHERE stored.id = new.id",
        qualified(table),
    )
    count = 0
    for rows in pages(connection, table, header, _REWRITTEN, having):
        documents = [changed(each) for each in documents_in(rows)]
        connection.execute(update, [[each.id for each in documents], [each.digest for each in documents]])
        count += len(documents)
    connection.execute(sql("ALTER TABLE {} DROP COLUMN {}", qualified(table), column))
    left = {name: kind for name, kind in header.fields.items() if name != field}
    set_fields(connection, table, header, left)
    return count


def _locked_header(connection: Connection, table: str) -> Header:
    """Until the transaction ends, nobody else writes."""
    lock_writes(connection, table, None)
    header = read_header(connection, table)
    if header is None:
        raise WorkError("the index was migrated meanwhile, nothing was changed. Open it again")
    return header


def forget_old_tokens(connection: Connection) -> int:
    """Tokens of finished writes are of use for seconds; those of yesterday go. Rows that another one holds are left."""
    connection.execute(
        "DELETE FROM gemel.writes WHERE token IN (SELECT token FROM gemel.writes"
        " WHERE at < now() - interval '1 day' FOR UPDATE SKIP LOCKED)"
    )
    return 0


_DAY, _MOMENT = date(2000, 1, 1), datetime(2000, 1, 1, tzinfo=UTC)  # from which PostgreSQL counts

_OIDS: Mapping[FieldType, int] = {
    "text": 25,
    "int": 20,
    "float": 701,
    "bool": 16,
    "date": 1082,
    "datetime": 1184,
}
"""Of the elements of arrays; built into every server."""

_START = b"PGCOPY\n\xff\r\n\0" + struct.pack(">ii", 0, 0)

_END = struct.pack(">h", -1)

_NULL = struct.pack(">i", -1)

_AT_ONCE = 512  # rows that are sent together

LONGEST_WORD = 2046  # bytes; PostgreSQL's limit of a word in a tsvector. Longer ones are not searched for

_MOST_WORDS = 1_000_000  # bytes of one passage's words; PostgreSQL takes 1,048,575


def copy_blocks(rows: PassageRows, header: Header, fields: Mapping[str, FieldType]) -> list[bytes]:
    """A COPY of our columns and the fields, in that order; all of it is checked before any of it is sent."""
    check_kinds(rows, header)
    columns = [_vectors(rows.vector)] if header.dim else []
    columns += [_kind_cells(kind, each.dim, rows.kinds[kind]) for kind, each in header.kinds.items()]
    columns += [_column(name, kind, rows.fields[name]) for name, kind in fields.items()]
    rules, count = header.words, struct.pack(">h", 6 + len(columns))
    blocks, block = [_START], []
    for n in range(len(rows)):
        words, length = _words(rules.document(rows.text[n]))
        block.append(count)
        block.append(_text(rows.id[n]))
        block.append(struct.pack(">ii", 4, int(rows.part[n])))
        block.append(_text(rows.text[n]))
        block.append(_text(rows.digest[n]))
        block.append(words)
        block.append(struct.pack(">ii", 4, length))
        block += [column[n] for column in columns]
        if n % _AT_ONCE == _AT_ONCE - 1:
            blocks.append(b"".join(block))
            block = []
    return [*blocks, b"".join(block), _END]


def vectors_of(cells: Sequence[bytes], dim: int) -> Vectors:
    """(n, dim) from the bytes of n vectors."""
    joined = np.frombuffer(b"".join(cells), dtype=np.uint8).reshape(len(cells), 4 + 4 * dim)
    return np.ascontiguousarray(joined[:, 4:]).view(">f4").astype(np.float32)


def vector_text(vector: Vectors) -> str:
    """For `%s::vector`; repr of a float32 as float64 is read back to the same bits."""
    return "[" + ",".join(map(repr, vector.tolist())) + "]"


def searched_words(words: Iterable[str]) -> list[str]:
    """Those words that the server can hold, repeated as they are there."""
    return [word for word in words if len(word) * 4 <= LONGEST_WORD or len(word.encode()) <= LONGEST_WORD]


def _kind_cells(kind: str, dim: int, values: Sequence[bytes]) -> list[bytes]:
    cells = values if kind == "late" else [sparse_cell(value, dim) for value in values]
    return [struct.pack(">i", len(cell)) + cell for cell in cells]


def _vectors(vectors: Vectors) -> list[bytes]:
    n, dim = vectors.shape
    head = struct.pack(">ihh", 4 + 4 * dim, dim, 0)
    numbers = vectors.astype(">f4")
    return [head + numbers[n].tobytes() for n in range(n)]


def _words(found: list[str]) -> tuple[bytes, int]:
    """The different words as a tsvector without positions, and how many words there are in all."""
    counts = Counter(searched_words(found))
    kept, size = [], 0
    for word in sorted(word.encode() for word in counts):
        size += len(word) + 4
        if size > _MOST_WORDS:
            break
        kept.append(word)
    body = struct.pack(">i", len(kept)) + b"".join(word + b"\0\0\0" for word in kept)
    return struct.pack(">i", len(body)) + body, counts.total()


def _text(value: str) -> bytes:
    encoded = value.encode()
    return struct.pack(">i", len(encoded)) + encoded


def _column(name: str, kind: FieldType, values: Iterable[FieldValue]) -> list[bytes]:
    pack = _PACKERS[kind]
    try:
        return [_NULL if value is None else pack(value) for value in values]
    except (struct.error, TypeError, AttributeError, ValueError, OverflowError) as error:
        raise InputError(f"the field {name!r} is {kind} and has a value that is none: {error}") from error


def _list(values: Sequence[Any], element: FieldType) -> bytes:
    """An array: its dimensions, a flag for nulls, the type of its elements; then length and lower bound; then those."""
    body = struct.pack(">iii", 1 if values else 0, 0, _OIDS[element])
    if values:
        body += struct.pack(">ii", len(values), 1) + b"".join(map(_PACKERS[element], values))
    return struct.pack(">i", len(body)) + body


_PACKERS: Mapping[FieldType, Callable[..., bytes]] = {
    "text": _text,
    "int": lambda value: struct.pack(">iq", 8, value),
    "float": lambda value: struct.pack(">id", 8, value),
    "bool": lambda value: struct.pack(">i?", 1, value),
    "date": lambda value: struct.pack(">ii", 4, (value - _DAY).days),
    "datetime": lambda value: struct.pack(">iq", 8, (value - _MOMENT) // timedelta(microseconds=1)),
    **{kind: partial(_list, element=element) for kind, element in LISTS.items()},
}
