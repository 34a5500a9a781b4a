"""The Arrow columns of a table, to and from `PassageRows` and `Header`; and conditions on them, as a mask of rows.

A field of the user is a column with a prefix, so that it may be called "text". `stamp` is a number that identifies a
written passage wherever Lance moves it: a cache finds its vectors by it. `words` has the words of the text with a space
between them, as `Header.words` divides them; tables of format 1 lack it. Each further kind of vectors is a column of
bytes; a table without dense vectors has no column `vector`.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import NDArray

from gemel.errors import InputError
from gemel.index.fields import in_utc
from gemel.index.port import FORMAT, LISTS, FieldType, Header, PassageRows, check_kinds, kinds_of
from gemel.index.where import Both, Compare, Condition, Contains, Either, IsNull, Like, Literals, Not
from gemel.types import Vectors
from gemel.vectors.bm25 import WordRules

if TYPE_CHECKING:
    import pyarrow as pa

    Column: TypeAlias = pa.Array | pa.ChunkedArray

Number = TypeVar("Number", bound=np.generic)

WORDS = "words"

_PREFIX = "f_"

_KIND_PREFIX = "k_"

_KEY = b"gemel"

# Lance takes neither of the first two in a column's name; the third makes the change reversible.
_ESCAPES = (("%", "%25"), (".", "%2E"), ("`", "%60"))


def column_of(field: str) -> str:
    """The name of a field's column."""
    for plain, escaped in _ESCAPES:
        field = field.replace(plain, escaped)
    return _PREFIX + field


def field_of(column: str) -> str:
    name = column.removeprefix(_PREFIX)
    for plain, escaped in reversed(_ESCAPES):
        name = name.replace(escaped, plain)
    return name


def kind_column(kind: str) -> str:
    """The name of the column of a kind of vectors."""
    return _KIND_PREFIX + kind


def arrow_type(kind: FieldType) -> pa.DataType:
    import pyarrow as pa

    if kind in LISTS:
        return pa.list_(arrow_type(LISTS[kind]))
    singles = {
        "text": pa.string(),
        "int": pa.int64(),
        "float": pa.float64(),
        "bool": pa.bool_(),
        "date": pa.date32(),
        "datetime": pa.timestamp("us", "UTC"),
    }
    return singles[kind]


def _kind_of(column: pa.DataType) -> FieldType:
    import pyarrow as pa

    if pa.types.is_list(column):
        element = _kind_of(column.value_type)
        return next(kind for kind, inner in LISTS.items() if inner == element)
    return next(kind for kind in get_args(FieldType) if kind not in LISTS and arrow_type(kind) == column)


def schema_of(header: Header) -> pa.Schema:
    """The header is kept in the schema: fields and width as columns, the rest as JSON beside them."""
    import pyarrow as pa

    columns = [
        pa.field("id", pa.string(), nullable=False),
        pa.field("part", pa.int32(), nullable=False),
        pa.field("stamp", pa.int64(), nullable=False),
        pa.field("digest", pa.string(), nullable=False),
        pa.field("text", pa.string(), nullable=False),
    ]
    if header.dim:
        columns.append(pa.field("vector", pa.list_(pa.float32(), header.dim), nullable=False))
    if header.format > 1:
        columns.append(pa.field(WORDS, pa.string(), nullable=False))
    columns += [pa.field(kind_column(kind), pa.large_binary(), nullable=False) for kind in header.kinds]
    columns += [pa.field(column_of(name), arrow_type(kind)) for name, kind in header.fields.items()]
    about: dict[str, Any] = {"format": header.format, "bound": dict(header.bound), **header.extras()}
    if header.format > 1:
        about["words"] = header.words.to_json()
    return pa.schema(columns, metadata={_KEY: json.dumps(about).encode()})


def has_header(schema: pa.Schema) -> bool:
    """The schema says that gemel made the table."""
    return _KEY in (schema.metadata or {})


def header_of(schema: pa.Schema, location: str) -> Header:
    """InputError for a table that gemel did not make, or a newer one did."""
    try:
        about = json.loads((schema.metadata or {})[_KEY])
        version = int(about["format"])
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{location} holds a Lance table that gemel did not make. Name another folder"
        ) from error
    if version > FORMAT:
        raise InputError(
            f"{location} is an index of format {version}, this gemel reads up to {FORMAT}. "
            "Upgrade it: pip install --upgrade gemel"
        )
    fields = {
        field_of(column.name): _kind_of(column.type) for column in schema if column.name.startswith(_PREFIX)
    }
    rules = WordRules.from_json(about.get("words"))
    dim = schema.field("vector").type.list_size if "vector" in schema.names else 0
    return Header(dim, fields, about["bound"], version, rules, kinds_of(about), about.get("mode"))


def to_arrow(rows: PassageRows, header: Header) -> pa.Table:
    """As it is written, with fresh stamps."""
    import pyarrow as pa

    check_kinds(rows, header)
    schema, count = schema_of(header), len(rows)
    flat = np.ascontiguousarray(rows.vector, dtype=np.float32).reshape(-1)
    stamps = secrets.randbits(62) + np.arange(count, dtype=np.int64)
    columns = [
        pa.array(rows.id, pa.string()),
        pa.array(np.asarray(rows.part, dtype=np.int32)),
        pa.array(stamps),
        pa.array(rows.digest, pa.string()),
        pa.array(rows.text, pa.string()),
    ]
    if header.dim:
        columns.append(pa.FixedSizeListArray.from_arrays(pa.array(flat), header.dim))
    if header.format > 1:
        columns.append(pa.array([" ".join(header.words.document(text)) for text in rows.text], pa.string()))
    columns += [pa.array(rows.kinds[kind], pa.large_binary()) for kind in header.kinds]
    for column in schema:
        if column.name.startswith(_PREFIX):
            values = rows.fields.get(field_of(column.name))
            columns.append(pa.array([None] * count if values is None else list(values), column.type))
    return pa.Table.from_arrays(columns, schema=schema.remove_metadata())


