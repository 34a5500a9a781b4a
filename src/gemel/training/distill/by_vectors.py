"""Distillation by vectors: the student learns the teacher's vectors, of the texts and of their translations.

If their sizes differ, the teacher's vectors are reduced by PCA, or the student gets a dense layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from gemel.checkpoint.folder import Checkpoint
from gemel.checkpoint.head import Dense
from gemel.checkpoint.write import write_checkpoint
from gemel.errors import InputError
from gemel.model import Model, load
from gemel.training.distill.job import DistillJob, DistillResult, InMemoryDataset, read_texts
from gemel.training.distill.teacher import AgreementTest, HeldOutSplit, agreement_on_texts, split_rows
from gemel.training.options import TrainOptions
from gemel.training.run import TrainResult
from gemel.training.train import TrainRequest, run_request
from gemel.types import Vectors
from gemel.vectors.similarity import normalize

_BRIDGE_TEXTS = 10_000  # to fit a dense layer on

_CROWDED = 0.7  # mean cosine of random texts

_TABLE_RATE = 1e-3  # a static model learns too slowly at the learning rate of a transformer


def distill_vectors(job: DistillJob) -> DistillResult:
    """Train another model on the teacher's vectors."""
    encoder = job.encoder
    assert job.request.student is not None
    student = load(job.request.student)
    rows = read_texts(job.request.data, job.request.columns, skip_bad=job.options.skip_bad)
    job.note(*rows.notes)
    split = split_rows(len(rows), job.options.seed)
    test = agreement_on_texts(encoder, rows.rows, split, near_by=None, seed=job.options.seed)
    return learn_vectors(job, student, rows.rows, split, test)


def learn_vectors(
    job: DistillJob,
    student: Model,
    rows: Sequence[tuple[str, ...]],
    split: HeldOutSplit,
    test: AgreementTest,
) -> DistillResult:
    """Train `student` on the teacher's vectors of `rows` and put it into the output folder."""
    chosen = [rows[row] for row in split.train]
    targets = job.vectors([row[0] for row in chosen])
    if test.crowding > _CROWDED:
        job.note(
            f"warning: two random texts have a cosine of {test.crowding:.2f} for the teacher. A student learns "
            "what all texts have in common before it learns their differences: see gemel postprocess"
        )
    start, targets = _bridge(job, student, [row[0] for row in chosen], targets)
    before = test.measure(load(start), threads=job.options.threads)
    trained = _train(job, start, chosen, targets)
    more = len(chosen[0]) - 1
    learned_from = f"{len(chosen):,} texts" + (f" and {more} translations of each" if more else "")
    return job.finish(test, before, learned_from, trained)


def _train(job: DistillJob, start: Path, rows: Sequence[tuple[str, ...]], targets: Vectors) -> TrainResult:
    columns = list(zip(*rows, strict=True))
    translations = {f"translation{number}": column for number, column in enumerate(columns[1:], 1)}
    data = InMemoryDataset(
        f"vectors of {job.teacher.name}", {"text": columns[0], "vector": targets, **translations}
    )
    request = TrainRequest(
        model=start, data=data, objective="vector-distillation", out=job.request.out, resume=True
    )
    return run_request(request, _options(job, start), say=job.say)


def _options(job: DistillJob, start: Path) -> TrainOptions:
    if load(start).checkpoint.kind != "static" or job.options.learning_rate != TrainOptions().learning_rate:
        return job.options
    job.note(f"learning_rate {_TABLE_RATE:g}: the default is too small for a static model")
    return replace(job.options, learning_rate=_TABLE_RATE)


def _bridge(job: DistillJob, student: Model, texts: Sequence[str], targets: Vectors) -> tuple[Path, Vectors]:
    """The student to start from and the vectors to learn, of the same size, both normalized or not."""
    unit, bridge = job.encoder.model.checkpoint.normalize, _how(job, student.dim, targets.shape[1])
    checkpoint, dense = student.checkpoint, list(student.checkpoint.dense)
    if bridge == "pca":
        projection = widest_directions(targets, student.dim)
        targets = projection.apply(targets)
        job.note(
            f"the teacher's {projection.weight.shape[1]} dimensions reduced to {student.dim} by PCA, "
            f"which keep {projection.kept:.1%} of their length"
        )
    elif bridge == "dense":
        dense.append(_layer(student, texts, targets))
        job.note(f"a dense layer takes the student from {student.dim} to {targets.shape[1]} dimensions")
    ready = normalize(targets) if unit else targets
    if bridge != "dense" and checkpoint.normalize == unit:
        return checkpoint.folder, ready
    return _start(job, checkpoint, dense, unit), ready


def _how(job: DistillJob, student: int, teacher: int) -> str:
    bridge = job.request.bridge
    if bridge == "pca" and student > teacher:
        raise InputError(
            f"the student has {student} dimensions, the teacher {teacher}: there is nothing to reduce. "
            "Use bridge='dense' (--bridge dense)"
        )
    if bridge != "auto":
        return bridge if bridge == "dense" or student < teacher else "none"
    return "none" if student == teacher else "pca" if student < teacher else "dense"


def _layer(student: Model, texts: Sequence[str], targets: Vectors) -> Dense:
    """The linear layer that maps the student's vectors closest to the teacher's, to start training from."""
    vectors = student.encode(texts[:_BRIDGE_TEXTS], normalize=False, on_long="truncate").astype(np.float64)
    wanted = targets[:_BRIDGE_TEXTS].astype(np.float64)
    mean, target_mean = vectors.mean(axis=0), wanted.mean(axis=0)
    centered = vectors - mean
    squares = centered.T @ centered
    ridge = 1e-3 * np.trace(squares) / len(squares) + 1e-12
    weight = np.linalg.solve(squares + ridge * np.eye(len(squares)), centered.T @ (wanted - target_mean)).T
    bias = target_mean - weight @ mean
    return Dense(weight.astype(np.float32), bias.astype(np.float32), "identity")


def _start(job: DistillJob, checkpoint: Checkpoint, dense: Sequence[Dense], unit: bool) -> Path:
    folder = job.folder / Path(checkpoint.name).name
    if folder.is_dir():  # from an earlier run that is resumed
        return folder
    return write_checkpoint(checkpoint, folder, dense=dense, normalize=unit)


@dataclass(frozen=True, eq=False)
class Projection:
    """x -> weight @ x."""

    weight: Vectors
    """(dim, in) float32, orthonormal rows."""
    kept: float
    """Share of the squared length of the vectors that remains."""

    def apply(self, vectors: Vectors) -> Vectors:
        """(n, in) -> (n, dim)"""
        return np.asarray(vectors @ self.weight.T, dtype=np.float32)


def widest_directions(vectors: Vectors, dim: int) -> Projection:
    """The `dim` directions with most of the vectors' length: a PCA without centering.

    A cosine is measured from the origin, and the mean may be what distinguishes two kinds of text.
    """
    exact = vectors.astype(np.float64)
    spread, columns = np.linalg.eigh(exact.T @ exact)
    directions = columns.T[::-1][:dim]
    signs = np.sign(directions[np.arange(len(directions)), np.abs(directions).argmax(axis=1)])
    total = max(float(spread.sum()), 1e-30)
    return Projection(
        (directions * signs[:, None]).astype(np.float32), float(spread[::-1][:dim].sum() / total)
    )
