"""A table with a pgvector column that another program made, read as an index: nothing is written or created in it.

A subquery gives its columns the names and types that an index has, so conditions and counts are those of `schema.py`
and `rows.py`. Vectors of any length are compared by cosine. If the column has an HNSW or IVFFlat index for cosine
(`vector_cosine_ops`, `halfvec_cosine_ops`), it gives the candidates; indexes for other distances order vectors of
different lengths otherwise, and every row is compared then. Rows without an id or a vector are left out.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from math import ceil, sqrt
from typing import Any, NoReturn
from urllib.parse import parse_qsl

from gemel.errors import InputError, did_you_mean
from gemel.index.approximate import depths
from gemel.index.binding import unit
from gemel.index.fields import check_name
from gemel.index.port import (
    LISTS,
    Count,
    FieldType,
    FieldValue,
    Header,
    NoWordSearch,
    PassageRows,
    Passages,
    TableStats,
    digest_of,
    documents_in,
)
from gemel.index.postgres import rows as stored
from gemel.index.postgres.schema import Filter, column_of, identifier, joined_sql, sql, to_postgres
from gemel.index.postgres.search import UNTUNED, allow_graph, best_first, one_ranking
from gemel.index.postgres.server import Connection, Server, explained, parse_address
from gemel.index.where import Condition
from gemel.types import Vectors

_VECTORS = ("vector", "halfvec")

_TYPES: Mapping[str, tuple[FieldType, str]] = {
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "uuid", "citext"), ("text", "text")),
    **dict.fromkeys(("int2", "int4", "int8"), ("int", "bigint")),
    **dict.fromkeys(("float4", "float8", "numeric"), ("float", "double precision")),
    "bool": ("bool", "boolean"),
    "date": ("date", "date"),
    "timestamptz": ("datetime", "timestamptz"),
    "timestamp": ("datetime", "timestamptz"),  # without a zone: the session's, which is UTC
}
"""Types of columns: of the field that they become, and what they are cast to."""

_INTEGERS = {"int2": 2**15, "int4": 2**31, "int8": 2**63}

_BLOCK = 4096

_MOST_BREADTH = 1000  # pgvector's limit of ef_search


@dataclass(frozen=True)
class TableColumns:
    """Which table is attached, and what its columns are."""

    table: str
    """Its name, or schema.name."""
    id: str = "id"
    vector: str | None = None
    """None: the only column of vectors."""
    text: str | None = None
    fields: Sequence[str] | None = None
    """None: all other columns of types that a field can have."""


@dataclass(frozen=True)
class _Column:
    name: str
    type: str
    """As pg_type names it; of an array, that of its elements."""
    array: bool
    dim: int
    """Of a column of vectors that declares it; else -1."""
    unique: bool

    @property
    def kind(self) -> FieldType | None:
        """Of the field that it becomes; None: it cannot be one."""
        single = _TYPES.get(self.type, (None, ""))[0]
        if not self.array or single is None:
            return single
        return next(kind for kind, element in LISTS.items() if element == single)

    @property
    def cast(self) -> Any:  # noqa: ANN401 - psycopg.sql is loaded late
        """The column as the field's type; untouched where it is of that type, so that its indexes serve."""
        wanted = _TYPES[self.type][1]
        if self.type in ("text", "int8", "float8", "bool", "date", "timestamptz"):
            return identifier(self.name)
        return sql(f"{{}}::{wanted}{'[]' if self.array else ''}", identifier(self.name))


def parse_attached(location: str) -> tuple[str, TableColumns, str | None]:
    """The address of the database, the columns, and the name of the model or None."""
    base, _, fragment = location.rpartition("#")
    given = dict(parse_qsl(fragment, keep_blank_values=True))
    known = ("table", "id", "vector", "text", "fields", "model")
    for name in given:
        if name not in known:
            hint = did_you_mean(name, known)
            raise InputError(
                f"unknown setting {name!r} of an attached table.{hint} Known: {', '.join(known)}"
            )
    if not given.get("table"):
        raise InputError("the address of an attached table names no table: #table=items&vector=embedding")
    model, listed = given.pop("model", None), given.pop("fields", None)
    fields = None if listed is None else [name for name in listed.split(",") if name]
    return base, TableColumns(fields=fields, **given), model


