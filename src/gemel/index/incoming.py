"""The door of `add`: texts, ids, vectors and fields from lists or streams, checked, block by block."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from gemel.errors import InputError
from gemel.index.coder import unit
from gemel.index.field_types import check_characters, checked_value, unknown_field
from gemel.index.port import FieldType, FieldValue
from gemel.types import Vectors

FieldsGiven: TypeAlias = Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]
_LONGEST_ID = 1024  # bytes: a server's key has room for no more


@dataclass(frozen=True, eq=False)
class Batch:
    """Documents that have been checked."""

    ids: list[str]
    texts: list[str]
    """"" where none was given."""
    vectors: Vectors | None
    """(n, dim) of length 1, as the caller gave them; None: the model makes them."""
    fields: list[dict[str, FieldValue]]

    def __len__(self) -> int:
        return len(self.ids)


class Incoming:
    """What one call of `add` was given. Lists can be walked twice, streams once."""

    def __init__(
        self,
        texts: Iterable[str] | None,
        ids: Iterable[str | int] | None,
        vectors: ArrayLike | Iterable[ArrayLike] | None,
        fields: FieldsGiven | None,
    ) -> None:
        if texts is None and vectors is None:
            raise InputError("add takes texts, vectors, or both; got neither")
        if texts is None and ids is None:
            raise InputError("vectors without texts need ids: give ids=[...]")
        columns: dict[str, Any] = {"texts": texts, "ids": ids, "vectors": vectors}
        for name, given in columns.items():
            if isinstance(given, str | bytes):
                raise InputError(f"{name} takes a list, got one string. Write [{name[:-1]}]")
        if isinstance(fields, Mapping):
            for name, given in fields.items():
                if isinstance(given, str | bytes) or not isinstance(given, Iterable):
                    raise InputError(
                        f"fields[{name!r}] takes a list of values, one for each document, got {given!r}"
                    )
            columns |= {f"fields[{name!r}]": given for name, given in fields.items()}
        elif fields is not None:
            columns["fields"] = fields
        self._columns = {name: given for name, given in columns.items() if given is not None}
        self._names = list(fields) if isinstance(fields, Mapping) else None
        self.sized = all(hasattr(given, "__len__") for given in self._columns.values())
        if self.sized:
            self._check_lengths({name: len(given) for name, given in self._columns.items()})

    @property
    def has_fields(self) -> bool:
        return any(name.startswith("fields") for name in self._columns)

    @property
    def total(self) -> int | None:
        return len(next(iter(self._columns.values()))) if self.sized else None

    def blocks(self, size: int) -> Iterator[dict[str, Any]]:
        """Up to `size` documents at a time, column by column, not checked yet."""
        sources = {name: _slices(given, size) for name, given in self._columns.items()}
        while True:
            block: dict[str, Any] = {name: next(source, ()) for name, source in sources.items()}
            self._check_lengths({name: len(values) for name, values in block.items()})
            if not len(next(iter(block.values()))):
                return
            yield block

    def rows(self, block: Mapping[str, Any]) -> list[Mapping[str, Any]]:
        """The fields of each document of a block."""
        count = len(next(iter(block.values())))
        if self._names is not None:
            columns = [block[f"fields[{name!r}]"] for name in self._names]
            return [dict(zip(self._names, values, strict=True)) for values in zip(*columns, strict=True)] or [
                {} for _ in range(count)
            ]
        given: list[Mapping[str, Any]] = list(block.get("fields", [{}] * count))
        for place, row in enumerate(given):
            if not isinstance(row, Mapping):
                raise InputError(
                    f"fields[{place}] is of type {type(row).__name__}, not a mapping of names to values"
                )
        return given

    def _check_lengths(self, lengths: Mapping[str, int]) -> None:
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length != lengths[first]:
                raise InputError(f"{first} has {lengths[first]} entries but {name} has {length}")


class Checker:
    """Checks the blocks of one call in turn; remembers the ids, so that none comes twice."""

    def __init__(self, dim: int, types: dict[str, FieldType]) -> None:
        self._dim, self.types = dim, types
        self._seen: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._done = 0

    def check(self, incoming: Incoming, block: Mapping[str, Any]) -> Batch:
        """The block as documents, or an InputError that names the first bad entry."""
        start = self._done
        texts = [self._text(start + place, text) for place, text in enumerate(block.get("texts", ()))]
        given = block.get("ids")
        ids = (
            self._made_ids(texts)
            if given is None
            else [checked_id(id_, f"ids[{start + n}]") for n, id_ in enumerate(given)]
        )
        for id_ in ids:
            if id_ in self._seen:
                raise InputError(f"the id {id_!r} comes twice. Each document has an id of its own")
            self._seen.add(id_)
        rows = [self._row(start + place, row) for place, row in enumerate(incoming.rows(block))]
        vectors = checked_vectors(block["vectors"], self._dim, start) if "vectors" in block else None
        self._done += len(ids)
        return Batch(ids, texts or [""] * len(ids), vectors, rows)

    def _text(self, place: int, text: object) -> str:
        if not isinstance(text, str):
            raise InputError(f"texts[{place}] is {_what(text)}, not a string. Remove or convert it first")
        check_characters(f"texts[{place}]", text)
        return text

    def _made_ids(self, texts: Sequence[str]) -> list[str]:
        """16 hex digits of the text's sha256; the second of a call with the same text ends in -2."""
        made = []
        for text in texts:
            base = hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
            count = self._repeats[base] = self._repeats.get(base, 0) + 1
            made.append(base if count == 1 else f"{base}-{count}")
        return made

    def _row(self, place: int, row: Mapping[str, Any]) -> dict[str, FieldValue]:
        for name in row:
            if name not in self.types:
                raise unknown_field(str(name), self.types)
        return {
            name: checked_value(f"field {name!r} of document {place}", value, self.types[name])
            for name, value in row.items()
        }


