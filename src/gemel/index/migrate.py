"""`migrate`: every document encoded again by other models into a table beside the current one, then one switch.

The current table is searched and written until the switch. A pass reads all its documents and copies those that the
next table lacks or has in another state; passes are repeated until little is left, the last one while writers wait. A
run that was killed resumes: what the next table has already is not encoded again.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any, Literal

import numpy as np

from gemel.errors import InputError
from gemel.index.binding import (
    IndexEncoder,
    IndexState,
    LazyEncoder,
    bind,
    differences,
    load_for,
    made_by,
)
from gemel.index.documents import without_field
from gemel.index.ingest import IncomingBatch, KnownPassages, prepare
from gemel.index.kinds import KINDS, KindEncoder, KindModel, check_whole_passages, modes_of, new_kinds
from gemel.index.port import (
    DocumentPassages,
    Header,
    KindName,
    Store,
    Table,
    digest_of,
    documents_in,
    rows_of,
)
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision
from gemel.terminal import Progress, counted
from gemel.types import ShownResult
from gemel.vectors.bm25 import WordRules

_BLOCK = 1024  # documents per commit: what a kill costs

_FEW = 200  # documents that may be left for the pass during which writers wait

_SAMPLED = 1_000  # passages from which the centroids of 2-bit residuals are made

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
    """The models that made the index until now."""
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
    """The models that an index is migrated to, and their settings; None: as the index has it."""

    model: Model | str | Path | None
    options: EncodeOptions | None = None
    dim: int | None = None
    precision: Precision | None = None
    passage_tokens: int | None = None
    kinds: Mapping[KindName, KindModel | str | Path | Literal[False]] = field(default_factory=dict)
    """Models of further kinds of vectors; False: the index is to have none."""
    late_form: str | None = None
    late_chunks: bool | None = None

    def encoder(self, location: str, old: IndexState) -> IndexEncoder:
        """The loaded model with its settings, checked."""
        if old.binding is None and old.dim:
            raise InputError(f"the index {location} has vectors only: there is no text to encode again")
        given = {"dim": self.dim, "precision": self.precision}
        changes: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        recorded = EncodeOptions() if old.binding is None else old.binding.options
        options = replace(self.options or recorded, **changes)
        model = self._loaded(old)
        if options.dim is not None and options.dim > model.dim:
            raise InputError(
                f"the index {location} is to keep {options.dim} dimensions of a vector, but {model.name!r} makes "
                f"{model.dim}. Give a dim (--dim) of at most that"
            )
        tokens = old.passage_tokens if self.passage_tokens is None else self.passage_tokens
        late = old.late_chunks if self.late_chunks is None else self.late_chunks
        encoder = IndexEncoder(model, options, tokens, late)
        encoder.split([""])  # an error if the model cannot read such passages, before a table is begun
        return encoder

    def _loaded(self, old: IndexState) -> Model:
        if isinstance(self.model, Model):
            return self.model
        assert self.model is not None
        if self.options is not None or old.binding is None:
            return load(self.model)
        return load_for(old.binding, self.model, pooling=made_by(old.binding, self.model))

    def kind_encoders(self, old: IndexState) -> dict[str, LazyEncoder[KindEncoder]]:
        """Of the new index: those of the old one where nothing else is wanted."""
        if self.late_form is not None and not old.header.kinds.keys() | self.kinds.keys() >= {"late"}:
            raise InputError(
                f"late_form is {self.late_form!r}, but the index has no late vectors. Give late="
            )
        out: dict[str, LazyEncoder[KindEncoder]] = {}
        for kind in KINDS:
            there = old.header.kinds.get(kind)
            given = self.kinds.get(kind)
            if given is False or (given is None and there is None):
                continue
            form = self.late_form if kind == "late" else None
            if given is None and form in (None, there and there.form):
                out[kind] = old.kinds[kind]
                continue
            model = given or old.kinds[kind].get().model
            wanted = form or (there.form if there and kind == "late" else None)
            made = new_kinds({kind: model}, wanted, partial(_some_passages, old.table))[kind]
            same = there is not None and made.makes(there)
            out[kind] = old.kinds[kind] if same else LazyEncoder.of(made)
        return out


def _some_passages(table: Table) -> list[str]:
    """Passages at random, the same ones unless documents changed."""
    chosen: list[str] = []
    rng, count = random.Random(0), 0
    for rows in table.scan():
        for text in rows.text:
            count += 1
            place = len(chosen) if len(chosen) < _SAMPLED else rng.randrange(count)
            if text and place < _SAMPLED:
                chosen[place : place + 1] = [text]
    if not chosen:
        raise InputError("late_form '2bit' needs centroids of stored documents, but the index has no texts")
    return chosen


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
        self._same_dense = False
        """The dense vectors, or that there are none, stay as they are."""
        self._started = perf_counter()
        self._passes: list[_Pass] = []

    @classmethod
    def to_models(cls, store: Store, old: IndexState, target: Target, *, progress: bool) -> Migration:
        """Every document encoded again by those models of the target that are new."""
        migration = cls(store, old, encode=True, progress=progress)
        lazy, binding, before = old.lazy_encoder, old.binding, old.table.header
        dim, bound = before.dim, before.bound
        if target.model is not None:
            encoder = target.encoder(store.name, old)
            if old.binding is None or differences(old.binding, encoder):
                lazy, binding = LazyEncoder.of(encoder), bind(encoder)
                dim, bound = encoder.dim, binding.to_json()
        migration._same_dense = binding is old.binding
        kinds = target.kind_encoders(old)
        if binding is not None:
            check_whole_passages(binding.options, kinds)
        if not dim and not kinds:
            raise InputError(
                f"{store.name} would have no vectors at all. Give a model, or keep one kind of vectors"
            )
        if not migration._same_dense or kinds != old.kinds:
            about = {
                kind: before.kinds[kind] if each is old.kinds.get(kind) else each.get().header()
                for kind, each in kinds.items()
            }
            words = WordRules(stemming=before.words.stemming)
            header = Header(dim, before.fields, bound, words=words, kinds=about)
            if before.mode is not None and before.mode in modes_of(header):
                header = replace(header, format=0, mode=before.mode)
            migration._new = IndexState(store.begin(header), lazy, binding, kinds)
        return migration

    @classmethod
    def to_words(cls, store: Store, old: IndexState, rules: WordRules, *, progress: bool) -> Migration:
        """The same documents with the same vectors, divided into words by `rules`."""
        migration = cls(store, old, encode=False, progress=progress)
        before = old.table.header
        if before.words != rules:
            header = replace(before, format=0, words=rules)
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
        built = self._new.table
        self._new = replace(self._new, table=self._store.switch())
        if self._new.table is not built:
            built.close()
        return self._new

    @property
    def written(self) -> int:
        """Documents that were copied, by an earlier run too."""
        return sum(each.kept for each in self._passes[:1]) + sum(each.changed for each in self._passes)

    def result(self) -> MigrateResult:
        """What was done, for the caller of `migrate`."""
        count = self._new.table.count()
        return MigrateResult(
            documents=count.documents,
            passages=count.passages,
            encoded=sum(each.encoded for each in self._passes),
            kept=self._passes[0].kept if self._passes else count.documents,
            caught_up=sum(each.changed for each in self._passes[1:]),
            seconds=perf_counter() - self._started,
            before=self._old.models or "vectors only",
            after=self._new.models,
        )

    def _pass(self, *, progress: bool = False) -> _Pass:
        """Make the next table equal to the current one as it is now."""
        old, new = self._old.table, self._new.table
        self._take_fields()
        header = new.header
        line = Progress(old.count().documents, "documents", shown=progress)
        seen: set[str] = set()
        kept = changed = encoded = 0
        documents = (document for rows in old.scan(kinds=True) for document in documents_in(rows))
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

    def _take_fields(self) -> None:
        """Give the next table the fields of the current one, without those that were removed since it was begun."""
        old, new = self._old.table.header.fields, self._new.table
        for name, kind in new.header.fields.items():
            if old.get(name) != kind:
                new.remove_field(name, partial(without_field, field=name, splitting=self._new.splitting))
        new.add_fields(old)

    def _digest(self, document: DocumentPassages) -> str:
        """What the next table should have for the document."""
        if not self._encode or self._keeps_given(document):
            return document.digest
        return digest_of(document.text, document.fields, self._new.splitting)

    def _keeps_given(self, document: DocumentPassages) -> bool:
        """Its dense vector is the caller's, and stays."""
        return self._same_dense and not document.made_by_model(self._old.splitting)

    def _write_encoded(self, documents: Sequence[DocumentPassages], digests: Sequence[str]) -> int:
        """Passages that were encoded; vectors that stay as they are, are copied."""
        if not self._same_dense:
            self._check_texts(documents)
        encoded = 0
        for given in (False, True):
            chosen = [n for n, each in enumerate(documents) if self._keeps_given(each) == given]
            if chosen:
                part = [documents[n] for n in chosen]
                encoded += self._write_part(part, [digests[n] for n in chosen], given=given)
        return encoded

    def _write_part(
        self, documents: Sequence[DocumentPassages], digests: Sequence[str], *, given: bool
    ) -> int:
        known = KnownPassages()
        for each in documents:
            kept = {kind: values for kind, values in each.kinds.items() if self._keeps(kind)}
            known.add(replace(each, kinds=kept), self._old.splitting)
        if not self._same_dense:
            known.vectors.clear()
            known.documents.clear()
        batch = IncomingBatch(
            ids=[each.id for each in documents],
            texts=[each.text for each in documents],
            vectors=np.concatenate([each.vectors for each in documents]) if given else None,
            fields=[dict(each.fields) for each in documents],
        )
        ready = prepare(self._new, batch, digests, known)
        self._new.table.write(ready.rows, replace=True)
        return ready.encoded

    def _keeps(self, kind: str) -> bool:
        return self._new.kinds.get(kind) is self._old.kinds.get(kind)

    def _check_texts(self, documents: Sequence[DocumentPassages]) -> None:
        tokens = self._old.splitting
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