@dataclass(frozen=True)
class _VectorIndex:
    """The table's own index over the vectors, for cosine."""

    name: str
    method: str
    """hnsw or ivfflat"""
    lists: int

    def allow(self, connection: Connection, fetched: int, *, far: bool) -> None:
        """For this transaction; see `search.allow_graph`."""
        wide = 2 if far else 1
        allow_graph(connection, min(max(wide * UNTUNED, fetched), _MOST_BREADTH))
        if self.method == "ivfflat":
            probes = min(self.lists, wide * max(10, ceil(2 * sqrt(self.lists))))
            connection.execute(
                "SELECT set_config('ivfflat.probes', %s, true),"
                " set_config('ivfflat.iterative_scan', 'relaxed_order', true)",
                [str(probes)],
            )


class AttachedTable:
    """A `Table` that can only be read."""

    def __init__(self, location: str, columns: TableColumns, *, digest_vectors: bool = True) -> None:
        """`digest_vectors` False: the vectors are those of a model, which the caller names in the header."""
        self._server = Server(parse_address(location, named=False), read_only=True)
        self._with_vectors = digest_vectors
        try:
            self._description = self._server.read(lambda connection: _describe(connection, columns))
        except BaseException:
            self._server.close()
            raise
        self.header = Header(self._description.dim, self._description.fields, {"model": None})

    @property
    def location(self) -> str:
        return f"{self._server.address.shown} (attached: {self._description.name})"

    def digests(self, ids: Sequence[str]) -> dict[str, str]:
        rows = self.get(ids)
        return dict(zip(rows.id, rows.digest, strict=True))

    def get(self, ids: Sequence[str], *, kinds: bool = False) -> PassageRows:
        order = {each: n for n, each in enumerate(dict.fromkeys(ids))}
        native, kind = self._description.native_ids(order)
        statement = sql(f"SELECT {{}} FROM {{}} WHERE key = ANY(%s::{kind}[])", self._columns, self._source)
        cells = self._server.read(lambda connection: stored.fetch(connection, statement, [native]))
        return self._rows(sorted((row for row in cells if row[0] in order), key=lambda row: order[row[0]]))

    def count(self, where: Condition | None = None) -> Count:
        chosen = self._filter(where)
        return self._server.read(lambda connection: stored.count(connection, self._source, chosen))

    def values(self, field: str, where: Condition | None = None) -> dict[FieldValue, int]:
        chosen = self._filter(where)
        return self._server.read(
            lambda connection: stored.values(connection, self._source, self.header, field, chosen)
        )

    def nearest(
        self,
        queries: Vectors,
        k: int,
        *,
        where: Condition | None = None,
        exact: bool = False,
        recall: float | None = None,
        far: bool = False,
    ) -> list[Passages]:
        """The recall of a foreign index is unknown, so with `recall` every row is compared."""
        chosen, index = self._filter(where), self._description.index

        def search(connection: Connection) -> list[Passages]:
            if exact or recall is not None or index is None:
                return [self._exact(connection, query, k, chosen) for query in queries]
            sizes = depths(k)
            found = [
                [self._indexed(connection, query, size, chosen, index, far=far) for query in queries]
                for size in sizes
            ]
            return [one_ranking(each, sizes, k) for each in zip(*found, strict=True)]

        return self._server.read(search) if len(queries) else []

    def by_words(self, query: str, k: int, *, where: Condition | None = None) -> Passages:
        raise NoWordSearch(
            f"{self.location} has no word index, so it is searched by vectors only: without hybrid"
        )

    def by_kind(
        self,
        kind: str,
        queries: Sequence[Any],
        k: int,
        *,
        where: Condition | None = None,
        exact: bool = False,
        recall: float | None = None,
    ) -> list[Passages]:
        raise InputError(f"{self.location} is a table of dense vectors, it has no {kind} ones")

    def scan(
        self,
        *,
        after: str | None = None,
        block: int = _BLOCK,
        where: Condition | None = None,
        kinds: bool = False,
    ) -> Iterator[PassageRows]:
        with explained(self._server.address), self._server.session() as connection, connection.transaction():
            yield from self._cursor(connection, after, block, self._filter(where))

    @contextmanager
    def frozen(self, block: int = _BLOCK) -> Iterator[tuple[Header, Iterator[PassageRows]]]:
        with explained(self._server.address), self._server.session() as connection, connection.transaction():
            yield self.header, self._cursor(connection, None, block, self._filter(None))

    def faults(self) -> list[str]:
        return []

    def stats(self) -> TableStats:
        count, index = self.count(), self._description.index
        size, server, pgvector = self._server.read(
            lambda connection: connection.execute(
                "SELECT pg_total_relation_size(%s::oid), current_setting('server_version'),"
                " (SELECT extversion FROM pg_extension WHERE extname = 'vector')",
                [self._description.oid],
            ).fetchone()
        )
        return TableStats(
            documents=count.documents,
            passages=count.passages,
            bytes=size or 0,
            layout="exact" if index is None else f"{index.method} index {index.name} of the table",
            unindexed=0,
            recall=None,
            version="",
            details={"postgresql": server, "pgvector": pgvector, "table": self._description.name},
        )

    def close(self) -> None:
        self._server.close()

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise InputError(f"the index {self.location} {READ_ONLY}")

    add_fields = remove_field = write = delete = delete_where = compact = _refuse

    @property
    def _columns(self) -> Any:  # noqa: ANN401
        return stored.columns_sql(self.header)

    @property
    def _source(self) -> Any:  # noqa: ANN401
        return self._description.source

    def _filter(self, where: Condition | None) -> Filter:
        return Filter(sql("true")) if where is None else to_postgres(where)

    def _rows(self, cells: stored.Cells) -> PassageRows:
        """With vectors of length 1, and the digests that `add` would give the documents."""
        rows = stored.rows_from(cells, self.header)
        rows = replace(rows, vector=unit(rows.vector))
        given = rows.vector if self._with_vectors else [None] * len(rows)
        digests = [
            digest_of(document.text, document.fields, None, vector)
            for document, vector in zip(documents_in(rows), given, strict=True)
        ]
        return replace(rows, digest=digests)

    def _answer(self, query: Vectors, cells: stored.Cells, k: int) -> Passages:
        rows = self._rows(cells)
        return stored.passages_from(rows, *best_first(query, rows, k))

    def _exact(self, connection: Connection, query: Vectors, k: int, where: Filter) -> Passages:
        """Every row compared; a vector of zeros, which has no direction, counts as a cosine of 0."""
        statement = sql(
            "SELECT {} FROM {} WHERE {}"
            " ORDER BY coalesce(nullif(vector <=> %s::vector, 'NaN'::float8), 1), id LIMIT {}",
            self._columns,
            self._source,
            where.sql,
            _fetched(k),
        )
        cells = stored.fetch(connection, statement, [*where.parameters, stored.vector_text(query)])
        return self._answer(query, cells, k)

    def _indexed(
        self, connection: Connection, query: Vectors, k: int, where: Filter, index: _VectorIndex, *, far: bool
    ) -> Passages:
        """Candidates of the table's index; if it gives too few, as few rows meet the condition, all are compared."""
        statement = sql(
            "SELECT {} FROM {} WHERE {} ORDER BY stored <=> %s::"
            + self._description.vector_type
            + " LIMIT {}",
            self._columns,
            self._source,
            where.sql,
            _fetched(k),
        )
        with connection.transaction():
            index.allow(connection, _fetched(k), far=far)
            cells = stored.fetch(connection, statement, [*where.parameters, stored.vector_text(query)])
        if len(cells) < _fetched(k):
            return self._exact(connection, query, k, where)
        return replace(self._answer(query, cells, k), exact=False)

    def _cursor(
        self, connection: Connection, after: str | None, block: int, where: Filter
    ) -> Iterator[PassageRows]:
        """All rows by ascending id, sorted once by the server."""
        statement = sql(
            "SELECT {} FROM {} WHERE (%s::text IS NULL OR id > %s) AND {} ORDER BY id",
            self._columns,
            self._source,
            where.sql,
        )
        with connection.cursor(name="gemel", binary=True) as cursor:
            cursor.execute(statement, [after, after, *where.parameters])
            while cells := cursor.fetchmany(block):
                yield self._rows(cells)


