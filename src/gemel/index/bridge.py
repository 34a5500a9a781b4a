"""A bridge between two models: queries of a new one are carried into the vectors that an old one left in the index.

The map turns and mirrors only (orthogonal Procrustes; semi-orthogonal where the models' dimensions differ), so that
it cannot overfit much on a small sample. What it loses is measured on texts that it was not fitted on.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.errors import InputError
from gemel.index.binding import IndexState
from gemel.index.encoder import EncodedPassages, ModelIndexEncoder, unit
from gemel.index.port import Table
from gemel.index.results import stored_documents
from gemel.model import Model
from gemel.types import Vectors

_HELD_OUT = 200  # texts at most that the loss is measured on; one in five of a small sample
_TOP = 10


@dataclass(frozen=True)
class Bridge:
    """How a bridge was fitted and what it is worth."""

    before: str
    """The model of the stored vectors."""
    after: str
    """The model of the queries."""
    fitted_on: int
    held_out: int
    overlap: float
    """Of the 10 documents that the old model finds for a text, the part that the bridge finds too; 1: nothing lost.
    Mean over the held-out texts, each of them left out of its own answers."""

    def summary(self) -> str:
        """One line for a person."""
        return (
            f"queries of {self.after} over vectors of {self.before}: {self.overlap:.0%} of its first {_TOP} answers "
            f"are found (fitted on {self.fitted_on:,} texts, measured on {self.held_out:,} others)"
        )


class BridgedCoder:
    """The new model for queries, carried over; it makes no vectors for the table."""

    bridged = True

    def __init__(self, coder: ModelIndexEncoder, turn: Vectors, bridge: Bridge) -> None:
        self._coder, self._turn, self.bridge = coder, turn, bridge

    @property
    def query_dim(self) -> int:
        return int(self._turn.shape[0])

    def model(self) -> Model:
        return self._coder.model()

    def queries(self, texts: Sequence[str]) -> Vectors:
        return self.carried(self._coder.queries(texts))

    def carried(self, queries: Vectors) -> Vectors:
        return unit(queries @ self._turn)

    def documents(self, texts: Sequence[str]) -> EncodedPassages:
        raise self._refusal()

    def split(self, texts: Sequence[str]) -> list[list[str]]:
        raise self._refusal()

    def _refusal(self) -> InputError:
        return InputError(
            f"a bridge answers queries of {self.bridge.after!r} but makes no vectors of {self.bridge.before!r}. "
            "Add documents through the index that the bridge was made of, or migrate it"
        )


def build_bridge(state: IndexState, coder: ModelIndexEncoder, sample: int) -> BridgedCoder:
    """Fits the map on `sample` stored passages and measures it."""
    if state.binding is None:
        raise InputError("the index holds vectors only: a bridge needs texts that both models encode")
    if isinstance(sample, bool) or sample < 2:
        raise InputError(f"sample must be at least 2 texts, got {sample!r}")
    chosen = _sample(state.table, sample)
    if len(chosen.texts) < 2:
        raise InputError(f"a bridge needs at least 2 texts in the index, it has {len(chosen.texts)}")
    symmetric = state.binding.query_prompt == state.binding.fingerprint.prompt
    old = chosen.vectors if symmetric else state.coder.queries(chosen.texts)
    new = coder.queries(chosen.texts)
    held = min(_HELD_OUT, max(1, len(old) // 5))
    turn = procrustes(new[held:], old[held:])
    bridge = Bridge(
        before=state.binding.model,
        after=coder.model().name,
        fitted_on=len(old) - held,
        held_out=held,
        overlap=_overlap(state.table, chosen.ids[:held], old[:held], unit(new[:held] @ turn)),
    )
    return BridgedCoder(coder, turn, bridge)


def procrustes(source: Vectors, target: Vectors) -> Vectors:
    """(d_source, d_target) with orthonormal rows or columns, whichever are fewer, that best turns source to target."""
    left, _, right = np.linalg.svd(
        source.astype(np.float64).T @ target.astype(np.float64), full_matrices=False
    )
    return np.asarray(left @ right, dtype=np.float32)


@dataclass(frozen=True, eq=False)
class _Sample:
    ids: list[str]
    texts: list[str]
    vectors: Vectors


def _sample(table: Table, size: int) -> _Sample:
    """Distinct passages, each with the same chance, in a random order that is the same every time."""
    rng = random.Random(0)
    kept: list[tuple[str, str, Vectors]] = []
    seen: set[int] = set()
    count = 0
    for rows in table.scan():
        for document in stored_documents(rows):
            for text, vector in zip(document.passages, document.vectors, strict=True):
                if not text.strip() or hash(text) in seen:
                    continue
                seen.add(hash(text))
                count += 1
                place = len(kept) if len(kept) < size else rng.randrange(count)
                if place < size:
                    # Copied: a view of the vector would keep the whole block of the scan in memory.
                    kept[place : place + 1] = [(document.id, text, vector.copy())]
    rng.shuffle(kept)
    vectors = [vector for _, _, vector in kept]
    stacked = np.stack(vectors) if vectors else np.empty((0, table.header.dim), np.float32)
    return _Sample([each[0] for each in kept], [each[1] for each in kept], stacked)


def _overlap(table: Table, ids: Sequence[str], old: Vectors, carried: Vectors) -> float:
    """Mean part of the old answers that the carried queries find, the text's own document left out."""
    width = 2 * _TOP  # passages of one document take several places
    shares = []
    answers = zip(ids, table.nearest(old, width), table.nearest(carried, width), strict=True)
    for own, right, found in answers:
        wanted = [id_ for id_ in dict.fromkeys(right.id) if id_ != own][:_TOP]
        given = [id_ for id_ in dict.fromkeys(found.id) if id_ != own][:_TOP]
        if wanted:
            shares.append(len(set(wanted) & set(given)) / len(wanted))
    return float(np.mean(shares)) if shares else 1.0
