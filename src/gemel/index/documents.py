"""Stored documents as they are returned, exported to files, and given other values of their fields."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeAlias

import numpy as np

from gemel.errors import InputError
from gemel.files.rows import write_rows
from gemel.index.binding import IndexState
from gemel.index.fields import checked_value, unknown_field
from gemel.index.ingest import Runner, WriteResult
from gemel.index.kinds import kinds_in, terms_of, tokens_of
from gemel.index.port import (
    DocumentPassages,
    DocumentsChanged,
    FieldType,
    FieldValue,
    Header,
    Splitting,
    digest_of,
    documents_in,
    no_dense_vectors,
    rows_of,
)
from gemel.index.where import Condition, matches
from gemel.types import ShownResult, Vectors
from gemel.vectors.maxsim import MultiVectors
from gemel.vectors.sparse import SparseRow

VECTOR_COLUMNS = ("vectors", "sparse_vectors", "late_vectors")
"""Columns of stored vectors in a file or a row of output: dense, sparse and late."""

EXPORT_COLUMNS = ("id", "text", *VECTOR_COLUMNS)
"""Our names in a file that `export` writes."""

VectorKind: TypeAlias = Literal["dense", "sparse", "late"]

VectorChoice: TypeAlias = bool | VectorKind | Collection[VectorKind]
"""Which stored vectors come with a document: all (True), none (False), or those of some kinds."""

BLOCK = 4096
"""Passages that are read at a time."""

_SAMPLED_RANGES = 8  # of the ids that a sample of vectors is taken from

_TRIES = 8  # of a block of changes, if other writers change its documents meanwhile


@dataclass(frozen=True)
class IndexDocument(ShownResult):
    """One document as it is stored."""

    id: str
    text: str
    fields: Mapping[str, FieldValue]
    passages: int
    vectors: Vectors | None = field(default=None, compare=False)
    """(passages, dim), each of length 1; None: not requested, or the index has no dense vectors."""
    sparse: Sequence[SparseRow] | None = field(default=None, compare=False)
    """Of each passage: the columns that have a weight, ascending, and the weights. A column is the id of a token in
    `index.kind_model("sparse").vocabulary`. None: not requested, or the index has none."""
    late: MultiVectors | None = field(default=None, compare=False)
    """The vectors of the tokens of each passage, as they are stored; `late.of(0)` are those of the first. None: not
    requested, or the index has none."""

    def vector_columns(self) -> dict[str, list[Any]]:
        """The vectors as columns of a row (`VECTOR_COLUMNS`): one entry per passage, with arrays of numbers."""
        columns: dict[str, list[Any]] = {}
        if self.vectors is not None:
            columns["vectors"] = list(self.vectors)
        if self.sparse is not None:
            columns["sparse_vectors"] = [{"indices": each[0], "values": each[1]} for each in self.sparse]
        if self.late is not None:
            columns["late_vectors"] = [list(self.late.of(part)) for part in range(len(self.late))]
        return columns


def chosen_kinds(vectors: object, header: Header) -> frozenset[str]:
    """The kinds of vectors that a `VectorChoice` names; an InputError if the index has no such vectors."""
    there = kinds_in(header)
    if isinstance(vectors, bool):
        return frozenset(there if vectors else ())
    named = [vectors] if isinstance(vectors, str) else vectors
    if not isinstance(named, Collection):
        raise InputError(f"vectors is True, False or kinds of vectors, like 'sparse'; got {vectors!r}")
    for kind in named:
        if kind not in there:
            raise InputError(f"the index has no {kind} vectors. It has: {', '.join(there)}")
    return frozenset(named)


def check_limit(limit: object) -> None:
    """None, or a whole number of at least 0."""
    if limit is not None and (
        isinstance(limit, bool) or not isinstance(limit, int | np.integer) or limit < 0
    ):
        raise InputError(f"limit must be a whole number of at least 0, got {limit!r}")


def relabeled(fields: Mapping[str, Any], ours: Sequence[str]) -> dict[str, Any]:
    """The fields beside columns of these names: one with such a name becomes `field_NAME`."""
    shown = {}
    for name, value in fields.items():
        label = name
        while label in ours or (label != name and label in fields):
            label = f"field_{label}"
        shown[label] = value
    return shown


def document_of(stored: DocumentPassages, kinds: Collection[str], header: Header) -> IndexDocument:
    """With these kinds of vectors."""
    return IndexDocument(
        stored.id,
        stored.text,
        stored.fields,
        len(stored.passages),
        stored.vectors if "dense" in kinds else None,
        [terms_of(value) for value in stored.kinds["sparse"]] if "sparse" in kinds else None,
        tokens_of(stored.kinds["late"], header.kinds["late"]) if "late" in kinds else None,
    )


def stored_documents(state: IndexState, ids: Sequence[str], vectors: VectorChoice) -> list[IndexDocument]:
    """Those of these ids that are stored, in their order."""
    kinds = chosen_kinds(vectors, state.header)
    rows = state.table.get(ids, kinds=not kinds.isdisjoint(state.header.kinds))
    return [document_of(each, kinds, state.header) for each in documents_in(rows)]


def scan_documents(
    state: IndexState, after: str | None, block: int, where: Condition | None, vectors: VectorChoice
) -> Iterator[IndexDocument]:
    """By ascending id, `block` passages at a time."""
    header, kinds = state.header, chosen_kinds(vectors, state.header)
    further = not kinds.isdisjoint(header.kinds)
    blocks = state.table.scan(after=after, block=block, where=where, kinds=further)
    return (document_of(each, kinds, header) for rows in blocks for each in documents_in(rows))


def write_documents(path: Path, documents: Iterable[IndexDocument]) -> int:
    """Write the documents to a file, which is complete or absent; how many there were."""
    return write_rows(
        path,
        (
            {
                "id": each.id,
                "text": each.text,
                **relabeled(each.fields, EXPORT_COLUMNS),
                **each.vector_columns(),
            }
            for each in documents
        ),
    )


@dataclass(frozen=True)
class FieldChanges:
    """New values of fields, for documents by id or by a condition."""

    ids: Sequence[str] | None
    where: Condition | None
    values: Sequence[Mapping[str, FieldValue]]
    """One for all documents, or one per id."""

    @classmethod
    def checked(
        cls,
        ids: Sequence[str] | None,
        where: Condition | None,
        fields: Mapping[str, Any] | Sequence[Mapping[str, Any]],
        types: Mapping[str, FieldType],
    ) -> FieldChanges:
        """With values as the fields keep them, or an InputError."""
        if (ids is None) == (where is None):
            raise InputError("update takes ids or where, one of the two")
        given = [fields] if isinstance(fields, Mapping) else list(fields)
        if not isinstance(fields, Mapping):
            if ids is None:
                raise InputError(
                    "fields is a list, one mapping per id, but no ids were given. Give one mapping"
                )
            if len(given) != len(ids):
                raise InputError(f"ids has {len(ids)} entries but fields has {len(given)}")
        seen: set[str] = set()
        for id_ in ids or ():
            if id_ in seen:
                raise InputError(f"the id {id_!r} comes twice. Change each document once")
            seen.add(id_)
        for row in given:
            if not isinstance(row, Mapping):
                raise InputError(f"fields holds a {type(row).__name__}, not a mapping of names to values")
            for name in row:
                if name not in types:
                    raise unknown_field(str(name), types)
        values = [
            {name: checked_value(f"field {name!r}", value, types[name]) for name, value in row.items()}
            for row in given
        ]
        return cls(ids, where, values)

    def of(self, ids: Sequence[str]) -> dict[str, Mapping[str, FieldValue]]:
        """The new values of these documents."""
        if len(self.values) == 1:
            return dict.fromkeys(ids, self.values[0])
        every = dict(zip(self.ids or (), self.values, strict=True))
        return {id_: every[id_] for id_ in ids}


def update_fields(run: Runner, changes: FieldChanges, block: int) -> WriteResult:
    """Write the documents with their new values, one commit per block; those that have them already are left alone."""
    if changes.ids is not None:
        for ids in _blocks(changes.ids, block):
            stored = run(partial(_digests, ids=ids))
            for id_ in ids:
                if id_ not in stored:
                    raise InputError(f"the document {id_!r} is not in the index. Nothing was changed")
    total = WriteResult(0, 0, 0, 0)
    found = changes.ids if changes.ids is not None else run(partial(_meeting, where=changes.where))
    for ids in _blocks(found, block):
        total += run(partial(_update_block, changes=changes.of(ids), where=changes.where))
    return total


def _blocks(ids: Iterable[str], size: int) -> Iterator[list[str]]:
    source = iter(ids)
    while block := list(islice(source, size)):
        yield block


def _digests(state: IndexState, ids: Sequence[str]) -> dict[str, str]:
    return state.table.digests(ids)


def _meeting(state: IndexState, where: Condition | None) -> Iterator[str]:
    for rows in state.table.scan(block=BLOCK, where=where):
        yield from dict.fromkeys(rows.id)


def _update_block(
    state: IndexState, changes: Mapping[str, Mapping[str, FieldValue]], where: Condition | None
) -> WriteResult:
    for left in reversed(range(_TRIES)):
        stored = [
            document
            for document in documents_in(state.table.get(list(changes), kinds=True))
            if where is None or matches(where, {**document.fields, "id": document.id})
        ]
        changed = [
            each
            for document in stored
            if (each := _changed(document, changes[document.id], state.splitting)) is not None
        ]
        if changed:
            written = {document.id for document in changed}
            expected = {document.id: document.digest for document in stored if document.id in written}
            try:
                rows = rows_of(changed, state.table.header)
                state.table.write(rows, replace=True, expected=expected)
            except DocumentsChanged:
                if not left:
                    raise
                continue
        return WriteResult(0, len(changed), len(stored) - len(changed), 0)
    raise AssertionError("the last try returns or raises")


def without_field(document: DocumentPassages, field: str, splitting: Splitting) -> DocumentPassages:
    """The document without the value of a field, with the digest that `add` would give it."""
    return _changed(document, {field: None}, splitting) or document


def sample_vectors(state: IndexState, count: int) -> Vectors:
    """(n, dim) of stored passages: all vectors of a small table; of a large one those after the nearest ids to a few
    random vectors."""
    table = state.table
    if not state.dim:
        raise no_dense_vectors(table.location)
    first = next(table.scan(block=count), None)
    if first is None or len(first) < count:
        return np.empty((0, state.dim), np.float32) if first is None else first.vector
    probes = np.random.default_rng(1729).normal(size=(_SAMPLED_RANGES, state.dim)).astype(np.float32)
    sample: dict[tuple[str, int], Vectors] = {}
    for passages in table.nearest(probes / np.linalg.norm(probes, axis=1, keepdims=True), 1):
        after = passages.id[0] if len(passages) else None
        rows = None if after is None else next(table.scan(after=after, block=count // _SAMPLED_RANGES), None)
        if rows is not None:
            sample |= {(rows.id[n], int(rows.part[n])): rows.vector[n] for n in range(len(rows))}
    return np.stack(list(sample.values())) if len(sample) > count // _SAMPLED_RANGES else first.vector


def _changed(
    document: DocumentPassages, values: Mapping[str, FieldValue], splitting: Splitting
) -> DocumentPassages | None:
    """The document with these values and the digest that `add` would give it; None: it has them already."""
    fields = {**document.fields, **values}
    if all(document.fields.get(name) == value for name, value in values.items()):
        return None
    given = None if document.made_by_model(splitting) else document.vectors[0]
    return replace(document, fields=fields, digest=digest_of(document.text, fields, splitting, given))
