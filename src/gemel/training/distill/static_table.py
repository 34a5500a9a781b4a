"""`make_static`: a static student of any sentence encoder, in a folder, without torch.

One vector for each token, a text is the mean of its tokens: hundreds of times as fast as the teacher, and less exact.

A table of token vectors to a folder: the module StaticEmbedding of sentence-transformers, then length 1.

The numbers of a static student: a vector for each token of the teacher, whose mean over a text is the text's.

A table of token vectors fitted to texts: the mean over a text's tokens shall be the text's vector.

Ridge regression towards the table that is there, so that tokens which few texts have stay where they were. Solved by
conjugate gradients, all dimensions side by side; numpy only.

How much a token counts in the mean of a text: frequent ones little (SIF, Arora et al. 2017).

Every token of a vocabulary through its model, alone between the marks: what a static student starts from.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gemel.checkpoint import cache
from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.tokenizer import load_tokenizer
from gemel.checkpoint.write import check_target
from gemel.encoder.batches import Lanes, Positions, run
from gemel.encoder.head import finish
from gemel.encoder.pooling import pool
from gemel.encoder.tokenizer import TextTokenizer, TokenIds, check_texts
from gemel.errors import InputError
from gemel.evaluation.metrics import spearman
from gemel.files.atomic import atomic_folder, write_json
from gemel.model import Model, load
from gemel.terminal import Progress
from gemel.texts.whitening import principal_axes
from gemel.training.distill.by_vectors import widest_directions
from gemel.types import Vectors
from gemel.vectors.similarity import normalize, row_scores

DIM = 256

_RULES = "1"  # raise it when the same teacher and texts give other numbers: cached students are made anew


def make_static(
    model: Model | str | Path,
    texts: Sequence[str] | None = None,
    dim: int = DIM,
    *,
    out: str | Path | None = None,
    overwrite: bool = False,
    threads: int | None = None,
    progress: bool = False,
) -> Path:
    """The folder of a static student of `model`, which `gemel.load` and sentence-transformers read.

    `texts`: fit the student to what the model says of these; None: its vocabulary alone. `dim` is cut to the model's.
    `out` None: a folder in gemel's cache, made once for this model, these texts and this `dim`.
    """
    teacher = model if isinstance(model, Model) else load(model)
    chosen = None if texts is None else check_texts(texts)

    def table() -> StaticTable:
        return make_table(teacher, chosen, dim, threads=threads, progress=progress)

    if out is not None:
        check_target(Path(out), teacher.checkpoint, overwrite)  # before minutes of work, not after
        return write_static(teacher.checkpoint, table().rows, Path(out), overwrite=overwrite)

    def fill(folder: Path, scratch: Path) -> None:
        made = write_static(teacher.checkpoint, table().rows, scratch / "student")
        for path in made.iterdir():
            path.rename(folder / path.name)

    return cache.install(_cached_name(teacher, chosen, dim), fill)


def make_table(
    model: Model,
    texts: Sequence[str] | None,
    dim: int = DIM,
    *,
    threads: int | None = None,
    progress: bool = False,
) -> StaticTable:
    """The numbers of the student, not written."""
    if isinstance(dim, bool) or not isinstance(dim, int) or dim < 1:
        raise InputError(f"dim must be a whole number of at least 1, got {dim!r}")
    if texts is not None and not texts:
        raise InputError("no texts to fit the static student to. Give some, or leave texts out")
    vocabulary = read_vocabulary(model, threads=threads, progress=progress)
    if texts is None:
        return static_rows(model, vocabulary, dim)
    distinct = list(dict.fromkeys(texts))
    vectors = model.encode(distinct, on_long="truncate", threads=threads, progress=progress)
    return fitted_rows(model, vocabulary, dim, texts=distinct, vectors=vectors)


def _cached_name(model: Model, texts: Sequence[str] | None, dim: int) -> str:
    digest = hashlib.sha256(f"{_RULES} {model.fingerprint.digest} {dim}".encode())
    for text in sorted(set(texts)) if texts is not None else ():
        digest.update(hashlib.sha256(text.encode("utf-8")).digest())
    kind = "tokens" if texts is None else "texts"
    return f"static-{kind}-{digest.hexdigest()[:16]}"


_THEIRS = "sentence_transformers.models."

_TABLE = "0_StaticEmbedding"


def write_static(teacher: Checkpoint, table: Vectors, folder: Path, *, overwrite: bool = False) -> Path:
    """`table` with the teacher's tokenizer and licence. No prompts: the table has seen none of them."""
    from safetensors.numpy import save_file

    check_target(folder.absolute(), teacher, overwrite)
    with atomic_folder(folder.absolute()) as working:
        (working / _TABLE).mkdir()
        rows = np.array(table, dtype=np.float32, order="C")
        save_file({"embedding.weight": rows}, working / _TABLE / "model.safetensors")
        load_tokenizer(teacher).save(str(working / _TABLE / "tokenizer.json"))
        for pattern in ("LICENSE*", "NOTICE*"):
            for path in sorted(teacher.folder.glob(pattern)):
                shutil.copyfile(path, working / path.name)
        (working / "1_Normalize").mkdir()
        modules = [("StaticEmbedding", _TABLE), ("Normalize", "1_Normalize")]
        listed = [
            {"idx": place, "name": str(place), "path": path, "type": _THEIRS + kind}
            for place, (kind, path) in enumerate(modules)
        ]
        write_json(working / "modules.json", listed)
        settings: dict[str, Any] = {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        }
        write_json(working / "config_sentence_transformers.json", settings)
    return folder


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


