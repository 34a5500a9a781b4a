"""`verify` reads and checks every row, and encodes a sample again to compare it; `stats` says what an index has."""

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
from gemel.index.kinds import difference, fault_of, recorded_mode, tolerance
from gemel.index.port import (
    DocumentPassages,
    FieldType,
    NoWordSearch,
    Splitting,
    TableStats,
    digest_of,
    documents_in,
)
from gemel.index.where import Compare
from gemel.terminal import counted
from gemel.types import ShownResult
from gemel.vectors.bm25 import WordRules

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
    kinds: dict[str, list[str]] = field(default_factory=dict)
    """Documents with a value that cannot be right, by the kind of vectors."""
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
        *([_of("lengths", walk.long, fine, "have vectors of another length")] if header.dim else []),
        *([_found(state, walk.sample)] if header.dim else []),
        *(
            _of(f"{kind} values", bad, f"all are {header.kinds[kind].form}", "have values that are none")
            for kind, bad in walk.kinds.items()
        ),
    ]
    faults = state.table.faults()
    if not faults:  # a search by words would repair their index
        checks.append(_words(state, walk.sample))
    checks.append(Check("structures", not faults, "; ".join(faults) or "all that search reads is whole"))
    if state.binding is not None:
        checks += _model(state, state.binding, walk.sample)
    for kind in state.kinds if all(check.ok for check in checks) else ():
        checks += _kind(state, kind, walk.sample)
    return VerifyResult(tuple(checks))


def _header(state: IndexState) -> Check:
    header, binding = state.table.header, state.binding
    made = f"made by {state.models}" if state.models else "vectors only"
    made += "" if binding is None else f", {binding.fingerprint.digest}"
    ok = binding is None or binding.fingerprint.dim == header.dim
    return Check("header", ok, f"format {header.format}, {header.dim} dimensions, {made}")


def _walk(state: IndexState, size: int) -> _Walk:
    walk, rng = _Walk(kinds={kind: [] for kind in state.header.kinds}), random.Random(0)
    for rows in state.table.scan(kinds=True):
        for document in documents_in(rows):
            walk.documents += 1
            walk.passages += len(document.parts)
            if document.parts != list(range(len(document.parts))):
                walk.broken.append(document.id)
            elif not _digest_fits(document, state.splitting):
                walk.changed.append(document.id)
            length = np.linalg.norm(document.vectors, axis=1)
            off = length[np.abs(length - 1) > _UNIT]
            # A model makes a vector of zeros of a text that has nothing it knows.
            if len(off) and (off.any() or not document.made_by_model(state.splitting)):
                walk.long.append(document.id)
            for kind, bad in walk.kinds.items():
                about = state.header.kinds[kind]
                if any(fault_of(kind, value, about) for value in document.kinds[kind]):
                    bad.append(document.id)
            # Each document ends up in the sample with the same chance (reservoir sampling).
            n = len(walk.sample) if len(walk.sample) < size else rng.randrange(walk.documents)
            if n < size:
                # Copied: a view of its vectors would keep the whole block of the scan in memory.
                walk.sample[n : n + 1] = [replace(document, vectors=document.vectors.copy())]
    return walk


def _digest_fits(document: DocumentPassages, splitting: Splitting) -> bool:
    if document.made_by_model(splitting):
        return True
    given = digest_of(document.text, document.fields, splitting, document.vectors[0])
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
    except NoWordSearch as error:
        return Check("words", True, str(error))
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
    texts = [each for each in sample if each.made_by_model(state.splitting)]
    split = state.split([each.text for each in texts]) if texts else []
    pairs = zip(texts, split, strict=True)
    differing = [each.id for each, parts in pairs if list(each.passages) != [part.text for part in parts]]
    fine = f"{len(texts)} documents split again, the same"
    checks.append(_of("splitting", differing, fine, "are split otherwise now"))
    every = [passage for each in texts for passage in each.passages]
    if not every:
        return checks
    stored = np.concatenate([each.vectors for each in texts])
    owners = [each.id for each in texts for _ in each.passages]
    again = (
        state.encoder.encode_late([each.text for each in texts], [each.passages for each in texts])
        if state.late_chunks
        else state.encoder.encode_whole(every)
    )
    wide = np.abs(again - stored).max(axis=1)
    bad = list(dict.fromkeys(owners[n] for n in np.flatnonzero(wide > CLOSE)))
    fine = f"{len(texts)} documents encoded again, largest difference {float(wide.max()):.1e}"
    checks.append(_of("vectors", bad, fine, "have other vectors now"))
    return checks


