"""Distillation into a static model: one vector per token, and a text is the mean of its tokens. Needs no torch.

Each token of the vocabulary is encoded alone, reduced by PCA and weighted by frequency (SIF). With texts, the table is
then fitted by ridge regression, so that the mean over a text's tokens is close to the teacher's vector of the text. The
student is hundreds of times as fast as its teacher, and less accurate.
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
from gemel.options import check_count
from gemel.terminal import Progress
from gemel.texts.whitening import principal_axes
from gemel.training.distill.job import DistillJob, DistillResult
from gemel.training.distill.methods import learn_vectors, widest_directions
from gemel.training.run import publish
from gemel.types import Vectors
from gemel.vectors.similarity import normalize, row_scores

DIM = 256

# Raise it when the same teacher and texts give other numbers, so that no cached student is used.
_VERSION = "1"


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

    `texts`: fit the student to the model's vectors of these; None: only its vocabulary is used. `dim` is at most the
    model's. `out` None: a folder in gemel's cache, made once for this model, these texts and this `dim`.
    """
    teacher = model if isinstance(model, Model) else load(model)
    chosen = None if texts is None else check_texts(texts)

    def write(folder: Path) -> Path:
        table = make_table(teacher, chosen, dim, threads=threads, progress=progress)
        return write_static(teacher.checkpoint, table.rows, folder, overwrite=overwrite)

    if out is not None:
        check_target(Path(out), teacher.checkpoint, overwrite)  # before minutes of work
        return write(Path(out))

    def fill(folder: Path, scratch: Path) -> None:
        for path in write(scratch / "student").iterdir():
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
    """The table of the student, not written."""
    check_count("dim", dim)
    if texts is not None and not texts:
        raise InputError("no texts to fit the static student to. Give some, or leave texts out")
    vocabulary = read_vocabulary(model, threads=threads, progress=progress)
    if texts is None:
        return static_rows(model, vocabulary, dim)
    distinct = list(dict.fromkeys(texts))
    vectors = model.encode(distinct, on_long="truncate", threads=threads, progress=progress)
    return fitted_rows(model, vocabulary, dim, texts=distinct, vectors=vectors)


def _cached_name(model: Model, texts: Sequence[str] | None, dim: int) -> str:
    digest = hashlib.sha256(f"{_VERSION} {model.fingerprint.digest} {dim}".encode())
    for text in sorted(set(texts)) if texts is not None else ():
        digest.update(hashlib.sha256(text.encode("utf-8")).digest())
    kind = "tokens" if texts is None else "texts"
    return f"static-{kind}-{digest.hexdigest()[:16]}"


def distill_static(job: DistillJob) -> DistillResult:
    """The method "static": a static student, fitted to the texts if there are any, then trained if requested."""
    request, options = job.request, job.options
    teacher, dim = job.encoder.model, request.dim or DIM
    vocabulary = read_vocabulary(teacher, threads=options.threads, progress=options.progress)
    plain = static_rows(teacher, vocabulary, dim)
    if request.data is None:
        job.note(*plain.notes)
        publish(_write_student(job, plain, "static").checkpoint.folder, request.out)
        return job.finish(None, None, "", None)
    data = job.read_texts()
    before = data.test.measure(_write_student(job, plain, "static-unfitted"), threads=options.threads)
    texts = [row[0] for row in data.train]
    fitted = fitted_rows(teacher, vocabulary, dim, texts=texts, vectors=job.vectors(texts))
    job.note(*fitted.notes)
    student = _write_student(job, fitted, "static")
    if request.trains:
        return learn_vectors(job, student, data)
    publish(student.checkpoint.folder, request.out)
    return job.finish(data.test, before, f"{len(texts):,} texts", None)


def _write_student(job: DistillJob, table: StaticTable, name: str) -> Model:
    checkpoint = job.encoder.model.checkpoint
    folder = job.folder / f"{checkpoint.folder.name}-{name}"
    return load(write_static(checkpoint, table.rows, folder, overwrite=True))