READ_ONLY = (
    "is a table of another program, attached to be read. Write to it with SQL, or copy it: index.snapshot"
)


def _fetched(k: int) -> int:
    """More than k: the server's scores differ from ours in their last bits."""
    return k + max(16, k // 2)


@dataclass(frozen=True, eq=False)
class AttachedStore:
    """A `Store` of one attached table."""

    table: AttachedTable

    @property
    def name(self) -> str:
        return self.table.location

    def exists(self) -> bool:
        return True

    def open(self) -> AttachedTable:
        return self.table

    def close(self) -> None:
        self.table.close()

    def _refuse(self, *given: object, **named: object) -> NoReturn:
        raise InputError(f"the index {self.name} {READ_ONLY}")

    create = begin = switch = abandon = drop = repair = writing = _refuse


@dataclass(frozen=True, eq=False)
class _Description:
    """What the catalog of the server says of the table."""

    oid: int
    name: str
    source: Any
    """A subquery with the columns of an index; `key` and `stored` are those of the table, for its own indexes."""
    dim: int
    vector_type: str
    id: _Column
    fields: Mapping[str, FieldType]
    index: _VectorIndex | None = field(default=None)

    def native_ids(self, ids: Sequence[str] | Mapping[str, int]) -> tuple[list[Any], str]:
        """Ids as the column has them, and its type; those that it cannot hold are left out."""
        if self.id.type in _INTEGERS:
            most = _INTEGERS[self.id.type]
            whole = [int(each) for each in ids if each.removeprefix("-").isdecimal() and len(each) < 21]
            return [each for each in whole if -most <= each < most], self.id.type
        if self.id.type == "uuid":
            return [each for each in ids if _is_uuid(each)], "uuid"
        return list(ids), "text"


def _is_uuid(text: str) -> bool:
    try:
        return str(uuid.UUID(text)) == text
    except ValueError:
        return False


def _describe(connection: Connection, columns: TableColumns) -> _Description:
    oid, schema, name = _relation(connection, columns.table)
    known = _columns(connection, oid)
    shown = name if schema == "public" else f"{schema}.{name}"

    def column(given: str, what: str) -> _Column:
        if given not in known:
            hint = did_you_mean(given, list(known))
            raise InputError(
                f"the table {shown} has no column {given!r} ({what}).{hint} It has: {', '.join(known)}"
            )
        return known[given]

    vector = _vector_column(columns, known, shown, column)
    key = column(columns.id, "id")
    if key.array or key.type not in ("text", "varchar", "bpchar", "citext", "name", "uuid", *_INTEGERS):
        raise InputError(
            f"the column {key.name!r} of {shown} has the type {key.type}: an id is a text, int or uuid"
        )
    text = None if columns.text is None else column(columns.text, "text")
    if text is not None and (text.array or text.kind != "text"):
        raise InputError(f"the column {text.name!r} of {shown} has the type {text.type}: it holds no texts")
    relation = identifier(schema, name)
    if not key.unique:
        _check_unique(connection, relation, key.name, shown)
    taken = {key.name, vector.name, *([] if text is None else [text.name])}
    chosen = columns.fields
    if chosen is None:
        chosen = [each.name for each in known.values() if each.kind is not None and each.name not in taken]
    fields: dict[str, FieldType] = {}
    for each in chosen:
        if columns.fields is None and not _may_be_field(each, fields):
            continue
        check_name(each, fields)
        kind = column(each, "field").kind
        if kind is None:
            raise InputError(
                f"the column {each!r} of {shown} has the type {known[each].type}, which no field has"
            )
        fields[each] = kind
    return _Description(
        oid=oid,
        name=shown,
        source=_source(relation, key, vector, text, [known[each] for each in fields]),
        dim=_dim(connection, relation, vector, shown),
        vector_type=vector.type,
        id=key,
        fields=fields,
        index=_vector_index(connection, oid, vector.name),
    )


def _may_be_field(name: str, beside: Iterable[str]) -> bool:
    try:
        check_name(name, beside)
    except InputError:
        return False
    return True


def _relation(connection: Connection, table: str) -> tuple[int, str, str]:
    if connection.execute("SELECT to_regtype('vector')").fetchone()[0] is None:
        raise InputError("the database has no extension vector (pgvector), so no table in it has vectors")
    row = connection.execute(
        "SELECT c.oid, n.nspname, c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace"
        " WHERE c.relkind IN ('r', 'p', 'v', 'm', 'f') AND (n.nspname || '.' || c.relname = %s"
        " OR (c.relname = %s AND pg_table_is_visible(c.oid)))",
        [table, table],
    ).fetchone()
    if row is None:
        there = connection.execute(
            "SELECT DISTINCT c.oid::regclass::text FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid"
            " JOIN pg_type t ON t.oid = a.atttypid WHERE t.typname = ANY(%s) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')"
            " ORDER BY 1 LIMIT 9",
            [list(_VECTORS)],
        ).fetchall()
        others = ", ".join(name for (name,) in there) or "none"
        raise InputError(f"there is no table {table!r} in the database. Tables with vectors: {others}")
    return int(row[0]), row[1], row[2]


def _columns(connection: Connection, oid: int) -> dict[str, _Column]:
    rows = connection.execute(
        "SELECT a.attname, coalesce(e.typname, t.typname), e.oid IS NOT NULL, a.atttypmod, EXISTS (SELECT 1"
        " FROM pg_index i WHERE i.indrelid = a.attrelid AND i.indisunique AND i.indisvalid AND i.indpred IS NULL"
        " AND i.indnkeyatts = 1 AND i.indkey[0] = a.attnum)"
        " FROM pg_attribute a JOIN pg_type t ON t.oid = a.atttypid"
        " LEFT JOIN pg_type e ON e.oid = t.typelem AND t.typcategory = 'A'"
        " WHERE a.attrelid = %s AND a.attnum > 0 AND NOT a.attisdropped ORDER BY a.attnum",
        [oid],
    ).fetchall()
    return {row[0]: _Column(*row) for row in rows}


def _vector_column(
    columns: TableColumns, known: Mapping[str, _Column], shown: str, column: Callable[[str, str], _Column]
) -> _Column:
    if columns.vector is not None:
        found = column(columns.vector, "vector")
        if found.array or found.type not in _VECTORS:
            raise InputError(
                f"the column {found.name!r} of {shown} has the type {found.type}, not vector or halfvec"
            )
        return found
    every = [each for each in known.values() if each.type in _VECTORS and not each.array]
    if len(every) != 1:
        names = ", ".join(each.name for each in every) or "none"
        raise InputError(f"name the column of the vectors: vector=. {shown} has {len(every)}: {names}")
    return every[0]


def _check_unique(connection: Connection, relation: Any, name: str, shown: str) -> None:  # noqa: ANN401
    column = identifier(name)
    twice = sql("SELECT {}::text FROM {} GROUP BY {} HAVING count(*) > 1 LIMIT 1", column, relation, column)
    row = connection.execute(twice).fetchone()
    if row is not None and row[0] is not None:
        raise InputError(
            f"{row[0]!r} comes twice in the column {name!r} of {shown}: ids are distinct. Name another"
        )


def _dim(connection: Connection, relation: Any, vector: _Column, shown: str) -> int:  # noqa: ANN401
    """As the column declares it, or as all of its vectors have it."""
    if vector.dim > 0:
        return vector.dim
    column = identifier(vector.name)
    row = connection.execute(
        sql("SELECT min(vector_dims({})), max(vector_dims({})) FROM {}", column, column, relation)
    ).fetchone()
    if row[0] is None:
        raise InputError(f"the column {vector.name!r} of {shown} declares no dimension and has no vector yet")
    if row[0] != row[1]:
        raise InputError(
            f"the column {vector.name!r} of {shown} has vectors of {row[0]} to {row[1]} numbers, not of one length"
        )
    return int(row[0])


def _source(
    relation: Any,  # noqa: ANN401
    key: _Column,
    vector: _Column,
    text: _Column | None,
    fields: Sequence[_Column],
) -> Any:  # noqa: ANN401
    named = [sql("{} AS {}", each.cast, identifier(column_of(each.name))) for each in fields]
    return sql(
        "(SELECT {id}::text COLLATE \"C\" AS id, 0 AS part, {body} AS text, ''::text AS digest,"
        " {vector}::vector AS vector, {id} AS key, {vector} AS stored{fields} FROM {relation}"
        " WHERE {id} IS NOT NULL AND {vector} IS NOT NULL) AS source",
        id=identifier(key.name),
        body=sql("''::text") if text is None else sql("coalesce({}::text, '')", identifier(text.name)),
        vector=identifier(vector.name),
        fields=joined_sql("", [sql(", {}", each) for each in named]),
        relation=relation,
    )


def _vector_index(connection: Connection, oid: int, column: str) -> _VectorIndex | None:
    """HNSW before IVFFlat: it finds more."""
    row = connection.execute(
        "SELECT c.relname, m.amname, coalesce((SELECT split_part(each, '=', 2)::int FROM unnest(c.reloptions) each"
        " WHERE each LIKE 'lists=%%'), 100) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
        " JOIN pg_am m ON m.oid = c.relam JOIN pg_opclass o ON o.oid = i.indclass[0]"
        " JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = i.indkey[0]"
        " WHERE i.indrelid = %s AND a.attname = %s AND i.indisvalid AND i.indpred IS NULL"
        " AND m.amname IN ('hnsw', 'ivfflat') AND o.opcname LIKE '%%\\_cosine\\_ops' ORDER BY m.amname LIMIT 1",
        [oid, column],
    ).fetchone()
    return None if row is None else _VectorIndex(*row)
