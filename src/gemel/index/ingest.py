"""Documents into a table: the arguments of `add` checked block by block, what is new encoded, one commit per block.

`Index.add` reads `Incoming` in blocks, a `Checker` turns each into an `IncomingBatch`, `write_batch` stores it. A text
is tokenized once: `IndexState.split` gives passages with their tokens, and the same tokens are encoded. The checks of
ids and queries are here too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from functools import partial
from itertools import chain, islice, tee
from typing import Any, Literal, Protocol, TypeAlias, get_args

import numpy as np
from numpy.typing import ArrayLike

from gemel.encoder.passages import PreparedPassage
from gemel.encoder.tokenizer import check_texts
from gemel.errors import InputError
from gemel.files.document_files import FILE_FIELDS, FileDocument
from gemel.index.binding import IndexState, unit
from gemel.index.fields import check_characters, check_name, checked_value, infer, unknown_field
from gemel.index.port import (
    DocumentPassages,
    FieldType,
    FieldValue,
    PassageRows,
    Splitting,
    digest_of,
    documents_in,
)
from gemel.terminal import Progress, counted
from gemel.types import ShownResult, Vectors

Existing: TypeAlias = Literal["error", "replace", "skip"]

Runner: TypeAlias = Callable[[Callable[[IndexState], Any]], Any]

FieldsGiven: TypeAlias = Mapping[str, Iterable[Any]] | Iterable[Mapping[str, Any]]

_LONGEST_ID = 1024  # bytes: the key of a server has room for no more

_TRIES = 3  # another writer may add an id between the check and the write

_SPLIT_AT_ONCE = 512  # texts

_ENCODED_AT_ONCE = 8192  # passages: enough of each length to fill batches, few enough to keep their tokens


@dataclass(frozen=True)
class WriteResult(ShownResult):
    """How many documents of one call were added, replaced and left unchanged."""

    added: int
    replaced: int
    unchanged: int
    """Stored already with the same text and fields, so neither encoded nor written; or left alone by "skip"."""
    encoded: int
    """Passages that a model encoded; one that several models encoded counts once."""
    truncated: int = 0
    """Passages that lost tokens; 0 unless passages are longer than the model reads."""

    def summary(self) -> str:
        """One line for a person."""
        parts = [f"{self.added:,} added", f"{self.replaced:,} replaced", f"{self.unchanged:,} unchanged"]
        parts.append(f"{counted(self.encoded, 'passage')} encoded")
        if self.truncated:
            parts.append(f"{self.truncated:,} cut")
        return ", ".join(parts)

    def __add__(self, other: WriteResult) -> WriteResult:
        return WriteResult(*map(sum, zip(astuple(self), astuple(other), strict=True)))


@dataclass(frozen=True, eq=False)
class IncomingBatch:
    """Documents that passed all checks."""

    ids: list[str]
    texts: list[str]
    """Empty strings where none was given."""
    vectors: Vectors | None
    """(n, dim) of length 1, as the caller gave them; None: the model makes them."""
    fields: list[dict[str, FieldValue]]

    def __len__(self) -> int:
        return len(self.ids)


class DocumentLike(Protocol):
    """What `add` takes instead of a text: `read_documents` and `Index.documents` give such."""

    @property
    def id(self) -> str: ...

    @property
    def text(self) -> str: ...

    @property
    def fields(self) -> Mapping[str, Any]: ...


class Incoming:
    """The arguments of one `add`. Lists can be read twice, streams once."""

    def __init__(
        self,
        texts: Iterable[str] | Iterable[DocumentLike] | None,
        ids: Iterable[str | int] | None,
        vectors: ArrayLike | Iterable[ArrayLike] | None,
        fields: FieldsGiven | None,
    ) -> None:
        self.declared: Mapping[str, FieldType] = {}
        if ids is None and vectors is None and fields is None and texts is not None:
            texts, ids, fields, self.declared = _columns_of(texts)
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
        for position, row in enumerate(given):
            if not isinstance(row, Mapping):
                raise InputError(
                    f"fields[{position}] is of type {type(row).__name__}, not a mapping of names to values"
                )
        return given

    def _check_lengths(self, lengths: Mapping[str, int]) -> None:
        first = next(iter(lengths))
        for name, length in lengths.items():
            if length != lengths[first]:
                raise InputError(f"{first} has {lengths[first]} entries but {name} has {length}")


class Checker:
    """Checks the blocks of one call in turn, and that no id comes twice."""

    def __init__(self, dim: int, types: dict[str, FieldType]) -> None:
        self._dim, self.types = dim, types
        self._seen: set[str] = set()
        self._repeats: dict[str, int] = {}
        self._done = 0

    def check(self, incoming: Incoming, block: Mapping[str, Any]) -> IncomingBatch:
        """The block as documents, or an InputError that names the first bad entry."""
        start = self._done
        texts = [self._text(start + n, text) for n, text in enumerate(block.get("texts", ()))]
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
        rows = [self._row(start + n, row) for n, row in enumerate(incoming.rows(block))]
        vectors = checked_vectors(block["vectors"], self._dim, start) if "vectors" in block else None
        self._done += len(ids)
        return IncomingBatch(ids, texts or [""] * len(ids), vectors, rows)

    def _text(self, position: int, text: object) -> str:
        if not isinstance(text, str):
            raise InputError(f"texts[{position}] is {_what(text)}, not a string. Remove or convert it first")
        check_characters(f"texts[{position}]", text)
        return text

    def _made_ids(self, texts: Sequence[str]) -> list[str]:
        """16 hex digits of the text's sha256; the second of a call with the same text ends in -2."""
        made = []
        for text in texts:
            base = hashlib.sha256(text.encode("utf-8")).hexdigest()[:16]
            count = self._repeats[base] = self._repeats.get(base, 0) + 1
            made.append(base if count == 1 else f"{base}-{count}")
        return made

    def _row(self, position: int, row: Mapping[str, Any]) -> dict[str, FieldValue]:
        for name in row:
            if name not in self.types:
                raise unknown_field(str(name), self.types)
        return {
            name: checked_value(f"field {name!r} of document {position}", value, self.types[name])
            for name, value in row.items()
        }