_TOKENS = 65_536  # tokens whose rows are gathered at once

_LONG = 32  # tokens

_ENOUGH = 1e-3  # of the first gradient's length: nearer than that, nothing visible changes


@dataclass(frozen=True, eq=False)
class _Means:
    """The matrix that turns token vectors into text vectors, as lists: text i has the tokens of one stretch."""

    rows: NDArray[np.int64]
    """(t,) the row of each token, text after text."""
    starts: NDArray[np.int64]
    """(n + 1,)"""
    order: NDArray[np.int64]
    """(t,) places of `rows`, sorted by row."""
    owner: NDArray[np.int64]
    """(t,) the text of each token, in the order of `order`."""
    row_starts: NDArray[np.int64]
    """(u + 1,) where the tokens of each row start in `order`."""

    @classmethod
    def of(cls, rows: NDArray[np.int64], lengths: NDArray[np.int64]) -> _Means:
        order = np.argsort(rows, kind="stable")
        owner = np.repeat(np.arange(len(lengths)), lengths)[order]
        row_starts = np.concatenate([[0], np.cumsum(np.bincount(rows))])
        return cls(rows, np.concatenate([[0], np.cumsum(lengths)]), order, owner, row_starts)

    @property
    def shares(self) -> Vectors:
        """(n, 1) what one token counts in its text."""
        return np.asarray(1.0 / np.diff(self.starts), dtype=np.float32)[:, None]

    def texts(self, table: Vectors) -> Vectors:
        """(u, d) -> (n, d): the mean over the tokens of each text."""
        return _sums(table, self.rows, self.starts) * self.shares

    def tokens(self, texts: Vectors) -> Vectors:
        """(n, d) -> (u, d): the transpose."""
        return _sums(texts * self.shares, self.owner, self.row_starts)

    def weight(self) -> NDArray[np.float64]:
        """(u,) about the diagonal of the transpose times the matrix: how much the texts say of each row."""
        lengths = np.diff(self.starts)
        return np.asarray(np.bincount(self.rows, np.repeat(1.0 / lengths**2, lengths)), dtype=np.float64)


def _sums(source: Vectors, rows: NDArray[np.int64], starts: NDArray[np.int64]) -> Vectors:
    """For each stretch of `rows`, the sum of those rows of `source`; no stretch is empty.

    Long stretches one by one, short ones side by side, place by place: many times as fast as np.add.reduceat.
    """
    lengths = np.diff(starts)
    out = np.empty((len(lengths), source.shape[1]), dtype=np.float32)
    order = np.argsort(-lengths, kind="stable")
    many = int((lengths > _LONG).sum())
    for place in order[:many]:
        out[place] = _long_sum(source, rows[starts[place] : starts[place + 1]])
    short = order[many:]
    first, left = starts[:-1][short], lengths[short]
    total = source[rows[first]]
    for step in range(1, _LONG):
        count = int((left > step).sum())
        total[:count] += source[rows[first[:count] + step]]
    out[short] = total
    return out


def _long_sum(source: Vectors, rows: NDArray[np.int64]) -> Vectors:
    parts = [source[rows[at : at + _TOKENS]].sum(axis=0) for at in range(0, len(rows), _TOKENS)]
    return np.asarray(sum(parts[1:], parts[0]))