def stored_columns(header: Header, *, kinds: bool = False) -> list[str]:
    """What `to_rows` reads; `kinds`: with all kinds of vectors."""
    others = map(kind_column, header.kinds if kinds else ())
    return ["id", "part", "digest", *searched_columns(header), *others, *map(column_of, header.fields)]


def searched_columns(header: Header) -> list[str]:
    """What a search shows and compares: text and vector."""
    return ["text", "vector"] if header.dim else ["text"]


def to_rows(table: pa.Table, header: Header, *, kinds: bool = False) -> PassageRows:
    """What `to_arrow` wrote; the columns may be in any order."""
    values: Mapping[str, pa.ChunkedArray] = {name: table[name] for name in table.column_names}
    fields = header.fields.items()
    return PassageRows(
        id=values["id"].to_pylist(),
        part=values["part"].to_numpy().astype(np.int32),
        text=values["text"].to_pylist(),
        digest=values["digest"].to_pylist(),
        vector=vectors_in(table),
        fields={name: in_utc(values[column_of(name)].to_pylist(), kind) for name, kind in fields},
        kinds={kind: values[kind_column(kind)].to_pylist() for kind in header.kinds} if kinds else {},
    )


def numbers(array: pa.Array, kind: type[Number]) -> NDArray[Number]:
    """An array without nulls, not copied. Arrow's own `to_numpy` would import pandas."""
    if not len(array):
        return np.empty(0, dtype=kind)
    return np.frombuffer(array.buffers()[1], kind, count=array.offset + len(array))[array.offset :]


def indices(rows: NDArray[np.int64]) -> pa.Array:
    """For `take`, not copied. To be given an array of numpy, Arrow would import pandas."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(np.ascontiguousarray(rows))])


def vectors_in(table: pa.Table | pa.RecordBatch) -> Vectors:
    """(n, dim) of these rows; (n, 0) of a table without dense vectors."""
    if "vector" not in table.schema.names:
        return np.empty((table.num_rows, 0), dtype=np.float32)
    return matrix(table["vector"])


def matrix(column: pa.ChunkedArray | pa.Array) -> Vectors:
    """(n, dim) of a column of vectors."""
    import pyarrow as pa

    dim = column.type.list_size
    chunks = column.chunks if isinstance(column, pa.ChunkedArray) else [column]
    parts = [chunk.flatten().to_numpy().reshape(-1, dim) for chunk in chunks if len(chunk)]
    if len(parts) == 1:
        return np.ascontiguousarray(parts[0], dtype=np.float32)
    return np.concatenate([np.empty((0, dim), dtype=np.float32), *parts])


_COMPARE = {
    "=": "equal",
    "!=": "not_equal",
    "<": "less",
    "<=": "less_equal",
    ">": "greater",
    ">=": "greater_equal",
}


def mask(condition: Condition, columns: Mapping[str, Column]) -> NDArray[np.bool_]:
    """(n,) the rows of which the condition is true. Columns go by the names of fields, and `id`."""
    import pyarrow.compute as pc

    known = pc.fill_null(_truth(condition, columns), False)
    return np.asarray(known.to_numpy(zero_copy_only=False), dtype=np.bool_)


def _truth(condition: Condition, columns: Mapping[str, Column]) -> Column:
    """(n,) true, false, or null where it is unknown."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(condition, Both | Either):
        join = pc.and_kleene if isinstance(condition, Both) else pc.or_kleene
        return join(_truth(condition.left, columns), _truth(condition.right, columns))
    if isinstance(condition, Not):
        return pc.invert(_truth(condition.inner, columns))
    column = columns[condition.field]
    if isinstance(condition, IsNull):
        return pc.is_null(column)
    if isinstance(condition, Compare):
        return getattr(pc, _COMPARE[condition.operator])(column, pa.scalar(condition.value, column.type))
    if isinstance(condition, Contains):
        return _contains(column, condition.value)
    if isinstance(condition, Like):
        return pc.match_substring_regex(column, condition.regex)
    return _one_of(column, condition.values)


def _contains(column: Column, value: Literals) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    if isinstance(column, pa.ChunkedArray):
        return pa.chunked_array([_contains(chunk, value) for chunk in column.chunks], pa.bool_())
    same = pc.equal(column.flatten(), pa.scalar(value, column.type.value_type))
    holding = pc.list_parent_indices(column).filter(same).to_numpy()
    found = np.zeros(len(column), dtype=np.bool_)
    found[holding] = True
    return pa.array(found, mask=column.is_null().to_numpy(zero_copy_only=False))


def _one_of(column: Column, values: tuple[Literals, ...]) -> Column:
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pc.is_in(column, pa.array([*values, *_zeros(values)], column.type))
    if not values:
        return found  # nothing is one of none, known or not
    return pc.if_else(pc.is_null(column), pa.scalar(None, pa.bool_()), found)


def _zeros(values: tuple[Literals, ...]) -> list[float]:
    """Lists are looked up by bits, but 0.0 and -0.0 are equal."""
    return [0.0, -0.0] if any(isinstance(value, float) and value == 0 for value in values) else []