_MODULES = "sentence_transformers.models."

_TABLE = "0_StaticEmbedding"


def write_static(teacher: Checkpoint, table: Vectors, folder: Path, *, overwrite: bool = False) -> Path:
    """Write `table` with the teacher's tokenizer and license, in the format of sentence-transformers; no prompts."""
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
            {"idx": index, "name": str(index), "path": path, "type": _MODULES + kind}
            for index, (kind, path) in enumerate(modules)
        ]
        write_json(working / "modules.json", listed)
        settings: dict[str, Any] = {
            "prompts": {},
            "default_prompt_name": None,
            "similarity_fn_name": "cosine",
        }
        write_json(working / "config_sentence_transformers.json", settings)
    return folder


_UNUSED = re.compile(r"\[unused\d+\]|<unused\d+>|\|\|\|.*\|\|\|")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens that can occur in a text, and the model's vector of each."""

    size: int
    """Number of token ids, with special and unused tokens."""
    ids: NDArray[np.int64]
    """(v,) of the tokens below, in the order of the vocabulary."""
    vectors: Vectors
    """(v, dim) as `encode` gives them without normalization."""


def read_vocabulary(model: Model, *, threads: int | None = None, progress: bool = False) -> Vocabulary:
    """The vectors of all tokens of `model`, each encoded alone; special tokens and placeholders are left out."""
    checkpoint = model.checkpoint
    if checkpoint.kind == "static":
        raise InputError(f"{model.name} is a static model already. Give the model to distill")
    tokenizer = load_tokenizer(checkpoint)
    special_tokens = TextTokenizer(tokenizer).special
    special = {number for number, token in tokenizer.get_added_tokens_decoder().items() if token.special}
    vocabulary = tokenizer.get_vocab()
    rows = checkpoint.config.get("vocab_size")
    limit = rows if isinstance(rows, int) else max(vocabulary.values(), default=-1) + 1
    ids = sorted(
        number
        for token, number in vocabulary.items()
        if number not in special and number < limit and not _UNUSED.fullmatch(token)
    )
    vectors = np.zeros((len(ids), model.width * len(checkpoint.pooling.modes)), dtype=np.float32)
    line = Progress(len(ids), "tokens", shown=progress)

    def store(positions: Positions, hidden: Vectors) -> None:
        vectors[positions] = pool(hidden, checkpoint.pooling.modes)
        line.add(len(positions))

    pieces = [special_tokens.around(np.array([number], dtype=np.int32)) for number in ids]
    run(model.engine, pieces, store, lanes=Lanes(), threads=threads, memory="256MB")
    line.close()
    finished = finish(vectors, checkpoint.dense, unit=False, dim=None)
    return Vocabulary(max(vocabulary.values(), default=-1) + 1, np.array(ids, dtype=np.int64), finished)


_SHARES = (1.0, 0.5, 0.25, 0.0)

_SAMPLE_PAIRS = 2000


@dataclass(frozen=True, eq=False)
class StaticTable:
    """Rows for all token ids of the teacher's tokenizer; special and unused tokens are zero."""

    rows: Vectors
    """(vocabulary, dim) float32"""
    notes: tuple[str, ...] = ()
    """What was done, for messages."""


def static_rows(model: Model, vocabulary: Vocabulary, dim: int) -> StaticTable:
    """The table from the vocabulary alone: reduced by PCA, with frequent tokens weighted down."""
    axes = principal_axes(vocabulary.vectors)
    reduced = (vocabulary.vectors - axes.mean) @ axes.directions[:dim].T
    weighted = np.asarray(reduced * token_weights(len(reduced))[:, None], dtype=np.float32)
    kept = float(axes.spread[:dim].sum() / max(float(axes.spread.sum()), 1e-30))
    note = f"{len(reduced):,} tokens encoded by {model.name}, {_reduced(model.dim, reduced.shape[1], kept)}"
    return StaticTable(_spread(vocabulary, weighted), (note,))


