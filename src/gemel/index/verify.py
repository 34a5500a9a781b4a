"""`verify`: every row is read and checked, and a sample is encoded again and compared."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from gemel.encoder.canary import Distance
from gemel.errors import GemelError
from gemel.index.binding import Binding, IndexState
from gemel.index.port import DocumentPassages, digest_of, documents_in
from gemel.index.where import Compare
from gemel.terminal import counted
from gemel.types import ShownResult

CLOSE = 1e-4
"""The largest difference of a number that engines and processors explain; more is another model."""

_UNIT = 1e-3

_LEAST_FOUND = 0.98  # of the sample, as the port says of `nearest`

_WORD_SEARCHES = 20  # documents that are searched by a word

_WORD = re.compile(r"(?<!\w)[a-zA-Z]{3,30}(?!\w)")

_SHOWN = 3  # bad documents that a line names


@dataclass(frozen=True)
class Check:
    """One check and its result."""

    name: str
    ok: bool
    detail: str


@dataclass(frozen=True)
class VerifyResult(ShownResult):
    """What was checked, in order."""

    checks: tuple[Check, ...]

    @property
    def ok(self) -> bool:
        """Nothing is wrong."""
        return all(check.ok for check in self.checks)

    def lines(self) -> list[str]:
        """One line per check, for a person."""
        width = max(len(check.name) for check in self.checks)
        return [
            f"{'ok ' if check.ok else 'BAD'}  {check.name:{width}}  {check.detail}" for check in self.checks
        ]

    def to_json(self) -> dict[str, Any]:
        return {"ok": self.ok, "checks": [asdict(check) for check in self.checks]}

    def _shown_rows(self) -> Iterable[Mapping[str, object]]:
        return (asdict(check) for check in self.checks)


@dataclass
class _Walk:
    """What reading all rows has shown."""

    documents: int = 0
    passages: int = 0
    broken: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    long: list[str] = field(default_factory=list)
    sample: list[DocumentPassages] = field(default_factory=list)


def verify(state: IndexState, sample: int) -> VerifyResult:
    """All rows are read; the canaries and `sample` documents are encoded again."""
    header = state.table.header
    checks = [_header(state)]
    walk = _walk(state, sample)
    count = state.table.count()
    same = (count.documents, count.passages) == (walk.documents, walk.passages)
    read = f"{counted(walk.documents, 'document')}, {counted(walk.passages, 'passage')}"
    if not same:
        read += f" read, but {count.documents:,} and {count.passages:,} counted"
    fine = f"all vectors have {header.dim} numbers and length 1"
    checks += [
        Check("counts", same, read),
        _of("passages", walk.broken, "no document lacks one", "are not whole"),
        _of("digests", walk.changed, "all as computed again", "are not what their digest says"),
        _of("lengths", walk.long, fine, "have vectors of another length"),
        _found(state, walk.sample),
    ]
    faults = state.table.faults()
    if not faults:  # a search by words would repair their index
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
        for document in documents_in(rows):
            walk.documents += 1
            walk.passages += len(document.parts)
            if document.parts != list(range(len(document.parts))):
                walk.broken.append(document.id)
            elif not _digest_fits(document, state.passage_tokens):
                walk.changed.append(document.id)
            length = np.linalg.norm(document.vectors, axis=1)
            off = length[np.abs(length - 1) > _UNIT]
            # A model makes a vector of zeros of a text that has nothing it knows.
            if len(off) and (off.any() or not document.made_by_model(state.passage_tokens)):
                walk.long.append(document.id)
            # Each document ends up in the sample with the same chance (reservoir sampling).
            n = len(walk.sample) if len(walk.sample) < size else rng.randrange(walk.documents)
            if n < size:
                # Copied: a view of its vectors would keep the whole block of the scan in memory.
                walk.sample[n : n + 1] = [replace(document, vectors=document.vectors.copy())]
    return walk


def _digest_fits(document: DocumentPassages, passage_tokens: int | None) -> bool:
    if document.made_by_model(passage_tokens):
        return True
    given = digest_of(document.text, document.fields, passage_tokens, document.vectors[0])
    return len(document.parts) == 1 and document.digest == given


def _found(state: IndexState, sample: Sequence[DocumentPassages]) -> Check:
    """Each document of the sample is found by its own vector, or one that is as near."""
    queries = [document.vectors[0] for document in sample if document.vectors[0].any()]
    if not queries:
        return Check("search", True, "nothing to look for")
    answers = state.table.nearest(np.stack(queries), 1)
    found = sum(len(answer) > 0 and float(answer.score[0]) > 1 - _UNIT for answer in answers)
    enough = found >= _LEAST_FOUND * len(queries)
    return Check("search", enough, f"{found} of {len(queries)} found by their own vector")


def _words(state: IndexState, sample: Sequence[DocumentPassages]) -> Check:
    """Documents are found by their longest word; scripts without spaces are left out."""
    words = [(each.id, max(found, key=len)) for each in sample if (found := _WORD.findall(each.text))]
    words, by_words = words[:_WORD_SEARCHES], state.table.by_words
    try:
        lost = [id_ for id_, word in words if not len(by_words(word, 1, where=Compare("id", "=", id_)))]
    except GemelError as error:
        return Check("words", False, str(error))
    fine = f"{len(words)} documents found by a word of theirs"
    return _of("words", lost, fine, "are not found by their words")


def _model(state: IndexState, binding: Binding, sample: Sequence[DocumentPassages]) -> list[Check]:
    try:
        canaries = state.encoder.encode_whole(binding.canary_texts)
    except GemelError as error:
        return [Check("model", False, str(error))]
    off = Distance.between(binding.canaries, canaries).difference
    checks = [Check("canaries", off <= CLOSE, f"{len(canaries)} encoded again, largest difference {off:.1e}")]
    texts = [each for each in sample if each.made_by_model(binding.passage_tokens)]
    split = state.encoder.split([each.text for each in texts]) if texts else []
    pairs = zip(texts, split, strict=True)
    differing = [each.id for each, parts in pairs if list(each.passages) != [part.text for part in parts]]
    fine = f"{len(texts)} documents split again, the same"
    checks.append(_of("splitting", differing, fine, "are split otherwise now"))
    every = [passage for each in texts for passage in each.passages]
    if not every:
        return checks
    stored = np.concatenate([each.vectors for each in texts])
    owners = [each.id for each in texts for _ in each.passages]
    wide = np.abs(state.encoder.encode_whole(every) - stored).max(axis=1)
    bad = list(dict.fromkeys(owners[n] for n in np.flatnonzero(wide > CLOSE)))
    fine = f"{len(texts)} documents encoded again, largest difference {float(wide.max()):.1e}"
    checks.append(_of("vectors", bad, fine, "have other vectors now"))
    return checks


def _of(name: str, bad: Sequence[str], fine: str, wrong: str) -> Check:
    if not bad:
        return Check(name, True, fine)
    named = ", ".join(repr(id_) for id_ in bad[:_SHOWN]) + (", …" if len(bad) > _SHOWN else "")
    return Check(name, False, f"{len(bad):,} documents {wrong}: {named}")