def _kind(state: IndexState, kind: str, sample: Sequence[DocumentPassages]) -> list[Check]:
    """The canaries and the sample encoded again by one kind of vectors."""
    header = state.header.kinds[kind]
    most = tolerance(header)
    try:
        encoder = state.kinds[kind].get()
        off = encoder.canary_difference(header)
        made = [encoder.encode_passages(each.passages) for each in sample]
    except GemelError as error:
        return [Check(f"{kind} model", False, str(error))]
    gaps = [difference(kind, header, each.kinds[kind], now) for each, now in zip(sample, made, strict=True)]
    bad = [each.id for each, gap in zip(sample, gaps, strict=True) if gap > most]
    fine = f"{len(sample)} documents encoded again, largest difference {max(gaps, default=0.0):.1e}"
    return [
        Check(f"{kind} canaries", off <= most, f"encoded again, largest difference {off:.1e}"),
        _of(f"{kind} vectors", bad, fine, "have other vectors now"),
    ]


def _of(name: str, bad: Sequence[str], fine: str, wrong: str) -> Check:
    if not bad:
        return Check(name, True, fine)
    named = ", ".join(repr(id_) for id_ in bad[:_SHOWN]) + (", …" if len(bad) > _SHOWN else "")
    return Check(name, False, f"{len(bad):,} documents {wrong}: {named}")


@dataclass(frozen=True, kw_only=True)
class IndexStats(TableStats):
    """Size, layout, measured recall and model of an index."""

    location: str
    model: str | None
    """None: vectors only, bound to no model."""
    fingerprint: str | None
    """16 hex digits of all that the vectors depend on."""
    dim: int
    fields: Mapping[str, FieldType]
    mode: str
    """How it is searched unless a search says otherwise."""
    kinds: Mapping[str, Mapping[str, Any]]
    """Of each further kind of vectors (sparse, late): model, form, dim, bytes, layout, and the measured recall."""
    passage_tokens: int | None
    """None: as many as the model reads."""
    late_chunks: bool
    """The dense vectors of passages are taken from one reading of the whole document."""
    words: str
    """How texts are divided into words for hybrid search."""
    format: int
    made_by: str
    """The version of gemel that made it."""

    def to_json(self) -> dict[str, Any]:
        """All of it as a JSON object."""
        return asdict(self)


def stats(state: IndexState, location: str) -> IndexStats:
    """All that is known of the index without reading its rows."""
    found, header, binding = state.table.stats(), state.table.header, state.binding
    details = dict(found.details)
    sizes = details.pop("kinds", {})
    return IndexStats(
        **vars(found) | {"details": details},
        location=location,
        model=None if binding is None else binding.model,
        fingerprint=None if binding is None else binding.fingerprint.digest,
        dim=header.dim,
        fields=dict(header.fields),
        mode=recorded_mode(header),
        kinds={
            name: {"model": each.bound["model"], "form": each.form, "dim": each.dim, **sizes.get(name, {})}
            for name, each in header.kinds.items()
        },
        passage_tokens=state.passage_tokens,
        late_chunks=state.late_chunks,
        words=_word_rules(header.words),
        format=header.format,
        made_by=f"gemel {header.bound.get('gemel', '')}".strip(),
    )


def _word_rules(rules: WordRules) -> str:
    if rules.version == 1:
        return (
            "version 1: Chinese, Japanese and Thai are not cut into words. To rebuild them: gemel index words, "
            "or index.rebuild_words()"
        )
    return f"version {rules.version}, " + (f"stemming {rules.stemming}" if rules.stemming else "no stemming")