def fitted_rows(
    model: Model, vocabulary: Vocabulary, dim: int, *, texts: Sequence[str], vectors: Vectors
) -> StaticTable:
    """As `static_rows`, then fitted so that the mean over a text's tokens is the teacher's vector of the text.

    PCA is that of the texts, and tokens are weighted by their frequency in the texts.
    """
    unit = normalize(vectors)
    projection = widest_directions(unit, dim)
    targets = projection.apply(unit)
    tokens = TextTokenizer(load_tokenizer(model.checkpoint), special=False).content(texts)
    first = _first_guess(vocabulary, tokens, projection.apply(vocabulary.vectors))
    center = targets.mean(axis=0)
    means = np.stack([_mean(first, ids) for ids in tokens])
    scale = np.float32((means * (targets - center)).sum() / max(float((means * means).sum()), 1e-30))
    table = fit_table(first * scale, tokens, targets - center)
    # A text's vector is a mean, so that adding to every token adds to every text.
    table[vocabulary.ids] += _best_share(table, tokens, targets, center) * center
    note = (
        f"{len(vocabulary.ids):,} tokens encoded by {model.name}, fitted to {len(texts):,} texts, "
        f"{_reduced(model.dim, table.shape[1], projection.kept)}"
    )
    return StaticTable(table, (note,))


def _best_share(table: Vectors, tokens: Sequence[TokenIds], targets: Vectors, center: Vectors) -> np.float32:
    """The share of the center that the student gets: the one that orders random pairs most like the teacher.

    It is 1 if the teacher's vectors are around the origin. If they are in a narrow cone, the errors of the fit are
    small relative to the axis of the cone but not to the differences between texts, and a smaller share agrees more.
    """
    rng = np.random.default_rng(0)
    left, right = rng.integers(0, len(tokens), size=(2, _SAMPLE_PAIRS))
    left, right = left[left != right], right[left != right]
    if len(left) < 2:
        return np.float32(1)
    wanted = row_scores(targets[left], targets[right])
    own = [np.stack([_mean(table, tokens[text]) for text in side]) for side in (left, right)]

    def agreement(share: float) -> float:
        one, other = (side + np.float32(share) * center for side in own)
        return spearman(row_scores(one, other), wanted) or 0.0

    return np.float32(max(_SHARES, key=agreement))


def _mean(table: Vectors, ids: TokenIds) -> Vectors:
    return np.asarray(table[ids].mean(axis=0) if len(ids) else np.zeros(table.shape[1], np.float32))


def _first_guess(vocabulary: Vocabulary, tokens: Sequence[TokenIds], vectors: Vectors) -> Vectors:
    """Centered and weighted token vectors, in the rows of their ids."""
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
    return f"{before} dimensions reduced to {after} by PCA, which keep {kept:.1%} of their variance"


_SIF = 1e-4  # a token of this frequency has weight 1/2


def token_weights(tokens: int, counts: NDArray[np.int64] | None = None) -> NDArray[np.float32]:
    """(tokens,) SIF weights from 0 to 1 (Arora et al. 2017): small for frequent tokens.

    Without `counts` the vocabulary is assumed to be sorted by frequency, as most are, and Zipf's law gives the
    frequencies; with few counts, both are mixed.
    """
    zipf = 1.0 / np.arange(1, tokens + 1)
    share = zipf / zipf.sum()
    if counts is not None:
        share = (counts + tokens * share) / (counts.sum() + tokens)
    return np.asarray(_SIF / (_SIF + share), dtype=np.float32)


