"""`migrate`: every document encoded anew by another model into a table beside the current one, then one switch.

The current table answers and takes writes until the switch. A pass walks over all its documents and copies those that
the next table lacks or has otherwise; passes are repeated until little is left, the last one with writers waiting.
A run that was killed is gone on with: what the next table has already is not encoded again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

from gemel.errors import InputError
from gemel.index.binding import IndexState, bind, differences, load_for, made_by
from gemel.index.encoder import ModelIndexEncoder
from gemel.index.ingest import IncomingBatch, prepare
from gemel.index.port import Header, Store
from gemel.index.results import Stored, digest_of, rows_of, stored_documents
from gemel.model import Model, load
from gemel.options import EncodeOptions, Precision
from gemel.terminal import Progress
from gemel.vectors.bm25 import WordRules

_BLOCK = 1024  # documents a commit: what a kill costs

_FEW = 200  # documents left for the pass during which writers wait

_PASSES = 5  # then they wait, however many are left


@dataclass(frozen=True)
class MigrateResult:
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
            f"{self.documents:,} documents",
            f"{self.encoded:,} passages encoded",
        ]
        if self.kept:
            parts.append(f"{self.kept:,} kept from an earlier run")
        if self.caught_up:
            parts.append(f"{self.caught_up:,} changed meanwhile")
        return ", ".join([*parts, f"{self.seconds:.1f} s"])


@dataclass(frozen=True)
class Target:
    """What an index is migrated to; None: as the index has it."""

    model: Model | str | Path
    options: EncodeOptions | None = None
    dim: int | None = None
    precision: Precision | None = None
    passage_tokens: int | None = None

    def coder(self, place: Store, old: IndexState) -> ModelIndexEncoder:
        """The model with its settings."""
        if old.binding is None:
            raise InputError(f"the index {place.name} holds vectors only: there is nothing to encode anew")
        given = {"dim": self.dim, "precision": self.precision}
        said: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        options = replace(self.options or old.binding.options, **said)
        model = self._loaded(old)
        if options.dim is not None and options.dim > model.dim:
            raise InputError(
                f"the index {place.name} is to keep {options.dim} dimensions of a vector, but {model.name!r} makes "
                f"{model.dim}. Give a dim (--dim) of at most that"
            )
        tokens = old.binding.passage_tokens if self.passage_tokens is None else self.passage_tokens
        coder = ModelIndexEncoder(model, options, tokens)
        coder.split([""])  # refuses passages that the model would cut, before a table is begun
        return coder

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


def migrate(
    place: Store, old: IndexState, target: Target, adopt: Callable[[IndexState], None], *, progress: bool
) -> MigrateResult:
    """The index at `place`, by the new model; `old` is what its current table is read with.

    `adopt` is given the new state while writers still wait.
    """
    started = perf_counter()
    coder = target.coder(place, old)
    assert old.binding is not None, "without one there is no target"
    if not differences(old.binding, coder):
        return _nothing_to_do(old, old.binding.model, perf_counter() - started)
    binding = bind(coder)
    words = WordRules(stemming=old.table.header.words.stemming)
    header = Header(coder.dim, old.table.header.fields, binding.to_json(), words=words)
    new = IndexState(place.begin(header), coder, binding)
    passes = _moved(place, old, new, adopt, progress=progress)
    counted = new.table.count()
    return MigrateResult(
        documents=counted.documents,
        passages=counted.passages,
        encoded=sum(each.encoded for each in passes),
        kept=passes[0].kept,
        caught_up=sum(each.changed for each in passes[1:]),
        seconds=perf_counter() - started,
        before=old.binding.model,
        after=binding.model,
    )


def rebuild_words(
    place: Store, old: IndexState, rules: WordRules, adopt: Callable[[IndexState], None], *, progress: bool
) -> int:
    """The same documents with the same vectors, their words cut by `rules`. How many documents were written."""
    if old.table.header.words == rules:
        return 0
    before = old.table.header
    header = Header(before.dim, before.fields, before.bound, words=rules)
    new = IndexState(place.begin(header), old.coder, old.binding)
    passes = _moved(place, old, new, adopt, progress=progress, encode=False)
    return sum(each.kept for each in passes[:1]) + sum(each.changed for each in passes)


def _moved(
    place: Store,
    old: IndexState,
    new: IndexState,
    adopt: Callable[[IndexState], None],
    *,
    progress: bool,
    encode: bool = True,
) -> list[_Pass]:
    """The next table filled, then switched to while writers wait."""
    passes = [_copy(place, old, new, progress=progress, encode=encode)]
    while passes[-1].changed > _FEW and len(passes) < _PASSES:
        passes.append(_copy(place, old, new, encode=encode))
    new.table.compact()
    with place.writing():
        passes.append(_copy(place, old, new, encode=encode))
        adopt(replace(new, table=place.switch()))
    return passes


def _copy(
    place: Store, old: IndexState, new: IndexState, *, progress: bool = False, encode: bool = True
) -> _Pass:
    """The next table made equal to the current one as it is now; `encode` False: with the vectors that are there."""
    new.table.add_fields(old.table.header.fields)
    columns = list(new.table.header.fields)
    line = Progress(old.table.count().documents, "documents", shown=progress)
    seen: set[str] = set()
    kept = changed = encoded = 0
    documents = (document for rows in old.table.scan() for document in stored_documents(rows))
    while block := list(islice(documents, _BLOCK)):
        seen.update(document.id for document in block)
        if not block[-1].fields.keys() <= set(columns):  # somebody added a field since this pass began
            new.table.add_fields(old.table.header.fields)
            columns = list(new.table.header.fields)
        digests = [
            digest_of(each.text, each.fields, new.passage_tokens) if encode else each.digest for each in block
        ]
        there = new.table.known([document.id for document in block])
        missing = [n for n, each in enumerate(block) if there.get(each.id) != digests[n]]
        chosen = [block[n] for n in missing]
        if chosen and encode:
            _check_texts(place, old, chosen)
            batch = IncomingBatch(
                ids=[each.id for each in chosen],
                texts=[each.text for each in chosen],
                vectors=None,
                fields=[dict(each.fields) for each in chosen],
            )
            ready = prepare(new, batch, [digests[n] for n in missing])
            new.table.write(ready.rows, replace=True)
            encoded += ready.encoded
        elif chosen:
            new.table.write(rows_of(chosen, columns), replace=True)
        kept, changed = kept + len(block) - len(missing), changed + len(missing)
        line.add(len(block))
    line.close()
    return _Pass(kept, changed + _delete_others(new, seen), encoded)


def _check_texts(place: Store, old: IndexState, documents: Sequence[Stored]) -> None:
    bare = [each.id for each in documents if not each.text and not each.made_by_model(old.passage_tokens)]
    if bare:
        place.abandon()
        raise InputError(
            f"the document {bare[0]!r} of {place.name} was given as a vector without a text, so it cannot be encoded "
            "by another model. Delete such documents, or add them again with texts. Nothing was changed"
        )


def _delete_others(new: IndexState, seen: set[str]) -> int:
    """Documents of the next table that the current one has no more."""
    if new.table.count().documents == len(seen):
        return 0
    ids = [id_ for rows in new.table.scan() for id_ in dict.fromkeys(rows.id) if id_ not in seen]
    return new.table.delete(ids) if ids else 0


def _nothing_to_do(state: IndexState, model: str, seconds: float) -> MigrateResult:
    """The account where the index is of that model already, by an earlier run perhaps."""
    there = state.table.count()
    return MigrateResult(
        documents=there.documents,
        passages=there.passages,
        encoded=0,
        kept=there.documents,
        caught_up=0,
        seconds=seconds,
        before=model,
        after=model,
    )
