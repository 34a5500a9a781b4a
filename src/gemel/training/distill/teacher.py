"""The teacher: a sentence encoder or a cross-encoder. What it says of a pair is a score from -1 or 0 to 1."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from gemel.checkpoint.folder import is_cross_encoder
from gemel.checkpoint.sources import find_model
from gemel.cross_model import CrossModel, load_cross
from gemel.errors import InputError
from gemel.model import Model, load
from gemel.types import Vectors
from gemel.vectors.similarity import row_scores

_ALIKE = ("entailment", "duplicate", "paraphrase", "equivalent", "similar")
"""Labels that say that two texts belong together."""


class Teacher(Protocol):
    """Scores pairs of texts."""

    name: str
    scale: str
    """What a score is, for a person."""
    files: tuple[Path, ...]
    """Its weights."""

    @property
    def identity(self) -> str:
        """Equal for equal scores."""
        ...

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        """(n,) for each pair `left[i]`, `right[i]`."""
        ...


def open_teacher(name: str | Path, *, threads: int | None = None) -> BiTeacher | CrossTeacher:
    """By name or folder; the folder says of which kind it is."""
    if is_cross_encoder(find_model(name)):
        return CrossTeacher(load_cross(name), threads)
    return BiTeacher(load(name), threads)


class BiTeacher:
    """A sentence encoder: the cosine of its vectors."""

    scale = "the cosine"

    def __init__(self, model: Model, threads: int | None = None) -> None:
        self.model, self.threads = model, threads
        self.name, self.files = model.name, model.checkpoint.parts

    @property
    def identity(self) -> str:
        return self.model.fingerprint.digest

    def encode(self, texts: Sequence[str], *, progress: bool = False) -> Vectors:
        """(n, dim) as the model gives them; long texts are cut without a word."""
        found: Vectors = self.model.encode(texts, on_long="truncate", threads=self.threads, progress=progress)
        return found

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        vectors = self.encode([*left, *right])
        found = row_scores(vectors[: len(left)], vectors[len(left) :])
        return np.asarray(np.clip(found, -1, 1), dtype=np.float32)


class CrossTeacher:
    """A cross-encoder: its score from 0 to 1, or the probability that the texts belong together."""

    def __init__(self, model: CrossModel, threads: int | None = None) -> None:
        self.model, self.threads = model, threads
        self.name, self.files = model.name, model.checkpoint.encoder.parts
        self._column = _alike(model)
        self._open = model.checkpoint.activation == "identity"
        if self._column is not None:
            self.scale = f"the probability of {model.labels[self._column]!r}"
        else:
            self.scale = "the sigmoid of the score, which has no bounds" if self._open else "the score"

    @property
    def identity(self) -> str:
        return self.model.weights_hash[:16]

    def scores(self, left: Sequence[str], right: Sequence[str]) -> Vectors:
        if self._column is not None:
            found = self.model.probabilities(left, right, on_long="truncate", threads=self.threads)
            return found[:, self._column]
        score = self.model.scores(left, right, on_long="truncate", threads=self.threads)
        if not self._open:
            return score
        return np.asarray(1 / (1 + np.exp(-score.astype(np.float64))), dtype=np.float32)


def _alike(model: CrossModel) -> int | None:
    """The column of the label that means alike; None: there is one score and no labels."""
    if len(model.labels) == 1:
        return None
    names = [label.lower() for label in model.labels]
    for name in _ALIKE:
        if name in names:
            return names.index(name)
    raise InputError(
        f"{model.name} tells {', '.join(model.labels)} apart, none of which says that two texts are alike "
        f"({', '.join(_ALIKE)}). Give a cross-encoder with one score, or a sentence encoder"
    )