def checked_id(id_: object, name: str) -> str:
    """The id as a string that every store can keep as a key; `name` stands for it in an error."""
    if isinstance(id_, int | np.integer) and not isinstance(id_, bool):
        return str(int(id_))
    if not isinstance(id_, str):
        raise InputError(f"{name} is {_what(id_)}, not a string or a whole number")
    if not id_:
        raise InputError(f"{name} is empty. Every document needs an id")
    check_characters(name, id_)
    if len(id_.encode("utf-8")) > _LONGEST_ID:
        raise InputError(f"{name} has {len(id_.encode('utf-8')):,} bytes; an id has {_LONGEST_ID:,} at most")
    return id_


def checked_ids(ids: Iterable[str | int]) -> list[str]:
    """Ids as strings."""
    if isinstance(ids, str | bytes | int):
        raise InputError(f"ids takes a list, got one. Write [{ids!r}]")
    return [checked_id(id_, f"ids[{n}]") for n, id_ in enumerate(ids)]


def one_query(query: str | ArrayLike) -> Sequence[str] | ArrayLike:
    """The query of `search` as `search_many` takes it."""
    if isinstance(query, str):
        return [query]
    try:
        vector = np.asarray(query, dtype=np.float32)
    except (TypeError, ValueError):
        raise InputError(f"a query is a text or a vector, got {type(query).__name__}") from None
    if vector.ndim != 1:
        raise InputError(f"search takes one query, got an array of shape {vector.shape}. Use search_many")
    return vector[None]


def query_texts(queries: Sequence[str] | ArrayLike) -> list[str] | None:
    """The queries, if they are texts; None: they should be vectors."""
    if isinstance(queries, str | bytes):
        raise InputError("search_many takes a list of queries, got one string. Use search")
    listed = queries if isinstance(queries, np.ndarray) else list(queries)  # type: ignore[arg-type]
    if isinstance(listed, np.ndarray) and listed.dtype.kind not in "OU":
        return None
    if len(listed) and not any(isinstance(query, str) for query in listed):
        return None
    texts = check_texts(listed, "queries")
    for n, text in enumerate(texts):
        check_characters(f"queries[{n}]", text)
    return texts