def fit_table(
    table: Vectors, texts: Sequence[TokenIds], targets: Vectors, *, ridge: float = 0.1, rounds: int = 15
) -> Vectors:
    """`table` (v, d), changed so that the mean over the tokens of text i is close to `targets[i]`.

    Ridge regression towards `table`, by conjugate gradients: tokens that few texts have change little. Texts without
    tokens are ignored.
    """
    filled = [index for index, ids in enumerate(texts) if len(ids)]
    if not filled:
        return table
    flat = np.concatenate([texts[index] for index in filled]).astype(np.int64)
    used, rows = np.unique(flat, return_inverse=True)
    means = _Means.of(rows, np.array([len(texts[index]) for index in filled], dtype=np.int64))
    missing = targets[filled] - means.texts(table[used])
    fitted = table.copy()
    fitted[used] += _solve(means, missing, ridge, rounds)
    return fitted


def _solve(means: _Means, missing: Vectors, ridge: float, rounds: int) -> Vectors:
    """x of (AᵀA + ridge) x = Aᵀ missing, by conjugate gradients with a step size for each dimension.

    Preconditioned by how often the texts use a row, so that frequent tokens do not slow down the rare ones.
    """
    scale = (1.0 / (means.weight() + ridge)).astype(np.float32)[:, None]
    residual = means.tokens(missing)
    direction = scale * residual
    solution = np.zeros_like(residual)
    square = first = _dots(residual, direction)
    for _ in range(rounds):
        if (square <= first * _ENOUGH**2).all():
            break
        image = means.tokens(means.texts(direction)) + np.float32(ridge) * direction
        along = _dots(direction, image)
        step = np.where(along > 0, square / np.where(along > 0, along, 1), 0).astype(np.float32)
        solution += step * direction
        residual -= step * image
        scaled = scale * residual
        before, square = square, _dots(residual, scaled)
        direction = scaled + (square / np.where(before > 0, before, 1)).astype(np.float32) * direction
    return solution


def _dots(left: Vectors, right: Vectors) -> Vectors:
    return np.asarray(np.einsum("ud,ud->d", left, right))


_TOKENS = 65_536  # tokens whose rows are gathered at once

_LONG = 32  # rows: longer groups are summed one by one

_ENOUGH = 1e-3  # of the length of the first gradient, where the solver stops


@dataclass(frozen=True, eq=False)
class _Means:
    """The sparse matrix that turns token vectors into text vectors (means)."""

    rows: NDArray[np.int64]
    """(t,) the row of each token, text after text."""
    starts: NDArray[np.int64]
    """(n + 1,)"""
    order: NDArray[np.int64]
    """(t,) the argsort of `rows`."""
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
        """(n, 1) the weight of one token in its text."""
        return np.asarray(1.0 / np.diff(self.starts), dtype=np.float32)[:, None]

    def texts(self, table: Vectors) -> Vectors:
        """(u, d) -> (n, d): the mean over the tokens of each text."""
        return _sums(table, self.rows, self.starts) * self.shares

    def tokens(self, texts: Vectors) -> Vectors:
        """(n, d) -> (u, d): the transpose."""
        return _sums(texts * self.shares, self.owner, self.row_starts)

    def weight(self) -> NDArray[np.float64]:
        """(u,) about the diagonal of the transpose times the matrix: how often the texts use each row."""
        lengths = np.diff(self.starts)
        return np.asarray(np.bincount(self.rows, np.repeat(1.0 / lengths**2, lengths)), dtype=np.float64)


def _sums(source: Vectors, rows: NDArray[np.int64], starts: NDArray[np.int64]) -> Vectors:
    """For each group of `rows`, the sum of those rows of `source`; no group is empty.

    Long groups are summed one by one, short ones in parallel: many times as fast as np.add.reduceat.
    """
    lengths = np.diff(starts)
    out = np.empty((len(lengths), source.shape[1]), dtype=np.float32)
    order = np.argsort(-lengths, kind="stable")
    many = int((lengths > _LONG).sum())
    for group in order[:many]:
        out[group] = _long_sum(source, rows[starts[group] : starts[group + 1]])
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
