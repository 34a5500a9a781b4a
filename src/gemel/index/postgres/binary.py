"""Rows as the bytes of a binary COPY, and vectors as pgvector sends and takes them.

A vector is its size and a zero, 16 bits each, then float32 numbers, big end first.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, date, datetime, timedelta
from functools import partial
from typing import Any

import numpy as np

from gemel.errors import InputError
from gemel.index.port import LISTS, FieldType, FieldValue, Rows
from gemel.types import Vectors
from gemel.word_search.words import WordRules

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


def copy_blocks(rows: Rows, fields: Mapping[str, FieldType], rules: WordRules) -> list[bytes]:
    """A COPY of our columns and the fields, in that order; all of it is checked before any of it is sent."""
    columns = [_column(name, kind, rows.fields[name]) for name, kind in fields.items()]
    vectors = _vectors(rows.vector)
    count = struct.pack(">h", 7 + len(columns))
    blocks, block = [_START], []
    for place in range(len(rows)):
        words, length = _words(rules.document(rows.text[place]))
        block.append(count)
        block.append(_text(rows.id[place]))
        block.append(struct.pack(">ii", 4, int(rows.part[place])))
        block.append(_text(rows.text[place]))
        block.append(_text(rows.digest[place]))
        block.append(vectors[place])
        block.append(words)
        block.append(struct.pack(">ii", 4, length))
        block += [column[place] for column in columns]
        if place % _AT_ONCE == _AT_ONCE - 1:
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


def _vectors(vectors: Vectors) -> list[bytes]:
    n, dim = vectors.shape
    head = struct.pack(">ihh", 4 + 4 * dim, dim, 0)
    numbers = vectors.astype(">f4")
    return [head + numbers[place].tobytes() for place in range(n)]


def _words(found: list[str]) -> tuple[bytes, int]:
    """The different words as a tsvector without places, and how many words there are in all."""
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


def copy_into(cursor: Any, statement: Any, blocks: Sequence[bytes]) -> None:  # noqa: ANN401 - psycopg's
    """Send the blocks of `copy_blocks` by the COPY `statement`."""
    with cursor.copy(statement) as copy:
        for block in blocks:
            copy.write(block)