def checked_vectors(rows: Any, dim: int, start: int = 0) -> Vectors:  # noqa: ANN401 - this is where types are checked
    """(n, dim) scaled to length 1; `start`: the position of the first one, for errors."""
    if not dim:
        raise InputError("the index has no dense vectors, so it takes none. Give texts")
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


def _columns_of(texts: Iterable[Any]) -> tuple[Any, Any, Any, Mapping[str, FieldType]]:
    """Texts, ids, fields and types of fields of documents; plain texts as they are, and nothing else."""
    if isinstance(texts, str | bytes | Mapping) or not isinstance(texts, Iterable):
        return texts, None, None, {}
    listed = hasattr(texts, "__len__")
    source = iter(texts)
    first = next(source, None)
    if not listed:
        texts = source if first is None else chain([first], source)
    if isinstance(first, str) or not all(hasattr(first, name) for name in ("id", "text", "fields")):
        return texts, None, None, {}
    declared = FILE_FIELDS if isinstance(first, FileDocument) else {}
    if listed:
        every = list(texts)
        return (
            [each.text for each in every],
            [each.id for each in every],
            [each.fields for each in every],
            declared,
        )
    one, two, three = tee(texts, 3)
    return (each.text for each in one), (each.id for each in two), (each.fields for each in three), declared


def _slices(given: Iterable[Any], size: int) -> Iterator[Any]:
    """Parts of up to `size`; of an array they are arrays, without a copy."""
    if isinstance(given, list | tuple | np.ndarray):
        yield from (given[start : start + size] for start in range(0, len(given), size))
        return
    source = iter(given)
    while part := list(islice(source, size)):
        yield part


def _what(value: object) -> str:
    return "None" if value is None else f"of type {type(value).__name__}"


def add_documents(
    run: Runner, incoming: Incoming, existing: Existing, block: int, line: Progress
) -> WriteResult:
    """Check and store the documents, one commit per block; `run` calls a function with the state of the index."""
    if existing not in get_args(Existing):
        raise InputError(f"existing must be one of {', '.join(get_args(Existing))}, got {existing!r}")
    if isinstance(block, bool) or block < 1:
        raise InputError(f"block must be at least 1, got {block}")
    if incoming.sized:
        run(lambda state: _check_lists(state, incoming, existing, block))
    checker: Checker | None = None
    total = WriteResult(0, 0, 0, 0)
    for raw in incoming.blocks(block):
        try:
            checker = checker or run(partial(_checker_for, incoming=incoming, blocks=[raw]))
            batch = checker.check(incoming, raw)
            total += run(partial(write_batch, batch=batch, types=checker.types, existing=existing))
        except InputError as error:
            if not (count := total.added + total.replaced):
                raise
            raise InputError(f"{error} (the {count:,} documents before this block were written)") from error
        line.add(len(batch))
    line.close()
    return total


def _check_lists(state: IndexState, incoming: Incoming, existing: Existing, block: int) -> None:
    """Check all documents before any is written: a bad entry at the end changes nothing. Then add new columns."""
    checker = _checker_for(state, incoming, incoming.blocks(block))
    for raw in incoming.blocks(block):
        batch = checker.check(incoming, raw)
        if existing == "error":
            _refuse_stored(batch.ids, state.table.digests(batch.ids))
    if checker.types.keys() - state.table.header.fields.keys():
        state.table.add_fields(checker.types)


def _checker_for(state: IndexState, incoming: Incoming, blocks: Iterable[dict[str, Any]]) -> Checker:
    """A checker for the fields of the index; the first documents of an empty index may bring new ones."""
    header = state.table.header
    types = {**incoming.declared, **header.fields}
    if incoming.has_fields and not state.table.count().passages:
        types |= infer((row for block in blocks for row in incoming.rows(block)), types)
        for name in types:
            check_name(name, types)
    return Checker(header.dim, types)


