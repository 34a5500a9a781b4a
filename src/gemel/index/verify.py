"""`verify`: is every row whole, and are the vectors those that the model makes today?"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gemel.errors import GemelError
from gemel.index.binding import Binding, IndexState
from gemel.index.results import Stored, digest_of, stored_documents
from gemel.index.where import Compare

CLOSE = 1e-4
"""The largest difference of a number that engines and processors explain; more is another model."""

_UNIT = 1e-3

_FOUND = 0.98  # of the sample: what a table promises to find

_BY_WORDS = 20  # documents that are looked for by a word

_WORD = re.compile(r"(?<!\w)[a-zA-Z]{3,30}(?!\w)")

_NAMED = 3  # bad documents that a line names


@dataclass(frozen=True)
class Check:
    """One question and its answer."""

    name: str
    ok: bool
    said: str


@dataclass(frozen=True)
class VerifyResult:
    """What was checked, in order."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return all(check.ok for check in self.checks)

    def lines(self) -> list[str]:
        """One line a check, for a person."""
        width = max(len(check.name) for check in self.checks)
        return [
            f"{'ok ' if check.ok else 'BAD'}  {check.name:{width}}  {check.said}" for check in self.checks
        ]

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}


@dataclass
class _Walk:
    """What a walk over all rows has seen."""

    documents: int = 0
    passages: int = 0
    broken: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    long: list[str] = field(default_factory=list)
    sample: list[Stored] = field(default_factory=list)


def verify(state: IndexState, sample: int) -> VerifyResult:
    """All rows are read; the canaries and `sample` documents are encoded again."""
    header = state.table.header
    checks = [_header(state)]
    walk = _walk(state, sample)
    counted = state.table.count()
    same = (counted.documents, counted.passages) == (walk.documents, walk.passages)
    said = f"{walk.documents:,} documents, {walk.passages:,} passages"
    checks.append(
        Check(
            "counts",
            same,
            said if same else f"{said} read, but {counted.documents:,} and {counted.passages:,} counted",
        )
    )
    checks.append(_of("passages", walk.broken, "no document lacks one", "are not whole"))
    checks.append(_of("digests", walk.changed, "all as computed anew", "are not what their digest says"))
    checks.append(
        _of(
            "lengths",
            walk.long,
            f"all vectors have {header.dim} numbers and length 1",
            "have vectors of another length",
        )
    )
    checks.append(_found(state, walk.sample))
    faults = state.table.faults()
    if not faults:  # else a search by words would heal their index
        checks.append(_words(state, walk.sample))
    checks.append(Check("structures", not faults, "; ".join(faults) or "all that search reads is whole"))
    if state.binding is not None:
        checks += _model(state, state.binding, walk.sample)
    return VerifyResult(tuple(checks))


def _header(state: IndexState) -> Check:
    header, binding = state.table.header, state.binding
    made = "vectors only" if binding is None else f"made by {binding.model}, {binding.fingerprint.digest}"
    ok = binding is None or binding.fingerprint.dim == header.dim
    return Check("header", ok, f"format {header.format}, {header.dim} dimensions, {made}")


def _walk(state: IndexState, size: int) -> _Walk:
    walk, rng = _Walk(), random.Random(0)
    for rows in state.table.scan():
        for document in stored_documents(rows):
            walk.documents += 1
            walk.passages += len(document.parts)
            if document.parts != list(range(len(document.parts))):
                walk.broken.append(document.id)
            elif not _digest_fits(document, state.passage_tokens):
                walk.changed.append(document.id)
            length = np.linalg.norm(document.vectors, axis=1)
            made = document.made_by_model(state.passage_tokens)
            if (np.abs(length - 1) > _UNIT).any() and not (
                made and (length[np.abs(length - 1) > _UNIT] == 0).all()
            ):
                walk.long.append(document.id)
            # Each document ends up in the sample with the same chance (reservoir sampling).
            place = len(walk.sample) if len(walk.sample) < size else rng.randrange(walk.documents)
            if place < size:
                # Copied: a view of its vectors would keep the whole block of the scan in memory.
                walk.sample[place : place + 1] = [replace(document, vectors=document.vectors.copy())]
    return walk


def _digest_fits(document: Stored, passage_tokens: int | None) -> bool:
    if document.made_by_model(passage_tokens):
        return True
    given = digest_of(document.text, document.fields, passage_tokens, document.vectors[0])
    return len(document.parts) == 1 and document.digest == given


def _found(state: IndexState, sample: Sequence[Stored]) -> Check:
    """Each document of the sample is its own nearest neighbour, or as near as a twin."""
    asked = [document.vectors[0] for document in sample if document.vectors[0].any()]
    if not asked:
        return Check("search", True, "nothing to look for")
    answers = state.table.nearest(np.stack(asked), 1)
    found = sum(len(answer) > 0 and float(answer.score[0]) > 1 - _UNIT for answer in answers)
    return Check("search", found >= _FOUND * len(asked), f"{found} of {len(asked)} found by their own vector")


def _words(state: IndexState, sample: Sequence[Stored]) -> Check:
    """Passages are found by the longest of their words; of those in scripts without spaces nothing is asked."""
    asked = [(each.id, max(found, key=len)) for each in sample if (found := _WORD.findall(each.text))]
    asked = asked[:_BY_WORDS]
    try:
        lost = [
            id_
            for id_, word in asked
            if not len(state.table.by_words(word, 1, where=Compare("id", "=", id_)))
        ]
    except GemelError as error:
        return Check("words", False, str(error))
    return _of(
        "words", lost, f"{len(asked)} documents found by a word of theirs", "are not found by their words"
    )


def _model(state: IndexState, binding: Binding, sample: Sequence[Stored]) -> list[Check]:
    try:
        canaries = state.coder.documents(binding.canary_texts).vectors
    except GemelError as error:
        return [Check("model", False, str(error))]
    off = float(np.abs(canaries - binding.canaries).max())
    said = f"{len(canaries)} encoded again, largest difference {off:.1e}"
    checks = [Check("canaries", off <= CLOSE, said)]
    texts = [each for each in sample if each.made_by_model(binding.passage_tokens)]
    passages = state.coder.split([each.text for each in texts]) if texts else []
    split = [each.id for each, parts in zip(texts, passages, strict=True) if list(each.passages) != parts]
    checks.append(
        _of("splitting", split, f"{len(texts)} documents split again, the same", "are split otherwise now")
    )
    every = [passage for each in texts for passage in each.passages]
    if not every:
        return checks
    stored = np.concatenate([each.vectors for each in texts])
    owners = [each.id for each in texts for _ in each.passages]
    wide = np.abs(state.coder.documents(every).vectors - stored).max(axis=1)
    bad = list(dict.fromkeys(owners[place] for place in np.flatnonzero(wide > CLOSE)))
    said = f"{len(texts)} documents encoded again, largest difference {float(wide.max()):.1e}"
    checks.append(_of("vectors", bad, said, "have other vectors now"))
    return checks


def _of(name: str, bad: Sequence[str], fine: str, wrong: str) -> Check:
    if not bad:
        return Check(name, True, fine)
    named = ", ".join(repr(id_) for id_ in bad[:_NAMED]) + (", …" if len(bad) > _NAMED else "")
    return Check(name, False, f"{len(bad):,} documents {wrong}: {named}")