def fit_table(
    table: Vectors, texts: Sequence[TokenIds], targets: Vectors, *, ridge: float = 0.1, rounds: int = 15
) -> Vectors:
    """`table` (v, d), changed so that the mean over the tokens of text i is near `targets[i]`.

    `ridge`: how strongly rows are held where they are. Texts without tokens are passed over.
    """
    filled = [place for place, ids in enumerate(texts) if len(ids)]
    if not filled:
        return table
    flat = np.concatenate([texts[place] for place in filled]).astype(np.int64)
    used, rows = np.unique(flat, return_inverse=True)
    means = _Means.of(rows, np.array([len(texts[place]) for place in filled], dtype=np.int64))
    missing = targets[filled] - means.texts(table[used])
    fitted = table.copy()
    fitted[used] += _solve(means, missing, ridge, rounds)
    return fitted


def _solve(means: _Means, missing: Vectors, ridge: float, rounds: int) -> Vectors:
    """x of (AᵀA + ridge) x = Aᵀ missing; each dimension takes steps of its own.

    Rows are scaled by how much the texts say of them: else the many frequent tokens would hold up the rare ones.
    """
    scale = (1.0 / (means.weight() + ridge)).astype(np.float32)[:, None]
    residual = means.tokens(missing)
    direction = scale * residual
    found = np.zeros_like(residual)
    square = first = _dots(residual, direction)
    for _ in range(rounds):
        if (square <= first * _ENOUGH**2).all():
            break
        image = means.tokens(means.texts(direction)) + np.float32(ridge) * direction
        along = _dots(direction, image)
        step = np.where(along > 0, square / np.where(along > 0, along, 1), 0).astype(np.float32)
        found += step * direction
        residual -= step * image
        scaled = scale * residual
        before, square = square, _dots(residual, scaled)
        direction = scaled + (square / np.where(before > 0, before, 1)).astype(np.float32) * direction
    return found


def _dots(left: Vectors, right: Vectors) -> Vectors:
    return np.asarray(np.einsum("ud,ud->d", left, right))


_SIF = 1e-4  # a token of this frequency counts half


def token_weights(tokens: int, counts: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """(tokens,) from 0 to 1. Without `counts`, vocabularies are taken to be sorted by frequency, as most are.

    With them, the share of a token is what was counted and, as far as few texts were, what Zipf's law says.
    """
    zipf = 1.0 / np.arange(1, tokens + 1)
    share = zipf / zipf.sum()
    if counts is not None:
        share = (counts + tokens * share) / (counts.sum() + tokens)
    return np.asarray(_SIF / (_SIF + share), dtype=np.float32)


_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|\|\|\|.*\|\|\|")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens that can stand in a text, and what the model makes of each."""

    size: int
    """Rows of a table for all token ids, marks and unused ones included."""
    ids: NDArray[np.int64]
    """(v,) of the tokens below, in the order of the vocabulary."""
    vectors: Vectors
    """(v, dim) as `encode` gives them before length 1."""


def read_vocabulary(model: Model, *, threads: int | None = None, progress: bool = False) -> Vocabulary:
    """The vectors of all tokens of `model`; its marks and placeholders are left out."""
    checkpoint = model.checkpoint
    if checkpoint.kind == "static":
        raise InputError(
            f"{model.name} is a static model already. Give the model that it should be made from"
        )
    tokenizer = load_tokenizer(checkpoint)
    marks = TextTokenizer(tokenizer).marks
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    known = tokenizer.get_vocab()
    rows = checkpoint.config.get("vocab_size")
    limit = rows if isinstance(rows, int) else max(known.values(), default=-1) + 1
    ids = sorted(
        number
        for token, number in known.items()
        if number not in special and number < limit and not _UNUSED.fullmatch(token)
    )
    vectors = np.zeros((len(ids), model.width * len(checkpoint.pooling.modes)), dtype=np.float32)
    line = Progress(len(ids), "tokens", shown=progress)

    def keep(positions: Positions, hidden: Vectors) -> None:
        vectors[positions] = pool(hidden, checkpoint.pooling.modes)
        line.add(len(positions))

    pieces = [marks.around(np.array([number], dtype=np.int32)) for number in ids]
    run(model.engine, pieces, keep, lanes=Lanes(), threads=threads, memory="256MB")
    line.close()
    finished = finish(vectors, checkpoint.dense, unit=False, dim=None)
    return Vocabulary(max(known.values(), default=-1) + 1, np.array(ids, dtype=np.int64), finished)