def _refuse_stored(ids: Sequence[str], stored: Mapping[str, str]) -> None:
    for id_ in ids:
        if id_ in stored:
            raise InputError(
                f"the id {id_!r} is in the index already. Use existing='replace' (or upsert) to change it, 'skip' to "
                "keep it"
            )


def write_batch(
    state: IndexState, batch: IncomingBatch, types: Mapping[str, FieldType], existing: Existing
) -> WriteResult:
    """Store the documents as `existing` says, in one commit; nothing is written if nothing changes."""
    if types.keys() - state.table.header.fields.keys():
        state.table.add_fields(types)
    digests = _digests(state, batch)
    for left in reversed(range(_TRIES)):
        stored = state.table.digests(batch.ids)
        if existing == "error":
            _refuse_stored(batch.ids, stored)
        chosen = [
            n
            for n, id_ in enumerate(batch.ids)
            if id_ not in stored or (existing == "replace" and stored[id_] != digests[n])
        ]
        if not chosen:
            return WriteResult(0, 0, len(batch), 0)
        picked = _pick(batch, chosen)
        replaced = [id_ for id_ in picked.ids if id_ in stored]
        ready = prepare(state, picked, [digests[n] for n in chosen], _stored_passages(state, replaced))
        try:
            state.table.write(ready.rows, replace=existing == "replace")
        except InputError:
            if existing == "skip" and left and state.table.digests(picked.ids):
                continue
            raise
        return WriteResult(
            added=len(chosen) - len(replaced),
            replaced=len(replaced),
            unchanged=len(batch) - len(chosen),
            encoded=ready.encoded,
            truncated=ready.truncated,
        )
    raise AssertionError("the last try returns or raises")


def _digests(state: IndexState, batch: IncomingBatch) -> list[str]:
    vectors = [None] * len(batch) if batch.vectors is None else list(batch.vectors)
    return [
        digest_of(text, fields, state.splitting, vector)
        for text, fields, vector in zip(batch.texts, batch.fields, vectors, strict=True)
    ]


def _pick(batch: IncomingBatch, chosen: Sequence[int]) -> IncomingBatch:
    return IncomingBatch(
        ids=[batch.ids[n] for n in chosen],
        texts=[batch.texts[n] for n in chosen],
        vectors=None if batch.vectors is None else batch.vectors[list(chosen)],
        fields=[batch.fields[n] for n in chosen],
    )


@dataclass(frozen=True, eq=False)
class KnownPassages:
    """Vectors of passages by their text, which need not be encoded again."""

    vectors: dict[str, Vectors] = field(default_factory=dict)
    documents: dict[str, tuple[Sequence[str], Vectors]] = field(default_factory=dict)
    """With late chunks, whose vectors depend on the whole document: its passages and their vectors, by its text."""
    kinds: dict[str, dict[str, bytes]] = field(default_factory=dict)
    """Of each further kind of vectors."""

    def add(self, document: DocumentPassages, splitting: Splitting) -> None:
        """Those of a stored document; a vector that the caller gave is not the one of its text."""
        if isinstance(splitting, str) and document.made_by_model(splitting):
            self.documents[document.text] = (list(document.passages), document.vectors)
        elif document.made_by_model(splitting):
            self.vectors.update(zip(document.passages, document.vectors, strict=True))
        for kind, values in document.kinds.items():
            self.kinds.setdefault(kind, {}).update(zip(document.passages, values, strict=True))


def _stored_passages(state: IndexState, ids: Sequence[str]) -> KnownPassages:
    known = KnownPassages()
    for document in documents_in(state.table.get(ids, kinds=True)) if ids else ():
        known.add(document, state.splitting)
    return known


@dataclass(frozen=True, eq=False)
class PreparedDocuments:
    """Rows ready to be written."""

    rows: PassageRows
    encoded: int
    truncated: int