def checked_id(id_: object, place: str) -> str:
    """A string that every place can keep as a key; whole numbers become one."""
    if isinstance(id_, int | np.integer) and not isinstance(id_, bool):
        return str(int(id_))
    if not isinstance(id_, str):
        raise InputError(f"{place} is {_what(id_)}, not a string or a whole number")
    if not id_:
        raise InputError(f"{place} is empty. Every document needs an id")
    check_characters(place, id_)
    if len(id_.encode("utf-8")) > _LONGEST_ID:
        raise InputError(f"{place} has {len(id_.encode('utf-8')):,} bytes; an id has {_LONGEST_ID:,} at most")
    return id_


def checked_vectors(rows: Any, dim: int, start: int = 0) -> Vectors:  # noqa: ANN401 - this is where types are checked
    """(n, dim) at length 1; `start` is the place of the first in the caller's count."""
    try:
        vectors = np.asarray(rows, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"vectors must be numbers, {dim} in each") from None
    if vectors.ndim != 2 or vectors.shape[1] != dim:
        shape = f"{vectors.shape[1]} dimensions" if vectors.ndim == 2 else f"shape {vectors.shape}"
        raise InputError(f"vectors have {shape} but the index has {dim} dimensions")
    for bad, why in (
        (~np.isfinite(vectors).all(axis=1), "has NaN or infinite numbers"),
        (~vectors.any(axis=1), "is zero"),
    ):
        if bad.any():
            raise InputError(f"vectors[{start + int(np.argmax(bad))}] {why}, so it has no direction")
    return unit(vectors)


def _slices(given: Iterable[Any], size: int) -> Iterator[Any]:
    """Pieces of up to `size`; of an array they are arrays, which costs no copy."""
    if isinstance(given, list | tuple | np.ndarray):
        yield from (given[start : start + size] for start in range(0, len(given), size))
        return
    source = iter(given)
    while piece := list(islice(source, size)):
        yield piece


def _what(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"
