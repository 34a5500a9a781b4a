"""The door of `add`: texts, ids, vectors and fields from lists or streams, checked, block by block.

All documents of one `add`, block by block: lists are checked whole first, streams as they come.

One block of documents into the table: what is there already stays, what is new is encoded, all in one commit.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeAlias, TypeVar, get_args

import numpy as np
from numpy.typing import ArrayLike

from gemel.errors import InputError
from gemel.index.binding import IndexState
from gemel.index.encoder import unit
from gemel.index.fields import check_characters, check_name, checked_value, infer, unknown_field
from gemel.index.port import FieldType, FieldValue, PassageRows
from gemel.index.results import Existing, WriteResult, digest_of, stored_documents
from gemel.terminal import Progress
from gemel.types import Vectors

FieldsGiven: TypeAlias = Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]

_LONGEST_ID = 1024  # bytes: a server's key has room for no more


@dataclass(frozen=True, eq=False)
class IncomingBatch:
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

    def check(self, incoming: Incoming, block: Mapping[str, Any]) -> IncomingBatch:
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
        return IncomingBatch(ids, texts or [""] * len(ids), vectors, rows)

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


Done = TypeVar("Done")


class AddRun(Protocol):
    """Does the work on the index as it is now; again, if the table was replaced meanwhile."""

    def __call__(self, work: Callable[[IndexState], Done]) -> Done: ...


def add_all(
    run: AddRun, incoming: Incoming, existing: Existing, block: int, *, progress: bool
) -> WriteResult:
    """What became of the documents. Each block is one commit."""
    if existing not in get_args(Existing):
        raise InputError(f"existing must be one of {', '.join(get_args(Existing))}, got {existing!r}")
    if isinstance(block, bool) or block < 1:
        raise InputError(f"block must be at least 1, got {block}")
    checker: Checker | None = None
    if incoming.sized:
        run(partial(_check_lists, incoming=incoming, existing=existing, block=block))
    done, line = WriteResult(0, 0, 0, 0), Progress(incoming.total, "documents", shown=progress)
    for raw in incoming.blocks(block):
        try:
            checker = checker or run(partial(_checker, incoming=incoming, blocks=[raw]))
            batch = checker.check(incoming, raw)
            done += run(partial(_write, batch=batch, types=checker.types, existing=existing))
        except InputError as error:
            raise _after(error, done) from error
        line.add(len(batch))
    line.close()
    return done


def _write(
    state: IndexState, batch: IncomingBatch, types: dict[str, FieldType], existing: Existing
) -> WriteResult:
    if types.keys() - state.table.header.fields.keys():
        state.table.add_fields(types)
    return write_batch(state, batch, existing)


def _checker(state: IndexState, incoming: Incoming, blocks: Iterable[dict[str, Any]]) -> Checker:
    """Knows the fields: in an empty index those of the documents are new columns; later on, none is new."""
    header = state.table.header
    types = dict(header.fields)
    if incoming.has_fields and not state.table.count().passages:
        types |= infer((row for block in blocks for row in incoming.rows(block)), types)
        for name in types:
            check_name(name, types)
    return Checker(header.dim, types)


def _check_lists(state: IndexState, incoming: Incoming, existing: Existing, block: int) -> None:
    """A whole walk before anything is written: a bad entry at the end changes nothing. Then the new columns."""
    checker = _checker(state, incoming, incoming.blocks(block))
    for raw in incoming.blocks(block):
        batch = checker.check(incoming, raw)
        known = state.table.known(batch.ids) if existing == "error" else {}
        for id_ in batch.ids:
            if id_ in known:
                raise there_already(id_)
    if checker.types.keys() - state.table.header.fields.keys():
        state.table.add_fields(checker.types)


def _after(error: InputError, done: WriteResult) -> InputError:
    written = done.added + done.replaced
    return (
        InputError(f"{error} (the {written:,} documents before this block were written)")
        if written
        else error
    )


_TRIES = 3  # another writer may add an id between the question and the write


@dataclass(frozen=True, eq=False)
class PreparedDocuments:
    """Rows ready to be written."""

    rows: PassageRows
    encoded: int
    truncated: int


def write_batch(state: IndexState, batch: IncomingBatch, existing: Existing) -> WriteResult:
    """The documents as `existing` says, in one commit; nothing is written if nothing changes."""
    digests = _digests(state, batch)
    for left in reversed(range(_TRIES)):
        known = state.table.known(batch.ids)
        if known and existing == "error":
            raise there_already(next(id_ for id_ in batch.ids if id_ in known))
        fresh = [
            place
            for place, id_ in enumerate(batch.ids)
            if id_ not in known or (existing == "replace" and known[id_] != digests[place])
        ]
        changed = sum(batch.ids[place] in known for place in fresh)
        if not fresh:
            return WriteResult(0, 0, len(batch), 0)
        stored = [batch.ids[place] for place in fresh if batch.ids[place] in known]
        ready = prepare(
            state, pick(batch, fresh), [digests[place] for place in fresh], _reusable(state, stored)
        )
        try:
            state.table.write(ready.rows, replace=existing == "replace")
        except InputError:
            if existing == "skip" and left and state.table.known([batch.ids[place] for place in fresh]):
                continue
            raise
        return WriteResult(
            added=len(fresh) - changed,
            replaced=changed,
            unchanged=len(batch) - len(fresh),
            encoded=ready.encoded,
            truncated=ready.truncated,
        )
    raise AssertionError("the last try returns or raises")


def there_already(id_: str) -> InputError:
    """The error of `add` for an id that the index has."""
    return InputError(
        f"the id {id_!r} is in the index already. Use existing='replace' (or upsert) to change it, 'skip' to keep it"
    )


def prepare(
    state: IndexState,
    batch: IncomingBatch,
    digests: Sequence[str],
    reusable: dict[str, Vectors] | None = None,
) -> PreparedDocuments:
    """The rows of the documents; passages in `reusable` are not encoded again."""
    if batch.vectors is not None:
        passages = [[text] for text in batch.texts]
        vectors, encoded, truncated = batch.vectors, 0, 0
    else:
        known = dict(reusable or {})
        passages = state.coder.split(batch.texts)
        every = [passage for parts in passages for passage in parts]
        missing = [passage for passage in dict.fromkeys(every) if passage not in known]
        made = state.coder.documents(missing) if missing else None
        if made is not None:
            known.update(zip(missing, made.vectors, strict=True))
        vectors = np.stack([known[passage] for passage in every])
        encoded, truncated = len(missing), made.truncated if made else 0
    owners = [place for place, parts in enumerate(passages) for _ in parts]
    rows = PassageRows(
        id=[batch.ids[place] for place in owners],
        part=np.array([part for parts in passages for part in range(len(parts))], dtype=np.int32),
        text=[passage for parts in passages for passage in parts],
        digest=[digests[place] for place in owners],
        vector=vectors,
        fields={
            name: [batch.fields[place].get(name) for place in owners] for name in state.table.header.fields
        },
    )
    return PreparedDocuments(rows, encoded, truncated)


def pick(batch: IncomingBatch, places: Sequence[int]) -> IncomingBatch:
    """The documents at these places."""
    return IncomingBatch(
        ids=[batch.ids[place] for place in places],
        texts=[batch.texts[place] for place in places],
        vectors=None if batch.vectors is None else batch.vectors[list(places)],
        fields=[batch.fields[place] for place in places],
    )


def _digests(state: IndexState, batch: IncomingBatch) -> list[str]:
    vectors = [None] * len(batch) if batch.vectors is None else list(batch.vectors)
    return [
        digest_of(text, fields, state.passage_tokens, vector)
        for text, fields, vector in zip(batch.texts, batch.fields, vectors, strict=True)
    ]


def _reusable(state: IndexState, ids: Sequence[str]) -> dict[str, Vectors]:
    """Passages of the stored versions with the vectors that the model made of them."""
    if not ids:
        return {}
    found: dict[str, Vectors] = {}
    for document in stored_documents(state.table.get(ids)):
        if document.made_by_model(state.passage_tokens):
            found.update(zip(document.passages, document.vectors, strict=True))
    return found