def prepare(
    state: IndexState,
    batch: IncomingBatch,
    digests: Sequence[str],
    known: KnownPassages | None = None,
) -> PreparedDocuments:
    """The rows of the documents; passages in `known` are not encoded again."""
    known = known or KnownPassages()
    header = state.table.header
    work = _PassageEncoding(state, known)
    passages = [[text] for text in batch.texts] if batch.vectors is not None else work.split(batch.texts)
    every = [passage for parts in passages for passage in parts]
    if batch.vectors is not None:
        vectors = batch.vectors
    elif state.binding is None:
        vectors = np.empty((len(every), 0), dtype=np.float32)
    elif state.late_chunks:
        vectors = work.late_chunks(batch.texts, passages)
    else:
        vectors = np.stack([known.vectors[passage] for passage in every])
    kinds = {kind: work.of_kind(kind, every) for kind in header.kinds}
    owners = [n for n, parts in enumerate(passages) for _ in parts]
    rows = PassageRows(
        id=[batch.ids[n] for n in owners],
        part=np.array([part for parts in passages for part in range(len(parts))], dtype=np.int32),
        text=every,
        digest=[digests[n] for n in owners],
        vector=vectors,
        fields={name: [batch.fields[n].get(name) for n in owners] for name in header.fields},
        kinds=kinds,
    )
    return PreparedDocuments(rows, len(work.encoded), work.truncated)


class _PassageEncoding:
    """Texts to passages and their vectors; each distinct passage is encoded once."""

    def __init__(self, state: IndexState, known: KnownPassages) -> None:
        self._state, self._known = state, known
        self._waiting: dict[str, PreparedPassage] = {}
        self.encoded: set[str] = set()
        self.truncated = 0

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        """The passages of each text; `known` has the dense vectors of all of them afterwards."""
        if self._state.dim:
            assert self._state.encoder is not None  # an InputError if the vectors have no model
        dense = self._state.binding is not None and not self._state.late_chunks
        vectors = self._known.vectors
        passages: list[list[str]] = []
        for start in range(0, len(texts), _SPLIT_AT_ONCE):
            for parts in self._state.split(texts[start : start + _SPLIT_AT_ONCE]):
                passages.append([part.text for part in parts])
                if dense:
                    self._waiting.update((part.text, part) for part in parts if part.text not in vectors)
            if len(self._waiting) >= _ENCODED_AT_ONCE:
                self._encode()
        self._encode()
        return passages

    def late_chunks(self, texts: Sequence[str], passages: Sequence[Sequence[str]]) -> Vectors:
        """The dense vectors of the passages of these texts, each of which is read as a whole."""
        known, new = self._known.documents, {}
        for text, parts in zip(texts, passages, strict=True):
            if text not in known or list(known[text][0]) != list(parts):
                new[text] = parts
        for start in range(0, len(new), _SPLIT_AT_ONCE):
            some = dict(islice(new.items(), start, start + _SPLIT_AT_ONCE))
            vectors = self._state.encoder.encode_late(list(some), list(some.values()))
            ends = np.cumsum([len(parts) for parts in some.values()])[:-1]
            for (text, parts), own in zip(some.items(), np.split(vectors, ends), strict=True):
                known[text] = (parts, own)
                self.encoded.update(parts)
        return np.concatenate([known[text][1] for text in texts])

    def of_kind(self, kind: str, passages: Sequence[str]) -> list[bytes]:
        """The values of these passages by one kind of vectors."""
        known = self._known.kinds.setdefault(kind, {})
        new = [passage for passage in dict.fromkeys(passages) if passage not in known]
        if new:
            known.update(zip(new, self._state.kinds[kind].get().encode_passages(new), strict=True))
            self.encoded.update(new)
        return [known[passage] for passage in passages]

    def _encode(self) -> None:
        if not self._waiting:
            return
        made = self._state.encoder.encode_passages(list(self._waiting.values()))
        self._known.vectors.update(zip(self._waiting, made.vectors, strict=True))
        self.encoded.update(self._waiting)
        self.truncated += made.truncated
        self._waiting = {}
