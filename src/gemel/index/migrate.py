"""`migrate`: every document encoded again by another model into a table beside the current one, then one switch.

The current table is searched and written until the switch. A pass reads all its documents and copies those that the
next table lacks or has in another state; passes are repeated until little is left, the last one while writers wait. A
run that was killed resumes: what the next table has already is not encoded again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from gemel.errors import InputError
from gemel.index.binding import (
    IndexEncoder,
    IndexState,
    LazyIndexEncoder,
    bind,
    differences,
    load_for,
    made_by,
)
from gemel.index.ingest import IncomingBatch, prepare
from gemel.index.port import DocumentPassages, Header, Store, digest_of, documents_in, rows_of
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision
from gemel.terminal import Progress, counted
from gemel.types import ShownResult
from gemel.vectors.bm25 import WordRules

_BLOCK = 1024  # documents per commit: what a kill costs

_FEW = 200  # documents that may be left for the pass during which writers wait

_PASSES = 5  # then writers wait, however many are left


@dataclass(frozen=True)
class MigrateResult(ShownResult):
    """What a migration did."""

    documents: int
    """In the index after it."""
    passages: int
    encoded: int
    """Passages that the model encoded."""
    kept: int
    """Documents that an earlier run had finished."""
    caught_up: int
    """Documents that were changed or deleted while it ran."""
    seconds: float
    before: str
    """The model that made the index until now."""
    after: str

    def summary(self) -> str:
        """One line for a person."""
        if not self.encoded and self.before == self.after:
            return f"{self.after} made it already, nothing to do"
        parts = [
            f"{self.before} → {self.after}",
            counted(self.documents, "document"),
            f"{counted(self.encoded, 'passage')} encoded",
        ]
        if self.kept:
            parts.append(f"{self.kept:,} kept from an earlier run")
        if self.caught_up:
            parts.append(f"{self.caught_up:,} changed meanwhile")
        return ", ".join([*parts, f"{self.seconds:.1f} s"])


@dataclass(frozen=True)
class Target:
    """The model that an index is migrated to, and its settings; None: as the index has it."""

    model: Model | str | Path
    options: EncodeOptions | None = None
    dim: int | None = None
    precision: Precision | None = None
    passage_tokens: int | None = None

    def encoder(self, location: str, old: IndexState) -> IndexEncoder:
        """The loaded model with its settings, checked."""
        if old.binding is None:
            raise InputError(f"the index {location} has vectors only: there is no text to encode again")
        given = {"dim": self.dim, "precision": self.precision}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        options = replace(self.options or old.binding.options, **changes)
        model = self._loaded(old)
        if options.dim is not None and options.dim > model.dim:
            raise InputError(
                f"the index {location} is to keep {options.dim} dimensions of a vector, but {model.name!r} makes "
                f"{model.dim}. Give a dim (--dim) of at most that"
            )
        tokens = old.binding.passage_tokens if self.passage_tokens is None else self.passage_tokens
        encoder = IndexEncoder(model, options, tokens)
        encoder.split([""])  # an error if the model cannot read such passages, before a table is begun
        return encoder

    def _loaded(self, old: IndexState) -> Model:
        if isinstance(self.model, Model):
            return self.model
        if self.options is not None or old.binding is None:
            return load(self.model)
        return load_for(old.binding, self.model, pooling=made_by(old.binding, self.model))


@dataclass(frozen=True)
class _Pass:
    kept: int
    changed: int
    encoded: int


class Migration:
    """One migration: `copy`, then `switch` inside `Store.writing`, then `result`. Nothing to do unless `needed`."""

    def __init__(self, store: Store, old: IndexState, *, encode: bool, progress: bool) -> None:
        """`encode` False: vectors are copied."""
        self._store, self._old, self._new = store, old, old
        self._encode, self._progress = encode, progress
        self._started = perf_counter()
        self._passes: list[_Pass] = []

    @classmethod
    def to_model(cls, store: Store, old: IndexState, target: Target, *, progress: bool) -> Migration:
        """Every document encoded again by the model of the target."""
        migration = cls(store, old, encode=True, progress=progress)
        encoder = target.encoder(store.name, old)
        assert old.binding is not None, "without one there is no encoder for the target"
        if differences(old.binding, encoder):
            binding, before = bind(encoder), old.table.header
            words = WordRules(stemming=before.words.stemming)
            header = Header(encoder.dim, before.fields, binding.to_json(), words=words)
            migration._new = IndexState(store.begin(header), LazyIndexEncoder.of(encoder), binding)
        return migration

    @classmethod
    def to_words(cls, store: Store, old: IndexState, rules: WordRules, *, progress: bool) -> Migration:
        """The same documents with the same vectors, divided into words by `rules`."""
        migration = cls(store, old, encode=False, progress=progress)
        before = old.table.header
        if before.words != rules:
            header = Header(before.dim, before.fields, before.bound, words=rules)
            migration._new = replace(old, table=store.begin(header))
        return migration

    @property
    def needed(self) -> bool:
        """False: the index is as wanted already, perhaps by an earlier run."""
        return self._new is not self._old

    def copy(self) -> None:
        """Fill the next table until few documents are left."""
        self._passes = [self._pass(progress=self._progress)]
        while self._passes[-1].changed > _FEW and len(self._passes) < _PASSES:
            self._passes.append(self._pass())
        self._new.table.compact()

    def switch(self) -> IndexState:
        """Copy the last documents, then make the next table the current one; the new state."""
        self._passes.append(self._pass())
        self._new = replace(self._new, table=self._store.switch())
        return self._new

    @property
    def written(self) -> int:
        """Documents that were copied, by an earlier run too."""
        return sum(each.kept for each in self._passes[:1]) + sum(each.changed for each in self._passes)

    def result(self) -> MigrateResult:
        """What was done, for the caller of `migrate`."""
        count = self._new.table.count()
        assert self._old.binding is not None and self._new.binding is not None
        return MigrateResult(
            documents=count.documents,
            passages=count.passages,
            encoded=sum(each.encoded for each in self._passes),
            kept=self._passes[0].kept if self._passes else count.documents,
            caught_up=sum(each.changed for each in self._passes[1:]),
            seconds=perf_counter() - self._started,
            before=self._old.binding.model,
            after=self._new.binding.model,
        )

    def _pass(self, *, progress: bool = False) -> _Pass:
        """Make the next table equal to the current one as it is now."""
        old, new = self._old.table, self._new.table
        new.add_fields(old.header.fields)
        header = new.header
        line = Progress(old.count().documents, "documents", shown=progress)
        seen: set[str] = set()
        kept = changed = encoded = 0
        documents = (document for rows in old.scan() for document in documents_in(rows))
        while block := list(islice(documents, _BLOCK)):
            seen.update(document.id for document in block)
            if not block[-1].fields.keys() <= header.fields.keys():  # a field was added since this pass began
                new.add_fields(old.header.fields)
                header = new.header
            digests = [self._digest(document) for document in block]
            copied = new.digests([document.id for document in block])
            missing = [n for n, each in enumerate(block) if copied.get(each.id) != digests[n]]
            chosen = [block[n] for n in missing]
            if chosen and self._encode:
                encoded += self._write_encoded(chosen, [digests[n] for n in missing])
            elif chosen:
                new.write(rows_of(chosen, header), replace=True)
            kept, changed = kept + len(block) - len(missing), changed + len(missing)
            line.add(len(block))
        line.close()
        return _Pass(kept, changed + self._delete_others(seen), encoded)

    def _digest(self, document: DocumentPassages) -> str:
        """What the next table should have for the document."""
        if not self._encode:
            return document.digest
        return digest_of(document.text, document.fields, self._new.passage_tokens)

    def _write_encoded(self, documents: Sequence[DocumentPassages], digests: Sequence[str]) -> int:
        """Passages that were encoded."""
        self._check_texts(documents)
        batch = IncomingBatch(
            ids=[each.id for each in documents],
            texts=[each.text for each in documents],
            vectors=None,
            fields=[dict(each.fields) for each in documents],
        )
        ready = prepare(self._new, batch, digests)
        self._new.table.write(ready.rows, replace=True)
        return ready.encoded

    def _check_texts(self, documents: Sequence[DocumentPassages]) -> None:
        tokens = self._old.passage_tokens
        bare = [each.id for each in documents if not each.text and not each.made_by_model(tokens)]
        if bare:
            self._store.abandon()
            raise InputError(
                f"the document {bare[0]!r} of {self._store.name} was given as a vector without a text, so it cannot "
                "be encoded by another model. Delete such documents, or add them again with texts. Nothing was changed"
            )

    def _delete_others(self, seen: set[str]) -> int:
        """Delete documents of the next table that the current one no longer has; how many."""
        table = self._new.table
        if table.count().documents == len(seen):
            return 0
        ids = [id_ for rows in table.scan() for id_ in dict.fromkeys(rows.id) if id_ not in seen]
        return table.delete(ids) if ids else 0
