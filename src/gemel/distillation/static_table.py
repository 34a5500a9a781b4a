"""The numbers of a static student: a vector for each token of the teacher, whose mean over a text is the text's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from gemel.checkpoint.tokenizer_file import load_tokenizer
from gemel.distillation.fit_table import fit_table
from gemel.distillation.projection import widest_directions
from gemel.distillation.token_weights import token_weights
from gemel.distillation.vocabulary import Vocabulary
from gemel.evaluation.metrics import spearman
from gemel.model import Model
from gemel.postprocess.linear_map import principal_axes
from gemel.similarity import normalize, row_scores
from gemel.text.tokenizer import TextTokenizer, TokenIds
from gemel.types import Vectors

_SHARES = (1.0, 0.5, 0.25, 0.0)
_SAMPLE = 2000  # pairs


@dataclass(frozen=True, eq=False)
class StaticTable:
    """Rows for all token ids of the teacher's tokenizer; marks and unused ones are zero."""

    rows: Vectors
    """(vocabulary, dim) float32"""
    notes: tuple[str, ...] = ()
    """What was decided, for a person."""

    @property
    def dim(self) -> int:
        return int(self.rows.shape[1])


def static_rows(model: Model, vocabulary: Vocabulary, dim: int) -> StaticTable:
    """From the vocabulary alone: fewer dimensions, and frequent tokens made short."""
    axes = principal_axes(vocabulary.vectors)
    found = (vocabulary.vectors - axes.mean) @ axes.directions[:dim].T
    weighted = np.asarray(found * token_weights(len(found))[:, None], dtype=np.float32)
    kept = float(axes.spread[:dim].sum() / max(float(axes.spread.sum()), 1e-30))
    note = f"{len(found):,} tokens through {model.name}, {_reduced(model.dim, found.shape[1], kept)}"
    return StaticTable(_spread(vocabulary, weighted), (note,))


def fitted_rows(
    model: Model, vocabulary: Vocabulary, dim: int, *, texts: Sequence[str], vectors: Vectors
) -> StaticTable:
    """As `static_rows`, then moved so that the mean over a text's tokens is the teacher's vector of the text.

    The directions that are kept are those of the texts, and tokens are weighed by how often the texts have them.
    """
    said = normalize(vectors)
    projection = widest_directions(said, dim)
    targets = projection.apply(said)
    tokens = TextTokenizer(load_tokenizer(model.checkpoint), marked=False).content(texts)
    first = _first_guess(vocabulary, tokens, projection.apply(vocabulary.vectors))
    middle = targets.mean(axis=0)
    means = np.stack([_mean(first, ids) for ids in tokens])
    scale = np.float32((means * (targets - middle)).sum() / max(float((means * means).sum()), 1e-30))
    table = fit_table(first * scale, tokens, targets - middle)
    # A text's vector is a mean, so what is added to every token is added to every text.
    table[vocabulary.ids] += _best_share(table, tokens, targets, middle) * middle
    note = (
        f"{len(vocabulary.ids):,} tokens through {model.name}, fitted to {len(texts):,} texts, "
        f"{_reduced(model.dim, table.shape[1], projection.kept)}"
    )
    return StaticTable(table, (note,))


def _best_share(table: Vectors, tokens: Sequence[TokenIds], targets: Vectors, middle: Vectors) -> np.float32:
    """How much of what all texts have in common the student takes over: what orders random pairs as the teacher does.

    All of it, if the teacher's vectors lie around the origin. If they crowd into a cone, the fit's errors are small
    beside the cone's axis but not beside what tells texts apart, and less of the axis agrees more.
    """
    dice = np.random.default_rng(0)
    left, right = dice.integers(0, len(tokens), size=(2, _SAMPLE))
    left, right = left[left != right], right[left != right]
    if len(left) < 2:
        return np.float32(1)
    wanted = row_scores(targets[left], targets[right])
    own = [np.stack([_mean(table, tokens[text]) for text in side]) for side in (left, right)]

    def agreement(share: float) -> float:
        one, other = (side + np.float32(share) * middle for side in own)
        return spearman(row_scores(one, other), wanted) or 0.0

    return np.float32(max(_SHARES, key=agreement))


def _mean(table: Vectors, ids: TokenIds) -> Vectors:
    return np.asarray(table[ids].mean(axis=0) if len(ids) else np.zeros(table.shape[1], np.float32))


def _first_guess(vocabulary: Vocabulary, tokens: Sequence[TokenIds], vectors: Vectors) -> Vectors:
    """Token vectors around their mean, by weight, in the rows of their ids."""
    flat = np.concatenate([*tokens, np.empty(0, np.int32)]).astype(np.int64)
    counts = np.bincount(flat, minlength=vocabulary.size)[vocabulary.ids]
    weights = token_weights(len(vectors), counts)[:, None]
    return _spread(vocabulary, (vectors - vectors.mean(axis=0)) * weights)


def _spread(vocabulary: Vocabulary, vectors: Vectors) -> Vectors:
    rows = np.zeros((vocabulary.size, vectors.shape[1]), dtype=np.float32)
    rows[vocabulary.ids] = vectors
    return rows


def _reduced(before: int, after: int, kept: float) -> str:
    if after == before:
        return f"{after} dimensions"
    return f"{before} dimensions reduced to {after} by PCA, which keep {kept:.1%} of their spread"
